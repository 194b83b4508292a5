// Tells the thread sanitizer about work that is passed between threads by oneTBB. The library synchronises correctly
// but is not instrumented, so the sanitizer does not see it. Without the thread sanitizer these functions do nothing.
#pragma once

#include "base/sanitizers.h"

namespace berth::internal {

#if BERTH_THREAD_SANITIZER
// Everything this thread did so far ...
void hand_over(const void* token) noexcept;
// ... happened before what a thread does after this, for the same token.
void take_over(const void* token) noexcept;
#else
inline void hand_over(const void*) noexcept {}
inline void take_over(const void*) noexcept {}
#endif

}  // namespace berth::internal
