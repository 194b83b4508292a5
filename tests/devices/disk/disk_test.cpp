#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "berth/memory/registry.h"
#include "berth/tensor/buffer.h"
#include "support/support.h"

namespace berth {
namespace {

using test::counting_bytes;
using test::fails_with;
using test::TemporaryFolder;

TEST(Disk, MapsAFileRegionAtAnyByteOffsetWithoutCopying) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", counting_bytes(10'000));
  const Buffer region = map_file(path, 4097, 3).value();
  const auto bytes = region.as_host_bytes().value();
  EXPECT_EQ(bytes[0], static_cast<std::byte>(4097));
  EXPECT_EQ(bytes.size(), 3u);
  EXPECT_EQ(region.device().kind(), "DISK");
  EXPECT_EQ(region.device().limits().total_bytes, 10'000u);
}

TEST(Disk, ReadsTypedElementsInPlaceOnlyWhereTheyAreAligned) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", counting_bytes(64));
  const Buffer whole = map_file(path).value();
  EXPECT_EQ(whole.view(4, u32, {1}).value().item<std::uint32_t>().value(), 0x07060504u);
  EXPECT_TRUE(fails_with(whole.view(5, u32, {1}).value().item<std::uint32_t>(), Code::kMisaligned));
}

TEST(Disk, RefusesRegionsPastTheEnd) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", counting_bytes(100));
  EXPECT_TRUE(fails_with(map_file(path, 90, 11), Code::kInvalidView));
  EXPECT_TRUE(map_file(path, 90, 10));
  const auto refused = Buffer::allocate(device("DISK:" + path).value(), u8, {101});
  EXPECT_TRUE(fails_with(refused, Code::kInvalidArgument));
  EXPECT_NE(refused.error().message().find("has 100 bytes and 101 were requested"), std::string::npos);
}

TEST(Disk, IsReadOnly) {
  const TemporaryFolder folder;
  const Buffer file = map_file(folder.write("file", counting_bytes(100))).value();
  EXPECT_TRUE(file.is_read_only());
  EXPECT_TRUE(fails_with(file.as_host_bytes_mut(), Code::kReadOnly));
  EXPECT_TRUE(fails_with(file.copyin(counting_bytes(100)), Code::kReadOnly));
  const Buffer other = Buffer::allocate(device("CPU").value(), u8, {100}, {.zero = true}).value();
  EXPECT_TRUE(fails_with(file.copy_from(other), Code::kReadOnly));
}

TEST(Disk, CopiesToTheCpuSmallAndLarge) {
  const TemporaryFolder folder;
  for (const std::size_t bytes : {std::size_t{100}, (std::size_t{9} << 20) + 5}) {
    const auto contents = counting_bytes(bytes);
    const Buffer file = map_file(folder.write("file", contents), 3, bytes - 3).value();
    const Buffer copy = Buffer::lazy(device("CPU").value(), u8, {bytes - 3}).value();
    ASSERT_TRUE(copy.copy_from(file));
    EXPECT_EQ(std::memcmp(copy.as_raw_ptr(), contents.data() + 3, bytes - 3), 0);
  }
}

TEST(Disk, CopiesBetweenTwoFilesViewsOnlyThroughTheHost) {
  const TemporaryFolder folder;
  const Buffer a = map_file(folder.write("a", counting_bytes(100))).value();
  Queue* queue = a.device().default_queue().value();
  const Buffer cpu = Buffer::allocate(device("CPU").value(), u8, {100}).value();
  EXPECT_TRUE(fails_with(queue->copy(a.window().value(), cpu.window().value()), Code::kUnsupported));
}

