// A file that appears complete or not at all. For use by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "berth/base/result.h"

namespace berth::internal {

class AtomicFile {
 public:
  // Creates a temporary file beside `path`. kIo if it cannot be created.
  static Result<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  // Removes the temporary file unless commit() succeeded.
  ~AtomicFile();

  Result<void> write(std::span<const std::byte> bytes);
  Result<void> write(std::string_view text) { return write(std::as_bytes(std::span(text))); }
  Result<void> pad(std::size_t bytes, char with);
  std::uint64_t written() const noexcept { return written_; }

  // Flushes on request, then renames the file to its path.
  Result<void> commit(bool flush);

 private:
  AtomicFile(std::string path, std::string temporary, int descriptor) noexcept;
  Error failed(std::string_view what) const;

  std::string path_;
  std::string temporary_;  // empty once renamed
  int descriptor_;
  std::uint64_t written_ = 0;
};

}  // namespace berth::internal
