// The input of a parser: a file by absolute offsets, or bytes in memory (tests, fuzzing). Parsers never map what they
// parse, so a truncated file is a kIo error and not a signal. A MemorySource is for one thread at a time; a FileSource
// may be read by many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "berth/base/result.h"

namespace berth::internal::formats {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const noexcept = 0;
  // Reads into `into` from `offset`. kInvalidData past the end; kIo if the system fails.
  virtual Result<void> read(std::uint64_t offset, std::span<std::byte> into) const = 0;
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
  std::uint64_t size() const noexcept override { return bytes_.size(); }
  Result<void> read(std::uint64_t offset, std::span<std::byte> into) const override;

 private:
  std::span<const std::byte> bytes_;
};

// An open file, closed with the last owner. Move-only.
class FileSource final : public ByteSource {
 public:
  // kNotFound if there is no such file, otherwise kIo.
  static Result<FileSource> open(const std::string& path);
  FileSource(FileSource&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}
  FileSource& operator=(FileSource&&) = delete;
  ~FileSource() override;

  std::uint64_t size() const noexcept override { return size_; }
  Result<void> read(std::uint64_t offset, std::span<std::byte> into) const override;
  // Whether the path still leads to the file that was opened.
  bool is_current() const noexcept;
  // Whether another descriptor is of the same file.
  bool is_same_file(int descriptor) const noexcept;
  int descriptor() const noexcept { return descriptor_; }
  const std::string& path() const noexcept { return path_; }

 private:
  FileSource(std::string path, int descriptor, std::uint64_t size) noexcept
      : path_(std::move(path)), descriptor_(descriptor), size_(size) {}
  std::string path_;
  int descriptor_;
  std::uint64_t size_;
};

}  // namespace berth::internal::formats
