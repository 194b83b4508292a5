// The double's exported functions, declared from the same list that production code uses, so that a definition
// with another signature does not compile.
#pragma once

#include "state.h"

namespace berth::internal::cuda {
extern "C" {
#define BERTH_DECLARE(name, symbol, version, need, parameters) \
  __attribute__((visibility("default"))) Status symbol parameters;
BERTH_CUDA_FUNCTIONS(BERTH_DECLARE)
#undef BERTH_DECLARE
__attribute__((visibility("default"))) Status cuGetProcAddress_v2(const char* name, void** function, int version,
                                                                  std::uint64_t flags, ProcAddressResult* result);
}
}  // namespace berth::internal::cuda

// The head of a call: takes the state and its lock, counts the call, and lets it fail if it was told to.
#define DOUBLE_ENTER(name)                        \
  constexpr const char* kCall = name;             \
  auto& state = cuda_double::State::get();        \
  std::unique_lock<std::mutex> lock(state.mutex); \
  if (const Status told = state.enter(kCall); told != kSuccess) return told

// The same, for a call that needs a current context.
#define DOUBLE_ENTER_CONTEXT(name)               \
  DOUBLE_ENTER(name);                            \
  cuda_double::DeviceContext* context = nullptr; \
  if (const Status wrong = state.current(kCall, &context); wrong != kSuccess) return wrong

// The same, for a call that is potentially unsafe while a stream captures. The list is stricter than the driver's.
#define DOUBLE_ENTER_UNSAFE(name) \
  DOUBLE_ENTER_CONTEXT(name);     \
  if (const Status unsafe = state.unsafe(kCall); unsafe != kSuccess) return unsafe
