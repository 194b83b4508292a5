#include "base/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "base/input_file.h"
#include "support/support.h"

namespace berth::internal {
namespace {

using test::fails_with;
using test::TemporaryFolder;

TEST(AtomicFile, WritesIntoAPipeAndADeviceAndReplacesNeither) {
  const TemporaryFolder folder;
  const std::string pipe = (folder.path() / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::string read;
  std::jthread reader([&] { std::getline(std::ifstream(pipe), read); });
  EXPECT_TRUE(write_whole_file(pipe, "some words"));
  reader.join();
  EXPECT_EQ(read, "some words");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_TRUE(write_whole_file("/dev/null", "some words"));
  EXPECT_TRUE(fails_with(write_whole_file("/dev/full", "some words"), Code::kIo));
}

TEST(AtomicFile, ReplacesAFileAndRefusesAFolder) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "file").string();
  for (const char* text : {"first", "second"}) {
    ASSERT_TRUE(write_whole_file(path, text));
    EXPECT_EQ(read_whole_file(path).value(), text);
  }
  EXPECT_TRUE(fails_with(write_whole_file(folder.path().string(), "text"), Code::kIo));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "nothing is left beside it";
}

}  // namespace
}  // namespace berth::internal
