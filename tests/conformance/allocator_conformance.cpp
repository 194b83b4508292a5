#include "conformance/allocator_conformance.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "support/seed.h"

namespace berth::conformance {
namespace {

// The stack under test and the device's figures before it was used.
struct Stack {
  AllocatorPtr allocator;
  DevicePtr device;
  std::size_t live_before = 0;
};

#define MAKE_STACK(name)                                                      \
  auto name##_made = GetParam()->make();                                      \
  if (!name##_made && name##_made.error().code() == Code::kDeviceUnavailable) \
    GTEST_SKIP() << name##_made.error().message();                            \
  ASSERT_TRUE(name##_made.has_value()) << name##_made.error().message();      \
  Stack name{*name##_made, (*name##_made)->device().shared_from_this(), 0};   \
  ASSERT_TRUE(name.device->synchronize().has_value());                        \
  name.live_before = name.device->counters().live_bytes

bool may_write(const Block& block) {
  return block.has(BlockFlags::kHostTransfer) && !block.has(BlockFlags::kReadOnly);
}

}  // namespace

TEST_P(AllocatorConformance, GivesWhatWasAskedAtTheAlignmentAsked) {
  MAKE_STACK(stack);
  for (const std::size_t bytes : {1u, 64u, 65u, 4096u, 5000u, 300'000u})
    for (const std::size_t alignment : {1u, 64u, 512u, 4096u}) {
      const auto block = stack.allocator->allocate({.bytes = bytes, .alignment = alignment});
      ASSERT_TRUE(block.has_value()) << block.error().message();
      EXPECT_GE(block->bytes, bytes);
      if (block->host != nullptr) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block->host) % alignment, 0u);
      }
      if (may_write(*block)) std::memset(block->host, 0x5a, bytes);
      stack.allocator->release(*block);
    }
}

TEST_P(AllocatorConformance, GivesZeroBytesAndTakesThemBack) {
  MAKE_STACK(stack);
  const auto calls = stack.device->counters().allocations;
  for (int i = 0; i < 3; ++i) {
    const auto block = stack.allocator->allocate({.bytes = 0});
    ASSERT_TRUE(block.has_value());
    EXPECT_EQ(block->bytes, 0u);
    stack.allocator->release(*block);
  }
  EXPECT_EQ(stack.device->counters().allocations, calls);
}

TEST_P(AllocatorConformance, RefusesAnAlignmentThatIsNoPowerOfTwo) {
  MAKE_STACK(stack);
  for (int round = 0; round < 2; ++round) {
    for (const std::size_t alignment : {0u, 3u, 48u, 65u}) {
      const auto block = stack.allocator->allocate({.bytes = 64, .alignment = alignment});
      ASSERT_FALSE(block.has_value()) << alignment;
      EXPECT_EQ(block.error().code(), Code::kInvalidArgument);
    }
    // Once more with a cached block of the right size at hand.
    const auto block = stack.allocator->allocate({.bytes = 64});
    ASSERT_TRUE(block.has_value());
    stack.allocator->release(*block);
  }
}

TEST_P(AllocatorConformance, NeverGivesTheSameBytesToTwo) {
  MAKE_STACK(stack);
  std::vector<Block> blocks;
  std::mt19937 random(test::seed());
  for (int i = 0; i < 300; ++i) {
    const auto block = stack.allocator->allocate({.bytes = 1 + random() % 20'000});
    ASSERT_TRUE(block.has_value()) << block.error().message();
    blocks.push_back(*block);
    if (random() % 3 == 0) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      stack.allocator->release(blocks.back());
      blocks.pop_back();
    }
  }
  std::vector<std::pair<const std::byte*, const std::byte*>> ranges;
  std::set<std::uint64_t> handles;
  for (const Block& block : blocks) {
    EXPECT_TRUE(handles.insert(block.handle).second || !GetParam()->writable) << "one handle was given out twice";
    if (block.host != nullptr && GetParam()->writable) ranges.emplace_back(block.host, block.host + block.bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].second, ranges[i].first);
  for (const Block& block : blocks) stack.allocator->release(block);
}

TEST_P(AllocatorConformance, ZeroesWhenAskedEvenWhatIsUsedAgain) {
  MAKE_STACK(stack);
  if (!GetParam()->writable || !GetParam()->has_memory) return;
  for (int round = 0; round < 3; ++round) {
    const auto buffer = Buffer::allocate(stack.allocator, u8, {5000}, {.zero = true});
    ASSERT_TRUE(buffer.has_value()) << buffer.error().message();
    std::vector<std::byte> seen(5000, std::byte{1});
    ASSERT_TRUE(buffer->copyout(seen).has_value());
    EXPECT_EQ(seen, std::vector<std::byte>(5000));
    ASSERT_TRUE(buffer->copyin(std::vector<std::byte>(5000, std::byte{0x77})).has_value());
  }
}

TEST_P(AllocatorConformance, GivesEverythingBackWhenItGoes) {
  MAKE_STACK(stack);
  for (const std::size_t bytes : {100u, 100u, 5000u, 300'000u}) {
    const auto block = stack.allocator->allocate({.bytes = bytes, .label = "conformance"});
    ASSERT_TRUE(block.has_value());
    stack.allocator->release(*block);
  }
  *stack_made = nullptr;
  stack.allocator.reset();
  EXPECT_EQ(stack.device->counters().live_bytes, stack.live_before);
}

TEST_P(AllocatorConformance, TrimsToNothingWhenNothingIsLive) {
  MAKE_STACK(stack);
  const auto block = stack.allocator->allocate({.bytes = 70'000});
  ASSERT_TRUE(block.has_value());
  stack.allocator->release(*block);
  stack.allocator->trim(0);
  EXPECT_EQ(stack.device->counters().live_bytes, stack.live_before);
}

TEST_P(AllocatorConformance, ReportsARequestThatNoMemoryCanHold) {
  MAKE_STACK(stack);
  if (!GetParam()->has_memory) return;
  const auto block = stack.allocator->allocate({.bytes = std::size_t{1} << 61, .label = "far too much"});
  ASSERT_FALSE(block.has_value());
  EXPECT_TRUE(block.error().code() == Code::kOutOfMemory || block.error().code() == Code::kInvalidArgument);
  EXPECT_EQ(stack.device->counters().live_bytes, stack.live_before);
  const auto small = stack.allocator->allocate({.bytes = 100});
  ASSERT_TRUE(small.has_value()) << "a refusal must not hurt what comes after it";
  stack.allocator->release(*small);
}

TEST_P(AllocatorConformance, NamesItsDeviceAndItself) {
  MAKE_STACK(stack);
  EXPECT_EQ(&stack.allocator->device(), stack.device.get());
  EXPECT_FALSE(stack.allocator->name().empty());
  OutOfMemory report;
  stack.allocator->explain(report);
  EXPECT_FALSE(report.device.empty());
}

TEST_P(AllocatorConformance, ServesThreadsThatAllocateAndReleaseForEachOther) {
  MAKE_STACK(stack);
  constexpr int kThreads = 4, kRounds = 400;
  std::atomic<std::uint64_t> box[64] = {};
  std::vector<Block> kept(64);
  std::mutex mutexes[64];
  std::vector<bool> full(64, false);
  std::atomic<int> failed{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        std::minstd_rand random(static_cast<unsigned>(t + 1));
        for (int i = 0; i < kRounds; ++i) {
          auto block = stack.allocator->allocate({.bytes = 1 + random() % 9000});
          if (!block) {
            failed.fetch_add(1);
            continue;
          }
          if (may_write(*block)) std::memset(block->host, t, std::min<std::size_t>(block->bytes, 64));
          // Leave it in a box, and take away what another thread left there.
          const std::size_t at = random() % 64;
          Block other;
          bool take = false;
          {
            const std::lock_guard lock(mutexes[at]);
            if (box[at].load() == 1) {
              other = kept[at];
              take = true;
            }
            kept[at] = *block;
            box[at].store(1);
          }
          if (take) stack.allocator->release(other);
        }
      });
  }
  EXPECT_EQ(failed.load(), 0);
  for (std::size_t at = 0; at < 64; ++at)
    if (box[at].load() == 1) stack.allocator->release(kept[at]);
  stack.allocator->trim(0);
  EXPECT_EQ(stack.device->counters().live_bytes, stack.live_before);
}

}  // namespace berth::conformance
