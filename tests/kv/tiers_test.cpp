// Blocks that leave the pages of a cache for slower memory, and come back.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>

#include "berth/alloc/fault.h"
#include "berth/kv/cache.h"
#include "berth/memory/registry.h"
#include "berth/testing.h"
#include "doubles/lagging_device.h"

namespace berth::kv {
namespace {

constexpr std::uint32_t kBlock = 4;
constexpr std::size_t kPageBytes = kBlock * 64;

Tier host_tier(std::size_t blocks, AllocatorPtr allocator = device("CPU").value()) {
  return {.allocator = std::move(allocator), .budget = blocks * kPageBytes, .label = Name("host")};
}

Tier file_tier(std::size_t blocks) {
  return {.folder = std::filesystem::temp_directory_path().string(), .budget = blocks * kPageBytes};
}

CacheOptions options_of(std::size_t pages, std::vector<Tier> tiers) {
  CacheOptions options;
  options.groups = {{.name = Name("full"), .kind = GroupKind::kFull, .bytes_per_token = 64}};
  options.block_tokens = kBlock;
  options.budget = pages * kPageBytes;
  options.eviction = make_lru_eviction();
  options.tiers = std::move(tiers);
  return options;
}

std::unique_ptr<Cache> cache_of(std::size_t pages, std::vector<Tier> tiers,
                                const AllocatorPtr& where = device("CPU").value()) {
  return Cache::make(where, options_of(pages, std::move(tiers))).value();
}

std::vector<Token> count_from(Token first, std::size_t n) {
  std::vector<Token> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Buffer page(const Cache& cache, SequenceId id, std::size_t block) {
  std::vector<std::int32_t> row(16);
  EXPECT_TRUE(cache.write_block_table(0, {&id, 1}, row.size(), row));
  return cache.buffer().view(static_cast<std::size_t>(row[block]) * kPageBytes, kPageBytes).value();
}

std::vector<std::byte> pattern(Token first) {
  std::vector<std::byte> bytes(kPageBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(first * 31 + static_cast<int>(i));
  return bytes;
}

// Opens the tokens, writes the pages that were not cached, and closes. Returns how many tokens were cached.
std::uint64_t use(Cache& cache, const std::vector<Token>& tokens, const OpenOptions& options = {}) {
  const auto opened = cache.open(tokens, options);
  EXPECT_TRUE(opened) << opened.error().message();
  for (std::size_t at = 0; at + kBlock <= tokens.size(); at += kBlock) {
    const Buffer memory = page(cache, opened->id, at / kBlock);
    if (at >= opened->cached_tokens) {
      EXPECT_TRUE(memory.copyin(pattern(tokens[at])));
      continue;
    }
    std::vector<std::byte> bytes(kPageBytes);
    EXPECT_TRUE(memory.copyout(bytes));
    EXPECT_EQ(bytes, pattern(tokens[at])) << "block " << at / kBlock;
  }
  EXPECT_TRUE(cache.commit(opened->id));
  EXPECT_TRUE(cache.close(opened->id));
  const auto whole = cache.check();
  EXPECT_TRUE(whole) << whole.error().message();
  return opened->cached_tokens;
}

TEST(KvTiers, BringsBackWhatWasEvicted) {
  const auto cache = cache_of(4, {host_tier(8)});
  EXPECT_EQ(use(*cache, count_from(0, 13)), 0u);
  EXPECT_EQ(use(*cache, count_from(100, 13)), 0u);
  EXPECT_EQ(cache->counters().tiers[0].blocks, 3u);
  EXPECT_EQ(use(*cache, count_from(0, 13)), 12u);
  const CacheCounters counters = cache->counters();
  EXPECT_EQ(counters.tier_tokens, 12u);
  EXPECT_EQ(counters.tiers[0].loaded, 3u);
  EXPECT_EQ(counters.tiers[0].blocks, 3u) << "those that made room";
  EXPECT_EQ(use(*cache, count_from(100, 13)), 12u);
}

TEST(KvTiers, AFileReturnsTheBytes) {
  const auto cache = cache_of(4, {file_tier(8)});
  use(*cache, count_from(0, 13));
  use(*cache, count_from(100, 13));
  EXPECT_EQ(use(*cache, count_from(0, 13)), 12u);
}

TEST(KvTiers, GoFromOneToTheNextAndLeaveTheLast) {
  const auto cache = cache_of(4, {host_tier(2), file_tier(3)});
  for (Token first = 0; first < 400; first += 100) use(*cache, count_from(first, 13));
  const CacheCounters counters = cache->counters();
  EXPECT_EQ(counters.tiers[0].blocks, 2u);
  EXPECT_EQ(counters.tiers[1].blocks, 3u);
  EXPECT_EQ(counters.tiers[1].dropped, 4u) << "nine blocks were evicted and five have room";
  EXPECT_EQ(use(*cache, count_from(200, 13)), 12u) << "two in the host, one in the file";
  EXPECT_EQ(use(*cache, count_from(0, 13)), 0u);
}

TEST(KvTiers, AFileCanComeBeforeMemory) {
  const auto cache = cache_of(4, {file_tier(2), host_tier(3)});
  for (Token first = 0; first < 300; first += 100) use(*cache, count_from(first, 13));
  EXPECT_EQ(use(*cache, count_from(100, 13)), 12u);
}

TEST(KvTiers, WaitForWorkInFlight) {
  // Nothing that the queue copies is done before somebody waits for it.
  const auto lagging = doubles::LaggingDevice::make();
  for (const bool same : {false, true}) {
    const auto cache =
        cache_of(4, {host_tier(2, same ? AllocatorPtr(lagging) : device("CPU").value()), file_tier(8)}, lagging);
    for (int round = 0; round < 3; ++round)
      for (Token first = 0; first < 300; first += 100)
        EXPECT_EQ(use(*cache, count_from(first, 13)), round == 0 ? 0u : 12u);
  }
}

TEST(KvTiers, KeepSaltsApart) {
  const auto cache = cache_of(4, {host_tier(12)});
  use(*cache, count_from(0, 13), {.salt = 7});
  use(*cache, count_from(100, 13));
  EXPECT_EQ(use(*cache, count_from(0, 13)), 0u);
  use(*cache, count_from(100, 13));
  EXPECT_EQ(use(*cache, count_from(0, 13), {.salt = 7}), 12u);
}

TEST(KvTiers, FindWhatHangsOnABlockThatWasComputedAgain) {
  const auto cache = cache_of(4, {host_tier(8)});
  use(*cache, count_from(0, 13));
  use(*cache, count_from(100, 13));
  // The last token is always computed, so the second block is computed though a tier has it.
  EXPECT_EQ(use(*cache, count_from(0, 8)), 4u);
  EXPECT_EQ(use(*cache, count_from(0, 13)), 12u);
}

TEST(KvTiers, KeepWindowsThatAreStillThere) {
  CacheOptions options = options_of(0, {});
  options.groups = {{.name = Name("full"), .kind = GroupKind::kFull, .bytes_per_token = 64},
                    {.name = Name("window"), .kind = GroupKind::kWindow, .bytes_per_token = 64, .window = 6}};
  options.budget = 16 * kPageBytes;
  options.tiers = {{.allocator = device("CPU").value(), .budget = 64 * kPageBytes}};
  const auto cache = Cache::make(device("CPU").value(), std::move(options)).value();
  use(*cache, count_from(0, 24));
  use(*cache, count_from(100, 29));
  use(*cache, count_from(200, 29));
  EXPECT_GT(cache->counters().tiers[0].blocks, 0u);
  EXPECT_EQ(use(*cache, count_from(0, 25)), 24u) << "the last two blocks have their window with them";
}

TEST(KvTiers, ComputeAgainWhatATierCannotReturn) {
  const auto faults = std::make_shared<FaultTrigger>();
  const auto cache = cache_of(4, {host_tier(8)}, faulty_device(faults));
  use(*cache, count_from(0, 13));
  use(*cache, count_from(100, 13));
  const auto tokens = count_from(0, 13);
  std::uint64_t failed = 0;
  for (std::uint64_t nth = 1; nth < 12; ++nth) {
    faults->fail_at(nth);
    const auto opened = cache->open(tokens);
    faults->fail_none();
    const auto whole = cache->check();
    ASSERT_TRUE(whole) << whole.error().message();
    if (opened) {
      ASSERT_TRUE(cache->close(opened->id));
    }
    failed = cache->counters().tiers[0].failed;
    if (failed != 0) break;
    use(*cache, count_from(100, 13));
  }
  EXPECT_GT(failed, 0u) << "no fault reached a copy from or to the tier";
}

TEST(KvTiers, RefuseWhatMakesNoSense) {
  const auto code = [](CacheOptions options) -> std::optional<Code> {
    const auto made = Cache::make(device("CPU").value(), std::move(options));
    return made ? std::nullopt : std::optional(made.error().code());
  };
  EXPECT_EQ(code(options_of(4, {host_tier(0)})), Code::kOutOfMemory);
  EXPECT_EQ(code(options_of(4, {{.budget = 4096}})), Code::kInvalidArgument);
  EXPECT_EQ(code(options_of(4, {{.folder = "/no such folder", .budget = 4096}})), Code::kIo);
  const std::string folder = std::filesystem::temp_directory_path().string();
  EXPECT_EQ(code(options_of(4, {{.folder = folder, .budget = std::numeric_limits<std::size_t>::max()}})),
            Code::kOutOfMemory)
      << "its tables are larger than the machine";
  CacheOptions states = options_of(16, {host_tier(8)});
  states.groups.push_back({.name = Name("state"), .kind = GroupKind::kState, .state_bytes = 64});
  EXPECT_EQ(code(std::move(states)), Code::kUnsupported);
}

TEST(KvTiers, DropAllThatNoSequenceUses) {
  const auto cache = cache_of(4, {host_tier(8)});
  use(*cache, count_from(0, 13));
  use(*cache, count_from(100, 13));
  cache->drop_cached();
  EXPECT_EQ(cache->counters().tiers[0].blocks, 0u);
  EXPECT_EQ(use(*cache, count_from(0, 13)), 0u);
}

}  // namespace
}  // namespace berth::kv
