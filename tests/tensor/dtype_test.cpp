#include "berth/tensor/dtype.h"

#include <gtest/gtest.h>

#include "berth/tensor/shape.h"
#include "support/support.h"

namespace berth {
namespace {

using test::fails_with;

TEST(DTypes, HaveNamesThatParseBackWhateverTheCase) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    std::string upper(to_string(dtype));
    for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    EXPECT_EQ(parse_dtype(upper), dtype);
  }
  EXPECT_EQ(parse_dtype("f33"), std::nullopt);
}

TEST(DTypes, AreSizedInBlocks) {
  EXPECT_EQ(byte_size(DType::kQ4_0, 32).value(), 18u);
  EXPECT_EQ(byte_size(DType::kQ8_0, 64).value(), 68u);
  EXPECT_EQ(byte_size(DType::kQ4_K, 256).value(), 144u);
  EXPECT_EQ(byte_size(DType::kF4E2M1, 6).value(), 3u);
  EXPECT_EQ(byte_size(DType::kF6E2M3, 8).value(), 6u);
  EXPECT_EQ(byte_size(DType::kNVFP4, 128).value(), 72u);
  EXPECT_EQ(byte_size(DType::kQ1_0, 256).value(), 36u);
  EXPECT_EQ(byte_size(DType::kQ2_0, 256).value(), 72u);
  EXPECT_TRUE(fails_with(byte_size(DType::kF4E2M1, 5), Code::kInvalidArgument));
  EXPECT_EQ(byte_size(f32, 3).value(), 12u);
  EXPECT_EQ(byte_size(f32, 0).value(), 0u);
  EXPECT_TRUE(fails_with(byte_size(DType::kQ4_0, 31), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(byte_size(f64, ~std::size_t{0}), Code::kInvalidArgument));
}

TEST(DTypes, MatchTheSizeOfTheirHostType) {
  const auto check = []<class T>(T) { EXPECT_EQ(info(*dtype_of<T>).block_bytes, sizeof(T)); };
  check(bool{}), check(std::int8_t{}), check(std::int16_t{}), check(std::int32_t{}), check(std::int64_t{});
  check(std::uint8_t{}), check(std::uint16_t{}), check(std::uint32_t{}), check(std::uint64_t{});
  check(float{}), check(double{}), check(F16{}), check(BF16{}), check(F8E4M3{}), check(F8E5M2{}), check(C64{});
}

TEST(Shapes, CountTheirElements) {
  EXPECT_EQ((Shape{2, 3, 4}.element_count().value()), 24u);
  EXPECT_EQ(Shape{}.element_count().value(), 1u);
  EXPECT_EQ((Shape{5, 0}.element_count().value()), 0u);
  EXPECT_TRUE(fails_with((Shape{~std::size_t{0}, 2}.element_count()), Code::kInvalidArgument));
}

TEST(Shapes, HaveAtMostEightExtents) {
  const std::vector<std::size_t> nine(9, 1);
  EXPECT_TRUE(fails_with(Shape::make(nine), Code::kInvalidArgument));
  EXPECT_EQ(Shape::make(std::span(nine).first(8)).value().rank(), 8u);
}

TEST(Shapes, CompareAndPrint) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_FALSE((Shape{2, 3} == Shape{3, 2}));
  EXPECT_FALSE((Shape{2, 3} == Shape{2}));
  EXPECT_EQ((Shape{32, 50257}.to_string()), "[32, 50257]");
}

}  // namespace
}  // namespace berth
