#include "tensor/spill_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/os/system_pages.h"

namespace berth::internal {
namespace {

Error io_error(const std::string& what) {
  return Error::with_text(Code::kIo, Layer::kAllocator, what + ": " + std::strerror(errno));
}

}  // namespace

SpillFile::~SpillFile() {
  if (file_ >= 0) close(file_);
}

Result<std::uint64_t> SpillFile::reserve(std::size_t bytes) {
  if (file_ < 0) {
    std::error_code ignored;
    const std::string folder = folder_.empty() ? std::filesystem::temp_directory_path(ignored).string() : folder_;
    file_ = open_unnamed(folder.c_str());
    if (file_ < 0) {
      // Some systems have no unnamed files: create one and unlink it.
      std::string path = folder + "/berth-spill-XXXXXX";
      file_ = mkostemp(path.data(), O_CLOEXEC);
      if (file_ < 0) return io_error("a spill file in " + folder + " cannot be made");
      unlink(path.c_str());
    }
  }
  const std::uint64_t offset = end_;
  end_ += bytes;
  held_ += bytes;
  return offset;
}

Result<void> SpillFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return io_error("a spill file cannot be written");
    offset += static_cast<std::uint64_t>(done);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  return {};
}

Result<void> SpillFile::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t done = pread(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return io_error("a spill file cannot be read");
    offset += static_cast<std::uint64_t>(done);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  return {};
}

void SpillFile::give_up(std::size_t bytes) noexcept {
  held_ -= bytes;
  if (held_ != 0) return;
  end_ = 0;
  // A failure only costs disk space.
  if (ftruncate(file_, 0) != 0) errno = 0;
}

}  // namespace berth::internal
