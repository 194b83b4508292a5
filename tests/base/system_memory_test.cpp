#include "base/os/system_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "berth/memory/free_memory.h"
#include "support/support.h"

namespace berth::internal {
namespace {

// A machine in a folder.
class SystemMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists("/proc/meminfo")) GTEST_SKIP() << "this system has no /proc";
    write("/proc/meminfo",
          "MemTotal: 16000 kB\nMemAvailable:    8000 kB\nHugePages_Free:   3\nHugepagesize:  2048 kB\n"
          "CommitLimit:  6000 kB\nCommitted_AS: 1000 kB\n");
  }
  void write(const std::string& path, const std::string& text) {
    const std::string full = (folder_.path() / "root").string() + path;
    std::filesystem::create_directories(std::filesystem::path(full).parent_path());
    std::ofstream(full) << text;
  }
  std::uint64_t free_of(const std::string& name) const {
    for (const SystemLimit& limit : system_memory((folder_.path() / "root").string()).value().limits)
      if (limit.name == name) return limit.free_bytes;
    return kNone;
  }
  static constexpr std::uint64_t kNone = 1;
  test::TemporaryFolder folder_;
};

TEST_F(SystemMemoryTest, ReadsWhatTheMachineHas) {
  EXPECT_EQ(free_of("MemAvailable"), 8000u * 1024);
  EXPECT_EQ(system_memory((folder_.path() / "root").string()).value().huge_page_bytes, 3u * 2048 * 1024);
  EXPECT_EQ(free_of("CommitLimit"), kNone);
  write("/proc/sys/vm/overcommit_memory", "2\n");
  EXPECT_EQ(free_of("CommitLimit"), 5000u * 1024);
}

TEST_F(SystemMemoryTest, ReadsTheLimitsOfItsGroupAndThoseAround) {
  write("/proc/self/cgroup", "0::/a/b\n");
  write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  write("/sys/fs/cgroup/a/b/memory.current", "100\n");
  write("/sys/fs/cgroup/a/memory.max", "1000\n");
  write("/sys/fs/cgroup/a/memory.current", "700\n");
  write("/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 200\n");
  EXPECT_EQ(free_of("cgroup memory.max of /a/b"), kNone);
  EXPECT_EQ(free_of("cgroup memory.max of /a"), 500u);  // 700 are used, of which 200 can be dropped
}

TEST_F(SystemMemoryTest, ReadsTheLimitAtWhichAGroupIsSlowedDown) {
  write("/proc/self/cgroup", "0::/a\n");
  write("/sys/fs/cgroup/a/memory.max", "1000\n");
  write("/sys/fs/cgroup/a/memory.high", "600\n");
  write("/sys/fs/cgroup/a/memory.current", "500\n");
  write("/sys/fs/cgroup/memory.high", "max\n");
  write("/sys/fs/cgroup/memory.current", "500\n");
  EXPECT_EQ(free_of("cgroup memory.max of /a"), 500u);
  EXPECT_EQ(free_of("cgroup memory.high of /a"), 100u);
  EXPECT_EQ(free_of("cgroup memory.high of /"), kNone);
}

TEST_F(SystemMemoryTest, ReadsTheLimitOfAContainerAtItsRoot) {
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/memory.max", "1000\n");
  write("/sys/fs/cgroup/memory.current", "1200\n");
  EXPECT_EQ(free_of("cgroup memory.max of /"), 0u);
}

TEST_F(SystemMemoryTest, ReadsTheFirstVersionOfGroups) {
  write("/proc/self/cgroup", "9:cpu,memory:/docker/x\n3:freezer:/\n");
  write("/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "4096\n");
  write("/sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", "1096\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n");
  EXPECT_EQ(free_of("cgroup memory.limit_in_bytes of /docker/x"), 3000u);
  EXPECT_EQ(free_of("cgroup memory.limit_in_bytes of /"), kNone);  // no limit
}

TEST_F(SystemMemoryTest, ListsALimitOfTheProcessOnlyWhereItHasOne) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &before), 0);
  EXPECT_EQ(free_of("RLIMIT_DATA") == kNone, before.rlim_cur == RLIM_INFINITY);
  rlimit addresses{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &addresses), 0);
  EXPECT_EQ(free_of("RLIMIT_AS") == kNone, addresses.rlim_cur == RLIM_INFINITY);
  write("/proc/self/status", "VmData:  1024 kB\n");
  const rlimit set{.rlim_cur = std::min(before.rlim_max, rlim_t{1} << 60), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &set), 0);
  EXPECT_EQ(free_of("RLIMIT_DATA"), set.rlim_cur - (1 << 20));
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &before), 0);
}

TEST_F(SystemMemoryTest, SurvivesFilesThatMakeNoSense) {
  write("/proc/self/cgroup", "nonsense\n0::\n:::\n0::no/slash\n");
  write("/sys/fs/cgroup/memory.max", "12twelve\n");
  write("/sys/fs/cgroup/memory.current", "\n");
  EXPECT_EQ(system_memory((folder_.path() / "root").string()).value().limits[0].free_bytes, 8000u * 1024);
  write("/proc/meminfo", "MemAvailable: many\n");
  EXPECT_TRUE(test::fails_with(system_memory((folder_.path() / "root").string()), Code::kIo));
}

TEST(FreeMemory, IsTheSmallestOfTheLimits) {
  const FreeMemory memory = free_host_memory().value();
  ASSERT_FALSE(memory.limits.empty());
  EXPECT_GT(memory.bytes, 0u);
  for (const MemoryLimit& limit : memory.limits) {
    EXPECT_GE(limit.free_bytes, memory.bytes) << limit.name;
    if (limit.name == memory.limited_by) {
      EXPECT_EQ(limit.free_bytes, memory.bytes);
    }
  }
}

}  // namespace
}  // namespace berth::internal
