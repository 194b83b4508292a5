// The rules by which others plan, under the names that strategies() lists. Each is a pure function of the model and the
// seed; plan() promises to be no worse than any of them, and keeps that by running them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "plan/placement/interrupt.h"
#include "plan/placement/model.h"

namespace berth::internal::planner {

enum class Strategy : std::uint8_t {
  kSizeFirstFit,
  kSmallestGap,
  kXlaSpatial,
  kXlaTemporal,
  kBreadth,
  kOnlineBestFit,
  kHillClimb,
};
inline constexpr Strategy kStrategies[] = {Strategy::kSizeFirstFit, Strategy::kSmallestGap, Strategy::kXlaSpatial,
                                           Strategy::kXlaTemporal,  Strategy::kBreadth,     Strategy::kOnlineBestFit,
                                           Strategy::kHillClimb};

std::string_view strategy_name(Strategy strategy) noexcept;

// Gives up when interrupted, with a top of kNowhere.
Layout run_strategy(const Model& model, Strategy strategy, std::uint64_t seed, const Interrupt* interrupt = nullptr);

// How many orders the hill climber tries: as many as its originals, fewer when one takes long; 1 is a plain first fit.
std::uint64_t hill_climb_rounds(const Model& model);

// Orders of the items, for any rule that places one after another.
std::vector<std::uint32_t> order_by_size(const Model& model);      // largest first, then earliest
std::vector<std::uint32_t> order_by_duration(const Model& model);  // longest first, then largest
std::vector<std::uint32_t> order_by_area(const Model& model);      // size times duration
std::vector<std::uint32_t> order_by_start(const Model& model);     // as they come to life
std::vector<std::uint32_t> order_by_breadth(const Model& model);   // those of the fullest section first

// Items that are alive when the load is at least (1 - depth) of its peak come first, the longest-lived of them first:
// they make a dense foot that the rest, by size, fills up around.
std::vector<std::uint32_t> order_by_heat(const Model& model, double depth);
std::vector<std::uint32_t> order_by_size_and_length(const Model& model);  // size times the square root of duration

// Of each item: the section of its life in which the live load, as section_loads() gives it, is highest; the first of
// equals. O(n log sections).
std::vector<std::uint32_t> fullest_sections(const Model& model, const std::vector<std::uint64_t>& loads);

// How many pairs of items share a section, counted by hull: what a round of any greedy rule costs. O(n + sections).
std::uint64_t overlapping_pairs(const Model& model);

// Online best fit over a free list, items in the order in which they come to life. Only for a plain space, without
// fixed items, gaps and alignment. O(n log n).
Layout online_best_fit(const Model& model);

// Random exchanges in the order of a first fit, around the items that stand highest; `rounds` of them.
Layout hill_climb(const Model& model, std::uint64_t seed, std::uint64_t rounds, const Interrupt* interrupt);

}  // namespace berth::internal::planner
