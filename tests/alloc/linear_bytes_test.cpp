// Bytes handed out one after another: offsets on any device, pointers on the host.
#include "berth/alloc/linear_bytes.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "berth/berth.h"
#include "support/support.h"

namespace berth {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

TEST(LinearBytes, HandsOutOffsetsAndGoesBackToAMark) {
  LinearBytes bytes(1000);
  EXPECT_EQ(bytes.capacity(), 1000u);
  EXPECT_EQ(bytes.take(10), 0u);
  EXPECT_EQ(bytes.take(1), 64u);
  const auto mark = bytes.mark();
  EXPECT_EQ(bytes.take(100, 256), 256u);
  EXPECT_EQ(bytes.take(100, 1), 356u);
  EXPECT_TRUE(bytes.reset(mark));
  EXPECT_EQ(bytes.take(1, 1), mark);
  EXPECT_TRUE(bytes.reset());
  EXPECT_EQ(bytes.take(1000), 0u);
  EXPECT_EQ(bytes.take(0, 1), 1000u) << "no bytes fit everywhere";
  EXPECT_EQ(bytes.take(1, 1), LinearBytes::kFull);
}

TEST(LinearBytes, ChangesNothingWhenItIsFull) {
  LinearBytes bytes(100);
  ASSERT_EQ(bytes.take(10), 0u);
  for (const std::uint64_t more : {std::uint64_t{91}, kMost, kMost - 9, kMost / 2 + 1})
    EXPECT_EQ(bytes.take(more, 1), LinearBytes::kFull) << more;
  EXPECT_EQ(bytes.take(1, std::uint64_t{1} << 63), LinearBytes::kFull);
  EXPECT_EQ(bytes.mark(), 10u);
  EXPECT_EQ(bytes.take(90, 1), 10u);
}

TEST(LinearBytes, RefusesAMarkThatAResetHasPassed) {
  LinearBytes bytes(100);
  ASSERT_EQ(bytes.take(50), 0u);
  const auto mark = bytes.mark();
  EXPECT_TRUE(bytes.reset());
  EXPECT_FALSE(bytes.reset(mark));
  EXPECT_EQ(bytes.mark(), 0u);
}

TEST(LinearBytes, AlignsPointersAndNotOffsetsOnTheHost) {
  alignas(64) std::array<std::byte, 256> memory{};
  LinearBytes bytes(std::span<std::byte>(memory).subspan(1));
  EXPECT_EQ(bytes.take_host(10), memory.data() + 64);
  EXPECT_EQ(bytes.take(1), 127u) << "address 128";
  EXPECT_EQ(bytes.take_host(127, 1), memory.data() + 129);
  EXPECT_EQ(bytes.take_host(1, 1), nullptr);
}

TEST(LinearBytes, DividesABufferOfAnyDevice) {
  for (const char* name : {"CPU", "WEBGPU"}) {
    const auto opened = device(name);
    if (!opened) continue;  // the suite of the device says so
    const Buffer scratch = Buffer::allocate(*opened, u8, {4096}).value();
    LinearBytes bytes(scratch.size());
    const Buffer first = scratch.view(bytes.take(100), 100).value();
    const Buffer second = scratch.view(bytes.take(100), 100).value();
    ASSERT_TRUE(first.copyin(test::counting_bytes(100)));
    ASSERT_TRUE(second.copyin(std::vector<std::byte>(100, std::byte{7})));
    std::vector<std::byte> seen(100);
    ASSERT_TRUE(first.copyout(seen));
    EXPECT_EQ(seen, test::counting_bytes(100));
    EXPECT_TRUE(test::fails_with(scratch.view(bytes.take(8192), 8192), Code::kInvalidView));
  }
}

RC_GTEST_PROP(LinearBytesProperty, NoTwoLiveRangesOverlap, ()) {
  LinearBytes bytes(4096);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> live;  // begin, end
  for (int i = 0; i < 40; ++i) {
    if (!live.empty() && *rc::gen::inRange(0, 4) == 0) {
      const auto keep = *rc::gen::inRange<std::size_t>(0, live.size());
      live.resize(keep);
      RC_ASSERT(bytes.reset(live.empty() ? 0 : live.back().second));
      continue;
    }
    const auto size = *rc::gen::inRange<std::uint64_t>(0, 700);
    const auto alignment = std::uint64_t{1} << *rc::gen::inRange(0, 10);
    const auto start = bytes.take(size, alignment);
    if (start == LinearBytes::kFull) continue;
    RC_ASSERT(start % alignment == 0u);
    RC_ASSERT(start >= (live.empty() ? 0 : live.back().second));
    RC_ASSERT(start + size <= 4096u);
    live.emplace_back(start, start + size);
  }
}

}  // namespace
}  // namespace berth
