// Marks host memory that must not be accessed. Under AddressSanitizer the memory is poisoned. In other debug builds it
// is overwritten, and canaries behind a block are checked when it is released. In release builds every call is empty.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/sanitizers.h"
#include "berth/memory/block.h"

#if BERTH_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace berth::internal {

#if BERTH_ADDRESS_SANITIZER
inline constexpr bool kAddressSanitizer = true;
inline void asan_poison(const void* begin, std::size_t bytes) noexcept {
  __asan_poison_memory_region(begin, bytes);
}
inline void asan_unpoison(const void* begin, std::size_t bytes) noexcept {
  __asan_unpoison_memory_region(begin, bytes);
}
#else
inline constexpr bool kAddressSanitizer = false;
inline void asan_poison(const void*, std::size_t) noexcept {}
inline void asan_unpoison(const void*, std::size_t) noexcept {}
#endif

#ifdef NDEBUG
inline constexpr bool kDebugMemory = false;
#else
inline constexpr bool kDebugMemory = true;
#endif
// True if canaries are written. AddressSanitizer detects more than they do.
inline constexpr bool kCanaries = kDebugMemory && !kAddressSanitizer;

inline constexpr std::byte kCanary{0xca};
inline constexpr std::byte kReleased{0xdd};
inline constexpr std::size_t kCanaryBytes = 64;
// The largest part of a released block that is overwritten: enough to be noticed, without faulting in the pages of a
// large block.
inline constexpr std::size_t kOverwrittenBytes = std::size_t{64} << 10;

// True if the host can write marks into the block.
constexpr bool is_markable(const Block& block) noexcept {
  return block.has(BlockFlags::kHostTransfer) && !block.has(BlockFlags::kReadOnly) && block.host != nullptr;
}

inline void write_canary(std::byte* begin, std::size_t room) noexcept {
  if constexpr (kCanaries) std::fill_n(begin, std::min(room, kCanaryBytes), kCanary);
}

// Stops the program if the bytes behind a block were written. `label` is the label of the block.
inline void check_canary(const std::byte* begin, std::size_t room, Name label) noexcept {
  if constexpr (kCanaries) {
    const std::byte* end = begin + std::min(room, kCanaryBytes);
    const std::byte* changed = std::find_if(begin, end, [](std::byte byte) { return byte != kCanary; });
    if (changed == end) return;
    const std::string_view text = label.text();
    std::fprintf(stderr, "berth: block \"%.*s\" was written past its end, %td bytes behind it\n",
                 static_cast<int>(text.size()), text.data(), changed - begin);
    std::abort();
  }
}

inline void overwrite_released(std::byte* begin, std::size_t bytes) noexcept {
  if constexpr (kDebugMemory) std::fill_n(begin, std::min(bytes, kOverwrittenBytes), kReleased);
}

}  // namespace berth::internal
