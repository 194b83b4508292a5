#include "berth/dtype.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>

namespace berth {
namespace {

TEST(DType, HasADistinctNameForEveryTypeThatParsesBack) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_TRUE(names.insert(std::string(name(dtype))).second) << name(dtype);
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
    EXPECT_GT(info(dtype).block_bytes, 0u) << name(dtype);
  }
  EXPECT_EQ(parse_dtype("F32"), DType::kF32);
  EXPECT_EQ(parse_dtype("f31"), std::nullopt);
}

TEST(DType, CountsBlocksAndPackedElementsInWholeUnits) {
  EXPECT_EQ(byte_size(DType::kQ4_0, 32).value(), 18u);
  EXPECT_EQ(byte_size(DType::kF4E2M1, 6).value(), 3u);
  EXPECT_EQ(byte_size(DType::kF6E2M3, 8).value(), 6u);
  EXPECT_EQ(byte_size(DType::kNVFP4, 128).value(), 72u);
  EXPECT_EQ(byte_size(DType::kQ1_0, 256).value(), 36u);
  EXPECT_EQ(byte_size(DType::kF4E2M1, 5).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(byte_size(DType::kQ4_0, 31).error().code(), Code::kInvalidArgument);
}

TEST(DType, RefusesASizeThatOverflows) {
  EXPECT_EQ(byte_size(DType::kF64, std::numeric_limits<std::size_t>::max() / 4).error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace berth
