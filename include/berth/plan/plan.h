// The memory planner: given when each node is live, it decides where each node is placed. A PlanProblem lists lifetimes
// in execution levels; plan() returns a MemoryPlan, with an offset per node and a lower bound that shows how good the
// plan is. Everything here is a plain value. The functions keep no state, any thread may call them, and their results
// do not refer to their arguments.
//
// Lifetimes are half-open: a node with first = 2 and last = 5 holds data during levels 2, 3 and 4. The steps of one
// level may run at the same time and in any order, so two nodes may share bytes only if they are live in no common
// level. A value written by a step of level w and last read by a step of level r lives [w, r + 1).
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

// One node: its size, and when it holds data. Unless it is pinned or has no bytes, last must be greater than first.
struct Lifetime {
  std::uint64_t bytes = 0;  // 0: the node has no slot
  std::int64_t first = 0;
  std::int64_t last = 0;

  // The offset of the slot in its block is a multiple of this power of two. See PlanProblem::alignment.
  std::uint64_t alignment = 1;

  // The slot must start at this offset, in the first block of its lane in the bank it prefers. A multiple of its
  // alignment.
  std::optional<std::uint64_t> offset = std::nullopt;

  // An input, output, parameter or constant: live at every level of the problem, regardless of first and last.
  bool pinned = false;

  // Each lane has its own arena: nodes of different lanes never share bytes or blocks.
  std::uint32_t lane = 0;

  // The node has no bytes of its own: it is a window of another node, which may itself be an alias. The chain ends at a
  // root, which lives from the first to the last level of itself and all its aliases. An alias must lie inside the node
  // it names, in the same lane. Its offset must be a multiple of its own alignment (the alignment of the problem does
  // not apply). It has no offset, gaps, bank or in-place node of its own.
  std::optional<AliasOf> alias = std::nullopt;

  // A node whose bytes this one may take over in place, such as the input of an activation. This requires that the last
  // level of that node (with its aliases) is the first level of this one: that node's last == first + 1. The two may
  // then share bytes in spite of that one common level, provided that this node starts at the same offset and is not
  // larger. The caller guarantees that no other step of that level reads the node. This is a permission, not a
  // requirement.
  std::optional<std::uint32_t> reuse_in_place = std::nullopt;

  // Levels within [first, last) in which the node holds no data, ascending and disjoint. Other nodes may use its bytes
  // then.
  std::vector<LevelRange> gaps = {};

  // A preferred offset, such as that of an earlier plan. Used only if it costs nothing.
  std::optional<std::uint64_t> hint = std::nullopt;

  // The first bank (index into PlanProblem::banks) that may hold this node; it may spill only to later banks. Default
  // 0.
  std::optional<std::uint32_t> bank = std::nullopt;

  // Used in messages and maps. Does not affect the plan.
  std::string label = {};
};

// A memory with its own address space, such as 256 KiB of SRAM before DRAM.
struct Bank {
  std::string name = {};
  std::uint64_t capacity = 0;  // bytes over all its blocks; 0: unlimited
};

struct PlanProblem {
  std::vector<Lifetime> lifetimes = {};

  // The size of the whole plan (all blocks) must not exceed this.
  std::optional<std::uint64_t> capacity = std::nullopt;

  // Minimum alignment of every slot that is not an alias: a power of two.
  std::uint64_t alignment = 1;

  // In order of preference: a node is placed in an earlier bank if it fits there. Empty: one bank without a limit.
  std::vector<Bank> banks = {};

  // The largest block. A larger plan is split into several blocks; one that fits into a block is not, even if splitting
  // would save padding. 0: no limit.
  std::uint64_t max_block_bytes = 0;
};

inline constexpr std::uint32_t kNoBlock = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::uint32_t kNoNode = std::numeric_limits<std::uint32_t>::max();

// Where one node's bytes are.
struct Slot {
  std::uint64_t offset = 0;        // in its block
  std::uint64_t bytes = 0;         // as requested
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
  std::vector<Slot> slots = {};        // one per lifetime, in the same order
  std::vector<PlanBlock> blocks = {};  // sorted by lane, then bank; none is empty. A simple problem has exactly one
  std::uint64_t size = 0;              // the sum of the blocks' bytes
  std::uint64_t lower_bound = 0;       // no plan for this problem is smaller
  bool optimal = false;                // size == lower_bound
  std::string strategy = {};           // that found it: a name from strategies(), or a part of the search
  std::uint64_t work = 0;              // units of PlanOptions::work_limit spent
  double seconds = 0;                  // wall time spent
  std::uint64_t fingerprint = 0;       // of the problem

  bool has(std::size_t node) const noexcept { return node < slots.size() && slots[node].block != kNoBlock; }
  // The distance of the size from the bound, as a fraction of the bound; 0 if proven optimal.
  double gap() const noexcept {
    return lower_bound == 0 ? 0.0 : static_cast<double>(size - lower_bound) / static_cast<double>(lower_bound);
  }
};
// "3 buffers in 12.0 KiB, optimal".
std::string to_string(const MemoryPlan& plan);

// Argument of the progress callback, which is called when a smaller plan is found or the bound rises.
struct PlanProgress {
  std::uint64_t best = 0;         // size of the best plan so far; never rises
  std::uint64_t lower_bound = 0;  // never falls
  double gap = 0;
  std::uint64_t work = 0;
  double seconds = 0;
  std::string_view strategy = {};  // of the best plan; valid during the call only
};

