// What the policies remember and in which order they keep idle blocks.
#include "berth/kv/eviction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "berth/kv/cache.h"
#include "berth/memory/registry.h"
#include "support/seed.h"

namespace berth::kv {
namespace {

std::unique_ptr<Cache> cache_of(std::size_t pages, EvictionPolicyPtr eviction) {
  CacheOptions options;
  options.groups = {{.name = Name("full"), .kind = GroupKind::kFull, .bytes_per_token = 64}};
  options.block_tokens = 1;
  options.budget = pages * 64;
  options.eviction = std::move(eviction);
  return Cache::make(device("CPU").value(), std::move(options)).value();
}

void use(Cache& cache, const std::vector<Token>& tokens, std::uint64_t now) {
  const auto opened = cache.open(tokens, {.compute_last = false, .now = now});
  ASSERT_TRUE(opened.has_value()) << opened.error().message();
  ASSERT_TRUE(cache.commit(opened->id));
  ASSERT_TRUE(cache.close(opened->id, now));
}

// Counts idle blocks that were used before the one which is older in their list.
class OrderWitness final : public EvictionAdaptor {
 public:
  OrderWitness(EvictionPolicyPtr inner, int& evictions, int& disorders)
      : EvictionAdaptor(std::move(inner)), evictions_(evictions), disorders_(disorders) {}
  Node victim(Blocks& blocks) noexcept override {
    ++evictions_;
    for (std::uint32_t list = 0; list < lists(); ++list)
      for (Node node = blocks.oldest(list); node != kNoNode; node = blocks.newer(node))
        if (const Node newer = blocks.newer(node); newer != kNoNode)
          disorders_ += blocks.notes(newer).last < blocks.notes(node).last ? 1 : 0;
    return EvictionAdaptor::victim(blocks);
  }

 private:
  int& evictions_;
  int& disorders_;
};

TEST(KvEviction, KeepsIdleBlocksInTheOrderOfTheirLastUse) {
  std::mt19937_64 random(test::seed());
  int evictions = 0, disorders = 0;
  const auto cache = cache_of(60, std::make_unique<OrderWitness>(make_return_eviction(), evictions, disorders));
  std::vector<std::vector<Token>> sequences;
  Token next = 0;
  for (std::uint64_t now = 1'000; now < 600'000; now += 1 + random() % 2'000) {
    // A new conversation, or one that goes on; at times only its beginning.
    if (sequences.size() < 3 || random() % 3 == 0)
      sequences.push_back({static_cast<Token>(-1 - static_cast<Token>(random() % 2))});
    std::vector<Token>& tokens =
        sequences[sequences.size() - 1 - random() % std::min<std::size_t>(sequences.size(), 20)];
    if (random() % 4 == 0) tokens.resize(1 + random() % tokens.size());
    for (std::uint64_t more = random() % 5; more > 0 && tokens.size() < 20; --more) tokens.push_back(next++);
    use(*cache, tokens, now);
  }
  EXPECT_GT(evictions, 100);
  EXPECT_EQ(disorders, 0);
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

// Notes how often the first block of the last sequence was used, as the policy counts it.
class UseWitness final : public EvictionAdaptor {
 public:
  UseWitness(EvictionPolicyPtr inner, int& uses) : EvictionAdaptor(std::move(inner)), uses_(uses) {}
  void visited(const Visit& visit, Blocks& blocks) noexcept override {
    EvictionAdaptor::visited(visit, blocks);
    uses_ = blocks.notes(visit.path[0]).visits;
  }

 private:
  int& uses_;
};

TEST(KvEviction, RemembersHowOftenASharedPromptWasUsedAfterItWasEvicted) {
  int uses = 0;
  const auto cache = cache_of(60, std::make_unique<UseWitness>(make_return_eviction(), uses));
  std::uint64_t now = 0;
  Token question = 1'000;
  const auto ask = [&] {
    std::vector<Token> tokens(4);  // the prompt that is shared; the question is not
    std::iota(tokens.begin(), tokens.end(), 1);
    for (int i = 0; i < 6; ++i) tokens.push_back(question++);
    use(*cache, tokens, now += 1'000);
  };
  for (int i = 1; i <= 3; ++i) {
    ask();
    EXPECT_EQ(uses, i);
  }
  cache->drop_cached();
  EXPECT_EQ(cache->counters().groups[0].pages_cached, 0u);
  ask();
  EXPECT_EQ(uses, 4);
  use(*cache, {7, 8, 9}, now += 1'000);
  EXPECT_EQ(uses, 1) << "a prompt that was never seen";
}

TEST(KvEviction, RemembersTheBeginningThatTwoSequencesShareAfterItWasEvicted) {
  int uses = 0;
  const auto cache = cache_of(60, std::make_unique<UseWitness>(make_return_eviction(), uses));
  std::vector<Token> tokens(20);
  std::iota(tokens.begin(), tokens.end(), 1);
  use(*cache, tokens, 1'000);
  EXPECT_EQ(uses, 1);
  cache->drop_cached();
  // A quarter of it, then something else: it is not continued, but its beginning was used twice.
  std::iota(tokens.begin() + 5, tokens.end(), 1'000);
  use(*cache, tokens, 3'000);
  EXPECT_EQ(uses, 2);
}

// Prompts of which the last one is the most likely to come again: no rule is better than the least recently used.
TEST(KvEviction, DoesAsTheLeastRecentlyUsedWhereNothingIsBetter) {
  const auto hits = [](EvictionPolicyPtr policy) {
    const auto cache = cache_of(400, std::move(policy));
    std::mt19937_64 random(4);  // one draw: how near the two are is a matter of chance
    std::vector<std::vector<Token>> stack;
    Token next = 0;
    for (std::uint64_t i = 0; i < 4'000; ++i) {
      const double depth = std::pow(std::uniform_real_distribution<double>(0, 1)(random), 4) * 300;
      std::vector<Token> tokens;
      if (random() % 5 == 0 || depth >= static_cast<double>(stack.size())) {
        tokens.resize(6 + random() % 8);
        std::iota(tokens.begin(), tokens.end(), next);
        next += static_cast<Token>(tokens.size());
      } else {
        const auto at = stack.end() - 1 - static_cast<std::ptrdiff_t>(depth);
        tokens = std::move(*at);
        stack.erase(at);
      }
      use(*cache, tokens, 1'000 + 400 * i);
      stack.push_back(std::move(tokens));
    }
    return static_cast<double>(cache->counters().cached_tokens);
  };
  const double lru = hits(make_lru_eviction());
  EXPECT_GT(lru, 0);
  EXPECT_GE(hits(make_return_eviction()), 0.99 * lru);
}

}  // namespace
}  // namespace berth::kv
