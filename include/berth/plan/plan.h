// The memory planner: given what lives when, decide where. A PlanProblem lists lifetimes in execution levels; plan()
// answers with a MemoryPlan, an offset for each node, together with a lower bound that says how good the answer is.
// Everything here is a plain value. The functions keep no state, any thread may call them at any time, and nothing
// they return refers to what they were given.
//
// Levels are half-open: a node with first = 2 and last = 5 holds data during levels 2, 3 and 4. All steps of one level
// may run at the same time and in any order, so two nodes may share bytes only if no level sees both alive. A value
// written by a step of level w and last read by a step of level r lives [w, r + 1).
//
//     bytes                                     slots[0] = {offset 0, bytes 4096}
//      ^   +-------------+                      slots[1] = {offset 4096, bytes 8192}
//      |   |   node 1    |                      size     = 12288 = lower_bound: optimal
//      | +-+------+------+
//      | | node 0 |
//      +-+--------+-----------> levels
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "berth/base/result.h"

namespace berth {

// Levels [first, last).
struct LevelRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

// A window of another node's bytes: a reshape (offset 0) or a slice.
struct AliasOf {
  std::uint32_t node = 0;
  std::uint64_t offset = 0;  // bytes from the start of that node
};

// One node: how many bytes, and when they hold data. Unless it is pinned or has no bytes, last is after first.
struct Lifetime {
  std::uint64_t bytes = 0;  // 0: the node has no slot
  std::int64_t first = 0;
  std::int64_t last = 0;

  // The slot's offset in its block is a multiple of this, a power of two. See PlanProblem::alignment.
  std::uint64_t alignment = 1;

  // The slot must start here, in the first block of its lane in the bank it prefers. A multiple of its alignment.
  std::optional<std::uint64_t> offset = std::nullopt;

  // An input, output, parameter or constant: alive at every level of the problem, whatever first and last say.
  bool pinned = false;

  // Lanes have an arena each: nodes of different lanes never share bytes, and never a block.
  std::uint32_t lane = 0;

  // The node has no bytes of its own: it is a window of another node, which may itself be an alias. The chain ends at
  // a root; the root then lives from the first level to the last of itself and all its aliases. An alias must lie
  // inside the node it names, in the same lane; its offset must be a multiple of its own alignment (the problem's
  // alignment does not apply to it); it has no offset, gaps, bank or in-place node of its own.
  std::optional<AliasOf> alias = std::nullopt;

  // A node whose bytes this one may take over in place (an activation written over its input). It may, if that node
  // (with its aliases) lives last in the level where this one lives first: that node's last == first + 1. Then the two
  // may share bytes in spite of that one level, provided that this node starts at the same offset and is no larger.
  // The caller vouches that no other step of that level reads the node. It is a permission, not a demand.
  std::optional<std::uint32_t> reuse_in_place = std::nullopt;

  // Levels inside [first, last) in which the node holds no data, ascending and disjoint: others may use its bytes.
  std::vector<LevelRange> gaps = {};

  // An offset to prefer when it costs nothing, such as that of an earlier plan. Never binding.
  std::optional<std::uint64_t> hint = std::nullopt;

  // The first bank (index into PlanProblem::banks) this node may be in; it may spill only to later ones. Default 0.
  std::optional<std::uint32_t> bank = std::nullopt;

  // For people: messages, maps. Does not change the plan.
  std::string label = {};
};

// A kind of memory with its own address space, such as 256 KiB of SRAM before DRAM.
struct Bank {
  std::string name = {};
  std::uint64_t capacity = 0;  // bytes over all its blocks; 0: unlimited
};

struct PlanProblem {
  std::vector<Lifetime> lifetimes = {};

  // The size of the whole plan (all blocks) must not exceed this.
  std::optional<std::uint64_t> capacity = std::nullopt;

  // Least alignment of every slot that is not an alias: a power of two.
  std::uint64_t alignment = 1;

