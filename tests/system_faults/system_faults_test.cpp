// Every system call that can fail fails in turn, is interrupted, or transfers a few bytes only: files that are written
// and read, mapped memory, processes, libraries. And a process that dies before any of them leaves whole files.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/atomic_file.h"
#include "base/input_file.h"
#include "base/os/process_barrier.h"
#include "base/try.h"
#include "berth/alloc/caching_pool.h"
#include "berth/alloc/growable.h"
#include "berth/alloc/recording.h"
#include "berth/berth.h"
#include "berth/plan/memory_map.h"
#include "berth/plan/plan_files.h"
#include "berth/tensor/evictable.h"
#include "berth/weights/async_load.h"
#include "berth/weights/save.h"
#include "berth/weights/weights.h"
#include "engines/onnxruntime_library.h"
#include "engines/onnxruntime_session.h"
#include "engines/ort_format.h"
#include "run/child_process.h"
#include "run/private_folder.h"
#include "run/ready_model.h"
#include "support/support.h"
#include "system_faults/system_calls.h"

namespace berth {

using namespace internal;

namespace {

namespace fs = std::filesystem;
using test::fails_with;
using test::SystemFault;
using test::TemporaryFolder;
using ::testing::AnyOf;
using Scenario = std::function<Result<void>()>;

std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator{}));
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void put(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

Error wrong(const char* what) {
  return Error::with_text(Code::kInvalidData, Layer::kProgram, what);
}

// Runs the scenario with each of its calls failing, then with each interrupted, then with short transfers. `after`
// checks what a failure left; it gets whether the scenario succeeded.
struct Swept {
  std::size_t calls = 0;           // of a run without faults
  std::set<std::string> reported;  // calls whose failure became an error
  std::set<std::string> survived;  // calls that the scenario can do without
};
Swept sweep(const Scenario& scenario, const std::function<void(bool succeeded)>& after = {}) {
  Swept swept;
  EXPECT_TRUE(scenario()) << "a first time, for what is opened once in a process";
  test::arm(SystemFault::kNone);
  const Result<void> plain = scenario();
  swept.calls = test::disarm();
  EXPECT_TRUE(plain) << plain.error().message();
  for (const SystemFault fault : {SystemFault::kFail, SystemFault::kInterrupt}) {
    for (std::size_t i = 1; i <= swept.calls; ++i) {
      const std::size_t open_before = open_descriptors();
      test::arm(fault, i);
      const Result<void> did = scenario();
      test::disarm();
      const std::string call = test::faulted_call();
      const std::string context = "call " + std::to_string(i) + " of " + std::to_string(swept.calls) + ", " + call +
                                  (did ? "" : ": " + did.error().message());
      EXPECT_EQ(open_descriptors(), open_before) << context;
      if (fault == SystemFault::kInterrupt) {
        EXPECT_TRUE(did) << "interrupted: " << context;
      }
      if (!did) {
        EXPECT_NE(did.error().code(), Code::kInvalidData) << context;
        EXPECT_FALSE(did.error().message().empty()) << context;
        EXPECT_THAT(did.error().message(), ::testing::Not(::testing::HasSubstr(std::strerror(EBADF))))
            << "the cause is the call that failed, not what was tried without its result: " << context;
      }
      if (!call.empty() && fault == SystemFault::kFail) (did ? swept.survived : swept.reported).insert(call);
      if (after) after(did.has_value());
      const Result<void> again = scenario();
      EXPECT_TRUE(again) << "after " << context << ": " << again.error().message();
      if (::testing::Test::HasFailure()) return swept;
    }
  }
  for (const std::size_t bytes : {1, 7, 4095}) {
    test::limit_transfers(bytes);
    const Result<void> did = scenario();
    test::limit_transfers(0);
    EXPECT_TRUE(did) << bytes << " bytes at once: " << did.error().message();
  }
  return swept;
}

Buffer numbers(std::size_t count) {
  Buffer buffer = Buffer::allocate(device("CPU").value(), i8, {count}).value();
  auto bytes = buffer.as_host_bytes_mut().value();
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 255);
  return buffer;
}

Result<void> expect_same(const Buffer& a, const Buffer& b) {
  std::vector<std::byte> left(a.size()), right(b.size());
  BERTH_TRY(a.copyout(left));
  BERTH_TRY(b.copyout(right));
  return left == right ? Result<void>() : wrong("other bytes");
}

