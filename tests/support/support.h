// Small things that many tests use.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "berth/base/result.h"

namespace berth::test {

// EXPECT that a Result failed with a code; shows the sentence when it is another.
template <class T>
::testing::AssertionResult fails_with(const Result<T>& result, Code code) {
  if (result) return ::testing::AssertionFailure() << "succeeded, expected " << to_string(code);
  if (result.error().code() != code)
    return ::testing::AssertionFailure() << to_string(result.error().code()) << ": " << result.error().message()
                                         << "; expected " << to_string(code);
  if (result.error().message().empty()) return ::testing::AssertionFailure() << "the error has no sentence";
  return ::testing::AssertionSuccess();
}

// 0, 1, 2, ... as bytes, starting at `first`.
inline std::vector<std::byte> counting_bytes(std::size_t count, std::size_t first = 0) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(first + i);
  return bytes;
}

// A folder of the test's own, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "berth-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  std::string write(const std::string& name, std::span<const std::byte> bytes) const {
    const std::string path = (path_ / name).string();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return path;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace berth::test
