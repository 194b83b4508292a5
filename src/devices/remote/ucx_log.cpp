#include "devices/remote/ucx_log.h"

#include <dlfcn.h>
#include <pthread.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace berth::internal::ucx {
namespace {

// Of ucs/debug/log_def.h, the same since 1.13: levels from the gravest on, and what a handler answers.
enum Level : unsigned { kFatal = 0, kError = 1, kWarning = 2 };
enum Answer : unsigned { kStop = 0, kContinue = 1 };
using Handler = Answer (*)(const char* file, unsigned line, const char* function, Level level, const void* component,
                           const char* format, va_list arguments);

// The words of one thread, without memory of the heap: UCX may log from inside a memory hook.
thread_local std::array<char, 256> last_words{};

// UCX handles sockets and timers on a thread of its own, which it names.
bool is_own_thread() noexcept {
  std::array<char, 16> name{};
  return pthread_getname_np(pthread_self(), name.data(), name.size()) == 0 &&
         std::string_view(name.data()).starts_with("ucx");
}

Answer handle(const char*, unsigned, const char*, Level level, const void*, const char* format, va_list arguments) {
  if (level == kFatal) return kContinue;  // the last thing that the process says
  if (Hushed::here()) {
    if (level <= kWarning) std::vsnprintf(last_words.data(), last_words.size(), format, arguments);
    return kStop;
  }
  return is_own_thread() ? kStop : kContinue;
}

}  // namespace

thread_local int Hushed::depth_ = 0;

void keep_quiet(void* library) {
  const char* const chosen = std::getenv("UCX_LOG_LEVEL");
  if (chosen != nullptr && *chosen != '\0') return;
  using Push = void (*)(Handler);
  if (const auto push = reinterpret_cast<Push>(dlsym(library, "ucs_log_push_handler"))) push(&handle);
}

std::string take_last_words() {
  std::string words(last_words.data());
  last_words[0] = '\0';
  return words;
}

}  // namespace berth::internal::ucx