// Saves over an older file.
class Saving : public ::testing::TestWithParam<const char*> {
 protected:
  Saving() {
    EXPECT_TRUE(save(first_));
    old_ = contents(path_);
    EXPECT_TRUE(save(second_));
    new_ = contents(path_);
    EXPECT_NE(old_, new_);
  }
  Result<void> save(const Buffer& buffer) const {
    const std::vector<NamedBuffer> tensors{{"w", buffer}, {"v", buffer}};
    return path_.ends_with(".gguf") ? save_gguf(path_, tensors) : save_safetensors(path_, tensors);
  }
  void put_old() const { put(path_, old_); }

  const TemporaryFolder folder_;
  const std::string path_ = (folder_.path() / GetParam()).string();
  const Buffer first_ = numbers(3000), second_ = numbers(5000);
  std::string old_, new_;
};
INSTANTIATE_TEST_SUITE_P(SystemFaults, Saving, ::testing::Values("a.safetensors", "a.gguf"));

TEST_P(Saving, KeepsTheOldFileOrTheNewWhicheverCallFails) {
  const Swept swept = sweep(
      [&]() -> Result<void> {
        put_old();
        return save(second_);
      },
      [&](bool succeeded) {
        EXPECT_EQ(contents(path_), succeeded ? new_ : old_);
        EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1) << "a file was left";
      });
  EXPECT_GE(swept.reported.size(), 5u);
  EXPECT_TRUE(swept.reported.contains("fsync"));
  EXPECT_TRUE(swept.reported.contains("rename"));
}

TEST_P(Saving, LeavesAWholeFileWhereverTheMachineStops) {
  test::arm(SystemFault::kNone);
  ASSERT_TRUE(save(second_));
  const std::size_t calls = test::disarm();
  std::size_t olds = 0, news = 0;
  for (std::size_t i = 1; i <= calls + 1; ++i) {
    put_old();
    const pid_t child = ::fork();
    if (child == 0) {
      test::arm(SystemFault::kDie, i);
      _exit(save(second_) ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(WEXITSTATUS(status), i <= calls ? test::kDied : 0) << "call " << i << " of " << calls;
    const std::string found = contents(path_);
    ASSERT_TRUE(found == old_ || found == new_) << "after call " << i << " there are " << found.size() << " bytes";
    ++(found == old_ ? olds : news);
  }
  EXPECT_GT(olds, 0u);
  EXPECT_GT(news, 0u);
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    EXPECT_TRUE(entry.path() == path_ || entry.path().extension() == ".partial") << entry.path();
}

TEST(AtomicFile, LeavesAloneWhateverHasTheNameOfItsTemporaryFile) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "file").string(), victim = (folder.path() / "victim").string();
  put(victim, "precious");
  int planted = 0;
  test::before_open([&](const std::string& name, int flags) {
    if ((flags & O_CREAT) != 0 && planted < 3) {
      if (++planted % 2 == 1)
        fs::create_symlink(victim, name);
      else
        put(name, "of somebody else");
    }
  });
  const Result<void> written = write_whole_file(path, "text");
  test::before_open({});
  ASSERT_TRUE(written) << written.error().message();
  EXPECT_EQ(planted, 3);
  EXPECT_EQ(contents(victim), "precious");
  EXPECT_EQ(contents(path), "text");
}

TEST(AtomicFile, GivesUpWhereEveryNameIsTaken) {
  const TemporaryFolder folder;
  test::before_open([&](const std::string& name, int flags) {
    if ((flags & O_CREAT) != 0) put(name, "taken");
  });
  const Result<void> written = write_whole_file((folder.path() / "file").string(), "text");
  test::before_open({});
  EXPECT_TRUE(fails_with(written, Code::kIo));
}

