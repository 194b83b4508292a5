// Lays out a run whose events are known from other shapes, without a search: the order of offsets of a known plan is
// kept, and every slot is let down as far as it goes. Plain functions; any thread may call.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "berth/plan/plan.h"

namespace berth::internal::replay {

// The nodes of a plan with slots, from the lowest offset up.
std::vector<std::uint32_t> order_of_offsets(const MemoryPlan& plan);

// The smallest of the plans that the given orders lead to. Nodes that an order does not name come last. The bound is
// the largest sum of live bytes. O(n log n) for each order. Requires: plain lifetimes (bytes, first, last, alignment),
// with 0 <= first < last <= n; every order names existing nodes, each at most once; the sizes do not overflow together.
MemoryPlan let_down(const PlanProblem& problem, std::span<const std::vector<std::uint32_t>> orders);

}  // namespace berth::internal::replay
