#include "devices/cpu/cpu_residency.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/os/system_pages.h"
#include "devices/host/host_memory.h"
#include "memory/host_copy.h"

namespace berth::internal::cpu {
namespace {

// The whole pages that a block overlaps.
struct Pages {
  explicit Pages(const Block& block) {
    const std::uintptr_t page = page_bytes();
    const auto first = reinterpret_cast<std::uintptr_t>(block.host);
    const std::uintptr_t begin = first / page * page;
    address = reinterpret_cast<void*>(begin);
    bytes = (first + block.bytes + page - 1) / page * page - begin;
    writable = !block.has(BlockFlags::kReadOnly);
  }
  void* address;
  std::size_t bytes;
  bool writable;
};

void fault_in(const Pages& pages) {
  if (populate_pages(pages.address, pages.bytes, pages.writable)) return;
  // Older kernels and other systems: all threads read one byte per page, and write it back if that is allowed. Atomic,
  // because the owner may be writing.
  const std::size_t page = page_bytes();
  static_cast<void>(for_each_piece(pages.bytes, [&](std::size_t offset, std::size_t count) -> Result<void> {
    auto* bytes = static_cast<unsigned char*>(pages.address) + offset;
    for (std::size_t at = 0; at < count; at += page)
      if (pages.writable)
        __atomic_fetch_or(bytes + at, 0, __ATOMIC_RELAXED);
      else
        static_cast<void>(__atomic_load_n(bytes + at, __ATOMIC_RELAXED));
    return {};
  }));
}

bool owns_its_pages(const Block& block) noexcept {
  return rounded_host_bytes(block.bytes) >= kMappedBytes;
}

}  // namespace

Result<void> CpuResidency::put(std::span<const Block> blocks, std::vector<Refused>& refused) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Pages pages(blocks[i]);
    fault_in(pages);
    if (owns_its_pages(blocks[i]) && !lock_pages(pages.address, pages.bytes))
      refused.push_back({i, std::string("in memory but not locked: ") + std::strerror(errno) + " (raise `ulimit -l`)"});
  }
  return {};
}

void CpuResidency::take(const Block& block) noexcept {
  if (!owns_its_pages(block)) return;
  const Pages pages(block);
  munlock(pages.address, pages.bytes);
}

void CpuResidency::do_renew(std::span<const Block> given) noexcept {
  for (const Block& block : given) fault_in(Pages(block));
}

}  // namespace berth::internal::cpu