TEST(AtomicFile, ReplacesTheTargetOfALinkAndKeepsItsPermissions) {
  const TemporaryFolder folder;
  const std::string real = (folder.path() / "real").string(), link = (folder.path() / "link").string();
  put(real, "old");
  fs::permissions(real, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("real", link);
  ASSERT_TRUE(write_whole_file(link, "new"));
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(contents(real), "new");
  EXPECT_EQ(fs::status(real).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_TRUE(fails_with(AtomicFile::create(folder.path().string()), Code::kIo)) << "a folder";
  const std::string longest = (folder.path() / std::string(255, 'n')).string();
  EXPECT_TRUE(write_whole_file(longest, "new"));
}

TEST(SystemFaults, WeightsAreLoadedRightOrNotAtAll) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "a.safetensors").string();
  const Buffer w = numbers(100'000), v = numbers(777);
  ASSERT_TRUE(save_safetensors(path, std::vector<NamedBuffer>{{"w", w}, {"v", v}}));
  for (const bool direct : {false, true}) {
    const Swept swept = sweep([&]() -> Result<void> {
      BERTH_TRY_ASSIGN(const WeightFile file, open_weights(path));
      BERTH_TRY_ASSIGN(const Buffer loaded, file.load("w", device("CPU").value(), {.direct = direct}));
      BERTH_TRY_ASSIGN(const Buffer mapped, file.tensor("v"));
      BERTH_TRY(mapped.as_host_bytes());
      BERTH_TRY(expect_same(loaded, w));
      return expect_same(mapped, v);
    });
    for (const char* call : {"open", "fstat", "mmap", "lseek"}) EXPECT_TRUE(swept.reported.contains(call)) << call;
  }
}

TEST(SystemFaults, WeightsArriveInTheBackgroundRightOrNotAtAll) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "a.safetensors").string();
  const Buffer w = numbers(100'000), v = numbers(777);
  ASSERT_TRUE(save_safetensors(path, std::vector<NamedBuffer>{{"w", w}, {"v", v}}));
  for (const ReadMethod method : {ReadMethod::kThreads, ReadMethod::kRing}) {
    const Swept swept = sweep([&]() -> Result<void> {
      BERTH_TRY_ASSIGN(const WeightFile file, open_weights(path));
      const std::string_view names[] = {"v", "w"};
      BERTH_TRY_ASSIGN(AsyncLoad load,
                       load_async(file, names, device("CPU").value(), {.method = method, .readers = 1}));
      BERTH_TRY(load.finish());
      BERTH_TRY(expect_same(load.buffers()[0], v));
      return expect_same(load.buffers()[1], w);
    });
    EXPECT_TRUE(swept.reported.contains(method == ReadMethod::kRing ? "syscall" : "preadv"));
  }
}

TEST(SystemFaults, AFileReplacedWhileItIsOpenedIsRefused) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "a.safetensors").string(), other = (folder.path() / "b").string();
  ASSERT_TRUE(save_safetensors(path, std::vector<NamedBuffer>{{"w", numbers(64)}}));
  int opened = 0;
  test::before_open([&](const std::string& name, int) {
    if (name == path && ++opened == 2) {
      fs::copy_file(path, other);  // of the same size
      fs::rename(other, path);
    }
  });
  const auto file = open_weights(path);
  test::before_open({});
  EXPECT_TRUE(fails_with(file, Code::kIo));
  EXPECT_TRUE(open_weights(path));
}

TEST(SystemFaults, AMappedFileIsReadRightOrNotAtAll) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", test::counting_bytes(10'000));
  const Swept swept = sweep([&]() -> Result<void> {
    BERTH_TRY_ASSIGN(const Buffer mapped, map_file(path, 100, 9000));
    std::vector<std::byte> out(9000);
    BERTH_TRY(mapped.copyout(out));
    BERTH_TRY(mapped.as_host_bytes());
    return out == test::counting_bytes(9000, 100) ? Result<void>() : wrong("other bytes");
  });
  for (const char* call : {"open", "fstat", "mmap", "pread", "lseek"})
    EXPECT_TRUE(swept.reported.contains(call)) << call;
}

TEST(SystemFaults, ARecordingSaysThatItIsNotWhole) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "r.trace").string();
  const Swept swept = sweep([&]() -> Result<void> {
    {
      BERTH_TRY_ASSIGN(const auto recorder, make_recorder(device("CPU").value(), path));
      BERTH_TRY_ASSIGN(const Block block, recorder->allocate({.bytes = 64}));
      recorder->release(block, {});
      BERTH_TRY(recorder->flush());
    }
    BERTH_TRY_ASSIGN(const Recording recording, read_recording(path));
    return recording.blocks == 1 ? Result<void>() : wrong("other events");
  });
  for (const char* call : {"fopen", "fwrite", "fflush", "open", "read"})
    EXPECT_TRUE(swept.reported.contains(call)) << call;
}

