// Dimensions as points: how far one is from another, and what is between them. Plain values; any thread may call.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "run/exact_fit.h"

namespace berth::internal::replay {

using Extents = std::vector<std::int64_t>;

// to - from, if none of it is negative and some of it is not zero. Else empty.
inline Extents difference(const Extents& from, const Extents& to) {
  Extents by(to.size());
  bool some = false;
  for (std::size_t i = 0; i < to.size() && from.size() == to.size(); ++i) {
    if (__builtin_sub_overflow(to[i], from[i], &by[i]) || by[i] < 0) return {};
    some = some || by[i] > 0;
  }
  return some ? by : Extents{};
}

// Nothing if a number becomes too large.
inline std::optional<Extents> advance(const Extents& from, const Extents& step, std::int64_t steps) {
  Extents to(from.size());
  for (std::size_t i = 0; i < from.size(); ++i)
    if (__builtin_mul_overflow(step[i], steps, &to[i]) || __builtin_add_overflow(to[i], from[i], &to[i]))
      return std::nullopt;
  return to;
}

// `at` is on the straight way from `from` to `to`.
inline bool on_the_way(const Extents& from, const Extents& to, const Extents& at) {
  if (at.size() != from.size() || at.size() != to.size()) return false;
  Wide gone = 0, all = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (at[i] < from[i] || at[i] > to[i]) return false;
    const Wide part = Wide{at[i]} - from[i], whole = Wide{to[i]} - from[i];
    if (all == 0) {
      gone = part;
      all = whole;
    } else if (part * all != gone * whole) {
      return false;
    }
  }
  return true;
}

}  // namespace berth::internal::replay
