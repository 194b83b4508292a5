// A MemoryGraph made ready for searching orders: windows folded into the values they are part of, sizes rounded up to
// the common alignment, dependencies as lists. Also a part of an order as such a graph. Plain values; one thread each.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "berth/base/result.h"
#include "berth/plan/plan_graph.h"

namespace berth::internal::graphs {

inline constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

// Lists of numbers, one for each index.
class Lists {
 public:
  Lists() = default;
  // `pairs` are (index, number); sorts them and drops repetitions.
  Lists(std::size_t count, std::vector<std::pair<std::uint32_t, std::uint32_t>>& pairs);
  std::span<const std::uint32_t> operator[](std::size_t index) const noexcept {
    return std::span(items_).subspan(begin_[index], begin_[index + 1] - begin_[index]);
  }

 private:
  std::vector<std::size_t> begin_;
  std::vector<std::uint32_t> items_;
};

// Who may take over whose bytes in a step. Sorted by step, then donor.
struct Takeover {
  std::uint32_t donor = 0;  // stored values
  std::uint32_t heir = 0;
};

// Stored values are the roots of the graph's values: what needs bytes of its own.
struct Stored {
  std::uint64_t bytes = 0;  // rounded up
  bool kept = false;        // live at the end
  bool input = false;       // live at the beginning
};

struct StepGraph {
  std::size_t steps = 0;
  std::vector<std::uint64_t> scratch;  // of each step, rounded up
  Lists before, next;                  // steps that a step depends on, and that depend on it
  Lists writes;                        // stored values of which a step writes something
  Lists uses;                          // stored values that a step reads or writes
  Lists writers, users;                // of each stored value: steps
  std::vector<Stored> stored;
  std::vector<std::vector<Takeover>> takeovers;  // of each step
  std::uint64_t base = 0;                        // live throughout, in no list
};

// A graph that was checked.
struct CheckedGraph {
  StepGraph steps;
  std::vector<std::uint32_t> root;    // of each value of the graph
  std::vector<std::uint64_t> delta;   // of each value from its root
  std::vector<std::uint32_t> writer;  // of each value: its step, or kNone
  std::vector<std::uint32_t> stored;  // of each root: its stored value, or kNone if it has no bytes
  std::uint64_t slack = 0;            // most bytes by which rounding up enlarged anything
};

// Fails like plan_graph() for what is wrong with a graph, except that a cycle of steps is not looked for.
Result<CheckedGraph> check_graph(const MemoryGraph& graph);

// A valid order that prefers small indices, or kCycle.
Result<std::vector<std::uint32_t>> first_order(const StepGraph& graph);

// kInvalidArgument if `order` does not have each step once, after those it depends on.
Result<void> check_order(const StepGraph& graph, std::span<const std::uint32_t> order);

// Which steps ran, and what is live then. Steps can be run and undone, the last one first.
class State {
 public:
  explicit State(const StepGraph& graph);

  bool ready(std::uint32_t step) const noexcept { return missing_[step] == 0; }
  std::uint64_t live() const noexcept { return live_; }
  // Bytes live during `step` if it ran now. Requires: it is ready.
  std::uint64_t need(std::uint32_t step) const noexcept;
  void run(std::uint32_t step) noexcept;
  void undo(std::uint32_t step) noexcept;

 private:
  const StepGraph& graph_;
  std::vector<std::uint32_t> missing_;  // of each step: steps it waits for
  std::vector<std::uint32_t> begun_;    // of each stored value: writers that ran
  std::vector<std::uint32_t> left_;     // of each stored value: users that did not run
  std::uint64_t live_;
};

// Bytes live during each position of an order.
std::vector<std::uint64_t> needs_of(const StepGraph& graph, std::span<const std::uint32_t> order);
std::uint64_t peak_of(const StepGraph& graph, std::span<const std::uint32_t> order);

// No order has a lower peak: the most that any step finds live, counting what was written by a step that must come
// before it and is used by one that must come after it. O((n + e) n / 64).
std::uint64_t order_bound(const StepGraph& graph);

// Positions of `order` at which every order has the same steps before it; the last one is its length. What lies between
// them can be ordered separately.
std::vector<std::size_t> cuts_of(const StepGraph& graph, std::span<const std::uint32_t> order);

// Positions [begin, end) of an order as a graph of their own: its step i is order[begin + i].
StepGraph part_of(const StepGraph& graph, std::span<const std::uint32_t> order, std::size_t begin, std::size_t end);

}  // namespace berth::internal::graphs
