#include "weights/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace berth::internal::formats {

Result<void> MemorySource::read(std::uint64_t offset, std::span<std::byte> into) const {
  if (offset > bytes_.size() || into.size() > bytes_.size() - offset)
    return Error(Code::kInvalidData, Layer::kFormat, "bytes [{}, {}) reach past the {} bytes there are", offset,
                 offset + into.size(), bytes_.size());
  if (!into.empty()) std::memcpy(into.data(), bytes_.data() + offset, into.size());
  return {};
}

Result<FileSource> FileSource::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe would wait for a writer. Regular files are not affected.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0)
    return Error::with_text(errno == ENOENT ? Code::kNotFound : Code::kIo, Layer::kFormat,
                            fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    const char* why = S_ISDIR(status.st_mode) ? "it is a directory" : "it is not a regular file";
    ::close(descriptor);
    return Error::with_text(Code::kIo, Layer::kFormat, fmt::format("cannot open {}: {}", path, why));
  }
  return FileSource(path, descriptor, static_cast<std::uint64_t>(status.st_size));
}

namespace {

bool same_file(const struct stat& a, const struct stat& b) noexcept {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

bool FileSource::is_current() const noexcept {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor_, &opened) == 0 && ::stat(path_.c_str(), &named) == 0 && same_file(opened, named);
}

bool FileSource::is_same_file(int descriptor) const noexcept {
  struct stat opened {
  }, other{};
  return ::fstat(descriptor_, &opened) == 0 && ::fstat(descriptor, &other) == 0 && same_file(opened, other);
}

FileSource::~FileSource() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<void> FileSource::read(std::uint64_t offset, std::span<std::byte> into) const {
  if (offset > size_ || into.size() > size_ - offset)
    return Error::with_text(
        Code::kInvalidData, Layer::kFormat,
        fmt::format("{}: bytes [{}, {}) reach past its end at {}", path_, offset, offset + into.size(), size_));
  while (!into.empty()) {
    const std::size_t piece = std::min<std::size_t>(into.size(), std::size_t{1} << 30);
    const ssize_t got = ::pread(descriptor_, into.data(), piece, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return Error::with_text(
          Code::kIo, Layer::kFormat,
          fmt::format("{}: reading {} bytes at {} failed: {}", path_, into.size(), offset, std::strerror(errno)));
    if (got == 0)
      return Error::with_text(
          Code::kIo, Layer::kFormat,
          fmt::format("{}: ends at {} now, it had {} bytes when it was opened", path_, offset, size_));
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return {};
}

}  // namespace berth::internal::formats
