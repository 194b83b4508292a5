// Buffers that processes share: what arrives, who may write, and everything a receiver may be handed instead.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/sanitizers.h"
#include "berth/berth.h"
#include "doubles/cuda/cuda_testing.h"
#include "support/seed.h"
#include "support/support.h"

namespace berth {
namespace {

using cuda_test::cuda_double;
using test::counting_bytes;
using test::fails_with;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kBytes = (std::size_t{3} << 20) + 17;  // not whole pages
constexpr SharedAccess kWrite = SharedAccess::kReadWrite;

Bytes contents(const Buffer& buffer) {
  Bytes bytes(buffer.size());
  EXPECT_TRUE(buffer.copyout(bytes));
  return bytes;
}

// A file in memory as somebody else might make it.
Descriptor memory_file(std::size_t bytes, int seals) {
  Descriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return file;
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for (int i = 0; i < 4096; ++i) count += fcntl(i, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

// The same tests on host memory, for real, and on the CUDA driver double.
class Sharing : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string_view(GetParam()) == "CUDA") choice_.emplace();
    device_ = device(GetParam()).value();
    memory_ = make_shareable(device_).value();
  }
  void TearDown() override {
    EXPECT_EQ(device_->counters().live_bytes, 0u);
    EXPECT_EQ(device_->counters().foreign_bytes, 0u);
    memory_.reset();
    device_.reset();
    if (choice_ && !cuda_test::on_real_gpu()) cuda_test::expect_nothing_left();
  }
  Buffer filled(std::size_t first) const {
    Buffer buffer = Buffer::allocate(memory_, u8, {kBytes}).value();
    EXPECT_TRUE(buffer.copyin(counting_bytes(kBytes, first)));
    return buffer;
  }
  bool on_cpu() const { return std::string_view(GetParam()) == "CPU"; }

