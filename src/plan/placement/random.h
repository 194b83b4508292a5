// A small generator with a state of one word, so that every restart can have its own, derived from (seed, index).
#pragma once

#include <cstdint>

namespace berth::internal::planner {

constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Random {
 public:
  constexpr explicit Random(std::uint64_t seed, std::uint64_t index = 0) noexcept : state_(mix(mix(seed) ^ index)) {}
  constexpr std::uint64_t next() noexcept {
    state_ += 0x9e3779b97f4a7c15u;
    return mix(state_);
  }
  // Below `count`, which is not 0. The bias of the remainder does not matter here.
  constexpr std::uint64_t below(std::uint64_t count) noexcept { return next() % count; }
  // In [0, 1).
  constexpr double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace berth::internal::planner
