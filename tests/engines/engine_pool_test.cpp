// The memory of an engine outside of planned runs.
#include "engines/engine_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/sanitizers.h"
#include "berth/memory/registry.h"
#include "support/seed.h"

namespace berth::internal {
namespace {

TEST(EnginePool, ServesSmallAndLargeBlocksWithContentsOfTheirOwn) {
  const AllocatorPtr pool = make_engine_pool(device("CPU").value());
  std::minstd_rand random(test::seed());
  std::vector<Block> live;
  for (int i = 0; i < 2000; ++i) {
    if (live.size() > 50 || (random() % 2 == 0 && !live.empty())) {
      const std::size_t at = random() % live.size();
      const auto mark = static_cast<unsigned char>(live[at].handle >> 6);
      EXPECT_EQ(std::to_integer<unsigned char>(live[at].host[0]), mark);
      EXPECT_EQ(std::to_integer<unsigned char>(live[at].host[live[at].bytes - 1]), mark);
      pool->release(live[at]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      continue;
    }
    const std::size_t bytes = std::size_t{1} << (random() % 22);
    const Block block = pool->allocate({.bytes = bytes, .alignment = 64}).value();
    EXPECT_EQ(block.handle % 64, 0u);
    std::memset(block.host, static_cast<unsigned char>(block.handle >> 6), bytes);
    live.push_back(block);
  }
  for (const Block& block : live) pool->release(block);
}

// Sanitizers keep memory of their own for every byte that is written.
#if !BERTH_THREAD_SANITIZER && !BERTH_ADDRESS_SANITIZER
std::size_t resident() {
  std::size_t pages = 0, in_memory = 0;
  std::ifstream("/proc/self/statm") >> pages >> in_memory;
  return in_memory * 4096;
}

// A run that is recorded takes and releases tensors of many sizes. What it holds is to be near what is live at once.
TEST(EnginePool, HoldsLittleMoreThanWhatIsLive) {
  const AllocatorPtr pool = make_engine_pool(device("CPU").value());
  constexpr std::size_t kLive = std::size_t{32} << 20;
  pool->trim();
  const std::size_t before = resident();
  std::size_t highest = 0, bytes = 0;
  std::minstd_rand random(test::seed());
  std::vector<Block> live;
  for (int i = 0; i < 5000; ++i) {
    const std::size_t wanted = 20'000 + random() % 900'000;
    while (bytes + wanted > kLive) {
      const std::size_t at = random() % live.size();
      bytes -= live[at].bytes;
      pool->release(live[at]);
      live[at] = live.back();
      live.pop_back();
    }
    live.push_back(pool->allocate({.bytes = wanted, .alignment = 64}).value());
    std::memset(live.back().host, 1, wanted);
    bytes += wanted;
    highest = std::max(highest, resident() - std::min(resident(), before));
  }
  EXPECT_LT(highest, kLive * 3 / 2);
  for (const Block& block : live) pool->release(block);
  EXPECT_GT(pool->trim(), 0u);
  EXPECT_LT(resident() - std::min(resident(), before), kLive / 8) << "trim() gives the pages back";
}

#endif

TEST(EnginePool, LeavesToTheDeviceWhatTheRangeCannotHold) {
  const DevicePtr cpu = device("CPU").value();
  const AllocatorPtr pool = make_engine_pool(cpu);
  const Block aligned = pool->allocate({.bytes = 100, .alignment = std::size_t{1} << 16}).value();
  EXPECT_EQ(aligned.handle % (std::size_t{1} << 16), 0u);
  pool->release(aligned);
  EXPECT_TRUE(pool->allocate({.bytes = 0}).has_value());
  EXPECT_FALSE(pool->allocate({.bytes = 100, .alignment = 3}).has_value());
}

}  // namespace
}  // namespace berth::internal
