// Shapes and n-dimensional host views. A Shape is a value of up to eight extents, stored inline so that a handle never
// allocates for it. An ArrayView<T> is a pointer with extents and strides: it owns nothing and must not outlive the
// buffer it came from.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#if __has_include(<mdspan>) && __cplusplus >= 202302L
#include <mdspan>
#endif

#include "berth/base/result.h"

namespace berth {

inline constexpr std::size_t kMaxRank = 8;

class Shape {
 public:
  constexpr Shape() = default;
  // With more than kMaxRank extents, the shape keeps the first kMaxRank and has no element count, so that every
  // function that takes it fails with kInvalidArgument. make() reports that at once.
  constexpr Shape(std::initializer_list<std::size_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  constexpr explicit Shape(std::span<const std::size_t> extents)
      : rank_(static_cast<std::uint8_t>(extents.size() < kMaxRank ? extents.size() : kMaxRank)),
        too_long_(extents.size() > kMaxRank) {
    for (std::size_t i = 0; i < rank_; ++i) extents_[i] = extents[i];
  }

  // kInvalidArgument for more than kMaxRank extents.
  static Result<Shape> make(std::span<const std::size_t> extents);

  constexpr std::size_t rank() const noexcept { return rank_; }
  // Requires: axis < kMaxRank.
  constexpr std::size_t operator[](std::size_t axis) const noexcept { return extents_[axis]; }
  constexpr std::span<const std::size_t> extents() const noexcept { return {extents_.data(), rank_}; }

  // Product of the extents; 1 for rank 0. kInvalidArgument on overflow, or for more than kMaxRank extents.
  Result<std::size_t> element_count() const;

  std::string to_string() const;  // "[32, 50257]"

  friend constexpr bool operator==(const Shape& a, const Shape& b) noexcept {
    if (a.rank_ != b.rank_ || a.too_long_ != b.too_long_) return false;
    for (std::size_t i = 0; i < a.rank_; ++i)
      if (a.extents_[i] != b.extents_[i]) return false;
    return true;
  }

 private:
  std::array<std::size_t, kMaxRank> extents_{};
  std::uint8_t rank_ = 0;
  bool too_long_ = false;  // more extents were given than are kept
};

inline std::string to_string(const Shape& shape) {
  return shape.to_string();
}

template <class T>
class ArrayView {
 public:
  // A dense row-major view.
  ArrayView(T* data, const Shape& shape) : data_(data), shape_(shape) {
    std::size_t stride = 1;  // unsigned: the strides of a shape without elements may wrap
    for (std::size_t axis = shape.rank(); axis-- > 0;) {
      strides_[axis] = static_cast<std::ptrdiff_t>(stride);
      stride *= shape[axis];
    }
  }
  // Strides are in elements. Requires: one per axis.
  ArrayView(T* data, const Shape& shape, std::span<const std::ptrdiff_t> strides) : data_(data), shape_(shape) {
    assert(strides.size() == shape.rank());
    for (std::size_t axis = 0; axis < shape.rank() && axis < strides.size(); ++axis) strides_[axis] = strides[axis];
  }

  T* data() const noexcept { return data_; }
  const Shape& shape() const noexcept { return shape_; }
  std::size_t rank() const noexcept { return shape_.rank(); }
  std::ptrdiff_t stride(std::size_t axis) const noexcept { return strides_[axis]; }

  // Requires: one index per axis, each less than its extent.
  template <class... Index>
  T& operator()(Index... index) const noexcept {
    assert(sizeof...(Index) == rank());
    const std::size_t at[] = {static_cast<std::size_t>(index)..., 0};
    T* element = data_;
    for (std::size_t axis = 0; axis < sizeof...(Index); ++axis) {
      assert(at[axis] < shape_[axis]);
      element += strides_[axis] * static_cast<std::ptrdiff_t>(at[axis]);
    }
    return *element;
  }

  // The same elements with two axes swapped. Requires: both less than rank().
  ArrayView transposed(std::size_t a, std::size_t b) const {
    assert(a < rank() && b < rank());
    std::array<std::size_t, kMaxRank> extents{};
    std::array<std::ptrdiff_t, kMaxRank> strides = strides_;
    for (std::size_t axis = 0; axis < rank(); ++axis) extents[axis] = shape_[axis];
    std::swap(extents[a], extents[b]);
    std::swap(strides[a], strides[b]);
    return ArrayView(data_, Shape(std::span<const std::size_t>(extents.data(), rank())),
                     std::span<const std::ptrdiff_t>(strides.data(), rank()));
  }

#if defined(__cpp_lib_mdspan)
  // Requires: Rank == rank().
  template <std::size_t Rank>
  auto mdspan() const {
    assert(Rank == rank());
    std::array<std::size_t, Rank> extents{}, strides{};
    for (std::size_t axis = 0; axis < Rank; ++axis) {
      extents[axis] = shape_[axis];
      strides[axis] = static_cast<std::size_t>(strides_[axis]);
    }
    using Extents = std::dextents<std::size_t, Rank>;
    return std::mdspan<T, Extents, std::layout_stride>(data_, std::layout_stride::mapping(Extents(extents), strides));
  }
#endif

 private:
  T* data_;
  Shape shape_;
  std::array<std::ptrdiff_t, kMaxRank> strides_{};
};

}  // namespace berth
