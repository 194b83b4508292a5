#include "run/ready_model.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/try.h"

namespace berth::cli {
namespace {

using internal::Checksum;

// What stands at the end of the file.
struct Seal {
  std::array<char, 16> magic{'b', 'e', 'r', 't', 'h', ' ', 'm', 'o', 'd', 'e', 'l', ' ', '1', '\n'};
  std::uint64_t stamp = 0;  // checksums
  std::uint64_t bytes = 0;
  bool operator==(const Seal&) const = default;
};
static_assert(sizeof(Seal) == 32);

Error not_ready(const std::string& path) {
  return Error::with_text(Code::kIo, Layer::kProgram, path + ": " + std::strerror(errno));
}

std::uint64_t checksum_of(const std::string& text) {
  Checksum sum;
  sum.add(text);
  return sum.value();
}

class File {
 public:
  File(const std::string& path, int flags)
      : path_(path), handle_(open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (handle_ >= 0) close(handle_);
  }

  // kIo also for anything but a regular file.
  Result<std::uint64_t> size() const {
    struct stat status {};
    if (handle_ < 0 || fstat(handle_, &status) != 0) return not_ready(path_);
    if (!S_ISREG(status.st_mode))
      return Error::with_text(Code::kIo, Layer::kProgram, path_ + ": it is not a regular file");
    return static_cast<std::uint64_t>(status.st_size);
  }

  Result<void> read(std::span<std::byte> into, std::uint64_t at) const {
    while (!into.empty()) {
      const ssize_t got = pread(handle_, into.data(), into.size(), static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return not_ready(path_);
      if (got == 0)
        return Error::with_text(Code::kIo, Layer::kProgram, path_ + ": it became shorter while it was being read");
      into = into.subspan(static_cast<std::size_t>(got));
      at += static_cast<std::uint64_t>(got);
    }
    return {};
  }

  Result<void> write(std::span<const std::byte> from, std::uint64_t at) const {
    while (!from.empty()) {
      const ssize_t put = pwrite(handle_, from.data(), from.size(), static_cast<off_t>(at));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return not_ready(path_);
      from = from.subspan(static_cast<std::size_t>(put));
      at += static_cast<std::uint64_t>(put);
    }
    return {};
  }

  // Of the first `bytes` of the file.
  Result<std::uint64_t> checksum(std::uint64_t bytes) const {
    Checksum sum;
    std::vector<std::byte> piece(std::size_t{1} << 16);
    for (std::uint64_t at = 0; at < bytes; at += piece.size()) {
      const auto part = std::span(piece).first(std::min<std::uint64_t>(piece.size(), bytes - at));
      BERTH_TRY(read(part, at));
      sum.add(part);
    }
    return sum.value();
  }

 private:
  const std::string path_;
  const int handle_;
};

Result<void> check_seal(const std::string& path, const std::string& stamp) {
  const File file(path, O_RDONLY);
  Seal found, wanted;
  const auto damaged = [&] { return Error::with_text(Code::kInvalidData, Layer::kProgram, path + " is damaged"); };
  BERTH_TRY_ASSIGN(const std::uint64_t size, file.size());
  if (size < sizeof found) return damaged();
  BERTH_TRY(file.read(std::as_writable_bytes(std::span(&found, 1)), size - sizeof found));
  wanted.stamp = checksum_of(stamp);
  BERTH_TRY_ASSIGN(wanted.bytes, file.checksum(size - sizeof found));
  return found == wanted ? Result<void>() : damaged();
}

}  // namespace

Result<std::uint64_t> file_checksum(const std::string& path) {
  const File file(path, O_RDONLY);
  BERTH_TRY_ASSIGN(const std::uint64_t size, file.size());
  return file.checksum(size);
}

Result<void> seal_model(const std::string& path, const std::string& stamp) {
  const File file(path, O_RDWR);
  BERTH_TRY_ASSIGN(const std::uint64_t size, file.size());
  Seal seal;
  seal.stamp = checksum_of(stamp);
  BERTH_TRY_ASSIGN(seal.bytes, file.checksum(size));
  return file.write(std::as_bytes(std::span(&seal, 1)), size);
}

bool is_sealed(const std::string& path, const std::string& stamp) {
  return check_seal(path, stamp).has_value();
}

}  // namespace berth::cli
