#include "berth/tensor/shape.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "berth/memory/registry.h"
#include "berth/tensor/buffer.h"
#include "support/support.h"

namespace berth {
namespace {

using test::fails_with;

constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max() / 2;

TEST(Shape, KeepsEightExtents) {
  const Shape shape{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(shape.rank(), 8u);
  EXPECT_EQ(shape.element_count().value(), 40'320u);
  EXPECT_EQ(shape.to_string(), "[1, 2, 3, 4, 5, 6, 7, 8]");
}

TEST(Shape, OfNineExtentsWritesNothingPastItsEnd) {
  struct Guarded {
    Shape shape;
    std::size_t after = 0x5a5a5a5a;
  };
  const Guarded guarded{.shape = Shape{1, 2, 3, 4, 5, 6, 7, 8, 0xbad}};
  EXPECT_EQ(guarded.after, 0x5a5a5a5au);
  EXPECT_LE(guarded.shape.rank(), kMaxRank);
  EXPECT_EQ(guarded.shape[7], 8u);
}

TEST(Shape, OfNineExtentsIsRefusedWhereverItIsUsed) {
  const Shape nine{1, 1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_TRUE(fails_with(nine.element_count(), Code::kInvalidArgument));
  EXPECT_NE(nine, (Shape{1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(nine.to_string(), "[1, 1, 1, 1, 1, 1, 1, 1, ...]");
  const DevicePtr cpu = device("CPU").value();
  EXPECT_TRUE(fails_with(Buffer::lazy(cpu, f32, nine), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(Buffer::allocate(cpu, f32, {1, 1, 1, 1, 1, 1, 1, 1, 1}), Code::kInvalidArgument));
  const Buffer one = Buffer::allocate(cpu, f32, {1}).value();
  EXPECT_TRUE(fails_with(one.view(0, f32, nine), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(one.with_shape(nine), Code::kInvalidArgument));
  const std::vector<std::size_t> extents(9, 1);
  EXPECT_TRUE(fails_with(Shape::make(extents), Code::kInvalidArgument));
  EXPECT_TRUE(Shape::make(std::span(extents).first(8)));
}

TEST(Shape, WithoutElementsMayHaveHugeExtents) {
  const Shape shape{0, kHuge, kHuge};
  EXPECT_EQ(shape.element_count().value(), 0u);
  const Buffer buffer = Buffer::allocate(device("CPU").value(), f32, shape).value();
  EXPECT_EQ(buffer.as_array<float>().value().stride(2), 1);
  EXPECT_EQ(buffer.as_array<float>().value().stride(1), static_cast<std::ptrdiff_t>(kHuge));
}

}  // namespace
}  // namespace berth