TEST(SystemFaults, TextFilesAreReadAndWrittenWhole) {
  const TemporaryFolder folder;
  const std::string problem = (folder.path() / "p.csv").string(), page = (folder.path() / "p.html").string();
  std::string rows = "id,lower,upper,size\n";
  for (int i = 0; i < 5000; ++i) rows += std::to_string(i) + ",0,1,4096\n";
  put(problem, rows);
  put(page, "old");
  const Swept swept = sweep(
      [&]() -> Result<void> {
        BERTH_TRY_ASSIGN(const PlanTable table, read_plan_csv(problem));
        if (table.problem.lifetimes.size() != 5000) return wrong("other rows");
        BERTH_TRY(write_memory_map(page, {.title = "new"}));
        return contents(page) == memory_map_html({.title = "new"}) ? Result<void>() : wrong("another page");
      },
      [&](bool) {
        EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 2) << "a file was left";
        EXPECT_THAT(contents(page), AnyOf("old", memory_map_html({.title = "new"})));
      });
  for (const char* call : {"open", "read", "write", "rename"}) EXPECT_TRUE(swept.reported.contains(call)) << call;
}

TEST(SystemFaults, EvictedContentsAreNeverLost) {
  const TemporaryFolder folder;
  const DevicePtr cpu = device("CPU").value();
  const Buffer expected = numbers(100'000);
  std::shared_ptr<EvictableMemory> memory = make_evictable(cpu, {.folder = folder.path().string()}).value();
  const Buffer kept = Buffer::allocate(memory, i8, {100'000}, {.tag = "model"}).value();
  ASSERT_TRUE(kept.copy_from(expected));
  const auto bring_back = [&] {
    ASSERT_TRUE(memory->wake("model"));
    ASSERT_TRUE(expect_same(kept, expected));
  };
  const Swept swept = sweep(
      [&]() -> Result<void> {
        BERTH_TRY(memory->evict("model", Contents::kToFile));
        BERTH_TRY(memory->wake("model"));
        return expect_same(kept, expected);
      },
      [&](bool) { bring_back(); });
  for (const char* call : {"pwrite", "pread", "mprotect"}) EXPECT_TRUE(swept.reported.contains(call)) << call;
}

TEST(SystemFaults, MemoryOfTheSystemIsGivenOrRefused) {
  const DevicePtr cpu = device("CPU").value();
  const Swept swept = sweep([&]() -> Result<void> {
    BERTH_TRY_ASSIGN(const Buffer small, Buffer::allocate(cpu, u8, {100}));
    BERTH_TRY_ASSIGN(const Buffer large, Buffer::allocate(cpu, u8, {64 << 20}));
    BERTH_TRY_ASSIGN(const auto growing, make_growable(cpu, {.reserve_bytes = 64 << 20, .step_bytes = 1 << 20}));
    BERTH_TRY_ASSIGN(const Buffer grown, Buffer::allocate(growing, u8, {3 << 20}));
    for (const Buffer& buffer : {small, large, grown}) {
      BERTH_TRY_ASSIGN(const auto bytes, buffer.as_host_bytes_mut());
      bytes.front() = bytes.back() = std::byte{7};
    }
    return {};
  });
  EXPECT_TRUE(swept.reported.contains("mmap"));
}

TEST(SystemFaultsDeathTest, ABarrierThatFailsAfterItsRegistrationEndsTheProcess) {
  if (!prepare_process_barrier()) GTEST_SKIP() << "this system refuses membarrier; the pool does without thread caches";
  EXPECT_DEATH(
      {
        test::arm(SystemFault::kForbid, 1);
        process_barrier();
      },
      "membarrier fails .* though this process was registered for it");
  // One failure alone, such as a lack of memory in the kernel, is made good by the slower barrier.
  test::arm(SystemFault::kFail, 1);
  process_barrier();
  EXPECT_EQ(test::disarm(), 2u);
}

TEST(SystemFaults, ThePoolWorksWithoutABarrierOfTheSystem) {
  const DevicePtr cpu = device("CPU").value();
  sweep([&]() -> Result<void> {
    const auto pool = make_caching_pool(cpu);
    std::optional<Error> failed;
    const auto work = [&] {
      for (int i = 0; i < 20; ++i) {
        auto block = pool->allocate({.bytes = 4096});
        if (!block) {
          failed = block.error();
          return;
        }
        pool->release(*block, {});
      }
    };
    std::thread(work).join();  // one after the other: each has a cache of its own
    work();
    pool->trim();
    if (failed) return *failed;
    return {};
  });
}

TEST(SystemFaults, AModelOfTheEngineIsAlignedOrRefused) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "model.ort").string();
  const std::string plain = contents(BERTH_ORT_CORPUS "/engine_plain");
  ASSERT_FALSE(plain.empty());
  const Swept swept = sweep([&]() -> Result<void> {
    put(path, plain);
    BERTH_TRY(ort::align_weights(path));
    BERTH_TRY_ASSIGN(const ort::MappedModel model, ort::MappedModel::open(path));
    BERTH_TRY(ort::find_weights(model.bytes()));
    return {};
  });
  for (const char* call : {"open", "fstat", "mmap", "pwrite"}) EXPECT_TRUE(swept.reported.contains(call)) << call;
}

TEST(SystemFaults, AnEngineThatCannotBeOpenedIsReportedWithTheCommandThatInstallsIt) {
  for (std::size_t i = 1; i <= 2; ++i) {  // dlopen, dlsym
    test::arm(SystemFault::kFail, i);
    const auto refused = ort::library();
    test::disarm();
    EXPECT_TRUE(fails_with(refused, Code::kDeviceUnavailable));
    EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("pip install onnxruntime"));
  }
}

