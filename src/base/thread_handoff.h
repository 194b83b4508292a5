// Tells a thread sanitizer about work that is handed from one thread to another through oneTBB. The library does
// synchronise, but it is not instrumented, so the sanitizer sees the work and not the handing over. Without a thread
// sanitizer these do nothing.
#pragma once

#if defined(__SANITIZE_THREAD__)
#define BERTH_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define BERTH_THREAD_SANITIZER 1
#endif
#endif

namespace berth {

#ifdef BERTH_THREAD_SANITIZER
// Everything this thread did so far ...
void hand_over(const void* token) noexcept;
// ... happened before what a thread does after this, for the same token.
void take_over(const void* token) noexcept;
#else
inline void hand_over(const void*) noexcept {}
inline void take_over(const void*) noexcept {}
#endif

}  // namespace berth
