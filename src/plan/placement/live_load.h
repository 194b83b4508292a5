// The live load of nodes that come and go, and its peak. Adding and removing a node takes O(log n) time as long as most
// of its levels were known when this was made; a level that was not joins the known ones beside it.
#pragma once

#include <cstdint>
#include <vector>

#include "berth/plan/plan.h"

namespace berth::internal::planner {

class LiveLoad {
 public:
  // `levels`: where nodes begin and end, in any order.
  explicit LiveLoad(std::vector<std::int64_t> levels);

  // Requires for removing: it was added. All bytes that are live together sum to less than 2^63.
  void add(LevelRange levels, std::uint64_t bytes);
  void remove(LevelRange levels, std::uint64_t bytes);
  std::uint64_t peak() const noexcept;

  // How many of the levels that this was made with are at or before `level`. Levels that were not among them have the
  // rank of the one before them.
  std::int32_t rank(std::int64_t level) const noexcept;
  std::int32_t ranks() const noexcept { return static_cast<std::int32_t>(known_.size()) + 1; }

 private:
  struct Step {
    std::int64_t level;
    std::int64_t change;  // of the load
    std::uint32_t uses;   // how many nodes begin or end here
  };
  // A stretch of time: by how much the load changes in all, and how high it gets above where it began.
  struct Stretch {
    std::int64_t sum = 0;
    std::int64_t high = 0;
  };

  void change(std::int64_t level, std::int64_t by, bool more);

  std::vector<std::int64_t> known_;
  std::vector<std::vector<Step>> steps_;  // in ascending order of levels, a few ranks together
  std::vector<Stretch> tree_;  // of stretch i the halves are 2i and 2i + 1; the last half of it are the leaves
};

}  // namespace berth::internal::planner
