// Returns an error to the caller. BERTH_TRY(expression) for Result<void>; BERTH_TRY_ASSIGN(auto x, expression) for a
// value.
#pragma once

#include "berth/base/result.h"

#define BERTH_JOIN_(a, b) a##b
#define BERTH_JOIN(a, b) BERTH_JOIN_(a, b)

#define BERTH_TRY(...)                                                                                               \
  do {                                                                                                               \
    if (auto berth_result_ = (__VA_ARGS__); !berth_result_) return ::berth::Error(std::move(berth_result_).error()); \
  } while (false)

#define BERTH_TRY_ASSIGN(declaration, ...)                                         \
  auto BERTH_JOIN(berth_result_, __LINE__) = (__VA_ARGS__);                        \
  if (!BERTH_JOIN(berth_result_, __LINE__))                                        \
    return ::berth::Error(std::move(BERTH_JOIN(berth_result_, __LINE__)).error()); \
  declaration = *std::move(BERTH_JOIN(berth_result_, __LINE__))