// The parts of `berth run` that touch files and processes.
TEST(SystemFaults, APrivateFolderIsMadeOrRefusedAndGoesAgain) {
  const TemporaryFolder folder;
  const auto left = [&] { return std::distance(fs::directory_iterator(folder.path()), {}); };
  const Swept swept = sweep([&]() -> Result<void> {
    BERTH_TRY_ASSIGN(const cli::PrivateFolder own, cli::PrivateFolder::make(folder.path().string(), "own-"));
    put(own.path() + "/file", "text");
    return left() >= 1 ? Result<void>() : wrong("no folder");
  });
  EXPECT_TRUE(swept.reported.contains("mkdtemp"));
  // The next one removes what a failure may have left.
  { const auto next = cli::PrivateFolder::make(folder.path().string(), "own-").value(); }
  EXPECT_EQ(left(), 0);
}

TEST(SystemFaults, PrivateFoldersInUseAreLeftAloneAndAbandonedOnesRemoved) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "own-abandoned" / "deep");
  fs::create_directories(folder.path() / "other");
  fs::create_directory_symlink(folder.path() / "other", folder.path() / "own-link");
  const auto first = cli::PrivateFolder::make(folder.path().string(), "own-").value();
  const auto second = cli::PrivateFolder::make(folder.path().string(), "own-").value();
  EXPECT_TRUE(fs::exists(first.path()));
  EXPECT_TRUE(fs::exists(second.path()));
  EXPECT_NE(first.path(), second.path());
  EXPECT_FALSE(fs::exists(folder.path() / "own-abandoned"));
  EXPECT_TRUE(fs::exists(folder.path() / "other"));
  EXPECT_EQ(fs::status(first.path()).permissions(), fs::perms::owner_all);
}

TEST(SystemFaults, AModelWithoutASoundSealIsNotTaken) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "model").string(), text(100'000, 'm');
  const Swept swept = sweep(
      [&]() -> Result<void> {
        put(path, text);
        BERTH_TRY(cli::seal_model(path, "stamp"));
        // A seal that cannot be checked costs a new model and is no error.
        return {};
      },
      [&](bool succeeded) { EXPECT_EQ(cli::is_sealed(path, "stamp"), succeeded); });
  for (const char* call : {"open", "pread", "pwrite"}) EXPECT_TRUE(swept.reported.contains(call)) << call;
  put(path, text);
  ASSERT_TRUE(cli::seal_model(path, "stamp"));
  test::arm(SystemFault::kNone);
  EXPECT_TRUE(cli::is_sealed(path, "stamp"));
  for (std::size_t calls = test::disarm(), i = 1; i < calls; ++i) {  // the last one closes the file
    test::arm(SystemFault::kFail, i);
    EXPECT_FALSE(cli::is_sealed(path, "stamp")) << i;
    test::disarm();
  }
  EXPECT_FALSE(cli::is_sealed(path, "another stamp"));
  EXPECT_FALSE(cli::is_sealed((folder.path() / "absent").string(), "stamp"));
  const std::string sealed = contents(path);
  for (const std::size_t at : {std::size_t{0}, text.size() / 2, text.size(), sealed.size() - 1}) {
    std::string damaged = sealed;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    put(path, damaged);
    EXPECT_FALSE(cli::is_sealed(path, "stamp")) << at;
  }
}

TEST(SystemFaults, AWorkerIsStartedOrRefused) {
  const Swept swept = sweep([&]() -> Result<void> {
    // This program does not know the argument and ends; that it was started is what matters.
    auto child = cli::ChildProcess::start({"--gtest_list_tests", "--gtest_filter=none"}, {});
    if (!child) return child.error();
    return {};
  });
  EXPECT_TRUE(swept.reported.contains("fork"));
  EXPECT_TRUE(swept.reported.contains("pipe"));
}

}  // namespace
}  // namespace berth
