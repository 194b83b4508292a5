// A Model in the small numbers that the search likes.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/placement/model.h"
#include "plan/placement/search.h"

namespace berth::internal::planner {

// How bytes become units. Heights are rounded up to the alignment that all items share, and divided by their greatest
// common divisor.
struct Scale {
  std::uint64_t unit = 1;      // bytes a unit
  std::uint64_t rounding = 1;  // heights were rounded up to this

  std::uint64_t up(std::uint64_t bytes) const noexcept { return (bytes + unit - 1) / unit; }
};
Scale scale_of(const Model& model);

// Items in order of their first section; fixed ones become what the others may not overlap, and are left out. Requires
// that all heights and offsets fit Unit.
template <class Unit>
struct ScaledModel {
  SearchInput<Unit> input;
  std::vector<std::uint32_t> free;  // the model's item behind each of the input's
};

// None if fixed items forbid so much that the lists would not be O(n).
template <class Unit>
std::optional<ScaledModel<Unit>> scale_model(const Model& model, const Scale& scale);

extern template std::optional<ScaledModel<std::int32_t>> scale_model(const Model&, const Scale&);
extern template std::optional<ScaledModel<std::int64_t>> scale_model(const Model&, const Scale&);

}  // namespace berth::internal::planner
