#include "core/thread_handoff.h"

#ifdef BERTH_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>

namespace berth {

void hand_over(const void* token) noexcept {
  __tsan_release(const_cast<void*>(token));
}
void take_over(const void* token) noexcept {
  __tsan_acquire(const_cast<void*>(token));
}

}  // namespace berth

// oneTBB's own task objects, whose code is in its headers and so is instrumented: only reports whose innermost frame
// is there are silenced, never those of the work that the tasks do.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race_top:oneapi/tbb/\n";
}
#endif
