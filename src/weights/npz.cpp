#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/try.h"
#include "base/utf8.h"
#include "weights/npy.h"

namespace berth::internal::formats {
namespace {

constexpr std::uint32_t kEndRecord = 0x06054b50;
constexpr std::uint32_t kEndLocator64 = 0x07064b50;
constexpr std::uint32_t kEndRecord64 = 0x06064b50;
constexpr std::uint32_t kMember = 0x02014b50;
constexpr std::uint32_t kLocalHeader = 0x04034b50;
constexpr std::size_t kEndBytes = 22;
constexpr std::size_t kMemberBytes = 46;
constexpr std::size_t kLocalBytes = 30;
constexpr std::uint64_t kMaxDirectory = std::uint64_t{256} << 20;

template <class T>
T field(std::string_view bytes, std::size_t at) noexcept {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

Error npz_error_at(std::uint64_t place, std::string_view message, Code code = Code::kInvalidData) {
  return Error::with_text(code, Layer::kFormat, fmt::format("npz at byte {}: {}", place, message));
}

struct Directory {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t members = 0;
};

Result<Directory> find_directory(const ByteSource& source) {
  const std::uint64_t size = source.size();
  if (size < kEndBytes) return npz_error_at(0, fmt::format("{} bytes are too few for a zip archive", size));
  // The end record comes last, before a comment of at most 65535 bytes.
  const std::size_t tail_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(size, kEndBytes + 0xFFFF));
  std::string tail(tail_bytes, '\0');
  BERTH_TRY(source.read(size - tail_bytes, std::as_writable_bytes(std::span(tail))));
  std::size_t at = tail_bytes - kEndBytes;
  for (;; --at) {
    if (field<std::uint32_t>(tail, at) == kEndRecord &&
        at + kEndBytes + field<std::uint16_t>(tail, at + 20) <= tail_bytes)
      break;
    if (at == 0) return npz_error_at(size, "no end-of-archive record; the file is truncated or not a zip archive");
  }
  const std::uint64_t place = size - tail_bytes + at;
  const std::string_view record = std::string_view(tail).substr(at);
  Directory directory{.begin = field<std::uint32_t>(record, 16),
                      .bytes = field<std::uint32_t>(record, 12),
                      .members = field<std::uint16_t>(record, 10)};
  if (field<std::uint16_t>(record, 4) != 0)
    return npz_error_at(place, "an archive in several parts", Code::kUnsupported);
  if (directory.begin == 0xFFFFFFFF || directory.bytes == 0xFFFFFFFF || directory.members == 0xFFFF) {
    std::array<char, 20> locator;
    if (place < locator.size()) return npz_error_at(place, "the zip64 record is missing");
    BERTH_TRY(source.read(place - locator.size(), std::as_writable_bytes(std::span(locator))));
    const std::string_view found(locator.data(), locator.size());
    if (field<std::uint32_t>(found, 0) == kEndLocator64) {
      std::array<char, 56> wide;
      const auto wide_at = field<std::uint64_t>(found, 8);
      if (wide_at > size || size - wide_at < wide.size())
        return npz_error_at(place, "the zip64 record is out of range");
      BERTH_TRY(source.read(wide_at, std::as_writable_bytes(std::span(wide))));
      const std::string_view wide_record(wide.data(), wide.size());
      if (field<std::uint32_t>(wide_record, 0) != kEndRecord64) return npz_error_at(wide_at, "no zip64 record here");
      directory = {.begin = field<std::uint64_t>(wide_record, 48),
                   .bytes = field<std::uint64_t>(wide_record, 40),
                   .members = field<std::uint64_t>(wide_record, 32)};
    }
  }
  if (directory.begin > place || directory.bytes > place - directory.begin)
    return npz_error_at(
        place, fmt::format("the directory at bytes [{}, +{}) is outside the file", directory.begin, directory.bytes));
  if (directory.members > directory.bytes / kMemberBytes || directory.bytes > kMaxDirectory)
    return npz_error_at(
        place, fmt::format("a directory of {} members does not fit its {} bytes", directory.members, directory.bytes));
  return directory;
}

struct Member {
  std::string_view name;
  std::uint64_t local = 0;
  std::uint64_t bytes = 0;
};

// Reads the directory's member at `at`, which it moves on.
Result<Member> read_member(std::string_view directory, std::size_t& at, std::uint64_t base) {
  const std::uint64_t place = base + at;
  if (directory.size() - at < kMemberBytes || field<std::uint32_t>(directory, at) != kMember)
    return npz_error_at(place, "no directory entry here");
  const std::string_view record = directory.substr(at);
  const std::size_t name_bytes = field<std::uint16_t>(record, 28);
  const std::size_t extra_bytes = field<std::uint16_t>(record, 30);
  const std::size_t comment_bytes = field<std::uint16_t>(record, 32);
  if (record.size() - kMemberBytes < name_bytes + extra_bytes + comment_bytes)
    return npz_error_at(place, "a directory entry reaches past the directory");
  Member member{.name = record.substr(kMemberBytes, name_bytes),
                .local = field<std::uint32_t>(record, 42),
                .bytes = field<std::uint32_t>(record, 24)};
  std::uint64_t stored = field<std::uint32_t>(record, 20);
  at += kMemberBytes + name_bytes + extra_bytes + comment_bytes;
  if (first_invalid_utf8(member.name) != member.name.size())
    return npz_error_at(place + kMemberBytes, fmt::format("the name {} is not UTF-8", quoted(member.name)));
  if ((field<std::uint16_t>(record, 8) & 1) != 0)
    return npz_error_at(place, fmt::format("member {} is encrypted", quoted(member.name)), Code::kUnsupported);
  if (const auto method = field<std::uint16_t>(record, 10); method != 0)
    return npz_error_at(place,
                        fmt::format("member {} is compressed (method {}); save with numpy.savez, not savez_compressed",
                                    quoted(member.name), method),
                        Code::kUnsupported);
  // Sizes and offsets of all ones are in the zip64 extra field, in this order.
  std::string_view extra = record.substr(kMemberBytes + name_bytes, extra_bytes);
  while (extra.size() >= 4) {
    const std::size_t length = field<std::uint16_t>(extra, 2);
    if (extra.size() - 4 < length) return npz_error_at(place, "an extra field reaches past its entry");
    if (field<std::uint16_t>(extra, 0) == 1) {
      std::string_view wide = extra.substr(4, length);
      for (std::uint64_t* value : {&member.bytes, &stored, &member.local}) {
        if (*value != 0xFFFFFFFF) continue;
        if (wide.size() < 8) return npz_error_at(place, "the zip64 extra field is too short");
        *value = field<std::uint64_t>(wide, 0);
        wide.remove_prefix(8);
      }
    }
    extra.remove_prefix(4 + length);
  }
  if (stored != member.bytes)
    return npz_error_at(
        place, fmt::format("member {} is stored in {} bytes but has {}", quoted(member.name), stored, member.bytes));
  return member;
}

Result<void> add_member(const ByteSource& source, const Member& member, std::uint64_t limit, TensorTable& table) {
  if (!member.name.ends_with(".npy"))
    return npz_error_at(member.local, fmt::format("member {} is not an .npy array", quoted(member.name)),
                        Code::kUnsupported);
  if (member.local > limit || limit - member.local < kLocalBytes)
    return npz_error_at(member.local, fmt::format("member {} begins outside the file", quoted(member.name)));
  // One read takes the local header and, nearly always, the whole .npy header.
  std::array<char, 1024> start;
  const std::size_t have = static_cast<std::size_t>(std::min<std::uint64_t>(start.size(), limit - member.local));
  BERTH_TRY(source.read(member.local, std::as_writable_bytes(std::span(start).first(have))));
  const std::string_view local(start.data(), have);
  if (field<std::uint32_t>(local, 0) != kLocalHeader)
    return npz_error_at(member.local, fmt::format("member {} has no local header here", quoted(member.name)));
  const std::uint64_t skip =
      kLocalBytes + std::uint64_t{field<std::uint16_t>(local, 26)} + field<std::uint16_t>(local, 28);
  if (skip > limit - member.local || member.bytes > limit - member.local - skip)
    return npz_error_at(member.local, fmt::format("member {} of {} bytes reaches past the directory at {}",
                                                  quoted(member.name), member.bytes, limit));
  const std::uint64_t begin = member.local + skip;
  std::string_view npy;
  std::array<char, 1024> again;
  if (skip + 12 <= have) {
    npy = local.substr(skip);
  } else {
    const std::size_t more = static_cast<std::size_t>(std::min<std::uint64_t>(again.size(), limit - begin));
    BERTH_TRY(source.read(begin, std::as_writable_bytes(std::span(again).first(more))));
    npy = {again.data(), more};
  }
  npy = npy.substr(0, static_cast<std::size_t>(std::min<std::uint64_t>(npy.size(), member.bytes)));
  return add_npy(source, begin, begin + member.bytes, npy, member.name.substr(0, member.name.size() - 4), true, table);
}

}  // namespace

Result<TensorTable> read_npz(const ByteSource& source) {
  BERTH_TRY_ASSIGN(const Directory directory, find_directory(source));
  TensorTable table;
  const std::span<char> owned = table.own_text(directory.bytes);
  BERTH_TRY(source.read(directory.begin, std::as_writable_bytes(owned)));
  const std::string_view text(owned.data(), owned.size());
  table.reserve(directory.members);
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < directory.members; ++i) {
    BERTH_TRY_ASSIGN(const Member member, read_member(text, at, directory.begin));
    BERTH_TRY(add_member(source, member, directory.begin, table));
  }
  BERTH_TRY(table.finish({.format = "npz", .file_bytes = source.size(), .data_begin = 0}));
  return table;
}

}  // namespace berth::internal::formats
