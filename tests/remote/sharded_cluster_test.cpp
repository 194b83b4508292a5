// load_sharded() and reshard() over UCX, with the ranks as threads of this process. sharded_load_test.py has processes,
// and what happens when one of them fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "berth/memory/registry.h"
#include "berth/remote/load_sharded.h"
#include "berth/weights/save.h"
#include "devices/remote/ucx_driver.h"
#include "remote/rank_process.h"
#include "support/support.h"

namespace berth {
namespace {

using test::fails_with;

constexpr std::uint32_t kRanks = 2;
const std::vector<ShardRule> kRules{{"a.*", ShardKind::kRow}, {"b.*", ShardKind::kColumn}};

class ShardedCluster : public testing::Test {
 protected:
  void SetUp() override {
    if (auto found = internal::ucx::Driver::open(); !found) GTEST_SKIP() << found.error().message();
    std::vector<NamedBuffer> tensors;
    for (const char* name : {"a.weight", "b.weight", "c.weight"}) {
      Buffer buffer = Buffer::allocate(device("CPU").value(), u8, {64, 600}).value();
      ASSERT_TRUE(buffer.copyin(test::counting_bytes(buffer.size(), tensors.size())));
      tensors.push_back({name, std::move(buffer)});
    }
    const std::string path = (files_.path() / "model.safetensors").string();
    ASSERT_TRUE(save_safetensors(path, tensors));
    file_ = open_weights(path).value();
  }

  // `work` of each rank, on a thread of its own.
  void on_ranks(const std::function<void(Cluster&)>& work) const {
    std::vector<std::jthread> ranks;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank)
      ranks.emplace_back([this, rank, &work] {
        const auto cluster = Cluster::join({.exchange = job_.exchange(rank, kRanks)});
        ASSERT_TRUE(cluster.has_value()) << cluster.error().message();
        work(**cluster);
      });
  }

  void expect_right(const ShardedTensors& loaded, std::uint32_t rank) const {
    ASSERT_EQ(loaded.buffers.size(), 3u);
    for (std::size_t i = 0; i < loaded.buffers.size(); ++i) {
      const Shard shard = loaded.plan.shard(i, rank);
      const Buffer expected =
          file_.load_slice(loaded.plan.tensors()[i].name, shard.slice, device("CPU").value()).value();
      const auto a = expected.as_host_bytes().value(), b = loaded.buffers[i].as_host_bytes().value();
      EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << loaded.plan.tensors()[i].name;
    }
  }

  const test::TemporaryFolder files_;
  const test::JobFolder job_;
  WeightFile file_;
};

TEST_F(ShardedCluster, LoadsAndMovesShards) {
  on_ranks([&](Cluster& cluster) {
    const DevicePtr cpu = device("CPU").value();
    const auto loaded = load_sharded(cluster, file_, kRules, cpu, {.piece_bytes = 4096});
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
    expect_right(*loaded, cluster.rank());
    const ShardPlan whole = make_shard_plan(file_.tensors(), {}, {.ranks = kRanks}).value();
    const auto moved = reshard(cluster, *loaded, whole, cpu);
    ASSERT_TRUE(moved.has_value()) << moved.error().message();
    expect_right(*moved, cluster.rank());
    EXPECT_EQ(cluster.counters().refused_messages, 0u);
  });
}

TEST_F(ShardedCluster, RefusesRanksThatLoadSomethingElse) {
  on_ranks([&](Cluster& cluster) {
    const std::span<const ShardRule> rules = cluster.rank() == 0 ? kRules : std::span(kRules).first(1);
    const auto loaded = load_sharded(cluster, file_, rules, device("CPU").value(), {.piece_bytes = 4096});
    ASSERT_TRUE(fails_with(loaded, Code::kInvalidArgument));
    EXPECT_THAT(loaded.error().message(), ::testing::HasSubstr("loads something else"));
  });
}

}  // namespace
}  // namespace berth
