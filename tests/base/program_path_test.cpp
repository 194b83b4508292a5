#include "base/os/program_path.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "support/support.h"

namespace berth {

using namespace internal;

namespace {

TEST(ProgramPath, IsTheFileThatRuns) {
  const auto path = program_path();
  EXPECT_TRUE(path.is_absolute()) << path;
  EXPECT_EQ(path.filename(), "berth_tests");
  EXPECT_TRUE(std::filesystem::equivalent(path, "/proc/self/exe"));
}

// Runs this test once more under another name, which goes while it runs.
TEST(ProgramPath, CanStillBeRunWhenTheFileIsReplaced) {
  if (const char* target = std::getenv("BERTH_TEST_PROGRAM_PATH")) {
    std::filesystem::remove(program_path());
    std::ofstream(target) << program_path().string();
    return;
  }
  const test::TemporaryFolder folder;
  const std::filesystem::path answer = folder.path() / "answer";
  const std::filesystem::path link = program_path().parent_path() / ("berth_tests_" + std::to_string(getpid()));
  std::filesystem::create_hard_link(program_path(), link);
  const std::string command = "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX BERTH_TEST_PROGRAM_PATH='" +
                              answer.string() + "' '" + link.string() +
                              "' --gtest_filter=ProgramPath.CanStillBeRunWhenTheFileIsReplaced > /dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::ifstream file(answer);
  const std::string said((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(said, "/proc/self/exe");
}

}  // namespace
}  // namespace berth
