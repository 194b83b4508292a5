// What a plan that is made again must be: one block of plain lifetimes, whose offsets stay in range.
#pragma once

#include <cstdint>

#include "berth/base/result.h"
#include "berth/plan/plan.h"

namespace berth::internal::planner {

inline constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;    // of all nodes
inline constexpr std::uint64_t kMostPadding = std::uint64_t{1} << 60;  // of all nodes

// Fails with kUnsupported if node `index` has anything but bytes, levels, an alignment and a pin, or another lane.
Result<void> check_plain(const Lifetime& lifetime, std::size_t index, std::uint32_t lane);
// The same for all nodes, and for banks, a block limit, and alignments that are too large in sum.
Result<void> check_plain(const PlanProblem& problem);

}  // namespace berth::internal::planner
