#include "base/input_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "support/support.h"

namespace berth::internal {
namespace {

using test::counting_bytes;
using test::fails_with;
using test::TemporaryFolder;

TEST(InputFile, ReadsAFileWhole) {
  const TemporaryFolder folder;
  for (const std::size_t bytes : {0, 1, 65'536, 65'537, 1'000'000}) {
    const std::string path = folder.write("file", counting_bytes(bytes));
    const std::string text = read_whole_file(path).value();
    ASSERT_EQ(text.size(), bytes);
    for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(text[i], static_cast<char>(i));
  }
  EXPECT_FALSE(read_whole_file("/proc/self/status").value().empty()) << "the system tells no size of it";
}

TEST(InputFile, RefusesWhatIsTooLarge) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", counting_bytes(1000));
  EXPECT_TRUE(read_whole_file(path, 1000));
  EXPECT_TRUE(fails_with(read_whole_file(path, 999), Code::kInvalidData));
  EXPECT_TRUE(fails_with(read_whole_file("/proc/self/status", 10), Code::kInvalidData));
}

TEST(InputFile, RefusesWhatHasNoEnd) {
  const TemporaryFolder folder;
  const std::string pipe = (folder.path() / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(fails_with(read_whole_file(pipe), Code::kIo));
  EXPECT_TRUE(fails_with(read_whole_file("/dev/zero"), Code::kIo));
  EXPECT_TRUE(fails_with(read_whole_file(folder.path().string()), Code::kIo));
  EXPECT_TRUE(fails_with(read_whole_file((folder.path() / "absent").string()), Code::kNotFound));
}

TEST(InputFile, ReadsAPipeToItsEnd) {
  const TemporaryFolder folder;
  const std::string pipe = (folder.path() / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] {
    const int end = ::open(pipe.c_str(), O_WRONLY);  // waits for the reader
    for (const char* part : {"one ", "two ", "three"}) {
      EXPECT_GT(::write(end, part, std::string(part).size()), 0);
      ::usleep(1000);  // the reader finds nothing in between
    }
    ::close(end);
  });
  EXPECT_EQ(read_whole_file(pipe).value(), "one two three");
  writer.join();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "text", 4), 4);
  ::close(ends[1]);
  EXPECT_EQ(read_whole_stream(ends[0], "a pipe").value(), "text");
  ::close(ends[0]);
  EXPECT_TRUE(fails_with(read_whole_stream(-1, "nothing"), Code::kIo));
}

TEST(InputFile, OpensRegularFilesOnly) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", counting_bytes(10));
  const int descriptor = open_regular_file(path).value();
  char first = 1;
  EXPECT_EQ(::read(descriptor, &first, 1), 1);
  EXPECT_EQ(first, 0);
  ::close(descriptor);
  const auto absent = open_regular_file((folder.path() / "absent").string());
  EXPECT_TRUE(fails_with(absent, Code::kNotFound));
  EXPECT_TRUE(fails_with(open_regular_file(folder.path().string()), Code::kIo));
  const std::string pipe = (folder.path() / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(fails_with(open_regular_file(pipe), Code::kIo));
}

}  // namespace
}  // namespace berth::internal
