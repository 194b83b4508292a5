#include "weights/read_job.h"

#include <fmt/format.h>
#include <limits.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace berth::internal::formats {

void ScatteredRead::set(std::span<const LoadPiece> pieces, std::span<std::byte* const> targets) noexcept {
  count = 0;
  offset = pieces.front().offset;
  std::uint64_t at = offset;
  for (const LoadPiece& piece : pieces) {
    if (piece.offset != at) parts[count++] = {gap.data(), piece.offset - at};
    parts[count++] = {targets[piece.request] + piece.target, piece.bytes};
    at = piece.offset + piece.bytes;
  }
  bytes = at - offset;
}

Result<void> read_scattered(const FileSource& source, std::span<const LoadPiece> pieces,
                            std::span<std::byte* const> targets) {
  ScatteredRead read;
  read.set(pieces, targets);
  std::uint64_t offset = read.offset;
  std::size_t count = read.count;
  for (iovec* part = read.parts.data(); count > 0;) {
    const ssize_t got = ::preadv(source.descriptor(), part, static_cast<int>(std::min<std::size_t>(count, IOV_MAX)),
                                 static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return read_failed(source, offset, got);
    offset += static_cast<std::uint64_t>(got);
    auto left = static_cast<std::size_t>(got);
    while (count > 0 && left >= part->iov_len) {
      left -= part->iov_len;
      ++part;
      --count;
    }
    if (left > 0) {
      part->iov_base = static_cast<std::byte*>(part->iov_base) + left;
      part->iov_len -= left;
    }
  }
  return {};
}

Error read_failed(const FileSource& source, std::uint64_t offset, ssize_t got) {
  if (got == 0)
    return Error::with_text(
        Code::kIo, Layer::kFormat,
        fmt::format("{}: ends at {} now, it had {} bytes when it was opened", source.path(), offset, source.size()));
  return Error::with_text(Code::kIo, Layer::kFormat,
                          fmt::format("{}: reading at {} failed: {}", source.path(), offset, std::strerror(errno)));
}

}  // namespace berth::internal::formats
