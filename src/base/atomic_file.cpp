#include "base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/checksum.h"
#include "base/try.h"

namespace berth::internal {
namespace {

constexpr int kAttempts = 100;
// File names have at most 255 bytes; the ending needs 25.
constexpr std::size_t kLongestStem = 220;

Error io_error(std::string_view what, const std::string& path) {
  return Error::with_text(Code::kIo, Layer::kFormat, fmt::format("{} {}: {}", what, path, std::strerror(errno)));
}

// Different in every call and process. O_EXCL finds out if it is not.
std::uint64_t unlikely_number() noexcept {
  static std::atomic<std::uint64_t> count{0};
  const std::uint64_t parts[] = {
      static_cast<std::uint64_t>(::getpid()), count.fetch_add(1),
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count())};
  Checksum number;
  number.add(std::as_bytes(std::span(parts)));
  return number.value();
}

std::string temporary_name(const std::string& path) {
  const std::filesystem::path whole(path);
  const std::string name = whole.filename().string().substr(0, kLongestStem);
  return (whole.parent_path() / fmt::format("{}.{:016x}.partial", name, unlikely_number())).string();
}

Result<void> write_all(int descriptor, std::span<const std::byte> bytes, const std::string& path,
                       std::uint64_t& written) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor, bytes.data(), std::min<std::size_t>(bytes.size(), std::size_t{1} << 30));
    if (put < 0 && errno == EINTR) continue;
    // EFAULT: the source is a mapped file that was truncated.
    if (put < 0) return io_error(errno == EFAULT ? "the source could not be read while writing" : "cannot write", path);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    written += static_cast<std::uint64_t>(put);
  }
  return {};
}

}  // namespace

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
  return io_error(what, path_);
}

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  std::string target = path;
  std::error_code unresolved;
  if (std::filesystem::is_symlink(path, unresolved))
    if (const auto real = std::filesystem::canonical(path, unresolved); !unresolved) target = real.string();
  struct stat there {};
  const bool replaces = ::stat(target.c_str(), &there) == 0;
  if (replaces && !S_ISREG(there.st_mode))
    return Error::with_text(Code::kIo, Layer::kFormat, fmt::format("cannot write {}: it is not a regular file", path));
  for (int attempt = 0;; ++attempt) {
    std::string temporary = temporary_name(target);
    // O_EXCL: what has this name already, a link of somebody else included, is neither followed nor truncated.
    const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0 && errno == EEXIST && attempt < kAttempts) continue;
    if (descriptor < 0) return io_error("cannot write", path);
    AtomicFile file(std::move(target), std::move(temporary), descriptor);
    if (replaces && ::fchmod(descriptor, there.st_mode & 07777) != 0)
      return file.failed("cannot set the permissions of");
    return file;
  }
}

Result<void> AtomicFile::write(std::span<const std::byte> bytes) {
  return write_all(descriptor_, bytes, path_, written_);
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

Result<void> write_whole_file(const std::string& path, std::string_view text) {
  struct stat there {};
  if (::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode)) {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (descriptor < 0) return io_error("cannot write", path);
    std::uint64_t written = 0;
    Result<void> done = write_all(descriptor, std::as_bytes(std::span(text)), path, written);
    if (::close(descriptor) != 0 && done) return io_error("cannot close", path);
    return done;
  }
  BERTH_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path));
  BERTH_TRY(file.write(text));
  return file.commit(false);
}

}  // namespace berth::internal
