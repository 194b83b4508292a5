// Included before every source of the build of scripts/mutate. BERTH_MUTANT=N switches one mutant on;
// BERTH_MUTANTS_REACHED=FILE records which ones are reached, in a file that is mapped, so that what a child process or
// a crash leaves behind is in it.
#pragma once
#if defined(__cplusplus) && __cplusplus >= 202002L

// A lock that may be another one is more than the analysis understands.
#pragma clang diagnostic ignored "-Wthread-safety"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace berth_mutation {

inline constexpr int kMost = 1 << 16;
enum State : unsigned char { kOff, kOn, kRecords };
inline std::atomic<unsigned char> states[kMost];
inline std::atomic<unsigned char>* reached = nullptr;
inline bool started = false;

__attribute__((constructor(101))) inline void start() {
  if (started) return;
  started = true;
  if (const char* number = std::getenv("BERTH_MUTANT")) states[std::atoi(number) % kMost] = kOn;
  const char* path = std::getenv("BERTH_MUTANTS_REACHED");
  const int file = path == nullptr ? -1 : ::open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  void* const memory = ::mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) return;
  reached = static_cast<std::atomic<unsigned char>*>(memory);
  for (auto& state : states) state.store(kRecords, std::memory_order_relaxed);
}

[[gnu::noinline, gnu::cold]] inline bool notice(int number) {
  if (states[number].load(std::memory_order_relaxed) == kOn) return true;
  states[number].store(kOff, std::memory_order_relaxed);
  reached[number].store(1, std::memory_order_relaxed);
  return false;
}
// Whether this mutant is the one that is switched on.
[[gnu::always_inline]] inline bool on(int number) {
  return __builtin_expect(states[number].load(std::memory_order_relaxed) != kOff, 0) && notice(number);
}

template <class A, class B>
bool lt(int n, const A& a, const B& b) {
  return on(n) ? a <= b : a < b;
}
template <class A, class B>
bool le(int n, const A& a, const B& b) {
  return on(n) ? a < b : a <= b;
}
template <class A, class B>
bool gt(int n, const A& a, const B& b) {
  return on(n) ? a >= b : a > b;
}
template <class A, class B>
bool ge(int n, const A& a, const B& b) {
  return on(n) ? a > b : a >= b;
}
template <class A, class B>
bool eq(int n, const A& a, const B& b) {
  return on(n) ? a != b : a == b;
}
template <class A, class B>
bool ne(int n, const A& a, const B& b) {
  return on(n) ? a == b : a != b;
}

// a && b is `goes_on(a) ? b : ends()`, and so is a || b.
inline bool both_goes_on(int n, bool a) {
  return on(n) ? !a : a;
}
inline bool both_ends(int n) {
  return on(n);
}
inline bool either_goes_on(int n, bool a) {
  return on(n) ? a : !a;
}
inline bool either_ends(int n) {
  return !on(n);
}

// A mutex that nobody else holds.
template <class M>
M* spare(M&) {
  return new M;
}

}  // namespace berth_mutation
#endif
