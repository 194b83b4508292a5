#include "devices/host/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/os/system_pages.h"
#include "base/round_up.h"

namespace berth::internal::cpu {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// mmap aligns only to pages: map more, and unmap the ends.
void* map_aligned(std::size_t bytes, std::size_t alignment) noexcept {
  if (bytes > std::numeric_limits<std::size_t>::max() / 4 || alignment > std::numeric_limits<std::size_t>::max() / 4)
    return nullptr;
  const std::size_t reserved = bytes + alignment;
  void* raw = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = round_up(begin, alignment);
  if (aligned > begin) munmap(raw, aligned - begin);
  const std::size_t tail = begin + reserved - (aligned + bytes);
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + bytes), tail);
  auto* memory = reinterpret_cast<void*>(aligned);
  // Advice only: if the kernel has no huge pages, small ones are used.
  if (bytes >= kHugePage) want_huge_pages(memory, bytes);
  return memory;
}

}  // namespace

std::size_t rounded_host_bytes(std::size_t bytes) noexcept {
  if (bytes > std::numeric_limits<std::size_t>::max() / 4) return bytes;
  const std::size_t lines = round_up(bytes, kCacheLine);
  return lines < kMappedBytes ? lines : round_up(lines, page_bytes());
}

void* allocate_host(std::size_t bytes, std::size_t alignment, bool zero) noexcept {
  const std::size_t rounded = rounded_host_bytes(bytes);
  if (rounded >= kMappedBytes)
    return map_aligned(rounded, std::max(alignment, rounded >= kHugePage ? kHugePage : page_bytes()));
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, kCacheLine), rounded) != 0) return nullptr;
  if (zero) std::memset(memory, 0, rounded);
  return memory;
}

void free_host(void* address, std::size_t bytes) noexcept {
  const std::size_t rounded = rounded_host_bytes(bytes);
  if (rounded >= kMappedBytes)
    munmap(address, rounded);
  else
    std::free(address);
}

}  // namespace berth::internal::cpu
