// Which sanitizers the compiler has switched on, as macros that are 0 or 1: g++ and clang say so in different ways.
#pragma once

#if defined(__has_feature)
#define BERTH_HAS_FEATURE(name) __has_feature(name)
#else
#define BERTH_HAS_FEATURE(name) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || BERTH_HAS_FEATURE(address_sanitizer)
#define BERTH_ADDRESS_SANITIZER 1
#else
#define BERTH_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__) || BERTH_HAS_FEATURE(thread_sanitizer)
#define BERTH_THREAD_SANITIZER 1
#else
#define BERTH_THREAD_SANITIZER 0
#endif
