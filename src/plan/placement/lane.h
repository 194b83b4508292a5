// One lane of a problem, from the first greedy plan to the last improvement.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "plan/placement/interrupt.h"
#include "plan/placement/model.h"

namespace berth::internal::planner {

struct LaneLimits {
  std::uint64_t goal = 0;  // stop at a top at or below this, or at the lower bound
  bool minimise = true;    // else only the goal counts
  std::uint64_t work = 0;
  unsigned threads = 1;
  std::uint64_t seed = 0;
  Interrupt interrupt;
};

struct LaneResult {
  Layout best;
  std::uint64_t lower_bound = 0;
  std::uint64_t work = 0;
  std::string strategy;
};

using LaneProgress = std::function<void(const LaneResult&)>;

// Plans a model over a plain space. `loose` is null, or the same lane with nothing reused in place: some packings are
// easier without. In the result's layout, `loose_wins` tells which model the offsets are for.
struct LaneAnswer {
  LaneResult result;
  bool loose_wins = false;
};
LaneAnswer plan_lane(const Model& model, const Model* loose, const LaneLimits& limits, const LaneProgress& progress);

// Plans a model over banks and blocks, greedily. Among layouts the one with the least in the last bank is best, then in
// the one before, and so on. `best.top` is kNowhere when no rule found room for everything.
LaneResult plan_split(const Model& model, std::uint64_t seed);

// Bytes of each block of a layout, as (bank, block) in ascending order.
struct BlockBytes {
  std::uint32_t bank = 0;
  std::uint64_t block = 0;
  std::uint64_t bytes = 0;
};
std::vector<BlockBytes> block_bytes(const Model& model, const Layout& layout);

}  // namespace berth::internal::planner
