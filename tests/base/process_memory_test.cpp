// The memory of another process: a child of this one.
#include "base/os/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <vector>

#include "base/os/shared_file.h"

namespace berth::internal {
namespace {

// A child with private pages, at the same address in both processes; it holds them until it is killed.
class Child {
 public:
  explicit Child(std::size_t bytes) : bytes_(bytes) {
    pages_ = static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::memset(pages_, 1, bytes);
    pid_ = fork();
    if (pid_ == 0)
      while (true) pause();
  }
  ~Child() {
    end();
    munmap(pages_, bytes_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(pages_); }
  std::byte* here() const { return pages_; }

 private:
  const std::size_t bytes_;
  std::byte* pages_ = nullptr;
  pid_t pid_ = -1;
};

constexpr std::size_t kBytes = 100'000;

TEST(ProcessMemory, CopiesFromAndToAnotherProcess) {
  const Child child(kBytes);
  const auto memory = ProcessMemory::open(child.pid());
  if (memory == nullptr) GTEST_SKIP() << "this system does not let a process at the memory of its child";
  std::vector<std::byte> bytes(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<std::byte>(i * 7);
  ASSERT_TRUE(memory->write(child.address(), bytes));
  std::vector<std::byte> back(kBytes);
  ASSERT_TRUE(memory->read(child.address(), back));
  EXPECT_EQ(back, bytes);
  EXPECT_TRUE(memory->is_alive());
  EXPECT_EQ(child.here()[9], std::byte{1}) << "the pages of this process are its own";
}

TEST(ProcessMemory, FailsForAddressesThatAreNotThere) {
  const Child child(kBytes);
  const auto memory = ProcessMemory::open(child.pid());
  if (memory == nullptr) GTEST_SKIP() << "this system does not let a process at the memory of its child";
  std::array<std::byte, 8> few{};
  EXPECT_FALSE(memory->read(16, few));
  EXPECT_FALSE(memory->write(16, few));
}

TEST(ProcessMemory, KnowsThatTheProcessHasEnded) {
  Child child(kBytes);
  const auto memory = ProcessMemory::open(child.pid());
  if (memory == nullptr) GTEST_SKIP() << "this system does not let a process at the memory of its child";
  std::array<std::byte, 8> few{};
  ASSERT_TRUE(memory->is_alive());
  child.end();
  EXPECT_FALSE(memory->is_alive());
  EXPECT_FALSE(memory->read(child.address(), few));
  EXPECT_FALSE(memory->write(child.address(), few));
}

TEST(ProcessMemory, OpensFilesOfTheOtherProcess) {
  const int file = make_shared_file(4096);
  if (file < 0) GTEST_SKIP() << "this system has no files in memory that processes share";
  Child child(kBytes);
  const auto memory = ProcessMemory::open(child.pid());
  if (memory == nullptr) GTEST_SKIP() << "this system does not let a process at the memory of its child";
  EXPECT_EQ(pwrite(file, "here", 4, 100), 4);
  close(file);
  const int again = memory->open_file(file);
  ASSERT_GE(again, 0);
  char text[5] = {};
  EXPECT_EQ(pread(again, text, 4, 100), 4);
  EXPECT_STREQ(text, "here");
  close(again);
  EXPECT_LT(memory->open_file(-1), 0);
}

TEST(ProcessMemory, IsNullForAProcessThatDoesNotExist) {
  Child child(kBytes);
  const pid_t gone = child.pid();
  child.end();
  EXPECT_EQ(ProcessMemory::open(gone), nullptr);
}

}  // namespace
}  // namespace berth::internal
