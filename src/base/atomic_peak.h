// Raises an atomic maximum.
#pragma once

#include <atomic>
#include <cstddef>

namespace berth {

inline void raise_to(std::atomic<std::size_t>& peak, std::size_t value) noexcept {
  std::size_t seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace berth