TEST(Disk, GivesAnErrorAndNoSignalWhenTheFileShrinksUnderTheMapping) {
  const TemporaryFolder folder;
  for (const std::size_t bytes : {std::size_t{20'000}, std::size_t{9} << 20}) {
    const std::string path = folder.write("file" + std::to_string(bytes), counting_bytes(bytes));
    const Buffer file = map_file(path).value();
    std::filesystem::resize_file(path, 5000);
    std::vector<std::byte> out(bytes);
    const auto copied = file.copyout(out);
    ASSERT_TRUE(fails_with(copied, Code::kIo));
    EXPECT_NE(copied.error().message().find("shrank"), std::string::npos);
    EXPECT_TRUE(fails_with(file.as_host_bytes(), Code::kIo));
    EXPECT_TRUE(file.view(0, 5000).value().as_host_bytes());
    const Buffer copy = Buffer::allocate(device("CPU").value(), u8, {bytes}).value();
    EXPECT_TRUE(fails_with(copy.copy_from(file), Code::kIo));
  }
}

TEST(Disk, TakesNoOlderErrorForAnInterruptedRead) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", counting_bytes(20'000));
  const Buffer file = map_file(path).value();
  std::filesystem::resize_file(path, 5000);
  std::vector<std::byte> out(20'000);
  errno = EINTR;
  EXPECT_TRUE(fails_with(file.copyout(out), Code::kIo)) << "the file ends, and no signal came";
}

TEST(Disk, SaysThatAFileOfWhichNothingIsLeftShrank) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", counting_bytes(20'000));
  const Buffer file = map_file(path).value();
  std::filesystem::resize_file(path, 0);
  const auto bytes = file.as_host_bytes();
  ASSERT_TRUE(fails_with(bytes, Code::kIo));
  EXPECT_NE(bytes.error().message().find("past its end at 0"), std::string::npos) << bytes.error().message();
}

TEST(Disk, LooksAtTheFilesSizeAtEveryHostAccess) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", counting_bytes(20'000));
  const Buffer file = map_file(path).value();
  ASSERT_TRUE(file.as_host_bytes());
  std::filesystem::resize_file(path, 5000);
  EXPECT_TRUE(fails_with(file.as_host_bytes(), Code::kIo));
  std::filesystem::resize_file(path, 20'000);
  EXPECT_TRUE(file.as_host_bytes());
}
TEST(Disk, SaysWhyAPathCannotBeOpened) {
  const TemporaryFolder folder;
  const auto absent = device("DISK:" + folder.path().string() + "/absent");
  ASSERT_TRUE(fails_with(absent, Code::kIo));
  EXPECT_NE(absent.error().message().find("No such file"), std::string::npos);
  EXPECT_TRUE(fails_with(device("DISK:" + folder.path().string()), Code::kIo));
  EXPECT_TRUE(fails_with(device("DISK:"), Code::kInvalidArgument));
}

TEST(Disk, OpensAFileAgainThatWasReplaced) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", counting_bytes(100));
  const DevicePtr first = device("DISK:" + path).value();
  EXPECT_EQ(device("DISK:" + path).value(), first);
  std::filesystem::rename(folder.write("other", counting_bytes(100)), path);
  const DevicePtr second = device("DISK:" + path).value();
  EXPECT_NE(second, first);
  EXPECT_EQ(device("DISK:" + path).value(), second);
  std::filesystem::resize_file(path, 50);
  EXPECT_EQ(device("DISK:" + path).value()->limits().total_bytes, 50u);
}

// While an older handle lives, a path stands for the file that it leads to now.
TEST(Disk, MapsTheFileThatThePathLeadsToNow) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", counting_bytes(100));
  const Buffer old = map_file(path).value();
  std::filesystem::rename(folder.write("other", counting_bytes(100, 50)), path);
  const Buffer renamed = map_file(path).value();
  EXPECT_EQ(renamed.as_host_bytes().value()[0], std::byte{50});
  EXPECT_EQ(old.as_host_bytes().value()[0], std::byte{0}) << "the old file lives on for those who hold it";

  std::filesystem::create_symlink("file", folder.path() / "link");
  const Buffer linked = map_file((folder.path() / "link").string()).value();
  std::filesystem::remove(folder.path() / "link");
  folder.write("third", counting_bytes(100, 70));
  std::filesystem::create_symlink("third", folder.path() / "link");
  EXPECT_EQ(map_file((folder.path() / "link").string()).value().as_host_bytes().value()[0], std::byte{70});
}

TEST(Disk, MapsAFileThatGrew) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", counting_bytes(100));
  const Buffer old = map_file(path).value();
  std::filesystem::resize_file(path, 300);
  EXPECT_EQ(map_file(path).value().size(), 300u);
  EXPECT_EQ(map_file(path, 150, 100).value().as_host_bytes().value()[0], std::byte{0});
  EXPECT_EQ(old.size(), 100u);
}

TEST(Disk, MapsARelativePathInTheFolderOfNow) {
  const TemporaryFolder here, there;
  here.write("file", counting_bytes(100));
  there.write("file", counting_bytes(100, 50));
  struct Back {
    std::filesystem::path to = std::filesystem::current_path();
    ~Back() { std::filesystem::current_path(to); }
  } const back;
  std::filesystem::current_path(here.path());
  const Buffer old = map_file("file").value();
  std::filesystem::current_path(there.path());
  const Buffer now = map_file("file").value();
  EXPECT_EQ(now.as_host_bytes().value()[0], std::byte{50});
  EXPECT_EQ(old.as_host_bytes().value()[0], std::byte{0});
  std::filesystem::current_path(here.path());
  EXPECT_EQ(map_file("file").value().as_host_bytes().value()[0], std::byte{0});
  std::filesystem::remove("file");
  EXPECT_TRUE(fails_with(map_file("file"), Code::kIo));
}

TEST(Disk, RefusesAPipeWithoutWaitingForItsWriter) {
  const TemporaryFolder folder;
  const std::string pipe = (folder.path() / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(fails_with(map_file(pipe), Code::kIo));
  EXPECT_TRUE(fails_with(map_file("/dev/zero"), Code::kIo));
}

TEST(Disk, MapsAnEmptyFile) {
  const TemporaryFolder folder;
  const Buffer empty = map_file(folder.write("empty", {})).value();
  EXPECT_EQ(empty.size(), 0u);
  EXPECT_TRUE(empty.as_host_bytes().value().empty());
}

TEST(Disk, ReportsAMapThatTheSystemRefuses) {
  const TemporaryFolder folder;
  const DevicePtr disk = device("DISK:" + folder.write("file", counting_bytes(8192))).value();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit none{.rlim_cur = 1, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &none), 0);
  const auto refused = disk->allocate({.bytes = 8192});
  setrlimit(RLIMIT_AS, &before);
  EXPECT_TRUE(fails_with(refused, Code::kIo));
}

}  // namespace
}  // namespace berth