  // In order of preference: a node goes to an earlier bank when it fits there. Empty: one bank without a limit.
  std::vector<Bank> banks = {};

  // No block is larger than this: a plan that would be is split into several. 0: no limit.
  std::uint64_t max_block_bytes = 0;
};

inline constexpr std::uint32_t kNoBlock = std::numeric_limits<std::uint32_t>::max();

// Where one node's bytes are.
struct Slot {
  std::uint64_t offset = 0;        // in its block
  std::uint64_t bytes = 0;         // as asked
  std::uint32_t block = kNoBlock;  // index into MemoryPlan::blocks; kNoBlock for a node of zero bytes

  friend bool operator==(const Slot&, const Slot&) = default;
};

// One buffer to allocate.
struct PlanBlock {
  std::uint64_t bytes = 0;  // the end of its last slot
  std::uint32_t bank = 0;   // index into PlanProblem::banks; 0 when there are none
  std::uint32_t lane = 0;

  friend bool operator==(const PlanBlock&, const PlanBlock&) = default;
};

struct MemoryPlan {
  std::vector<Slot> slots = {};        // one for each lifetime, in the same order
  std::vector<PlanBlock> blocks = {};  // by lane, then bank; none of them empty. A simple problem has exactly one
  std::uint64_t size = 0;              // the sum of the blocks' bytes
  std::uint64_t lower_bound = 0;       // no plan for this problem is smaller
  bool optimal = false;                // size == lower_bound
  std::string strategy = {};           // what found it: a name from strategies(), or a part of the search
  std::uint64_t work = 0;              // units of PlanOptions::work_limit spent
  double seconds = 0;                  // wall time spent
  std::uint64_t fingerprint = 0;       // of the problem it is for

  bool has(std::size_t node) const noexcept { return node < slots.size() && slots[node].block != kNoBlock; }
  // How far the size is above the bound, as a fraction of the bound: 0 when proven optimal.
  double gap() const noexcept {
    return lower_bound == 0 ? 0.0 : static_cast<double>(size - lower_bound) / static_cast<double>(lower_bound);
  }
};

// What the progress callback sees: each time a smaller plan is found or the bound rises.
struct PlanProgress {
  std::uint64_t best = 0;         // size of the best plan so far; never rises
  std::uint64_t lower_bound = 0;  // never falls
  double gap = 0;
  std::uint64_t work = 0;
  double seconds = 0;
  std::string_view strategy = {};  // of the best plan; valid during the call only
};

struct PlanOptions {
  // When to stop improving; the first plan is always finished. With neither limit, a work limit of kDefaultWork. Only
  // a run without a time limit is reproducible: same problem, work limit and seed, same plan on any number of threads.
  std::optional<double> time_limit = std::nullopt;         // seconds
  std::optional<std::uint64_t> work_limit = std::nullopt;  // search nodes, or about as much other work
  unsigned threads = 0;                                    // 0: one for each core
  std::uint64_t seed = 0;

  // With a capacity, the planner stops at the first plan that fits. Set this to go on to the smallest.
  bool smallest = false;

  // Called on the calling thread. With several lanes, only while the last of them is planned.
  std::function<void(const PlanProgress&)> progress = nullptr;

