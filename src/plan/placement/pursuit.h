// The searches on one portion of a lane: restarts of the exact search, and beside them the search over conflicts. They
// go on by turns; what each has learned is kept from turn to turn. One thread uses a Pursuit at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "plan/placement/campaign.h"
#include "plan/placement/conflicts.h"
#include "plan/placement/crew.h"
#include "plan/placement/portion.h"

namespace berth::internal::planner {

class Pursuit {
 public:
  struct Limits {
    std::uint64_t goal = 0;  // stop at a top at or below this
    bool minimise = true;    // else only the goal counts
    std::uint64_t work = 0;  // of this turn
    std::uint64_t seed = 0;
    Interrupt interrupt;
  };

  // `whole` is a layout of the model that the portion is of. If it is not `usable`, only its top counts.
  Pursuit(Portion portion, const Layout& whole, bool usable);

  // A better layout of the whole, perhaps.
  void offer(const Layout& whole);

  // One turn of the exact search alone, or of both searches, side by side if the crew has two threads. Returns the work
  // done; none if neither can do any more. `progress` is called on the calling thread when the top falls or the bound
  // rises.
  std::uint64_t search(const Limits& limits, unsigned threads, const std::function<void()>& progress);
  std::uint64_t search_both(const Limits& limits, Crew& crew, const std::function<void()>& progress);

  const Portion& portion() const noexcept { return portion_; }
  const Layout& best() const noexcept { return best_; }
  std::uint64_t lower_bound() const noexcept { return lower_bound_; }
  std::uint64_t work() const noexcept { return work_; }
  // What found best(); empty if it is what was offered.
  const std::string& strategy() const noexcept { return strategy_; }

 private:
  std::uint64_t run(const Limits& limits, unsigned threads, const Layout* hint, const std::function<void()>& progress);

  Portion portion_;
  Layout best_, start_;
  std::uint64_t load_ = 0;  // the bound before any search
  std::uint64_t lower_bound_ = 0;
  std::uint64_t work_ = 0;
  std::string strategy_;
  CampaignMemory memory_;
  std::optional<ConflictSearch> conflicts_;
  bool suits_conflicts_;
};

}  // namespace berth::internal::planner
