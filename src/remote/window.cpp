#include "berth/remote/window.h"

#include <fmt/format.h>

#include <array>

#include "base/try.h"
#include "remote/wire.h"

namespace berth {

using namespace internal::remote;

namespace {

constexpr std::uint32_t kMark = 0x57425242;  // "BRBW"

const char* words(Access access) {
  switch (access) {
    case Access::kRead: return "read-only";
    case Access::kWrite: return "write-only";
    case Access::kReadWrite: break;
  }
  return "read-write";
}

}  // namespace

std::vector<std::byte> RemoteWindow::to_bytes() const {
  Writer out;
  out.u32(kMark);
  out.u32(rank);
  out.u64(id);
  out.u64(generation);
  out.u64(bytes);
  out.u8(static_cast<std::uint8_t>(access));
  out.text(berth::to_string(dtype));
  out.u8(static_cast<std::uint8_t>(shape.rank()));
  for (const std::size_t extent : shape.extents()) out.u64(extent);
  return out.take();
}

Result<RemoteWindow> RemoteWindow::from_bytes(std::span<const std::byte> bytes) {
  const Error damaged(Code::kInvalidData, Layer::kDevice, "{} bytes are not a remote window", bytes.size());
  Reader in(bytes);
  if (in.u32() != kMark) return damaged;
  RemoteWindow window;
  window.rank = in.u32();
  window.id = in.u64();
  window.generation = in.u64();
  window.bytes = in.u64();
  const std::uint8_t access = in.u8();
  const auto dtype = parse_dtype(in.text());
  const std::uint8_t axes = in.u8();
  if (!in.ok() || !dtype || axes > kMaxRank || access > static_cast<std::uint8_t>(Access::kReadWrite)) return damaged;
  std::array<std::size_t, kMaxRank> extents{};
  for (std::size_t i = 0; i < axes; ++i) extents[i] = in.u64();
  if (!in.at_end()) return damaged;
  window.access = static_cast<Access>(access);
  window.dtype = *dtype;
  window.shape = Shape(std::span<const std::size_t>(extents).first(axes));
  const auto elements = window.shape.element_count();
  if (!elements) return damaged;
  const auto wanted = byte_size(*dtype, *elements);
  if (!wanted || *wanted != window.bytes) return damaged;
  return window;
}

std::string to_string(const RemoteWindow& window) {
  return fmt::format("window {} of rank {}: {}{}, {}, {}", window.id, window.rank, to_string(window.dtype),
                     window.shape.to_string(), format_bytes(window.bytes), words(window.access));
}

}  // namespace berth
