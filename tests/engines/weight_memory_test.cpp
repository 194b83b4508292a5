#include "engines/weight_memory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace berth::internal {
namespace {

namespace fs = std::filesystem;

class WeightMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("berth-weights-" + std::to_string(getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A block of one load with random bytes, the same for the same seed.
  static std::byte* filled(WeightMemory& memory, std::size_t bytes, std::uint64_t load, unsigned seed) {
    auto* block = static_cast<std::byte*>(memory.allocate(bytes, load));
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < bytes; ++i) block[i] = static_cast<std::byte>(random());
    return block;
  }
  static std::vector<std::byte> copy(const std::byte* block, std::size_t bytes) { return {block, block + bytes}; }

  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& file : fs::directory_iterator(folder_)) found.push_back(file.path());
    return found;
  }
  // Whether the page of `address` is mapped from a file of the folder.
  bool is_shared(const void* address) const {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      std::uintptr_t begin = 0, end = 0;
      if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
      const auto at = reinterpret_cast<std::uintptr_t>(address);
      if (at >= begin && at < end) return line.find(folder_.string()) != std::string::npos;
    }
    return false;
  }

  fs::path folder_;
};

TEST_F(WeightMemoryTest, KeepsTheBytesAndMapsThemFromOneFilePerContent) {
  WeightMemory memory;
  constexpr std::size_t kBytes = 100'000;
  std::byte* first = filled(memory, kBytes, 1, 7);
  std::byte* same = filled(memory, kBytes, 1, 7);
  std::byte* other = filled(memory, kBytes, 1, 8);
  std::byte* of_another_load = filled(memory, kBytes, 2, 7);
  const std::vector<std::byte> expected = copy(first, kBytes), different = copy(other, kBytes);

  const WeightMemory::Shared shared = memory.share(folder_.string(), 1);
  EXPECT_EQ(shared.problem, "");
  EXPECT_EQ(shared.bytes, shared.shared);
  EXPECT_GE(shared.bytes, 3 * kBytes);
  EXPECT_EQ(files().size(), 2u);
  EXPECT_EQ(copy(first, kBytes), expected);
  EXPECT_EQ(copy(same, kBytes), expected);
  EXPECT_EQ(copy(other, kBytes), different);
  EXPECT_TRUE(is_shared(first) && is_shared(same) && is_shared(other));
  EXPECT_FALSE(is_shared(of_another_load));
}

TEST_F(WeightMemoryTest, AWriteAfterSharingStaysInItsBlock) {
  WeightMemory memory;
  std::byte* first = filled(memory, 50'000, 1, 7);
  std::byte* second = filled(memory, 50'000, 1, 7);
  const std::vector<std::byte> expected = copy(second, 50'000);
  ASSERT_EQ(memory.share(folder_.string(), 1).problem, "");
  first[123] ^= std::byte{1};
  EXPECT_EQ(copy(second, 50'000), expected);
  WeightMemory later;
  std::byte* third = filled(later, 50'000, 1, 7);
  ASSERT_EQ(later.share(folder_.string(), 1).problem, "");
  EXPECT_EQ(copy(third, 50'000), expected);
  EXPECT_TRUE(is_shared(third));
}

TEST_F(WeightMemoryTest, ReplacesAFileThatDoesNotHaveTheBytes) {
  for (const char* damage : {"other bytes", "too short", "empty"}) {
    WeightMemory memory;
    std::byte* block = filled(memory, 64 * 1024, 1, 3);
    const std::vector<std::byte> expected = copy(block, 64 * 1024);
    ASSERT_EQ(memory.share(folder_.string(), 1).problem, "");
    const fs::path file = files().at(0);
    const auto size = fs::file_size(file);
    ASSERT_TRUE(memory.release(block));
    fs::permissions(file, fs::perms::owner_write | fs::perms::owner_read);
    std::string bytes(size, 'x');
    if (std::string_view(damage) == "too short") bytes.resize(size / 2);
    if (std::string_view(damage) == "empty") bytes.clear();
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;

    std::byte* again = filled(memory, 64 * 1024, 2, 3);
    const WeightMemory::Shared shared = memory.share(folder_.string(), 2);
    EXPECT_EQ(shared.problem, "") << damage;
    EXPECT_EQ(shared.shared, shared.bytes) << damage;
    EXPECT_EQ(copy(again, 64 * 1024), expected) << damage;
    EXPECT_TRUE(is_shared(again)) << damage;
  }
}

TEST_F(WeightMemoryTest, LeavesBlocksAsTheyAreWhereAFolderCannotBeUsed) {
  fs::create_directories(folder_);
  const fs::path in_the_way = folder_ / "file";
  std::ofstream(in_the_way) << "x";
  WeightMemory memory;
  std::byte* block = filled(memory, 40'000, 1, 5);
  const std::vector<std::byte> expected = copy(block, 40'000);
  const WeightMemory::Shared shared = memory.share((in_the_way / "cache").string(), 1);
  EXPECT_NE(shared.problem.find((in_the_way / "cache").string()), std::string::npos) << shared.problem;
  EXPECT_EQ(shared.shared, 0u);
  EXPECT_EQ(copy(block, 40'000), expected);
}

TEST_F(WeightMemoryTest, DoesNotMapAFileThatOthersCanWrite) {
  WeightMemory memory;
  std::byte* block = filled(memory, 40'000, 1, 5);
  ASSERT_EQ(memory.share(folder_.string(), 1).problem, "");
  fs::permissions(files().at(0), fs::perms::others_write, fs::perm_options::add);
  std::byte* again = filled(memory, 40'000, 2, 5);
  const WeightMemory::Shared shared = memory.share(folder_.string(), 2);
  EXPECT_NE(shared.problem.find("only this user can write"), std::string::npos) << shared.problem;
  EXPECT_FALSE(is_shared(again));
  EXPECT_TRUE(is_shared(block));
}

TEST_F(WeightMemoryTest, ReleasesItsOwnBlocksAndNoOthers) {
  WeightMemory memory;
  void* block = memory.allocate(20'000, 1);
  ASSERT_NE(block, nullptr);
  alignas(4096) static std::byte foreign[4096];
  EXPECT_FALSE(memory.release(foreign));
  EXPECT_FALSE(memory.release(foreign + 8));
  EXPECT_TRUE(memory.release(block));
  EXPECT_FALSE(memory.release(block));
  EXPECT_EQ(memory.allocate(0, 1), nullptr);
  EXPECT_EQ(memory.allocate(SIZE_MAX, 1), nullptr);
}

}  // namespace
}  // namespace berth::internal
