// An unnamed file for evicted contents: it has no path and is deleted with the process. Ranges are written once, read
// back and given up; when the last range is given up, the file is truncated to zero. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "berth/base/result.h"

namespace berth::internal {

class SpillFile {
 public:
  // `folder` empty: the system's folder for temporary files. Opened at the first write.
  explicit SpillFile(std::string folder) : folder_(std::move(folder)) {}
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // The offset of `bytes` new bytes. kIo if the file cannot be created.
  Result<std::uint64_t> reserve(std::size_t bytes);
  Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes);
  Result<void> read(std::uint64_t offset, std::span<std::byte> bytes) const;
  void give_up(std::size_t bytes) noexcept;

 private:
  std::string folder_;
  int file_ = -1;
  std::uint64_t end_ = 0;
  std::size_t held_ = 0;
};

}  // namespace berth::internal
