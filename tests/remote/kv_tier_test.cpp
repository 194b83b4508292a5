// A neighbour's memory as a tier of a key-value cache, and what happens when the neighbour is gone.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "berth/berth.h"
#include "devices/remote/ucx_driver.h"
#include "remote/rank_process.h"

namespace berth {
namespace {

using test::JobFolder;
using test::RankProcess;
using namespace std::chrono_literals;

constexpr std::size_t kPage = 4 * 64;

std::span<std::byte> page_of(const kv::Cache& cache, kv::SequenceId id) {
  std::int32_t row[4] = {};
  EXPECT_TRUE(cache.write_block_table(0, {&id, 1}, 4, row));
  return cache.buffer().as_host_bytes_mut().value().subspan(static_cast<std::size_t>(row[0]) * kPage, kPage);
}

TEST(RemoteKvTier, BringsBlocksBackAndComputesThemAgainWhenTheNeighbourIsGone) {
  if (auto found = internal::ucx::Driver::open(); !found) GTEST_SKIP() << found.error().message();
  JobFolder folder;
  RankProcess neighbour(folder, 1, 2, {.lends = 16 << 20});
  const auto cluster = Cluster::join({.exchange = folder.exchange(0, 2), .give_up_after = 60s}).value();
  ASSERT_EQ(neighbour.joined().substr(0, 2), "ok");

  kv::CacheOptions options;
  options.groups = {{.bytes_per_token = 64}};
  options.block_tokens = 4;
  options.budget = 2 * kPage;
  options.eviction = kv::make_lru_eviction();
  options.tiers = {{.allocator = cluster->device(1).value(), .budget = 16 * kPage, .label = Name("neighbour")}};
  const auto cache = kv::Cache::make(device("CPU").value(), std::move(options)).value();
  const auto prompt = [](kv::Token first) { return std::vector<kv::Token>(5, first); };
  const auto use = [&](kv::Token first) {
    const auto opened = cache->open(prompt(first));
    EXPECT_TRUE(opened) << opened.error().message();
    const auto bytes = page_of(*cache, opened->id);
    if (opened->cached_tokens == 0)
      std::memset(bytes.data(), first, kPage);
    else
      EXPECT_EQ(bytes[77], static_cast<std::byte>(first));
    EXPECT_TRUE(cache->commit(opened->id));
    EXPECT_TRUE(cache->close(opened->id));
    return opened->cached_tokens;
  };
  for (kv::Token first = 1; first < 6; ++first) EXPECT_EQ(use(first), 0u);
  for (kv::Token first = 1; first < 6; ++first) EXPECT_EQ(use(first), 4u) << first;
  EXPECT_GE(cache->counters().tiers[0].loaded, 4u);

  neighbour.kill9();
  const auto until = std::chrono::steady_clock::now() + test::kPatience;
  while (cluster->lost().empty() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(5ms);
  for (kv::Token first = 1; first < 6; ++first) use(first);
  EXPECT_EQ(use(1), 0u) << "a block on its way to a neighbour that is gone is lost";
  EXPECT_GT(cache->counters().tiers[0].failed, 0u);
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

}  // namespace
}  // namespace berth
