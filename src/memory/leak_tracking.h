// Whether leaks are tracked and printed: in debug builds, with BERTH_LEAKS=1, or when the program asks for it. Any
// thread may call; the check is one relaxed load.
#pragma once

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace berth::internal {

inline bool tracks_leaks_by_default() noexcept {
  const char* setting = std::getenv("BERTH_LEAKS");
  if (setting != nullptr) return std::string_view(setting) == "1";
#ifdef NDEBUG
  return false;
#else
  return true;
#endif
}

inline std::atomic<bool>& leak_tracking() noexcept {
  static std::atomic<bool> on{tracks_leaks_by_default()};
  return on;
}

inline bool tracks_leaks() noexcept {
  return leak_tracking().load(std::memory_order_relaxed);
}

}  // namespace berth::internal
