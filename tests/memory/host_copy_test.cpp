#include "memory/host_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "base/thread_handoff.h"

namespace berth {

using namespace internal;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = static_cast<std::byte>(i * 7 + i / 251);
  return result;
}

// One size for each way a copy can go, and the sizes beside them.
const std::size_t kSizes[] = {0, 1, 63, kParallelCopyBytes - 1, kParallelCopyBytes, 32 * kMiB - 1, 32 * kMiB + 77};

TEST(HostCopy, MovesEveryByteAndNoOtherAtAnyOffset) {
  const std::vector<std::byte> source = pattern(33 * kMiB);
  std::vector<std::byte> target(34 * kMiB);
  for (const std::size_t bytes : kSizes)
    for (const std::size_t offset : {64u, 65u, 127u}) {
      std::fill(target.begin(), target.end(), std::byte{0xee});
      copy_host(target.data() + offset, source.data() + 3, bytes);
      EXPECT_EQ(std::memcmp(target.data() + offset, source.data() + 3, bytes), 0) << bytes << " bytes to " << offset;
      EXPECT_EQ(target[offset - 1], std::byte{0xee}) << bytes << " bytes to " << offset;
      EXPECT_EQ(target[offset + bytes], std::byte{0xee}) << bytes << " bytes to " << offset;
    }
}

TEST(HostCopy, MovesOverlappingBytesAsMemmove) {
  const std::vector<std::byte> source = pattern(40 * kMiB);
  for (const bool forward : {true, false}) {
    std::vector<std::byte> memory = source;
    const std::size_t from = forward ? 0 : 1000, to = forward ? 1000 : 0;
    copy_host(memory.data() + to, memory.data() + from, 36 * kMiB);
    EXPECT_EQ(std::memcmp(memory.data() + to, source.data() + from, 36 * kMiB), 0);
  }
}

TEST(HostCopy, FillsEveryByteAndNoOther) {
  std::vector<std::byte> target(34 * kMiB), expected(target.size());
  for (const std::size_t bytes : kSizes) {
    std::memset(target.data(), 0xee, target.size());
    fill_host(target.data() + 65, 0x5a, bytes);
    std::memset(expected.data(), 0xee, expected.size());
    std::memset(expected.data() + 65, 0x5a, bytes);
    EXPECT_EQ(std::memcmp(target.data(), expected.data(), target.size()), 0) << bytes;
  }
}

TEST(HostCopy, GoesOnPastAPieceThatFailsAndReportsTheFirst) {
  std::vector<std::byte> seen(40 * kMiB);
  const auto result = for_each_piece(seen.size(), [&](std::size_t offset, std::size_t bytes) -> Result<void> {
    std::memset(seen.data() + offset, 1, bytes);
    if (offset > 0) return Error(Code::kIo, Layer::kDevice, "the piece at {}", offset);
    return {};
  });
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), Code::kIo);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), std::byte{1}), static_cast<std::ptrdiff_t>(seen.size()));
}

#if BERTH_THREAD_SANITIZER

// Work that changes bytes of `memory` after a copy used them, with nothing that orders the two. Ends the program, with
// the sanitizer's code if it noticed.
[[noreturn]] void race(std::size_t bytes, bool with_source) {
  std::vector<std::byte> source(bytes), target(bytes);
  std::atomic<bool> copied{false};
  std::thread copying([&] {
    copy_host(target.data(), source.data(), bytes);
    copied.store(true, std::memory_order_relaxed);
  });
  std::thread changing([&] {
    while (!copied.load(std::memory_order_relaxed)) std::this_thread::yield();
    (with_source ? source : target)[bytes / 2 + 5] = std::byte{1};
  });
  copying.join();
  changing.join();
  std::exit(0);
}

TEST(HostCopyDeathTest, ShowsARaceToTheThreadSanitizerInCopiesOfEverySize) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const std::size_t bytes : {kMiB, 8 * kMiB, 64 * kMiB})
    for (const bool with_source : {false, true})
      EXPECT_EXIT(race(bytes, with_source), testing::ExitedWithCode(66), "data race") << bytes << with_source;
}

TEST(HostCopy, IsNoRaceForWhoWaitsForIt) {
  // Many at once, so that oneTBB splits and steals: the sanitizer must see every handing over.
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([] {
      std::vector<std::byte> source(48 * kMiB), target(48 * kMiB);
      for (int i = 0; i < 5; ++i) {
        source[static_cast<std::size_t>(i) * 9 * kMiB] = std::byte{1};
        copy_host(target.data(), source.data(), source.size());
        EXPECT_EQ(target[static_cast<std::size_t>(i) * 9 * kMiB], std::byte{1});
      }
    });
  for (std::thread& thread : threads) thread.join();
}

#endif

}  // namespace
}  // namespace berth
