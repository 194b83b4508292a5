// Many short searches instead of a long one. A campaign runs restarts of the exact search, each with its own section
// rule, value order, capacity and node limit, in batches of fixed size. Within a batch the restarts are independent,
// any number of threads may share them, and the decisive restart of the lowest index wins: so the result depends on the
// problem, the seed and the work limit, but not on the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "plan/placement/interrupt.h"
#include "plan/placement/model.h"

namespace berth::internal::planner {

inline constexpr std::size_t kProvable = 100;  // items; below, the exact search may well finish

// What a campaign leaves to the next one on the same model, so that several are as good as one long one.
struct CampaignMemory {
  std::vector<Layout> guides;          // layouts that later restarts stay near to, the latest last: a line of descent
  Layout first;                        // where a line begins
  std::uint64_t line_top = kNowhere;   // the lowest top of this line
  std::uint64_t least_top = kNowhere;  // of any line, and of what a campaign was given
  std::uint64_t lowered = 0;           // work when this line last got lower
  std::uint64_t restarts = 0;          // so far
  std::uint64_t plain_restarts = 0;    // of these, those that no layout guided
  std::uint64_t work = 0;              // so far
  std::uint64_t proof = 1000;          // nodes that the next long restart may take
  std::uint64_t impossible = 0;        // units: no packing has this capacity
  std::uint64_t fewest_blocks = 0;     // that a bundling left; 0 before the first
  std::uint64_t bundled_work = 0;      // of the work, that on bundles
};

// What a campaign is to reach, and when to give up.
struct CampaignLimits {
  std::uint64_t goal = 0;  // stop at a layout whose top is at or below this
  bool minimise = true;    // else only the goal counts, and nothing between it and the start
  std::uint64_t work = 0;  // search nodes
  unsigned threads = 1;
  std::uint64_t seed = 0;
  Interrupt interrupt;
  const Layout* hint = nullptr;  // offsets that may overlap here and there: one more guide
};

struct CampaignResult {
  Layout best;                    // no higher than what it started from
  std::uint64_t lower_bound = 0;  // at least what it started from
  std::uint64_t work = 0;
  std::string_view strategy;  // what found `best`; empty if the start was not improved
};

// Called on the calling thread when the best top falls or the bound rises.
using CampaignProgress = std::function<void(const CampaignResult&)>;

// Improves `start` towards `limits.goal` for a model over a plain space. `lower_bound` must hold for the model.
// Goes on from what `memory` tells of earlier ones.
CampaignResult run_campaign(const Model& model, const Layout& start, std::uint64_t lower_bound,
                            const CampaignLimits& limits, CampaignMemory& memory, const CampaignProgress& progress);

}  // namespace berth::internal::planner
