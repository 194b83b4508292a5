#include "berth/kv/cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "berth/memory/registry.h"
#include "support/support.h"

namespace berth::kv {
namespace {

constexpr std::uint32_t kBlock = 4;

std::unique_ptr<Cache> cache_of(std::size_t pages, EvictionPolicyPtr eviction = make_lru_eviction()) {
  CacheOptions options;
  options.groups = {{.name = Name("full"), .kind = GroupKind::kFull, .bytes_per_token = 64}};
  options.block_tokens = kBlock;
  options.budget = pages * kBlock * 64;
  options.eviction = std::move(eviction);
  return Cache::make(device("CPU").value(), std::move(options)).value();
}

std::vector<Token> count_from(Token first, std::size_t n) {
  std::vector<Token> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<std::int32_t> table_of(const Cache& cache, SequenceId id, std::uint32_t group = 0) {
  std::vector<std::int32_t> row((cache.length(id).value() + kBlock - 1) / kBlock);
  EXPECT_TRUE(cache.write_block_table(group, {&id, 1}, row.size(), row).has_value());
  return row;
}

std::int64_t append(Cache& cache, SequenceId id, Token token) {
  std::vector<std::int64_t> slots(cache.counters().groups.size());
  const auto done = cache.append({&id, 1}, {&token, 1}, slots);
  EXPECT_TRUE(done.has_value()) << done.error().message();
  return slots[0];
}

TEST(KvCache, FindsTheLongestPrefixOfFullCommittedBlocks) {
  const auto cache = cache_of(100);
  const auto tokens = count_from(0, 10);
  const Opened first = cache->open(tokens).value();
  EXPECT_EQ(first.cached_tokens, 0u);
  EXPECT_EQ(cache->open(tokens).value().cached_tokens, 0u) << "nothing is committed yet";
  ASSERT_TRUE(cache->commit(first.id));
  const Opened second = cache->open(tokens).value();
  EXPECT_EQ(second.cached_tokens, 8u);
  EXPECT_EQ(table_of(*cache, second.id)[0], table_of(*cache, first.id)[0]);
  EXPECT_EQ(table_of(*cache, second.id)[1], table_of(*cache, first.id)[1]);
  EXPECT_NE(table_of(*cache, second.id)[2], table_of(*cache, first.id)[2]) << "half-written blocks are private";
  EXPECT_EQ(cache->open(count_from(0, 7)).value().cached_tokens, 4u);
  EXPECT_EQ(cache->open(count_from(1, 8)).value().cached_tokens, 0u);
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

TEST(KvCache, LeavesTheLastTokenToBeComputed) {
  const auto cache = cache_of(100);
  const Opened first = cache->open(count_from(0, 8)).value();
  ASSERT_TRUE(cache->commit(first.id));
  EXPECT_EQ(cache->open(count_from(0, 8)).value().cached_tokens, 4u);
  EXPECT_EQ(cache->open(count_from(0, 8), {.compute_last = false}).value().cached_tokens, 8u);
}

TEST(KvCache, KeepsBlocksOfClosedSequencesAndDropsWhatWasNeverWritten) {
  const auto cache = cache_of(100);
  const Opened unwritten = cache->open(count_from(0, 12)).value();
  ASSERT_TRUE(cache->close(unwritten.id));
  EXPECT_EQ(cache->counters().groups[0].pages_cached, 0u);
  const Opened written = cache->open(count_from(0, 12)).value();
  EXPECT_EQ(written.cached_tokens, 0u);
  ASSERT_TRUE(cache->commit(written.id));
  ASSERT_TRUE(cache->close(written.id));
  EXPECT_EQ(cache->counters().groups[0].pages_cached, 3u);
  EXPECT_EQ(cache->counters().groups[0].pages_in_use, 0u);
  EXPECT_EQ(cache->open(count_from(0, 13)).value().cached_tokens, 12u);
}

TEST(KvCache, KeepsSaltsApart) {
  const auto cache = cache_of(100);
  const auto tokens = count_from(5, 9);
  const Opened a = cache->open(tokens, {.salt = 1}).value();
  ASSERT_TRUE(cache->commit(a.id));
  EXPECT_EQ(cache->open(tokens, {.salt = 2}).value().cached_tokens, 0u);
  EXPECT_EQ(cache->open(tokens).value().cached_tokens, 0u);
  EXPECT_EQ(cache->open(tokens, {.salt = 1}).value().cached_tokens, 8u);
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

TEST(KvCache, GivesConsecutiveSlotsInsideABlock) {
  const auto cache = cache_of(100);
  const Opened opened = cache->open(count_from(0, 3)).value();
  const std::int64_t third = append(*cache, opened.id, 7);
  EXPECT_EQ(third % kBlock, 3);
  const std::int64_t next = append(*cache, opened.id, 8);
  EXPECT_EQ(next % kBlock, 0);
  EXPECT_NE(next / kBlock, third / kBlock);
  std::vector<std::int64_t> slots(5);
  ASSERT_TRUE(cache->write_slots(0, opened.id, 0, slots));
  EXPECT_EQ(slots[3], third);
  EXPECT_EQ(slots[4], next);
}

TEST(KvCache, ForkSharesPagesAndCopiesOnTheFirstWrite) {
  const auto cache = cache_of(100);
  const Opened opened = cache->open(count_from(0, 6)).value();
  // The half-written page has known bytes.
  const auto page = static_cast<std::size_t>(table_of(*cache, opened.id)[1]);
  const auto bytes = cache->buffer().as_host_bytes_mut().value();
  const std::size_t size = cache->page_bytes(0);
  for (std::size_t i = 0; i < size; ++i) bytes[page * size + i] = static_cast<std::byte>(i * 7);
  const SequenceId fork = cache->fork(opened.id).value();
  EXPECT_EQ(table_of(*cache, fork), table_of(*cache, opened.id));
  EXPECT_EQ(cache->counters().groups[0].pages_in_use, 2u);
  append(*cache, fork, 100);
  EXPECT_EQ(table_of(*cache, fork)[0], table_of(*cache, opened.id)[0]);
  EXPECT_NE(table_of(*cache, fork)[1], table_of(*cache, opened.id)[1]);
  const auto copy = static_cast<std::size_t>(table_of(*cache, fork)[1]);
  EXPECT_TRUE(std::equal(&bytes[page * size], &bytes[page * size] + size, &bytes[copy * size]));
  append(*cache, opened.id, 200);
  EXPECT_EQ(static_cast<std::size_t>(table_of(*cache, opened.id)[1]), page) << "the page is its own again";
  EXPECT_EQ(cache->counters().pages_copied, 1u);
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

TEST(KvCache, TruncateFreesBlocksAndProtectsWhatOthersSee) {
  const auto cache = cache_of(100);
  const Opened opened = cache->open(count_from(0, 11)).value();
  ASSERT_TRUE(cache->commit(opened.id));
  ASSERT_TRUE(cache->truncate(opened.id, 6));
  EXPECT_EQ(cache->length(opened.id).value(), 6u);
  append(*cache, opened.id, 99);
  append(*cache, opened.id, 98);
  append(*cache, opened.id, 97);
  EXPECT_EQ(cache->open(count_from(0, 9)).value().cached_tokens, 8u) << "the published block was not overwritten";
  EXPECT_EQ(cache->truncate(opened.id, 100).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(cache->truncate(opened.id, 0));
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

TEST(KvCache, DoesNotWriteToAPublishedBlockAfterAnEmptyExtend) {
  const auto cache = cache_of(100);
  const Opened opened = cache->open(count_from(0, 8)).value();
  ASSERT_TRUE(cache->commit(opened.id));
  const auto published = table_of(*cache, opened.id);
  ASSERT_TRUE(cache->truncate(opened.id, 6));
  ASSERT_TRUE(cache->extend(opened.id, {}, {}));
  append(*cache, opened.id, 99);
  EXPECT_NE(table_of(*cache, opened.id)[1], published[1]) << "others can find that page";
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
  EXPECT_EQ(cache->open(count_from(0, 9)).value().cached_tokens, 8u);
  const std::vector<Token> changed{0, 1, 2, 3, 4, 5, 99, 7, 8};
  EXPECT_EQ(cache->open(changed).value().cached_tokens, 4u);
}

TEST(KvCache, JoinsASequenceThatComputedTheSameTokens) {
  const auto cache = cache_of(100);
  const Opened a = cache->open(count_from(0, 9)).value(), b = cache->open(count_from(0, 9)).value();
  EXPECT_NE(table_of(*cache, a.id)[0], table_of(*cache, b.id)[0]);
  ASSERT_TRUE(cache->commit(a.id));
  ASSERT_TRUE(cache->commit(b.id));
  EXPECT_EQ(table_of(*cache, a.id)[0], table_of(*cache, b.id)[0]);
  EXPECT_EQ(table_of(*cache, a.id)[1], table_of(*cache, b.id)[1]);
  EXPECT_EQ(cache->counters().groups[0].pages_in_use, 4u);
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

TEST(KvCache, KeepsWhatIsSetAsideWhileAForkHoldsADuplicateBlock) {
  const auto cache = cache_of(2);
  const Opened first = cache->open(count_from(0, 4)).value();
  ASSERT_TRUE(cache->commit(first.id));
  ASSERT_TRUE(cache->close(first.id));
  // Computes the same tokens again, with the other page set aside: the cached block is there until that is needed.
  const Opened again = cache->open(count_from(0, 4), {.max_new_tokens = 4}).value();
  ASSERT_EQ(cache->counters().groups[0].pages_cached, 1u);
  const SequenceId fork = cache->fork(again.id).value();
  ASSERT_TRUE(cache->commit(again.id));
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
  for (Token i = 0; i < 4; ++i) append(*cache, again.id, i);
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
  ASSERT_TRUE(cache->close(fork));
}

TEST(KvCache, JoinsADuplicateBlockOnceNoForkHoldsItsOwn) {
  const auto cache = cache_of(100);
  const Opened a = cache->open(count_from(0, 4)).value(), b = cache->open(count_from(0, 8)).value();
  const SequenceId fork = cache->fork(b.id).value(), other = cache->fork(b.id).value();
  ASSERT_TRUE(cache->commit(a.id));
  ASSERT_TRUE(cache->commit(b.id));
  EXPECT_EQ(table_of(*cache, b.id), table_of(*cache, fork));
  const auto page = table_of(*cache, a.id)[0];
  ASSERT_TRUE(cache->close(a.id));
  ASSERT_TRUE(cache->close(b.id));
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
  ASSERT_TRUE(cache->close(other));
  ASSERT_TRUE(cache->commit(fork));
  EXPECT_EQ(table_of(*cache, fork)[0], page);
  EXPECT_EQ(cache->counters().groups[0].pages_in_use, 2u);
  EXPECT_EQ(cache->open(count_from(0, 9)).value().cached_tokens, 8u);
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

TEST(KvCache, EvictsTheEndOfThePrefixThatWasUsedLongestAgo) {
  const auto cache = cache_of(6);
  for (const Token first : {0, 100}) {
    const Opened opened = cache->open(count_from(first, 12)).value();
    ASSERT_TRUE(cache->commit(opened.id));
    ASSERT_TRUE(cache->close(opened.id, 1000 + static_cast<std::uint64_t>(first)));
  }
  const Opened third = cache->open(count_from(200, 8)).value();
  EXPECT_EQ(cache->counters().blocks_evicted, 2u);
  EXPECT_EQ(cache->can_admit(count_from(0, 13)).cached_tokens, 4u);
  EXPECT_EQ(cache->can_admit(count_from(100, 13)).cached_tokens, 12u);
  ASSERT_TRUE(cache->close(third.id));
}

TEST(KvCache, RefusesWithWhatWouldFreeEnough) {
  const auto cache = cache_of(8);
  const Opened small = cache->open(count_from(0, 8)).value(), large = cache->open(count_from(50, 20)).value();
  const auto admission = cache->can_admit(count_from(100, 16));
  EXPECT_FALSE(admission.fits);
  EXPECT_EQ(admission.sequences_to_close, 1u);
  EXPECT_EQ(admission.close_first, large.id);
  EXPECT_EQ(admission.bytes_free, 1u * kBlock * 64) << "7 of 8 pages are in use";
  EXPECT_EQ(admission.bytes_needed, 4u * kBlock * 64);
  const auto refused = cache->open(count_from(100, 16));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kOutOfMemory);
  EXPECT_NE(refused.error().message().find("close 1 of 2 open sequences"), std::string::npos)
      << refused.error().message();
  ASSERT_TRUE(cache->close(large.id));
  EXPECT_TRUE(cache->can_admit(count_from(100, 16)).fits);
  EXPECT_TRUE(cache->open(count_from(100, 16)).has_value());
  const auto never = cache->can_admit(count_from(100, 400));
  EXPECT_FALSE(never.fits);
  EXPECT_EQ(never.sequences_to_close, 0u);
  EXPECT_TRUE(cache->close(small.id).has_value());
}

TEST(KvCache, AdmitsExactlyWhatFits) {
  for (std::uint64_t more = 0; more < 40; ++more) {
    const auto cache = cache_of(8);
    const Opened other = cache->open(count_from(0, 10)).value();  // 3 pages
    const OpenOptions options{.max_new_tokens = more};
    const auto prompt = count_from(100, 7);
    const bool fits = cache->can_admit(prompt, options).fits;
    EXPECT_EQ(fits, (7 + more + 3) / 4 <= 5) << more;
    const auto opened = cache->open(prompt, options);
    EXPECT_EQ(opened.has_value(), fits);
    if (!opened) continue;
    // Nothing that others do takes the pages that are set aside.
    while (cache->open(count_from(1000, 4))) {
    }
    for (std::uint64_t i = 0; i < more; ++i) append(*cache, opened->id, static_cast<Token>(i));
    EXPECT_TRUE(cache->check()) << cache->check().error().message();
    ASSERT_TRUE(cache->close(other.id));
  }
}

TEST(KvCache, RefusesClosedSequencesAndBadSpans) {
  const auto cache = cache_of(20);
  const Opened opened = cache->open(count_from(0, 5)).value();
  ASSERT_TRUE(cache->close(opened.id));
  EXPECT_EQ(cache->close(opened.id).error().code(), Code::kNotFound);
  EXPECT_EQ(cache->fork(opened.id).error().code(), Code::kNotFound);
  EXPECT_EQ(cache->truncate(opened.id, 0).error().code(), Code::kNotFound);
  EXPECT_EQ(cache->length({~std::uint64_t{0}}).error().code(), Code::kNotFound);
  const Token token = 1;
  std::int64_t slot = 0;
  EXPECT_EQ(cache->append({&opened.id, 1}, {&token, 1}, {&slot, 1}).error().code(), Code::kNotFound);
  const Opened again = cache->open(count_from(0, 5)).value();
  EXPECT_NE(again.id, opened.id);
  const std::vector<SequenceId> twice{again.id, again.id};
  const std::vector<Token> tokens{1, 2};
  std::vector<std::int64_t> slots(2);
  EXPECT_EQ(cache->append(twice, tokens, slots).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(cache->append(twice, {}, slots).error().code(), Code::kSizeMismatch);
  EXPECT_EQ(cache->length(again.id).value(), 5u);
  std::vector<std::int32_t> row(1);
  EXPECT_EQ(cache->write_block_table(0, {&again.id, 1}, 1, row).error().code(), Code::kSizeMismatch);
  EXPECT_EQ(cache->write_block_table(9, {&again.id, 1}, 1, row).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(cache->write_slots(0, again.id, 4, slots).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(cache->open(count_from(0, 5), {.max_new_tokens = ~std::uint64_t{0}}).error().code(),
            Code::kInvalidArgument);
}

TEST(KvCache, TakesAnyTokensAndAnEmptyPrompt) {
  const auto cache = cache_of(20);
  const std::vector<Token> odd{-1, 0x7fff'ffff, -0x7fff'ffff - 1, 0, -1};
  const Opened opened = cache->open(odd).value();
  ASSERT_TRUE(cache->commit(opened.id));
  EXPECT_EQ(cache->open(odd).value().cached_tokens, 4u);
  const Opened empty = cache->open({}).value();
  EXPECT_EQ(cache->length(empty.id).value(), 0u);
  EXPECT_EQ(append(*cache, empty.id, 3) % kBlock, 0);
  ASSERT_TRUE(cache->close(cache->open({}).value().id));
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

TEST(KvCache, RefusesOptionsThatMakeNoSense) {
  const DevicePtr cpu = device("CPU").value();
  const auto code = [&](auto change) {
    CacheOptions options;
    options.groups = {{.kind = GroupKind::kFull, .bytes_per_token = 64}};
    options.budget = 1 << 20;
    change(options);
    const auto made = Cache::make(cpu, std::move(options));
    return made ? Code::kCycle : made.error().code();
  };
  EXPECT_EQ(code([](CacheOptions& o) { o.groups.clear(); }), Code::kInvalidArgument);
  EXPECT_EQ(code([](CacheOptions& o) { o.groups[0].bytes_per_token = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](CacheOptions& o) { o.groups[0].bytes_per_token = ~std::size_t{0}; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](CacheOptions& o) { o.groups[0].kind = GroupKind::kWindow; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](CacheOptions& o) { o.block_tokens = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](CacheOptions& o) { o.block_tokens = 5000; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](CacheOptions& o) { o.budget = 0; }), Code::kOutOfMemory);
  EXPECT_EQ(code([](CacheOptions& o) { o.groups.resize(17, o.groups[0]); }), Code::kInvalidArgument);
}

TEST(KvCache, FreesPagesBehindTheWindow) {
  CacheOptions options;
  options.groups = {{.name = Name("full"), .kind = GroupKind::kFull, .bytes_per_token = 64},
                    {.name = Name("window"), .kind = GroupKind::kWindow, .bytes_per_token = 96, .window = 8}};
  options.block_tokens = kBlock;
  options.budget = 1 << 20;
  const auto cache = Cache::make(device("CPU").value(), std::move(options)).value();
  const Opened opened = cache->open(count_from(0, 4)).value();
  for (Token i = 0; i < 200; ++i) append(*cache, opened.id, i);
  const auto counters = cache->counters();
  EXPECT_EQ(counters.groups[0].pages_in_use, 51u);
  EXPECT_LE(counters.groups[1].pages_in_use, 3u);
  ASSERT_TRUE(cache->commit(opened.id));
  const auto row = table_of(*cache, opened.id, 1);
  EXPECT_EQ(row[0], 0) << "padding";
  std::vector<std::int64_t> slots(1);
  ASSERT_TRUE(cache->write_slots(1, opened.id, 0, slots));
  EXPECT_EQ(slots[0], -1);
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

TEST(KvCache, CopiesStatesAndFindsAPrefixOnlyWhereAStateWasKept) {
  CacheOptions options;
  options.groups = {{.name = Name("full"), .kind = GroupKind::kFull, .bytes_per_token = 64},
                    {.name = Name("state"), .kind = GroupKind::kState, .state_bytes = 1000}};
  options.block_tokens = kBlock;
  options.budget = 1 << 20;
  const auto cache = Cache::make(device("CPU").value(), std::move(options)).value();
  const Opened opened = cache->open(count_from(0, 8)).value();
  ASSERT_TRUE(cache->commit(opened.id));
  EXPECT_EQ(cache->can_admit(count_from(0, 9)).cached_tokens, 0u);
  const auto bytes = cache->buffer().as_host_bytes_mut().value();
  const auto state = [&](SequenceId id) {
    std::int32_t page = -1;
    EXPECT_TRUE(cache->write_block_table(1, {&id, 1}, 1, {&page, 1}));
    return &bytes[static_cast<std::size_t>(page) * cache->page_bytes(1)];
  };
  *state(opened.id) = std::byte{42};
  ASSERT_TRUE(cache->keep_state(opened.id));
  *state(opened.id) = std::byte{43};
  const Opened other = cache->open(count_from(0, 9)).value();
  EXPECT_EQ(other.cached_tokens, 8u);
  EXPECT_EQ(*state(other.id), std::byte{42});
  const SequenceId fork = cache->fork(opened.id).value();
  EXPECT_EQ(*state(fork), std::byte{43});
  EXPECT_NE(state(fork), state(opened.id));
  EXPECT_EQ(cache->truncate(fork, 3).error().code(), Code::kUnsupported);
  append(*cache, opened.id, 1);
  EXPECT_EQ(cache->keep_state(opened.id).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

TEST(KvCache, WritesTheCsrFormWithLastPageLengths) {
  const auto cache = cache_of(20);
  const std::vector<SequenceId> ids{cache->open(count_from(0, 5)).value().id, cache->open({}).value().id,
                                    cache->open(count_from(10, 8)).value().id};
  std::vector<std::int32_t> indptr(4), indices(4), last(3), lengths(3);
  EXPECT_EQ(cache->write_csr(0, ids, indptr, indices, last).value(), 4u);
  EXPECT_EQ(indptr, (std::vector<std::int32_t>{0, 2, 2, 4}));
  EXPECT_EQ(last, (std::vector<std::int32_t>{1, 0, 4}));
  EXPECT_EQ(std::set<std::int32_t>(indices.begin(), indices.end()).size(), 4u);
  ASSERT_TRUE(cache->write_seq_lens(ids, lengths));
  EXPECT_EQ(lengths, (std::vector<std::int32_t>{5, 0, 8}));
  std::vector<std::int32_t> few(3);
  EXPECT_EQ(cache->write_csr(0, ids, indptr, few, last).error().code(), Code::kSizeMismatch);
}

TEST(KvCache, WritesNoTableIntoSpansThatAreOneElementTooShort) {
  const auto cache = cache_of(20);  // of blocks of four tokens
  const std::vector<SequenceId> ids{cache->open(count_from(0, 5)).value().id,
                                    cache->open(count_from(10, 8)).value().id};
  using Span = std::span<std::int32_t>;
  std::vector<std::int32_t> ints(16, -7);
  std::vector<std::int64_t> slots(8, -7);
  const auto first = [&](std::size_t count) { return Span(ints).first(count); };
  const auto refused = [](const auto& result) { return test::fails_with(result, Code::kSizeMismatch); };
  EXPECT_TRUE(refused(cache->write_block_table(0, ids, 2, first(3))));
  EXPECT_TRUE(refused(cache->write_block_table(0, ids, 1, first(4)))) << "a row of one page for two";
  EXPECT_TRUE(refused(cache->write_block_table(0, ids, 0, first(4))));
  EXPECT_TRUE(cache->write_block_table(0, ids, 2, first(4)));
  EXPECT_TRUE(refused(cache->write_csr(0, ids, first(2), first(8).last(4), first(12).last(2))));
  EXPECT_TRUE(refused(cache->write_csr(0, ids, first(3), first(8).last(4), first(12).last(1))));
  EXPECT_TRUE(refused(cache->write_csr(0, ids, first(3), first(8).last(3), first(12).last(2))));
  EXPECT_EQ(cache->write_csr(0, ids, first(3), first(8).last(4), first(12).last(2)).value(), 4u);
  EXPECT_TRUE(refused(cache->write_seq_lens(ids, first(1))));
  EXPECT_TRUE(cache->write_seq_lens(ids, first(2)));
  EXPECT_TRUE(test::fails_with(cache->write_slots(0, ids[0], 0, std::span(slots).first(6)), Code::kInvalidArgument));
  EXPECT_TRUE(test::fails_with(cache->write_slots(0, ids[0], 6, {}), Code::kInvalidArgument));
  EXPECT_TRUE(cache->write_slots(0, ids[0], 0, std::span(slots).first(5)));
  EXPECT_TRUE(cache->write_slots(0, ids[0], 5, {})) << "no tokens after the last";

  // A group and a sequence that are not there.
  const std::vector<SequenceId> gone{{~std::uint64_t{0}}};
  EXPECT_TRUE(test::fails_with(cache->write_block_table(1, ids, 2, first(4)), Code::kInvalidArgument));
  EXPECT_TRUE(test::fails_with(cache->write_csr(1, ids, first(3), first(8), first(12)), Code::kInvalidArgument));
  EXPECT_TRUE(test::fails_with(cache->write_slots(1, ids[0], 0, {}), Code::kInvalidArgument));
  EXPECT_TRUE(test::fails_with(cache->write_block_table(0, gone, 2, first(4)), Code::kNotFound));
  EXPECT_TRUE(test::fails_with(cache->write_csr(0, gone, first(3), first(8), first(12)), Code::kNotFound));
  EXPECT_TRUE(test::fails_with(cache->write_seq_lens(gone, first(4)), Code::kNotFound));
  EXPECT_TRUE(test::fails_with(cache->write_slots(0, gone[0], 0, {}), Code::kNotFound));
  EXPECT_EQ(cache->page_bytes(1), 0u);
}

// A policy that remembers the last sequence it was told of, and when.
class Witness final : public EvictionAdaptor {
 public:
  Witness(Visit& seen, std::uint32_t& now) : EvictionAdaptor(make_lru_eviction()), seen_(seen), now_(now) {}
  void visited(const Visit& visit, Blocks& blocks) noexcept override {
    seen_ = visit;
    seen_.path = {};
    now_ = blocks.now();
    EvictionAdaptor::visited(visit, blocks);
  }

 private:
  Visit& seen_;
  std::uint32_t& now_;
};

TEST(KvCache, TellsThePolicyWhenASequenceWasOpenedAndClosed) {
  Visit seen;
  std::uint32_t now = 0;
  const auto cache = cache_of(8, std::make_unique<Witness>(seen, now));
  const auto opened = cache->open(count_from(1, 9), {.now = 1'000}).value();
  append(*cache, opened.id, 77);
  ASSERT_TRUE(cache->close(opened.id, 5'000));
  EXPECT_EQ(seen.opened, 1'000u);
  EXPECT_EQ(seen.closed, 5'000u);
  EXPECT_EQ(now, 5'000u) << "the time that the blocks tell";
  EXPECT_EQ(seen.prompt_tokens, 9u);
  EXPECT_EQ(seen.tokens, 10u);
}

}  // namespace
}  // namespace berth::kv
