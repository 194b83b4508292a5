#include "base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/try.h"

namespace berth::internal {

AtomicFile::AtomicFile(std::string path, std::string temporary, int descriptor) noexcept
    : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)),
      written_(other.written_) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Error AtomicFile::failed(std::string_view what) const {
  return Error::with_text(Code::kIo, Layer::kFormat, fmt::format("{} {}: {}", what, path_, std::strerror(errno)));
}

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  static std::atomic<unsigned> count{0};
  std::string temporary = fmt::format("{}.{}-{}.partial", path, ::getpid(), count.fetch_add(1));
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  AtomicFile file(path, descriptor < 0 ? std::string() : std::move(temporary), descriptor);
  if (descriptor < 0) return file.failed("cannot write");
  return file;
}

Result<void> AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor_, bytes.data(), std::min<std::size_t>(bytes.size(), std::size_t{1} << 30));
    if (put < 0 && errno == EINTR) continue;
    // EFAULT: the source is a mapped file that was truncated.
    if (put < 0) return failed(errno == EFAULT ? "the source could not be read while writing" : "cannot write");
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    written_ += static_cast<std::uint64_t>(put);
  }
  return {};
}

Result<void> AtomicFile::pad(std::size_t bytes, char with) {
  return write(std::string(bytes, with));
}

Result<void> AtomicFile::commit(bool flush) {
  if (flush && ::fsync(descriptor_) != 0) return failed("cannot flush");
  if (const int descriptor = std::exchange(descriptor_, -1); ::close(descriptor) != 0) return failed("cannot close");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return failed("cannot rename into place");
  temporary_.clear();
  if (!flush) return {};
  // The directory entry must reach the disk too. Not every file system supports this, and the contents are already
  // safe.
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  if (const int parent = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC); parent >= 0) {
    ::fsync(parent);
    ::close(parent);
  }
  return {};
}

}  // namespace berth::internal