  std::optional<cuda_test::CudaChoice> choice_;
  DevicePtr device_;
  AllocatorPtr memory_;
};

TEST_P(Sharing, GivesTheSameBytesToWhoeverImportsThem) {
  const Buffer mine = filled(3);
  const SharedMemory shared = mine.share().value();
  EXPECT_GE(shared.memory_bytes, kBytes);
  const Buffer theirs = Buffer::import_shared(device_, shared, u8, {kBytes}).value();
  EXPECT_EQ(contents(theirs), counting_bytes(kBytes, 3));
  EXPECT_NE(theirs.native_handle(), mine.native_handle());
  EXPECT_TRUE(theirs.is_foreign());
  // One memory, not a copy.
  EXPECT_TRUE(mine.copyin(counting_bytes(kBytes, 100)));
  EXPECT_EQ(contents(theirs), counting_bytes(kBytes, 100));
}

TEST_P(Sharing, LetsTheOtherSideReadUnlessItAsksToWrite) {
  const Buffer mine = filled(0);
  const SharedMemory shared = mine.share(kWrite).value();
  const Buffer reader = Buffer::import_shared(device_, shared, u8, {kBytes}).value();
  EXPECT_TRUE(reader.is_read_only());
  EXPECT_TRUE(fails_with(reader.copyin(counting_bytes(kBytes, 1)), Code::kReadOnly));
  const Buffer writer = Buffer::import_shared(device_, shared, u8, {kBytes}, kWrite).value();
  EXPECT_TRUE(writer.copyin(counting_bytes(kBytes, 9)));
  EXPECT_EQ(contents(mine), counting_bytes(kBytes, 9));
  EXPECT_EQ(contents(reader), counting_bytes(kBytes, 9));
}

TEST_P(Sharing, OutlivesTheBufferTheDescriptorAndTheAllocator) {
  Buffer mine = filled(5);
  std::optional<SharedMemory> shared(mine.share().value());
  const std::size_t before = open_descriptors();
  Buffer theirs = Buffer::import_shared(device_, *shared, f32, {kBytes / 4}).value();
  shared.reset();
  mine = Buffer();
  memory_.reset();
  if (on_cpu()) {
    EXPECT_EQ(open_descriptors(), before - 2) << "one of the buffer and one that was shared";
  }
  EXPECT_EQ(contents(theirs.view(0, u8, {kBytes / 4 * 4}).value()), counting_bytes(kBytes / 4 * 4, 5));
}

TEST_P(Sharing, SharesViewsByTheirOffset) {
  const Buffer mine = filled(0);
  const Buffer part = mine.view(1000, 500).value().view(24, 100).value();
  const SharedMemory shared = part.share().value();
  EXPECT_EQ(shared.offset, 1024u);
  EXPECT_EQ(contents(Buffer::import_shared(device_, shared, u8, {100}).value()), counting_bytes(100, 1024));
}

TEST_P(Sharing, CountsTheMemoryOfTheDeviceAndObeysItsBudget) {
  const Buffer mine = filled(0);
  const std::size_t live = device_->counters().live_bytes;
  EXPECT_GE(live, kBytes);
  {
    const Buffer theirs = Buffer::import_shared(device_, mine.share().value(), u8, {10}).value();
    EXPECT_EQ(device_->counters().live_bytes, live) << "imported memory is somebody else's";
    EXPECT_EQ(device_->counters().foreign_count, 1u);
  }
  device_->set_budget(live + 4096);
  EXPECT_TRUE(fails_with(Buffer::allocate(memory_, u8, {kBytes}), Code::kOutOfMemory));
  EXPECT_TRUE(fails_with(Buffer::allocate(memory_, u8, {SIZE_MAX / 8}), Code::kOutOfMemory));
  device_->set_budget(0);
  EXPECT_EQ(device_->counters().live_bytes, live);
}

TEST_P(Sharing, ZeroesMemoryThatWasAskedToBeZero) {
  const Buffer buffer = Buffer::allocate(memory_, u8, {kBytes}, {.zero = true}).value();
  EXPECT_EQ(contents(buffer), Bytes(kBytes));
}

TEST_P(Sharing, WaitsForTheLastUseBeforeItFreesAnything) {
  const QueuePtr queue = device_->make_queue().value();
  {
    const Buffer buffer = filled(0);
    ASSERT_TRUE(queue->fill(buffer.window().value(), 7));
    ASSERT_TRUE(queue->submit());
  }
  const Buffer imported = Buffer::import_shared(device_, filled(1).share(kWrite).value(), u8, {kBytes}, kWrite).value();
  ASSERT_TRUE(queue->fill(imported.window().value(), 8));
  ASSERT_TRUE(queue->finish());
  EXPECT_EQ(contents(imported), Bytes(kBytes, std::byte{8}));
  memory_->trim();
}

TEST_P(Sharing, StacksUnderWhatHandsBlocksOnUnchanged) {
  const auto limited = make_limit(memory_, std::size_t{1} << 30);
  const auto counted = make_statistics(limited);
  const auto faulty = make_fault(counted);
  const auto recorded = make_recorder(faulty, "/dev/null").value();
  const Buffer buffer = Buffer::allocate(recorded, u8, {1000}).value();
  ASSERT_TRUE(buffer.copyin(counting_bytes(1000)));
  const SharedMemory shared = buffer.share().value();
  EXPECT_EQ(contents(Buffer::import_shared(device_, shared, u8, {1000}).value()), counting_bytes(1000));
}

// A pool would hand the memory to somebody else while the other process still has it.
TEST_P(Sharing, RefusesMemoryThatWasNotMadeToBeShared) {
  for (const AllocatorPtr& allocator : {AllocatorPtr(device_), AllocatorPtr(make_caching_pool(memory_)),
                                        AllocatorPtr(make_linear(memory_)), AllocatorPtr(make_dry_run(memory_))}) {
    const Buffer buffer = Buffer::allocate(allocator, u8, {1000}).value();
    const auto shared = buffer.share();
    ASSERT_TRUE(fails_with(shared, Code::kUnsupported));
    EXPECT_NE(shared.error().message().find("make_shareable"), std::string::npos);
    EXPECT_NE(shared.error().message().find(allocator->name()), std::string::npos);
  }
  EXPECT_TRUE(fails_with(Buffer().share(), Code::kNotAllocated));
  EXPECT_TRUE(fails_with(Buffer::allocate(memory_, u8, {0}).value().share(), Code::kNotAllocated));
  const Buffer mine = filled(0);
  const Buffer reader = Buffer::import_shared(device_, mine.share().value(), u8, {10}).value();
  EXPECT_TRUE(fails_with(reader.share(kWrite), Code::kReadOnly));
  EXPECT_TRUE(fails_with(reader.share(), Code::kUnsupported)) << "who made the memory shares it";
}

TEST_P(Sharing, RefusesShapesThatDoNotFit) {
  const Buffer mine = filled(0);
  SharedMemory shared = mine.share().value();
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  const auto import = [&](DType dtype, const Shape& shape) {
    return Buffer::import_shared(device_, shared, dtype, shape);
  };
  EXPECT_TRUE(fails_with(import(u8, {shared.memory_bytes + 1}), Code::kSizeMismatch));
  EXPECT_TRUE(fails_with(import(f32, {kMost / 2, 4}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(import(f64, {kMost / 2}), Code::kInvalidArgument));
  EXPECT_TRUE(import(u8, {shared.memory_bytes}));
  for (const std::size_t offset : {shared.memory_bytes, shared.memory_bytes + 1, kMost, kMost - 5}) {
    shared.offset = offset;
    EXPECT_TRUE(fails_with(import(u8, {1}), Code::kSizeMismatch));
  }
  shared.offset = shared.memory_bytes - 1;
  EXPECT_TRUE(import(u8, {1}));
  EXPECT_TRUE(fails_with(import(u8, {2}), Code::kSizeMismatch));
}

TEST_P(Sharing, RefusesDescriptorsThatAreNotSharedMemory) {
  const std::size_t before = open_descriptors();
  const auto import = [&](int number, std::size_t bytes) {
    SharedMemory memory{.descriptor = Descriptor(number), .memory_bytes = bytes, .offset = 0};
    auto imported = Buffer::import_shared(device_, memory, u8, {16});
    static_cast<void>(memory.descriptor.release());
    return imported;
  };
  constexpr std::size_t kGranule = std::size_t{2} << 20;
  EXPECT_TRUE(fails_with(import(-1, kGranule), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(import(3999, kGranule), Code::kInvalidArgument)) << "closed";
  const Descriptor device_file(open("/dev/zero", O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(fails_with(import(device_file.get(), kGranule), Code::kInvalidData));
  const Descriptor program(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(fails_with(import(program.get(), kGranule), Code::kInvalidData));
  int pipes[2] = {};
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  const Descriptor in(pipes[0]), out(pipes[1]);
  EXPECT_TRUE(fails_with(import(in.get(), kGranule), Code::kInvalidData));
  EXPECT_EQ(open_descriptors(), before + 4) << "the caller's descriptors stay his own";
}

TEST_P(Sharing, RefusesBadRequests) {
  EXPECT_TRUE(fails_with(make_shareable(nullptr), Code::kInvalidArgument));
  const Buffer mine = filled(0);
  EXPECT_TRUE(fails_with(Buffer::import_shared(nullptr, mine.share().value(), u8, {1}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(memory_->allocate({.bytes = 10, .alignment = 3}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(memory_->allocate({.bytes = 10, .alignment = std::size_t{1} << 30}), Code::kUnsupported));
  if (!on_cpu()) {
    EXPECT_TRUE(fails_with(memory_->allocate({.bytes = 10, .host = HostAccess::kRequired}), Code::kUnsupported));
  }
  EXPECT_TRUE(fails_with(memory_->share(Block{.handle = 4096, .bytes = 10}, kWrite), Code::kNotOwned));
}

INSTANTIATE_TEST_SUITE_P(On, Sharing, ::testing::Values("CPU", "CUDA"),
                         [](const auto& param_info) { return std::string(param_info.param); });

// --- Host memory alone: the system's own rules ---

class SharingOnCpu : public ::testing::Test {
 protected:
  static Result<Buffer> import(const SharedMemory& memory, std::size_t bytes, SharedAccess access = {}) {
    return Buffer::import_shared(device("CPU").value(), memory, u8, {bytes}, access);
  }
  const AllocatorPtr memory_ = make_shareable(device("CPU").value()).value();
};

// An access past the end of a file that shrank would end the process.
TEST_F(SharingOnCpu, RefusesMemoryThatCanShrink) {
  SharedMemory shared{.descriptor = memory_file(8192, 0), .memory_bytes = 8192, .offset = 0};
  EXPECT_TRUE(fails_with(import(shared, 8192), Code::kInvalidData));
  shared.descriptor = memory_file(8192, F_SEAL_GROW);
  EXPECT_TRUE(fails_with(import(shared, 8192), Code::kInvalidData));
  shared.descriptor = memory_file(8192, F_SEAL_SHRINK);
  EXPECT_TRUE(import(shared, 8192)) << "memory of another library is as good";
}

TEST_F(SharingOnCpu, RefusesMemoryThatIsSmallerThanItsSender) {
  SharedMemory shared{.descriptor = memory_file(8192, 0), .memory_bytes = 8192, .offset = 0};
  ASSERT_EQ(ftruncate(shared.descriptor.get(), 4096), 0);
  ASSERT_EQ(fcntl(shared.descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(fails_with(import(shared, 8192), Code::kSizeMismatch));
  EXPECT_TRUE(fails_with(import(shared, 4096), Code::kSizeMismatch)) << "it says that it has 8192";
  shared.memory_bytes = 0;
  EXPECT_TRUE(import(shared, 4096));
  EXPECT_TRUE(fails_with(import(shared, 4097), Code::kSizeMismatch));
  shared.descriptor = memory_file(0, F_SEAL_SHRINK);
  EXPECT_TRUE(fails_with(import(shared, 1), Code::kSizeMismatch));
}

TEST_F(SharingOnCpu, KeepsTheReceiverOfReadableMemoryFromWriting) {
  const Buffer mine = Buffer::allocate(memory_, u8, {4096}, {.zero = true}).value();
  const SharedMemory shared = mine.share().value();
  EXPECT_TRUE(fails_with(import(shared, 4096, kWrite), Code::kReadOnly));
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shared.descriptor.get(), 0), MAP_FAILED);
  EXPECT_EQ(ftruncate(mine.share(kWrite).value().descriptor.get(), 0), -1) << "the size is sealed";
  const SharedMemory sealed{
      .descriptor = memory_file(4096, F_SEAL_SHRINK | F_SEAL_WRITE), .memory_bytes = 4096, .offset = 0};
  EXPECT_TRUE(fails_with(import(sealed, 4096, kWrite), Code::kReadOnly));
  EXPECT_TRUE(import(sealed, 4096));
}

TEST_F(SharingOnCpu, ReportsThatThereAreNoDescriptorsLeft) {
  const Buffer first = Buffer::allocate(memory_, u8, {4096}).value();
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit few{.rlim_cur = 256, .rlim_max = usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<Descriptor> all;
  for (int number = 0; number >= 0;) {
    number = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (number >= 0) all.emplace_back(number);
  }
  EXPECT_TRUE(fails_with(first.share(), Code::kIo));
  EXPECT_TRUE(fails_with(first.share(kWrite), Code::kIo));
  EXPECT_TRUE(fails_with(Buffer::allocate(memory_, u8, {4096}), Code::kIo));
  all.clear();
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_TRUE(first.share());
}

TEST_F(SharingOnCpu, IsUnsupportedOnDevicesWithoutSuchMemory) {
  const std::string path = "/proc/self/exe";
  const DevicePtr disk = device("DISK:" + std::filesystem::read_symlink(path).string()).value();
  EXPECT_TRUE(fails_with(make_shareable(disk), Code::kUnsupported));
  const Buffer mine = Buffer::allocate(memory_, u8, {4096}).value();
  EXPECT_TRUE(fails_with(Buffer::import_shared(disk, mine.share().value(), u8, {1}), Code::kUnsupported));
}

// The thread sanitizer ends every child of a process with threads.
#if !BERTH_THREAD_SANITIZER
TEST_F(SharingOnCpu, WorksBetweenProcesses) {
  const Buffer mine = Buffer::allocate(memory_, u8, {kBytes}).value();
  const std::size_t seed = test::seed() % 251;
  ASSERT_TRUE(mine.copyin(counting_bytes(kBytes, seed)));
  const SharedMemory shared = mine.share(kWrite).value();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    const auto theirs = import(shared, kBytes, kWrite);
    if (!theirs) _exit(1);
    Bytes seen(kBytes);
    if (!theirs->copyout(seen) || seen != counting_bytes(kBytes, seed)) _exit(2);
    _exit(theirs->copyin(counting_bytes(kBytes, seed + 1)) ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(contents(mine), counting_bytes(kBytes, seed + 1));
}
#endif

}  // namespace
}  // namespace berth
