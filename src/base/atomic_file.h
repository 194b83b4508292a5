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
  // Creates a new file beside `path`, with a name that no other writer has; where something else has that name, it is
  // left alone. If `path` is a symbolic link, the file that it leads to is the one that is replaced. The permissions of
  // a file that is replaced are kept. kIo if the file cannot be created, or if `path` is there and is not a regular
  // file.
  static Result<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  // Removes the temporary file unless commit() succeeded.
  ~AtomicFile();

  // kIo if the bytes cannot be written.
  Result<void> write(std::span<const std::byte> bytes);
  Result<void> write(std::string_view text) { return write(std::as_bytes(std::span(text))); }
  Result<void> pad(std::size_t bytes, char with);
  std::uint64_t written() const noexcept { return written_; }

  // Renames the file to its path. With `flush`, its bytes are on the disk before that, so that after a crash of the
  // machine the path has either the old contents or the new. kIo; the old contents are then still there.
  Result<void> commit(bool flush);

 private:
  AtomicFile(std::string path, std::string temporary, int descriptor) noexcept;
  Error failed(std::string_view what) const;

  std::string path_;
  std::string temporary_;  // empty once renamed
  int descriptor_;
  std::uint64_t written_ = 0;
};

// Writes a whole file through AtomicFile. A device or pipe (/dev/null, /dev/stdout) is written in place instead. kIo.
Result<void> write_whole_file(const std::string& path, std::string_view text);

}  // namespace berth::internal
