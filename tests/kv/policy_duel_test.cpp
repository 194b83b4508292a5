#include "kv/policy_duel.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "support/seed.h"

namespace berth::internal::kv_cache {
namespace {

// Blocks that are only hashes.
class Hashes : public kv::Blocks {
 public:
  explicit Hashes(std::uint32_t count) : storage_(count) {
    for (std::uint32_t i = 0; i < count; ++i) storage_[i].hash = i * 0x9e37'79b1u;
    records_ = storage_;
  }

 private:
  std::vector<kv::BlockRecord> storage_;
};

// Keeps what was used longest ago: the opposite of the plain rule.
float older_is_better(std::uint32_t, std::uint32_t last) {
  return -static_cast<float>(last);
}

void use_in_turn(PolicyDuel& duel, const Hashes& blocks, std::uint32_t count, int rounds) {
  for (int round = 0; round < rounds; ++round)
    for (kv::Node node = 0; node < count; ++node)
      duel.visited(std::span(&node, 1), static_cast<std::uint32_t>(round) * count + node, blocks, older_is_better);
}

void use_last_again(PolicyDuel& duel, const Hashes& blocks, std::uint32_t count, int uses) {
  std::mt19937 random(test::seed());
  std::vector<kv::Node> stack(count);
  std::iota(stack.begin(), stack.end(), 0);
  for (int i = 0; i < uses; ++i) {
    const auto at = stack.end() - 1 - static_cast<std::ptrdiff_t>(std::min(random() % count, random() % count));
    const kv::Node node = *at;
    stack.erase(at);
    stack.push_back(node);
    duel.visited(std::span(&node, 1), 1'000'000 + static_cast<std::uint32_t>(i), blocks, older_is_better);
  }
}

// Sizes below and above that of the sample.
class PolicyDuelOf : public testing::TestWithParam<std::uint32_t> {};

TEST_P(PolicyDuelOf, BeginsWithThePlainRule) {
  PolicyDuel duel;
  duel.reserve(GetParam());
  EXPECT_FALSE(duel.model_leads());
  const Hashes blocks(GetParam());
  use_in_turn(duel, blocks, GetParam() / 2, 4);  // all blocks fit: both are right
  EXPECT_FALSE(duel.model_leads());
}

TEST_P(PolicyDuelOf, FollowsTheModelWhereItIsRightAndLeavesItWhereItIsWrong) {
  const std::uint32_t count = 2 * GetParam();
  const Hashes blocks(count);
  PolicyDuel duel;
  duel.reserve(GetParam());
  use_in_turn(duel, blocks, count, 8);  // the plain rule finds nothing
  EXPECT_TRUE(duel.model_leads());
  use_last_again(duel, blocks, count, 20 * static_cast<int>(count));
  EXPECT_FALSE(duel.model_leads());
}

INSTANTIATE_TEST_SUITE_P(Nodes, PolicyDuelOf, testing::Values(64u, 700u, 5'000u));

TEST(PolicyDuel, HoldsLittleForAMillionBlocks) {
  PolicyDuel duel;
  duel.reserve(1'000'000);
  EXPECT_LT(duel.bookkeeping_bytes(), 200'000u);
  PolicyDuel empty;
  empty.reserve(0);
  const Hashes blocks(3);
  use_in_turn(empty, blocks, 3, 3);
  EXPECT_FALSE(empty.model_leads());
}

TEST(ShadowCache, DropsWhatIsWorthLeastAndOfThatTheOldest) {
  ShadowCache cache;
  cache.reserve(8);
  const auto by_list = [](const ShadowCache::Entry& entry) { return static_cast<float>(entry.list); };
  for (std::uint32_t i = 0; i < 40; ++i)
    EXPECT_FALSE(
        cache.use({.hash = i, .order = i, .list = static_cast<std::uint8_t>(i == 3 || i == 5 ? 1 : 0)}, by_list));
  EXPECT_TRUE(cache.use({.hash = 3, .order = 41, .list = 1}, by_list));
  EXPECT_TRUE(cache.use({.hash = 5, .order = 42, .list = 1}, by_list));
  EXPECT_TRUE(cache.use({.hash = 39, .order = 43}, by_list));
  EXPECT_FALSE(cache.use({.hash = 4, .order = 44}, by_list));
}

}  // namespace
}  // namespace berth::internal::kv_cache
