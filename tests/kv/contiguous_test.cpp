// The contiguous way: pages mapped behind one range of addresses for each sequence.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <optional>

#include "berth/alloc/limit.h"
#include "berth/kv/cache.h"
#include "berth/memory/registry.h"
#include "berth/testing.h"
#include "doubles/opaque_device.h"

namespace berth::kv {
namespace {

constexpr std::uint32_t kBlock = 4;
constexpr std::size_t kToken = 4096;  // a page of the system
constexpr std::uint64_t kLongest = 32;

CacheOptions options_of(std::size_t pages) {
  CacheOptions options;
  options.groups = {{.name = Name("full"), .bytes_per_token = kToken}};
  options.block_tokens = kBlock;
  options.budget = pages * kBlock * kToken;
  options.eviction = make_lru_eviction();
  options.contiguous_tokens = kLongest;
  return options;
}

std::unique_ptr<Cache> cache_of(std::size_t pages, DevicePtr on = device("CPU").value()) {
  return Cache::make(std::move(on), options_of(pages)).value();
}

std::vector<Token> count_from(Token first, std::size_t n) {
  std::vector<Token> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Result<void> append(Cache& cache, SequenceId id, Token token) {
  std::vector<std::int64_t> slots(cache.counters().groups.size());
  return cache.append({&id, 1}, {&token, 1}, slots);
}

std::uint64_t address_of(const Cache& cache, SequenceId id, std::uint32_t group = 0) {
  std::uint64_t address = 0;
  const auto written = cache.write_addresses(group, {&id, 1}, {&address, 1});
  EXPECT_TRUE(written) << written.error().message();
  return address;
}

// The first byte of a token, where an ordinary kernel would look for it.
char& byte_of(const Cache& cache, SequenceId id, std::size_t token) {
  return *reinterpret_cast<char*>(address_of(cache, id) + token * kToken);
}

std::optional<Code> refusal(const Result<std::unique_ptr<Cache>>& made) {
  if (made) return std::nullopt;
  return made.error().code();
}

TEST(KvContiguous, GrowsASequenceBehindOneAddress) {
  const auto cache = cache_of(20);
  const Opened opened = cache->open(count_from(0, 3)).value();
  const std::uint64_t address = address_of(*cache, opened.id);
  for (std::size_t i = 0; i < 3; ++i) byte_of(*cache, opened.id, i) = static_cast<char>('a' + i);
  // Another sequence takes pages in between, so that those of the first are not neighbours.
  const Opened other = cache->open(count_from(100, 1)).value();
  for (std::size_t i = 3; i < 20; ++i) {
    ASSERT_TRUE(append(*cache, opened.id, static_cast<Token>(i)));
    ASSERT_TRUE(append(*cache, other.id, static_cast<Token>(i)));
    byte_of(*cache, opened.id, i) = static_cast<char>('a' + i);
    byte_of(*cache, other.id, i - 2) = '-';
  }
  EXPECT_EQ(address_of(*cache, opened.id), address);
  const ContiguousTokens all = cache->contiguous(0, opened.id).value();
  EXPECT_EQ(all.first, 0u);
  ASSERT_EQ(all.tokens.shape(), (Shape{20, kToken}));
  const auto bytes = all.tokens.as_host_bytes().value();
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(static_cast<char>(bytes[i * kToken]), static_cast<char>('a' + i));
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

TEST(KvContiguous, SharesAPrefixAtTwoAddresses) {
  const auto cache = cache_of(20);
  const Opened first = cache->open(count_from(0, 8)).value();
  byte_of(*cache, first.id, 2) = 'x';
  ASSERT_TRUE(cache->commit(first.id));
  const Opened second = cache->open(count_from(0, 9)).value();
  ASSERT_EQ(second.cached_tokens, 8u);
  EXPECT_NE(address_of(*cache, first.id), address_of(*cache, second.id));
  EXPECT_EQ(byte_of(*cache, second.id, 2), 'x');
  byte_of(*cache, first.id, 2) = 'y';
  EXPECT_EQ(byte_of(*cache, second.id, 2), 'y') << "one page, not a copy";
  EXPECT_EQ(cache->counters().groups[0].pages_in_use, 3u);
}

TEST(KvContiguous, JoinsASequenceThatComputedTheSameTokens) {
  const auto cache = cache_of(20);
  const Opened first = cache->open(count_from(0, 4)).value(), second = cache->open(count_from(0, 4)).value();
  byte_of(*cache, first.id, 0) = '1';
  byte_of(*cache, second.id, 0) = '2';
  ASSERT_TRUE(cache->commit(first.id));
  ASSERT_TRUE(cache->commit(second.id));
  EXPECT_EQ(byte_of(*cache, second.id, 0), '1') << "its own page was freed";
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

TEST(KvContiguous, ShowsNothingOfASequenceThatHadTheAddressesBefore) {
  const auto cache = cache_of(8);
  const Opened first = cache->open(count_from(0, 12)).value();
  for (std::size_t i = 0; i < 12; ++i) byte_of(*cache, first.id, i) = 'o';
  const std::uint64_t address = address_of(*cache, first.id);
  ASSERT_TRUE(cache->commit(first.id));
  ASSERT_TRUE(cache->close(first.id));
  const Opened second = cache->open(count_from(50, 5)).value();
  EXPECT_EQ(address_of(*cache, second.id), address);
  for (std::size_t i = 0; i < 5; ++i) byte_of(*cache, second.id, i) = 'n';
  for (Token i = 0; i < 7; ++i) {
    ASSERT_TRUE(append(*cache, second.id, i));
    byte_of(*cache, second.id, static_cast<std::size_t>(i) + 5) = 'n';
  }
  const Opened again = cache->open(count_from(0, 13)).value();
  ASSERT_EQ(again.cached_tokens, 12u);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(byte_of(*cache, again.id, i), 'o') << i;
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

TEST(KvContiguous, UnmapsWhatIsFarBehindAWindow) {
  CacheOptions options = options_of(40);
  options.groups = {{.name = Name("window"), .kind = GroupKind::kWindow, .bytes_per_token = kToken, .window = 6}};
  options.contiguous_tokens = 4096;
  const auto cache = Cache::make(device("CPU").value(), std::move(options)).value();
  const Opened opened = cache->open(count_from(0, 2)).value();
  const Opened other = cache->open(count_from(500, 2)).value();
  for (std::size_t i = 2; i < 1200; ++i) {
    ASSERT_TRUE(append(*cache, opened.id, static_cast<Token>(i)));
    byte_of(*cache, opened.id, i) = static_cast<char>(i % 100);
  }
  ASSERT_TRUE(cache->commit(opened.id));
  const ContiguousTokens window = cache->contiguous(0, opened.id).value();
  EXPECT_GE(window.first, 1200u - 6 - kBlock);
  const auto bytes = window.tokens.as_host_bytes().value();
  for (std::size_t i = 1195; i < 1200; ++i)
    EXPECT_EQ(static_cast<char>(bytes[(i - window.first) * kToken]), static_cast<char>(i % 100));
  // Going back within the window's last pages shows them again.
  ASSERT_TRUE(cache->truncate(opened.id, 1199));
  EXPECT_EQ(byte_of(*cache, opened.id, 1198), static_cast<char>(1198 % 100));
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
  ASSERT_TRUE(cache->close(other.id));
}

TEST(KvContiguous, ShowsPagesThatWereMovedToMakeRoom) {
  CacheOptions options = options_of(0);
  // Three pages of the first group or one state in a large page, and four large pages.
  options.groups = {{.name = Name("full"), .bytes_per_token = kToken},
                    {.name = Name("state"), .kind = GroupKind::kState, .state_bytes = 3 * kBlock * kToken}};
  options.budget = 4 * 3 * kBlock * kToken;
  const auto cache = Cache::make(device("CPU").value(), std::move(options)).value();
  const Opened a = cache->open(count_from(0, 6)).value(), b = cache->open(count_from(100, 6)).value();
  for (std::size_t i = 0; i < 6; ++i) byte_of(*cache, b.id, i) = static_cast<char>('a' + i);
  *reinterpret_cast<char*>(address_of(*cache, b.id, 1)) = 's';
  ASSERT_TRUE(cache->close(a.id));
  const Opened c = cache->open(count_from(200, 1)).value();
  const std::uint64_t copied = cache->counters().pages_copied;
  const SequenceId fork = cache->fork(c.id).value();
  EXPECT_GE(cache->counters().pages_copied, copied + 2) << "the state, and a page that was in the way";
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(byte_of(*cache, b.id, i), static_cast<char>('a' + i));
  EXPECT_EQ(*reinterpret_cast<char*>(address_of(*cache, b.id, 1)), 's');
  EXPECT_EQ(cache->contiguous(1, fork).value().tokens.size(), 3 * kBlock * kToken);
  EXPECT_TRUE(cache->check()) << cache->check().error().message();
}

TEST(KvContiguous, RefusesTokensBeyondTheRange) {
  const auto cache = cache_of(100);
  EXPECT_EQ(cache->open(count_from(0, kLongest + 1)).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(cache->open(count_from(0, kLongest), {.max_new_tokens = 1}).error().code(), Code::kInvalidArgument);
  EXPECT_FALSE(cache->can_admit(count_from(0, kLongest), {.max_new_tokens = 1}).fits);
  const Opened opened = cache->open(count_from(0, kLongest - 1)).value();
  std::vector<std::int64_t> slots(2);
  EXPECT_EQ(cache->extend(opened.id, count_from(0, 2), slots).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(append(*cache, opened.id, 1));
  EXPECT_EQ(append(*cache, opened.id, 1).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(cache->length(opened.id).value(), kLongest);
}

TEST(KvContiguous, ReservesAddressesWithoutMemoryForThem) {
  CacheOptions options = options_of(20);
  options.contiguous_tokens = std::uint64_t{1} << 24;  // 64 GiB of addresses, which every sanitizer has room for
  const auto cache = Cache::make(device("CPU").value(), std::move(options)).value();
  const std::size_t before = cache->counters().bookkeeping_bytes;
  const Opened opened = cache->open(count_from(0, 9)).value();
  byte_of(*cache, opened.id, 8) = 'x';
  EXPECT_LT(cache->counters().bookkeeping_bytes, before + (2u << 20));
}

TEST(KvContiguous, RefusesWhatCannotBeContiguous) {
  const auto small_tokens = [](std::uint32_t block) {
    CacheOptions options = options_of(20);
    options.groups[0].bytes_per_token = 768;
    options.block_tokens = block;
    return Cache::make(device("CPU").value(), std::move(options));
  };
  const auto made = small_tokens(4);
  ASSERT_EQ(refusal(made), Code::kInvalidArgument);
  EXPECT_NE(made.error().message().find("multiple of 16 tokens"), std::string::npos) << made.error().message();
  EXPECT_TRUE(small_tokens(16));

  EXPECT_EQ(refusal(Cache::make(make_limit(device("CPU").value(), 1u << 30), options_of(20))), Code::kUnsupported);
  EXPECT_EQ(refusal(Cache::make(opaque_device(), options_of(20))), Code::kUnsupported);
  CacheOptions huge = options_of(20);
  huge.contiguous_tokens = ~std::uint64_t{0};
  EXPECT_EQ(refusal(Cache::make(device("CPU").value(), std::move(huge))), Code::kInvalidArgument);
  huge = options_of(20);
  huge.groups.resize(16, huge.groups[0]);
  for (Group& group : huge.groups) group.bytes_per_token = std::size_t{1} << 30;
  huge.budget = std::size_t{1} << 40;
  huge.contiguous_tokens = 0x7fff'ffff;
  EXPECT_EQ(refusal(Cache::make(device("CPU").value(), std::move(huge))), Code::kInvalidArgument);
}

TEST(KvContiguous, HasNoAddressesInThePagedWay) {
  CacheOptions options = options_of(20);
  options.contiguous_tokens = 0;
  const auto cache = Cache::make(device("CPU").value(), std::move(options)).value();
  const Opened opened = cache->open(count_from(0, 3)).value();
  std::uint64_t address = 0;
  EXPECT_EQ(cache->contiguous(0, opened.id).error().code(), Code::kUnsupported);
  EXPECT_EQ(cache->write_addresses(0, {&opened.id, 1}, {&address, 1}).error().code(), Code::kUnsupported);
  const auto other = cache_of(20);
  EXPECT_EQ(other->contiguous(0, {77}).error().code(), Code::kNotFound);
  EXPECT_EQ(other->contiguous(1, {77}).error().code(), Code::kInvalidArgument);
  const Opened mapped = other->open(count_from(0, 3)).value();
  EXPECT_EQ(other->write_addresses(0, {&mapped.id, 1}, {}).error().code(), Code::kSizeMismatch);
}

TEST(KvContiguous, CountsItsPagesAndGivesThemBackWithTheLastBuffer) {
  const auto faults = std::make_shared<FaultTrigger>();
  const DevicePtr own = faulty_device(faults);
  Buffer kept;
  {
    const auto cache = cache_of(20, own);
    EXPECT_EQ(own->counters().live_bytes, 20 * kBlock * kToken);
    const Opened opened = cache->open(count_from(0, 3)).value();
    byte_of(*cache, opened.id, 0) = 'k';
    kept = cache->contiguous(0, opened.id).value().tokens;
  }
  EXPECT_EQ(static_cast<char>(kept.as_host_bytes().value()[0]), 'k') << "a buffer keeps the memory behind it";
  EXPECT_EQ(own->counters().live_bytes, 20 * kBlock * kToken);
  kept = {};
  EXPECT_EQ(own->counters().live_bytes, 0u);
}

TEST(KvContiguous, SurvivesEveryFailedCallOfTheDevice) {
  const SweepReport report = fail_each([](const DevicePtr& device) -> Result<void> {
    auto made = Cache::make(device, options_of(12));
    if (!made) return made.error();
    Cache& cache = **made;
    Result<void> first;
    const auto keep = [&](const Result<void>& result) {
      if (first && !result) first = result;
      return result.has_value();
    };
    const auto opened = cache.open(count_from(0, 6));
    if (!opened) return opened.error();
    const auto write = [&](SequenceId id, std::size_t token, char value) {
      std::uint64_t address = 0;
      // A failed mapping is tried again by the next call.
      if (!keep(cache.write_addresses(0, {&id, 1}, {&address, 1})) &&
          !cache.write_addresses(0, {&id, 1}, {&address, 1}))
        return;
      *reinterpret_cast<char*>(address + token * kToken) = value;
    };
    for (std::size_t i = 0; i < 6; ++i) write(opened->id, i, static_cast<char>('a' + i));
    std::size_t length = 6;
    for (Token token = 6; token < 11; ++token)
      if (keep(append(cache, opened->id, token)) || append(cache, opened->id, token)) {
        write(opened->id, length, static_cast<char>('a' + length));
        ++length;
      }
    auto forked = cache.fork(opened->id);
    if (!forked) {
      keep(forked.error());
      forked = cache.fork(opened->id);
    }
    EXPECT_TRUE(forked) << forked.error().message();
    if (!forked) return forked.error();
    if (keep(append(cache, *forked, 99)) || append(cache, *forked, 99)) write(*forked, length, 'z');
    for (const SequenceId id : {opened->id, *forked}) {
      std::uint64_t address = 0;
      EXPECT_TRUE(cache.write_addresses(0, {&id, 1}, {&address, 1}) ||
                  cache.write_addresses(0, {&id, 1}, {&address, 1}));
      for (std::size_t i = 0; i < length; ++i)
        EXPECT_EQ(*reinterpret_cast<char*>(address + i * kToken), static_cast<char>('a' + i)) << "token " << i;
    }
    EXPECT_TRUE(cache.check()) << cache.check().error().message();
    return first;
  });
  EXPECT_TRUE(report.ok()) << report.to_string();
  EXPECT_GT(report.rounds, 10u);
}

}  // namespace
}  // namespace berth::kv
