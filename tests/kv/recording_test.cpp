#include "berth/kv/recording.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "berth/memory/registry.h"
#include "support/seed.h"

namespace berth::kv {
namespace {

class RecordingFile {
 public:
  RecordingFile()
      : path_(std::filesystem::temp_directory_path() / ("berth_calls_" + std::to_string(test::seed()) + ".kv")) {}
  ~RecordingFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  RecordingFile(const RecordingFile&) = delete;
  RecordingFile& operator=(const RecordingFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::unique_ptr<Cache> cache_of(std::size_t pages, const std::string& record_to = {}) {
  CacheOptions options;
  options.groups = {{.name = Name("full"), .kind = GroupKind::kFull, .bytes_per_token = 64}};
  options.block_tokens = 4;
  options.budget = pages * 256;
  options.eviction = make_lru_eviction();
  options.record_to = record_to;
  return Cache::make(device("CPU").value(), std::move(options)).value();
}

std::vector<Token> count_from(Token first, std::size_t n) {
  std::vector<Token> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

void make_calls(Cache& cache) {
  std::int64_t slot = 0;
  const Token token = -7;
  const Opened first = cache.open(count_from(0, 10), {.salt = 3, .max_new_tokens = 2, .now = 1000}).value();
  ASSERT_TRUE(cache.commit(first.id));
  ASSERT_TRUE(cache.append({&first.id, 1}, {&token, 1}, {&slot, 1}));
  EXPECT_FALSE(cache.open(count_from(0, 4000), {.now = 1500})) << "longer than the cache";
  const SequenceId fork = cache.fork(first.id).value();
  ASSERT_TRUE(cache.truncate(fork, 9));
  std::vector<std::int64_t> slots(5);
  ASSERT_TRUE(cache.extend(fork, count_from(50, 5), slots));
  ASSERT_TRUE(cache.close(first.id, 2000));
  ASSERT_TRUE(cache.close(fork, 2500));
  EXPECT_EQ(cache.open(count_from(0, 13), {.salt = 3, .now = 4000})->cached_tokens, 8u);
}

TEST(KvRecording, HasTheCallsOfACache) {
  const RecordingFile file;
  const auto cache = cache_of(64, file.path());
  make_calls(*cache);
  ASSERT_TRUE(cache->flush_recording());
  const auto recording = read_cache_recording(file.path());
  ASSERT_TRUE(recording) << recording.error().message();
  using Kind = RecordedCall::Kind;
  std::vector<Kind> kinds;
  for (const RecordedCall& call : recording->calls) kinds.push_back(call.kind);
  EXPECT_EQ(kinds, (std::vector<Kind>{Kind::kOpen, Kind::kCommit, Kind::kAppend, Kind::kOpen, Kind::kFork,
                                      Kind::kTruncate, Kind::kExtend, Kind::kClose, Kind::kClose, Kind::kOpen}));
  EXPECT_EQ(recording->sequences, 4u);
  EXPECT_EQ(recording->calls[0].tokens, count_from(0, 10));
  EXPECT_EQ(recording->calls[0].options.salt, 3u);
  EXPECT_EQ(recording->calls[2].tokens, (std::vector<Token>{-7}));
  EXPECT_EQ(recording->calls[5].sequences, (std::vector<std::uint64_t>{2})) << "the refused one has a number too";
  EXPECT_EQ(recording->calls.back().now, 3000u);
}

TEST(KvRecording, RunsOnAnotherCache) {
  const RecordingFile file;
  {
    const auto cache = cache_of(64, file.path());
    make_calls(*cache);
  }
  const CacheRecording recording = read_cache_recording(file.path()).value();
  const auto same = cache_of(64);
  const CacheReplay replay = run_cache_recording(recording, *same);
  EXPECT_EQ(replay.opened, 2u);
  EXPECT_EQ(replay.refused, 1u);
  EXPECT_EQ(replay.other_refused, 0u);
  EXPECT_EQ(replay.cached_tokens, 8u);
  EXPECT_EQ(same->counters().sequences, 0u);
  const auto larger = cache_of(2000);
  EXPECT_EQ(run_cache_recording(recording, *larger).refused, 0u);
  const auto tiny = cache_of(1);
  EXPECT_EQ(run_cache_recording(recording, *tiny).opened, 0u);
  EXPECT_TRUE(tiny->check());
}

TEST(KvRecording, RefusesEveryDamagedFileOrReadsItSafely) {
  const RecordingFile file;
  {
    const auto cache = cache_of(64, file.path());
    make_calls(*cache);
  }
  std::ifstream stream(file.path(), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(stream)), {});
  const auto parse = [](const std::string& text) { return parse_cache_recording(std::as_bytes(std::span(text))); };
  ASSERT_TRUE(parse(whole));
  EXPECT_EQ(parse("BRTHTRC1").error().code(), Code::kInvalidData);
  // A truncated file is refused, unless it ends between two records.
  std::size_t complete = 0;
  for (std::size_t n = 0; n < whole.size(); ++n) complete += parse(whole.substr(0, n)) ? 1 : 0;
  EXPECT_EQ(complete, 10u) << "after the magic, and after each of ten calls but the last";
  std::mt19937 random(static_cast<std::uint32_t>(test::seed()));
  for (int i = 0; i < 500; ++i) {
    std::string damaged = whole;
    damaged[8 + random() % (damaged.size() - 8)] = static_cast<char>(random());
    const auto parsed = parse(damaged);
    if (!parsed) {
      EXPECT_EQ(parsed.error().code(), Code::kInvalidData);
      continue;
    }
    const auto cache = cache_of(32);
    static_cast<void>(run_cache_recording(*parsed, *cache));
    EXPECT_TRUE(cache->check());
  }
}

TEST(KvRecording, NeedsAFileThatCanBeCreated) {
  CacheOptions options;
  options.groups = {{.bytes_per_token = 64}};
  options.budget = 1 << 16;
  options.record_to = "/no such folder/calls.kv";
  EXPECT_EQ(Cache::make(device("CPU").value(), std::move(options)).error().code(), Code::kIo);
  EXPECT_EQ(read_cache_recording("/no such folder/calls.kv").error().code(), Code::kNotFound);
  EXPECT_TRUE(cache_of(4)->flush_recording()) << "nothing is recorded";
}

TEST(KvRecording, EndsWhenTheFileCannotBeWritten) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no full device";
  const auto cache = cache_of(64, "/dev/full");
  make_calls(*cache);
  EXPECT_EQ(cache->flush_recording().error().code(), Code::kIo);
  EXPECT_EQ(cache->flush_recording().error().code(), Code::kIo);
  EXPECT_TRUE(cache->open(count_from(0, 4)));
}

}  // namespace
}  // namespace berth::kv
