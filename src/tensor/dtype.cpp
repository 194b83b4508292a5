#include "berth/tensor/dtype.h"

#include <array>
#include <cctype>
#include <limits>

namespace berth {
namespace {

constexpr std::array<DTypeInfo, kDTypeCount> kInfo = {{
    {"bool", 1, 1, 1},        {"i8", 1, 1, 1},         {"i16", 1, 2, 2},        {"i32", 1, 4, 4},
    {"i64", 1, 8, 8},         {"u8", 1, 1, 1},         {"u16", 1, 2, 2},        {"u32", 1, 4, 4},
    {"u64", 1, 8, 8},         {"f16", 1, 2, 2},        {"bf16", 1, 2, 2},       {"f32", 1, 4, 4},
    {"f64", 1, 8, 8},         {"f8_e4m3", 1, 1, 1},    {"f8_e5m2", 1, 1, 1},    {"f8_e4m3fnuz", 1, 1, 1},
    {"f8_e5m2fnuz", 1, 1, 1}, {"f8_e8m0", 1, 1, 1},    {"c64", 1, 8, 4},        {"f6_e2m3", 4, 3, 1},
    {"f6_e3m2", 4, 3, 1},     {"f4_e2m1", 2, 1, 1},    {"q4_0", 32, 18, 2},     {"q4_1", 32, 20, 2},
    {"q5_0", 32, 22, 2},      {"q5_1", 32, 24, 2},     {"q8_0", 32, 34, 2},     {"q8_1", 32, 36, 2},
    {"q2_k", 256, 84, 2},     {"q3_k", 256, 110, 2},   {"q4_k", 256, 144, 2},   {"q5_k", 256, 176, 2},
    {"q6_k", 256, 210, 2},    {"q8_k", 256, 292, 4},   {"iq2_xxs", 256, 66, 2}, {"iq2_xs", 256, 74, 2},
    {"iq2_s", 256, 82, 2},    {"iq3_xxs", 256, 98, 2}, {"iq3_s", 256, 110, 2},  {"iq1_s", 256, 50, 2},
    {"iq1_m", 256, 56, 2},    {"iq4_nl", 32, 18, 2},   {"iq4_xs", 256, 136, 2}, {"tq1_0", 256, 54, 2},
    {"tq2_0", 256, 66, 2},    {"mxfp4", 32, 17, 1},    {"nvfp4", 64, 36, 1},    {"q1_0", 128, 18, 2},
    {"q2_0", 64, 18, 2},
}};
static_assert(!kInfo.back().name.empty(), "every dtype has a row");

bool same_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::tolower(static_cast<unsigned char>(a[i])) != std::tolower(static_cast<unsigned char>(b[i]))) return false;
  return true;
}

}  // namespace

const DTypeInfo& info(DType dtype) noexcept {
  return kInfo[static_cast<std::size_t>(dtype)];
}

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kInfo.size(); ++i)
    if (same_ignoring_case(kInfo[i].name, name)) return static_cast<DType>(i);
  return std::nullopt;
}

Result<std::size_t> byte_size(DType dtype, std::size_t elements) noexcept {
  const DTypeInfo& type = info(dtype);
  if (elements % type.block_elements != 0)
    return Error(Code::kInvalidArgument, Layer::kBuffer, "{} elements are not whole blocks of {}", elements,
                 type.block_elements);
  const std::size_t blocks = elements / type.block_elements;
  if (blocks > std::numeric_limits<std::size_t>::max() / 2 / type.block_bytes)
    return Error(Code::kInvalidArgument, Layer::kBuffer, "{} elements of {} bytes do not fit into memory", elements,
                 type.block_bytes);
  return blocks * type.block_bytes;
}

}  // namespace berth
