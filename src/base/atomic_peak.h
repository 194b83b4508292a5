// Raises an atomic maximum.
#pragma once

#include <atomic>
#include <type_traits>

namespace berth::internal {

// Sets `peak` to `value` unless it is that high already. `order` is that of the write.
template <class T>
void raise_to(std::atomic<T>& peak, std::type_identity_t<T> value,
              std::memory_order order = std::memory_order_relaxed) noexcept {
  T seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, order, std::memory_order_relaxed)) {
  }
}

}  // namespace berth::internal
