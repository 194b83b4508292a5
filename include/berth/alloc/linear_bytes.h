// A linear allocator over one range of bytes, for innermost loops: bump, mark and reset, inline, without a lock, a
// virtual call or a counter. It hands out offsets, which work on every device, or host pointers. The range belongs to
// the caller: a buffer, or a block of any allocator. LinearMemory (linear.h) is the allocator with slabs, releases and
// checks. A plain value for one thread; it touches no memory and must not outlive the range.
//
//   auto scratch = berth::Buffer::allocate(device, berth::u8, {1 << 20}).value();
//   berth::LinearBytes bytes(scratch.size());
//   const auto mark = bytes.mark();
//   auto logits = scratch.view(bytes.take(4096), 4096).value();    // an error of view() if the range is full
//   bytes.reset(mark);
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace berth {

class LinearBytes {
 public:
  static constexpr std::uint64_t kFull = std::numeric_limits<std::uint64_t>::max();

  // Hands out the offsets [0, bytes).
  explicit constexpr LinearBytes(std::uint64_t bytes) noexcept : end_(bytes) {}
  // Hands out host memory; take() counts from its first byte.
  explicit LinearBytes(std::span<std::byte> memory) noexcept
      : begin_(reinterpret_cast<std::uintptr_t>(memory.data())), end_(begin_ + memory.size()), at_(begin_) {}

  // The offset of the next `bytes` bytes. What begins there is a multiple of `alignment`: the offset, or with host
  // memory the address. kFull, and nothing changes, if they do not fit. Requires: the alignment is a power of two.
  constexpr std::uint64_t take(std::uint64_t bytes, std::uint64_t alignment = 64) noexcept {
    const std::uint64_t start = bump(bytes, alignment);
    return start == kFull ? kFull : start - begin_;
  }

  // The same as a pointer; null if they do not fit. Requires: made over host memory.
  std::byte* take_host(std::uint64_t bytes, std::uint64_t alignment = 64) noexcept {
    const std::uint64_t start = bump(bytes, alignment);
    return start == kFull ? nullptr : reinterpret_cast<std::byte*>(start);
  }

  // The position now, as a number of bytes from the beginning.
  constexpr std::uint64_t mark() const noexcept { return at_ - begin_; }

  // Everything that was taken after the mark is free again. False, and nothing changes, for a position that is not
  // reached: a reset to an earlier mark has passed it.
  constexpr bool reset(std::uint64_t mark = 0) noexcept {
    if (mark > at_ - begin_) return false;
    at_ = begin_ + mark;
    return true;
  }

  constexpr std::uint64_t capacity() const noexcept { return end_ - begin_; }

 private:
  constexpr std::uint64_t bump(std::uint64_t bytes, std::uint64_t alignment) noexcept {
    const std::uint64_t padding = (0 - at_) & (alignment - 1);
    const std::uint64_t room = end_ - at_;
    if (padding > room || bytes > room - padding) [[unlikely]]
      return kFull;
    const std::uint64_t start = at_ + padding;
    at_ = start + bytes;
    return start;
  }

  std::uint64_t begin_ = 0, end_ = 0, at_ = 0;
};

}  // namespace berth
