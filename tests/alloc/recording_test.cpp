#include "berth/alloc/recording.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "berth/alloc/caching_pool.h"
#include "berth/alloc/limit.h"
#include "berth/berth.h"

namespace berth {
namespace {

AllocatorPtr cpu() {
  return device("CPU").value();
}

// A path that is gone when the test is.
class TemporaryFile {
 public:
  TemporaryFile() {
    static int count = 0;
    path_ = (std::filesystem::temp_directory_path() /
             ("berth_trace_" + std::to_string(::getpid()) + "_" + std::to_string(count++)))
                .string();
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<std::byte> file_of(std::initializer_list<int> records) {
  std::vector<std::byte> bytes(8);
  std::memcpy(bytes.data(), "BRTHTRC1", 8);
  for (const int value : records) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(Recorder, RecordsEveryAllocationAndFree) {
  const TemporaryFile file;
  {
    const auto recorder = make_recorder(cpu(), file.path()).value();
    const Block a = recorder->allocate({.bytes = 1000, .alignment = 256, .label = "a"}).value();
    const Block b = recorder->allocate({.bytes = 70, .label = "b"}).value();
    recorder->release(recorder->allocate({.bytes = 0}).value());
    recorder->release(a);
    std::jthread([&] { recorder->release(b); }).join();
    const Block c = recorder->allocate({.bytes = 5, .label = "a"}).value();
    ASSERT_TRUE(recorder->flush().has_value());
    recorder->release(c);
  }
  const Recording seen = read_recording(file.path()).value();
  EXPECT_EQ(seen.blocks, 3u);
  ASSERT_EQ(seen.events.size(), 6u);
  EXPECT_EQ(seen.labels, (std::vector<std::string>{"", "a", "b"}));
  EXPECT_EQ(seen.events[0].bytes, 1000u);
  EXPECT_EQ(seen.events[0].alignment, 256u);
  EXPECT_EQ(seen.events[0].label, 1u);
  EXPECT_TRUE(seen.events[2].is_free);
  EXPECT_EQ(seen.events[2].block, 0u);
  EXPECT_EQ(seen.events[3].block, 1u);
  EXPECT_NE(seen.events[3].thread, seen.events[2].thread);
  EXPECT_EQ(seen.events[4].label, 1u);
  for (std::size_t i = 1; i < 6; ++i) EXPECT_GE(seen.events[i].time_ns, seen.events[i - 1].time_ns);
}

TEST(Recorder, SaysThatAFileCannotBeWritten) {
  const auto refused = make_recorder(cpu(), "/nowhere/at/all");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kIo);
  if (std::filesystem::exists("/dev/full")) {
    const auto full = make_recorder(cpu(), "/dev/full").value();
    full->release(full->allocate({.bytes = 64}).value());
    const auto flushed = full->flush();
    ASSERT_FALSE(flushed.has_value());
    EXPECT_EQ(flushed.error().code(), Code::kIo);
    full->release(full->allocate({.bytes = 64}).value());  // the program goes on
    EXPECT_FALSE(full->flush().has_value());
  }
}

TEST(Recorder, SaysThatAFileCannotBeRead) {
  EXPECT_EQ(read_recording("/nowhere/at/all").error().code(), Code::kIo);
}

TEST(Recorder, RefusesEveryFileThatBreaksTheFormat) {
  EXPECT_TRUE(parse_recording(file_of({})).has_value());
  const std::vector<std::byte> none;
  EXPECT_FALSE(parse_recording(none).has_value());
  for (const auto& broken : {
           file_of({0}),
           file_of({4}),
           file_of({2}),
           file_of({2, 1, 0, 9, 6}),
           file_of({2, 1, 0, 9, 41, 0}),  // alignment
           file_of({2, 1, 0, 9, 6, 1}),   // a label that is not there
           file_of({3, 1, 0, 1}),
           file_of({2, 1, 0, 9, 6, 0, 3, 1, 0, 0}),
           file_of({2, 1, 0, 9, 6, 0, 3, 1, 0, 2}),              // before the first block
           file_of({2, 1, 0, 9, 6, 0, 3, 1, 0, 1, 3, 1, 0, 1}),  // twice
           file_of({1, 2, 1, 'x'}),
           file_of({1, 1, 5, 'x'}),
           file_of({1, 1, 0x80, 0x20}),
           file_of({2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}),
           file_of({2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}),
       }) {
    const auto parsed = parse_recording(broken);
    ASSERT_FALSE(parsed.has_value());
    EXPECT_EQ(parsed.error().code(), Code::kInvalidData);
    EXPECT_NE(parsed.error().message().find("byte"), std::string::npos);
  }
}

TEST(Replay, MeasuresEachPolicyOnTheSameRecording) {
  Recording recording;
  for (std::uint64_t i = 0; i < 10; ++i) {
    recording.events.push_back({.block = i, .bytes = 100'000, .alignment = 64});
    recording.events.push_back({.is_free = true, .block = i});
  }
  recording.blocks = 10;
  const RecordingReport plain = run_recording(recording, *cpu());
  EXPECT_EQ(plain.peak_live_bytes, 100'000u);
  EXPECT_EQ(plain.peak_held_bytes, 100'000u);
  EXPECT_EQ(plain.failures, 0u);
  const RecordingReport pooled = run_recording(recording, *make_caching_pool(cpu()));
  EXPECT_EQ(pooled.peak_held_bytes, 106'496u) << "rounded to its class";
  EXPECT_NEAR(pooled.fragmentation, 1 - 100'000.0 / 106'496.0, 1e-9);
  const RecordingReport limited = run_recording(recording, *make_limit(cpu(), 50'000));
  EXPECT_EQ(limited.failures, 10u);
  EXPECT_EQ(limited.peak_held_bytes, 0u);
}

}  // namespace
}  // namespace berth
