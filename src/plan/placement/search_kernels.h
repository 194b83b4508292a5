// The inner loops of the exact search and of first fit, over flat arrays of items. Each has a portable form and one for
// AVX2, which give the same results; the processor decides at run time. Functions of their arguments only.
//
// The arrays must have kPadding readable entries behind the last item. Indices are in ascending order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace berth::internal::planner {

inline constexpr std::size_t kPadding = 8;

// The least low[i] of those i in [begin, end) with last[i] > section; `none` if there is none lower than that. The
// index that has it goes to `which`, unchanged if none.
std::int32_t least_low(const std::int32_t* last, const std::int32_t* low, std::uint32_t begin, std::uint32_t end,
                       std::int32_t section, std::int32_t none, std::uint32_t& which) noexcept;
std::int64_t least_low(const std::int32_t* last, const std::int64_t* low, std::uint32_t begin, std::uint32_t end,
                       std::int32_t section, std::int64_t none, std::uint32_t& which) noexcept;

// Writes those i in [begin, end) with last[i] > section and low[i] < level to `out`, and returns how many.
std::uint32_t select_below(const std::int32_t* last, const std::int32_t* low, std::uint32_t begin, std::uint32_t end,
                           std::int32_t section, std::int32_t level, std::uint32_t* out) noexcept;
std::uint32_t select_below(const std::int32_t* last, const std::int64_t* low, std::uint32_t begin, std::uint32_t end,
                           std::int32_t section, std::int64_t level, std::uint32_t* out) noexcept;

// Writes those i in [begin, end) that stand on the floor at both ends, floor[first[i]] == floor[last[i] - 1] == low[i],
// to `out`, and returns how many.
std::uint32_t select_standing(const std::int32_t* first, const std::int32_t* last, const std::int32_t* low,
                              const std::int32_t* floor, std::uint32_t begin, std::uint32_t end,
                              std::uint32_t* out) noexcept;
std::uint32_t select_standing(const std::int32_t* first, const std::int32_t* last, const std::int64_t* low,
                              const std::int64_t* floor, std::uint32_t begin, std::uint32_t end,
                              std::uint32_t* out) noexcept;

// Where something of this height that lives in [from, until) can be, and how many of the rectangles were looked at.
struct LowestPlace {
  std::int64_t at = 0;
  std::uint32_t seen = 0;
};

// The lowest multiple of mask + 1 at which it overlaps none of `count` rectangles, which are in ascending order of low.
LowestPlace lowest_place(const std::int32_t* first, const std::int32_t* last, const std::int64_t* low,
                         const std::int64_t* high, std::uint32_t count, std::int32_t from, std::int32_t until,
                         std::int64_t height, std::int64_t mask) noexcept;

// The portable forms, which the tests compare with the others.
namespace portable {

template <class Unit>
Unit least_low(const std::int32_t* last, const Unit* low, std::uint32_t begin, std::uint32_t end, std::int32_t section,
               Unit none, std::uint32_t& which) noexcept {
  Unit least = none;
  for (std::uint32_t i = begin; i < end; ++i) {
    if (last[i] > section && low[i] < least) {
      least = low[i];
      which = i;
    }
  }
  return least;
}

template <class Unit>
std::uint32_t select_below(const std::int32_t* last, const Unit* low, std::uint32_t begin, std::uint32_t end,
                           std::int32_t section, Unit level, std::uint32_t* out) noexcept {
  std::uint32_t count = 0;
  for (std::uint32_t i = begin; i < end; ++i) {
    out[count] = i;  // in any case: a store is cheaper than a branch that is hard to foresee
    count += last[i] > section && low[i] < level ? 1 : 0;
  }
  return count;
}

template <class Unit>
std::uint32_t select_standing(const std::int32_t* first, const std::int32_t* last, const Unit* low, const Unit* floor,
                              std::uint32_t begin, std::uint32_t end, std::uint32_t* out) noexcept {
  std::uint32_t count = 0;
  for (std::uint32_t i = begin; i < end; ++i) {
    out[count] = i;
    count += floor[first[i]] == low[i] && floor[last[i] - 1] == low[i] ? 1 : 0;
  }
  return count;
}

inline LowestPlace lowest_place(const std::int32_t* first, const std::int32_t* last, const std::int64_t* low,
                                const std::int64_t* high, std::uint32_t count, std::int32_t from, std::int32_t until,
                                std::int64_t height, std::int64_t mask) noexcept {
  LowestPlace place;
  for (; place.seen < count && low[place.seen] < place.at + height; ++place.seen) {
    const std::uint32_t i = place.seen;
    const bool hit = (high[i] > place.at) & (first[i] < until) & (last[i] > from);  // no branches: chance decides
    const std::int64_t above = (high[i] + mask) & ~mask;
    place.at = hit ? above : place.at;
  }
  return place;
}

}  // namespace portable
}  // namespace berth::internal::planner
