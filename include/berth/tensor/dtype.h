// Element types. A DType is one byte that names how elements are stored. Most types store one element per unit; the
// sub-byte floats and the block-quantised types of GGUF pack several elements into one block, so sizes are counted in
// blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "berth/base/result.h"

namespace berth {

enum class DType : std::uint8_t {
  kBool,
  kI8,
  kI16,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32,
  kU64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kF8E8M0,  // a power of two: the scale of microscaling formats
  kC64,
  // Elements of less than a byte, packed into whole bytes
  kF6E2M3,
  kF6E3M2,
  kF4E2M1,
  // GGUF block types
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ8_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kQ8_K,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S,
  kIQ1_S,
  kIQ1_M,
  kIQ4_NL,
  kIQ4_XS,
  kTQ1_0,
  kTQ2_0,
  kMXFP4,
  kNVFP4,
  kQ1_0,
  kQ2_0,
};
inline constexpr std::size_t kDTypeCount = static_cast<std::size_t>(DType::kQ2_0) + 1;

inline constexpr DType f16 = DType::kF16, bf16 = DType::kBF16, f32 = DType::kF32, f64 = DType::kF64;
inline constexpr DType i8 = DType::kI8, i16 = DType::kI16, i32 = DType::kI32, i64 = DType::kI64;
inline constexpr DType u8 = DType::kU8, u16 = DType::kU16, u32 = DType::kU32, u64 = DType::kU64;

struct DTypeInfo {
  std::string_view name;         // "f32", "q4_0"
  std::uint32_t block_elements;  // elements per block; 1 for plain types
  std::uint32_t block_bytes;     // bytes per block; per element for plain types
  std::uint32_t alignment;       // of a typed host pointer
};

const DTypeInfo& info(DType dtype) noexcept;
inline std::string_view to_string(DType dtype) noexcept {
  return info(dtype).name;
}

// The dtype with this name, ignoring case.
std::optional<DType> parse_dtype(std::string_view name) noexcept;

// The size of `elements` elements in bytes. kInvalidArgument if they are not whole blocks or the size overflows.
Result<std::size_t> byte_size(DType dtype, std::size_t elements) noexcept;

// Storage types for formats without an arithmetic type in C++20. They hold only the bits; convert them to compute.
struct F16 {
  std::uint16_t bits;
};
struct BF16 {
  std::uint16_t bits;
};
struct F8E4M3 {
  std::uint8_t bits;
};
struct F8E5M2 {
  std::uint8_t bits;
};
struct F8E4M3FNUZ {
  std::uint8_t bits;
};
struct F8E5M2FNUZ {
  std::uint8_t bits;
};
struct F8E8M0 {
  std::uint8_t bits;
};
struct C64 {
  float real, imaginary;
};

// dtype_of<T>: the dtype that host type T stores.
template <class T>
inline constexpr std::optional<DType> dtype_of = std::nullopt;
template <>
inline constexpr std::optional<DType> dtype_of<bool> = DType::kBool;
template <>
inline constexpr std::optional<DType> dtype_of<std::int8_t> = DType::kI8;
template <>
inline constexpr std::optional<DType> dtype_of<std::int16_t> = DType::kI16;
template <>
inline constexpr std::optional<DType> dtype_of<std::int32_t> = DType::kI32;
template <>
inline constexpr std::optional<DType> dtype_of<std::int64_t> = DType::kI64;
template <>
inline constexpr std::optional<DType> dtype_of<std::uint8_t> = DType::kU8;
template <>
inline constexpr std::optional<DType> dtype_of<std::uint16_t> = DType::kU16;
template <>
inline constexpr std::optional<DType> dtype_of<std::uint32_t> = DType::kU32;
template <>
inline constexpr std::optional<DType> dtype_of<std::uint64_t> = DType::kU64;
template <>
inline constexpr std::optional<DType> dtype_of<float> = DType::kF32;
template <>
inline constexpr std::optional<DType> dtype_of<double> = DType::kF64;
template <>
inline constexpr std::optional<DType> dtype_of<F16> = DType::kF16;
template <>
inline constexpr std::optional<DType> dtype_of<BF16> = DType::kBF16;
template <>
inline constexpr std::optional<DType> dtype_of<F8E4M3> = DType::kF8E4M3;
template <>
inline constexpr std::optional<DType> dtype_of<F8E5M2> = DType::kF8E5M2;
template <>
inline constexpr std::optional<DType> dtype_of<F8E4M3FNUZ> = DType::kF8E4M3FNUZ;
template <>
inline constexpr std::optional<DType> dtype_of<F8E5M2FNUZ> = DType::kF8E5M2FNUZ;
template <>
inline constexpr std::optional<DType> dtype_of<F8E8M0> = DType::kF8E8M0;
template <>
inline constexpr std::optional<DType> dtype_of<C64> = DType::kC64;

// A host type that corresponds to some dtype.
template <class T>
concept Element = dtype_of<T>
.has_value();

}  // namespace berth