  // Asking to stop ends the search soon; the best plan so far is returned.
  std::stop_token cancel = {};
};

// About a second of search on one core.
inline constexpr std::uint64_t kDefaultWork = 2'000'000;

// Plans `problem`: at least as small as every named strategy below, then smaller until proven optimal or stopped. (A
// time limit or a cancellation may end it before all strategies were tried. Over several banks what counts is not the
// sum, but how little is in the last bank, then in the one before.) The first plan takes O(n k) time where at most k
// nodes share a stretch of time, O(n log n) for more than a few thousand plain lifetimes; memory is O(n) throughout.
// Fails with
//   kInvalidArgument  a lifetime or option outside its range; the sentence names the node
//   kCycle            a chain of aliases that leads back to itself
//   kInfeasible       proven: nothing fits the capacity, the banks or the largest block; the sentence says by how much
//   kNotFound         no plan within the capacity or banks was found within the limits, and none was ruled out
//   kCancelled        the caller asked to stop before a plan within the capacity was found
// Without capacity, banks and block limit it fails only for invalid input.
Result<MemoryPlan> plan(const PlanProblem& problem, const PlanOptions& options = {});

// The same for lifetimes alone: plan({{.bytes = 4096, .first = 0, .last = 2}}).
Result<MemoryPlan> plan(std::initializer_list<Lifetime> lifetimes, const PlanOptions& options = {});

// A planning rule that others use, here under one roof.
struct StrategyInfo {
  std::string_view name;     // "size_first_fit"
  std::string_view peer;     // who plans like this
  std::string_view summary;  // one line
};

// All named strategies, in the order in which a comparison should print them.
std::span<const StrategyInfo> strategies() noexcept;

// Runs one named strategy alone, with no search after it, and fills in the bound. Fails like plan(), and with kNotFound
// for an unknown name. Capacity is checked only after the fact, as the peers do.
Result<MemoryPlan> plan_with(std::string_view strategy, const PlanProblem& problem, const PlanOptions& options = {});

// No plan for the problem can be smaller than this: the largest live load (over levels, after alignment of single
// slots), or better where a stronger argument is cheap. O(n log n). Fails like plan() for invalid input.
Result<std::uint64_t> plan_lower_bound(const PlanProblem& problem);

// A number that changes when anything that matters to a plan does (labels do not). Stable across runs and machines.
std::uint64_t fingerprint(const PlanProblem& problem) noexcept;

// What a plan can do wrong.
enum class PlanRule : std::uint8_t {
  kNone,            // nothing: the plan is valid
  kInvalidProblem,  // the problem itself breaks a rule of Lifetime or PlanProblem
  kWrongCount,      // not one slot for each lifetime
  kWrongProblem,    // the fingerprint is another problem's
  kMissingSlot,     // a node with bytes has none
  kUnexpectedSlot,  // a node of zero bytes has one
  kWrongBytes,      // a slot's bytes are not the node's
  kUnknownBlock,    // a slot names a block that is not there
  kOutsideBlock,    // a slot ends after its block does
  kOverlap,         // two nodes share bytes and a level
  kMisaligned,      // an offset is no multiple of its alignment
  kMovedFixed,      // a fixed offset was not kept
  kBrokenAlias,     // an alias is not the window of its root that it should be
  kBrokenInPlace,   // an in-place node overlaps the other but does not start where it starts, or is larger
  kWrongLane,       // a slot is in another lane's block
  kWrongBank,       // a slot is in a bank before the one it may first be in, or a block names an unknown bank
  kBankOverfull,    // the blocks of a bank exceed its capacity
  kBlockTooLarge,   // a block exceeds max_block_bytes
  kOverCapacity,    // the plan exceeds the capacity
  kWrongSize,       // size is not the sum of the blocks, or a block is not as long as its last slot's end
  kWrongBound,      // lower_bound exceeds size, or optimal is set wrongly
};

struct Violation {
  PlanRule rule = PlanRule::kNone;
  std::uint32_t node = kNoBlock;   // who, where one is to blame
  std::uint32_t other = kNoBlock;  // with whom

  explicit operator bool() const noexcept { return rule != PlanRule::kNone; }
};

// Checks every rule above and returns the first violation. It shares no code with the planner. O(n log n) time, O(n)
// memory.
Violation validate(const PlanProblem& problem, const MemoryPlan& plan);

// The stable name of a rule, such as "Overlap".
std::string_view to_string(PlanRule rule) noexcept;

// A sentence for people: which rule, which nodes (by label where they have one), which bytes and levels.
std::string describe(const Violation& violation, const PlanProblem& problem, const MemoryPlan& plan);

}  // namespace berth
