// Memory of the operating system for the CPU device. Small blocks come from malloc; large ones are mapped at huge-page
// boundaries and marked for huge pages, because faulting in 4 KiB pages costs several times as much as writing them.
// Any thread may call.
#pragma once

#include <cstddef>

namespace berth::internal::cpu {

// Blocks of at least this size are mapped. The rounded size decides, so that free_host agrees with allocate_host.
inline constexpr std::size_t kMappedBytes = std::size_t{1} << 20;

// The size that allocate_host uses for `bytes`: whole cache lines, or whole pages if mapped.
std::size_t rounded_host_bytes(std::size_t bytes) noexcept;

// Null if the system refuses. Mapped memory is zero already, so `zero` costs nothing there. Requires: bytes > 0;
// alignment is a power of two.
void* allocate_host(std::size_t bytes, std::size_t alignment, bool zero) noexcept;

// Requires: `bytes` as given to allocate_host.
void free_host(void* address, std::size_t bytes) noexcept;

}  // namespace berth::internal::cpu