struct PlanOptions {
  // When to stop improving; the first plan is always completed. If neither limit is set, the work limit is
  // kDefaultWork. Only a run without a time limit is reproducible: the same problem, work limit and seed give the same
  // plan on any number of threads.
  std::optional<double> time_limit = std::nullopt;         // seconds
  std::optional<std::uint64_t> work_limit = std::nullopt;  // search nodes, or an equivalent amount of other work
  unsigned threads = 0;                                    // 0: one per core
  std::uint64_t seed = 0;

  // With a capacity, the planner stops at the first plan that fits. Set this to continue to the smallest plan.
  bool smallest = false;

  // Called on the calling thread. With several lanes, only while the last of them is planned.
  std::function<void(const PlanProgress&)> progress = nullptr;

  // A stop request ends the search soon; the best plan so far is returned.
  std::stop_token cancel = {};
};

// About one second of search on one core.
inline constexpr std::uint64_t kDefaultWork = 2'000'000;

// Plans `problem`. The plan is at least as small as that of every named strategy below, and is improved until it is
// proven optimal or a limit is reached. (A time limit or a cancellation may end the search before all strategies were
// tried. With several banks, the planner minimises the bytes in the last bank, then in the bank before it, and so on,
// not their sum.) The first plan takes O(n k) time if at most k nodes are live at the same time, and O(n log n) for
// more than a few thousand plain lifetimes. Memory is O(n). Fails with
//   kInvalidArgument  a lifetime or option is out of range; the message names the node
//   kCycle            a chain of aliases forms a cycle
//   kInfeasible       proven: no plan fits the capacity, the banks or the largest block; the message says by how much
//   kNotFound         no plan within the capacity or banks was found within the limits, but one may exist
//   kCancelled        the caller asked to stop before a plan within the capacity was found
// Without a capacity, banks and a block limit it fails only for invalid input.
Result<MemoryPlan> plan(const PlanProblem& problem, const PlanOptions& options = {});

// The same for a list of lifetimes: plan({{.bytes = 4096, .first = 0, .last = 2}}).
Result<MemoryPlan> plan(std::initializer_list<Lifetime> lifetimes, const PlanOptions& options = {});

// A placement rule that another project uses.
struct StrategyInfo {
  std::string_view name;     // "size_first_fit"
  std::string_view peer;     // the project that uses it
  std::string_view summary;  // one line
};

// All named strategies, in the order in which a comparison should print them.
std::span<const StrategyInfo> strategies() noexcept;

// Runs one named strategy, without a search after it, and fills in the bound. Fails like plan(), and with kNotFound for
// an unknown name. The capacity is checked only after the strategy has finished.
Result<MemoryPlan> plan_with(std::string_view strategy, const PlanProblem& problem, const PlanOptions& options = {});

// A lower bound of the size of every plan: the largest sum of live bytes of any level, with the alignment of single
// slots, or a higher value if a stronger argument is cheap. O(n log n). Fails like plan() for invalid input.
Result<std::uint64_t> plan_lower_bound(const PlanProblem& problem);

// A hash of everything that affects a plan; labels do not. Stable across runs and machines.
std::uint64_t fingerprint(const PlanProblem& problem) noexcept;

// The rules that a plan can violate.
enum class PlanRule : std::uint8_t {
  kNone,            // the plan is valid
  kInvalidProblem,  // the problem itself violates a rule of Lifetime or PlanProblem
  kWrongCount,      // the number of slots is not the number of lifetimes
  kWrongProblem,    // the fingerprint is that of another problem
  kMissingSlot,     // a node with bytes has no slot
  kUnexpectedSlot,  // a node of zero bytes has a slot
  kWrongBytes,      // the size of a slot is not that of its node
  kUnknownBlock,    // a slot names an unknown block
  kOutsideBlock,    // a slot ends after the end of its block
  kOverlap,         // two nodes share bytes and a level
  kMisaligned,      // an offset is not a multiple of its alignment
  kMovedFixed,      // a node is not at its fixed offset
  kBrokenAlias,     // an alias is not at its window of its root
  kBrokenInPlace,   // an in-place node overlaps the other but starts elsewhere, or is larger
  kWrongLane,       // a slot is in a block of another lane
  kWrongBank,       // a slot is in a bank before its first allowed one, or a block names an unknown bank
  kBankOverfull,    // the blocks of a bank exceed its capacity
  kBlockTooLarge,   // a block exceeds max_block_bytes
  kOverCapacity,    // the plan exceeds the capacity
  kWrongSize,       // size is not the sum of the blocks, or a block does not end where its last slot ends
  kWrongBound,      // lower_bound exceeds size, or optimal is wrong
};

struct Violation {
  PlanRule rule = PlanRule::kNone;
  std::uint32_t node = kNoNode;   // the node at fault, if there is one
  std::uint32_t other = kNoNode;  // the other node involved

  explicit operator bool() const noexcept { return rule != PlanRule::kNone; }
};

// Checks every rule above and returns the first violation. It shares no code with the planner except fingerprint().
// O(n log n) time, O(n) memory.
Violation validate(const PlanProblem& problem, const MemoryPlan& plan);

// The stable name of a rule, such as "Overlap".
std::string_view to_string(PlanRule rule) noexcept;

// A message that names the rule, the nodes (by label if they have one), and the bytes and levels involved.
std::string describe(const Violation& violation, const PlanProblem& problem, const MemoryPlan& plan);

}  // namespace berth
