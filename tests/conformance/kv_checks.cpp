// What a key-value cache must do on every device: the pages that it copies and moves have the right bytes.
#include "berth/kv/cache.h"
#include "berth/memory/registry.h"
#include "conformance/device_conformance.h"

namespace berth::conformance {
namespace {

using Bytes = std::vector<std::byte>;

Result<std::unique_ptr<kv::Cache>> make_cache(Bed& bed, std::vector<kv::Group> groups, std::size_t budget) {
  kv::CacheOptions options;
  options.groups = std::move(groups);
  options.block_tokens = 4;
  options.budget = budget;
  options.eviction = kv::make_lru_eviction();
  return kv::Cache::make(bed.device(), std::move(options));
}

Result<Buffer> page(const kv::Cache& cache, kv::SequenceId id, std::uint32_t group, std::size_t block) {
  std::vector<std::int32_t> row(8);
  if (auto written = cache.write_block_table(group, {&id, 1}, row.size(), row); !written) return written.error();
  return cache.buffer().view(static_cast<std::size_t>(row[block]) * cache.page_bytes(group), cache.page_bytes(group));
}

void copies_a_shared_page_on_write(Bed& bed) {
  BED_TRY_ASSIGN(const auto cache, bed, make_cache(bed, {{.bytes_per_token = 64}}, 256 * 16));
  const std::vector<kv::Token> tokens{1, 2, 3, 4, 5, 6};
  BED_TRY_ASSIGN(const kv::Opened opened, bed, cache->open(tokens));
  BED_TRY_ASSIGN(const Buffer shared, bed, page(*cache, opened.id, 0, 1));
  BED_TRY(bed, shared.copyin(pattern_bytes(256, 77)));
  BED_TRY_ASSIGN(const kv::SequenceId fork, bed, cache->fork(opened.id));
  std::int64_t slot = -1;
  const kv::Token token = 7;
  BED_TRY(bed, cache->append({&fork, 1}, {&token, 1}, {&slot, 1}));
  BED_TRY(bed, cache->queue().finish());
  BED_TRY_ASSIGN(const Buffer copy, bed, page(*cache, fork, 0, 1));
  EXPECT_NE(copy.byte_offset(), shared.byte_offset());
  EXPECT_EQ(static_cast<std::size_t>(slot), copy.byte_offset() / 256 * 4 + 2);
  BED_TRY_ASSIGN(const Bytes bytes, bed, contents(copy));
  EXPECT_EQ(bytes, pattern_bytes(256, 77));
  BED_TRY(bed, cache->check());
}

void moves_pages_to_make_room(Bed& bed) {
  // Three pages or one state in a large page, and four large pages.
  BED_TRY_ASSIGN(
      const auto cache, bed,
      make_cache(bed, {{.bytes_per_token = 64}, {.kind = kv::GroupKind::kState, .state_bytes = 768}}, 768 * 4));
  const std::vector<kv::Token> first{1, 2, 3, 4, 5, 6}, second{9, 8, 7, 6, 5, 4}, third{3};
  BED_TRY_ASSIGN(const kv::Opened a, bed, cache->open(first));
  BED_TRY_ASSIGN(const kv::Opened b, bed, cache->open(second));
  for (std::size_t block = 0; block < 2; ++block) {
    BED_TRY_ASSIGN(const Buffer memory, bed, page(*cache, b.id, 0, block));
    BED_TRY(bed, memory.copyin(pattern_bytes(256, block * 1000)));
  }
  BED_TRY(bed, cache->close(a.id));
  BED_TRY_ASSIGN(const kv::Opened c, bed, cache->open(third));
  const std::uint64_t before = cache->counters().pages_copied;
  BED_TRY(bed, cache->fork(c.id));
  EXPECT_GE(cache->counters().pages_copied, before + 2) << "the state, and at least one page that was in the way";
  BED_TRY(bed, cache->queue().finish());
  for (std::size_t block = 0; block < 2; ++block) {
    BED_TRY_ASSIGN(const Buffer memory, bed, page(*cache, b.id, 0, block));
    BED_TRY_ASSIGN(const Bytes bytes, bed, contents(memory));
    EXPECT_EQ(bytes, pattern_bytes(256, block * 1000));
  }
  BED_TRY(bed, cache->check());
}

void brings_blocks_back_from_the_host(Bed& bed) {
  kv::CacheOptions options;
  options.groups = {{.bytes_per_token = 64}};
  options.block_tokens = 4;
  options.budget = 256 * 3;
  options.eviction = kv::make_lru_eviction();
  options.tiers = {{.allocator = device("CPU").value(), .budget = 256 * 8}};
  BED_TRY_ASSIGN(const auto cache, bed, kv::Cache::make(bed.device(), std::move(options)));
  // Each prompt takes two of three pages and evicts the other one. Nothing waits in between.
  const std::vector<std::vector<kv::Token>> prompts{{1, 2, 3, 4, 5, 6, 7, 8, 9}, {9, 8, 7, 6, 5, 4, 3, 2, 1}};
  for (int round = 0; round < 3; ++round)
    for (std::size_t prompt = 0; prompt < prompts.size(); ++prompt) {
      BED_TRY_ASSIGN(const kv::Opened opened, bed, cache->open(prompts[prompt]));
      EXPECT_EQ(opened.cached_tokens, round == 0 ? 0u : 8u);
      for (std::size_t block = 0; block < 2; ++block) {
        BED_TRY_ASSIGN(const Buffer memory, bed, page(*cache, opened.id, 0, block));
        if (round == 0) {
          BED_TRY(bed, memory.copyin(pattern_bytes(256, prompt * 10 + block)));
        } else if (round == 2) {
          BED_TRY_ASSIGN(const Bytes bytes, bed, contents(memory));
          EXPECT_EQ(bytes, pattern_bytes(256, prompt * 10 + block));
        }
      }
      BED_TRY(bed, cache->commit(opened.id));
      BED_TRY(bed, cache->close(opened.id));
    }
  BED_TRY(bed, cache->check());
}

// The other way round: a cache of the host keeps evicted blocks on the device.
void keeps_blocks_of_the_host(Bed& bed) {
  kv::CacheOptions options;
  options.groups = {{.bytes_per_token = 64}};
  options.block_tokens = 4;
  options.budget = 256 * 3;
  options.eviction = kv::make_lru_eviction();
  options.tiers = {{.allocator = bed.device(), .budget = 256 * 3}, {.allocator = bed.device(), .budget = 256 * 8}};
  BED_TRY_ASSIGN(const auto cache, bed, kv::Cache::make(device("CPU").value(), std::move(options)));
  constexpr std::size_t kPrompts = 4;
  for (int round = 0; round < 3; ++round)
    for (std::size_t prompt = 0; prompt < kPrompts; ++prompt) {
      std::vector<kv::Token> tokens(9, static_cast<kv::Token>(prompt));
      BED_TRY_ASSIGN(const kv::Opened opened, bed, cache->open(tokens));
      EXPECT_EQ(opened.cached_tokens, round == 0 ? 0u : 8u);
      for (std::size_t block = 0; block < 2; ++block) {
        BED_TRY_ASSIGN(const Buffer memory, bed, page(*cache, opened.id, 0, block));
        if (round == 0) {
          BED_TRY(bed, memory.copyin(pattern_bytes(256, prompt * 10 + block)));
        } else {
          BED_TRY_ASSIGN(const Bytes bytes, bed, contents(memory));
          EXPECT_EQ(bytes, pattern_bytes(256, prompt * 10 + block)) << "prompt " << prompt << ", round " << round;
        }
      }
      BED_TRY(bed, cache->commit(opened.id));
      BED_TRY(bed, cache->close(opened.id));
    }
  const auto tiers = cache->counters().tiers;
  EXPECT_GT(tiers[0].loaded + tiers[1].loaded, 0u);
  EXPECT_GT(tiers[1].stored, 0u);
  EXPECT_EQ(tiers[0].failed + tiers[1].failed, 0u);
  BED_TRY(bed, cache->check());
}

void gives_sequences_contiguous_addresses(Bed& bed) {
  constexpr std::size_t kToken = std::size_t{512} << 10;  // four of them fill a page of every device
  kv::CacheOptions options;
  options.groups = {{.bytes_per_token = kToken}};
  options.block_tokens = 4;
  options.budget = kToken * 4 * 6;
  options.contiguous_tokens = 16;
  BED_TRY_ASSIGN(const auto cache, bed, kv::Cache::make(bed.device(), std::move(options)));
  const std::vector<kv::Token> tokens{1, 2, 3, 4, 5, 6};
  BED_TRY_ASSIGN(const kv::Opened first, bed, cache->open(tokens));
  BED_TRY_ASSIGN(const kv::ContiguousTokens whole, bed, cache->contiguous(0, first.id));
  EXPECT_EQ(whole.tokens.size(), 6 * kToken);
  BED_TRY(bed, whole.tokens.copyin(pattern_bytes(6 * kToken, 5)));
  BED_TRY(bed, cache->commit(first.id));
  // The pages have the same bytes at their own places.
  BED_TRY_ASSIGN(const Buffer second_page, bed, page(*cache, first.id, 0, 1));
  BED_TRY_ASSIGN(const Buffer in_page, bed, second_page.view(0, 2 * kToken));
  BED_TRY_ASSIGN(const Bytes paged, bed, contents(in_page));
  EXPECT_EQ(paged, pattern_bytes(2 * kToken, 5 + 4 * kToken));
  // A sequence with the same prefix has it at addresses of its own.
  BED_TRY_ASSIGN(const kv::Opened other, bed, cache->open(tokens));
  EXPECT_EQ(other.cached_tokens, 4u);
  BED_TRY_ASSIGN(const kv::ContiguousTokens prefix, bed, cache->contiguous(0, other.id));
  BED_TRY_ASSIGN(const Buffer shared, bed, prefix.tokens.view(0, 4 * kToken));
  BED_TRY_ASSIGN(const Bytes found, bed, contents(shared));
  EXPECT_EQ(found, pattern_bytes(4 * kToken, 5));
  // A fork writes to a copy, and grows behind it.
  BED_TRY_ASSIGN(const kv::SequenceId fork, bed, cache->fork(first.id));
  std::uint64_t before = 0, after = 0;
  BED_TRY(bed, cache->write_addresses(0, {&fork, 1}, {&before, 1}));
  for (kv::Token token = 7; token < 11; ++token) {
    std::int64_t slot = -1;
    BED_TRY(bed, cache->append({&fork, 1}, {&token, 1}, {&slot, 1}));
  }
  BED_TRY(bed, cache->write_addresses(0, {&fork, 1}, {&after, 1}));
  EXPECT_EQ(after, before);
  BED_TRY(bed, cache->queue().finish());
  BED_TRY_ASSIGN(const kv::ContiguousTokens grown, bed, cache->contiguous(0, fork));
  BED_TRY_ASSIGN(const Buffer added, bed, grown.tokens.view(6 * kToken, 4 * kToken));
  BED_TRY(bed, added.copyin(pattern_bytes(4 * kToken, 99)));
  BED_TRY_ASSIGN(const Bytes all, bed, contents(grown.tokens));
  Bytes expected = pattern_bytes(6 * kToken, 5);
  const Bytes tail = pattern_bytes(4 * kToken, 99);
  expected.insert(expected.end(), tail.begin(), tail.end());
  EXPECT_TRUE(all == expected);
  BED_TRY_ASSIGN(const Bytes kept, bed, contents(whole.tokens));
  EXPECT_TRUE(kept == pattern_bytes(6 * kToken, 5)) << "the fork wrote to the sequence that it came from";
  BED_TRY(bed, cache->check());
}

constexpr Check kChecks[] = {
    {"KvCacheCopiesASharedPageOnWrite", copies_a_shared_page_on_write},
    {"KvCacheMovesPagesToMakeRoom", moves_pages_to_make_room},
    {"KvCacheBringsBlocksBackFromTheHost", brings_blocks_back_from_the_host},
    {"KvCacheKeepsBlocksOfTheHost", keeps_blocks_of_the_host},
    {"KvCacheGivesSequencesContiguousAddresses", gives_sequences_contiguous_addresses},
};

}  // namespace

std::span<const Check> kv_checks() {
  return kChecks;
}

}  // namespace berth::conformance
