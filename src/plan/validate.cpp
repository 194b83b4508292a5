// The validator of plans. It implements the rules of plan.h without any code or header of the planner, so that a
// mistake there cannot hide itself.
#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "berth/plan/plan.h"

namespace berth {
namespace {

// The lifetime of one node, with aliases resolved.
struct Life {
  std::uint32_t root = kNoNode;  // itself unless it is an alias
  std::int64_t first = 0;        // of the root: itself and all its aliases
  std::int64_t last = 0;
  bool pinned = false;
};

std::uint64_t effective_alignment(const PlanProblem& problem, const Lifetime& life) {
  return life.alias ? life.alignment : std::max(problem.alignment, life.alignment);
}

bool gaps_are_sound(const Lifetime& life) {
  std::int64_t end = life.first;
  for (const LevelRange& gap : life.gaps) {
    if (gap.first < end || gap.first >= gap.last || gap.last > life.last) return false;
    end = gap.last;
  }
  return true;
}

bool alias_is_sound(const PlanProblem& problem, const Lifetime& life) {
  if (life.offset || life.bank || life.reuse_in_place || !life.gaps.empty()) return false;
  if (life.alias->node >= problem.lifetimes.size()) return false;
  const Lifetime& parent = problem.lifetimes[life.alias->node];
  return life.alias->offset <= parent.bytes && life.bytes <= parent.bytes - life.alias->offset &&
         life.lane == parent.lane && life.alias->offset % life.alignment == 0;
}

bool node_is_sound(const PlanProblem& problem, std::size_t node) {
  const Lifetime& life = problem.lifetimes[node];
  if (!std::has_single_bit(life.alignment) || !gaps_are_sound(life)) return false;
  if (life.bytes > 0 && !life.pinned && life.first >= life.last) return false;
  if (life.pinned && !life.gaps.empty()) return false;
  if (life.offset && *life.offset % effective_alignment(problem, life) != 0) return false;
  if (life.offset && life.bytes > std::numeric_limits<std::uint64_t>::max() - *life.offset) return false;
  if (life.bank && *life.bank >= std::max<std::size_t>(1, problem.banks.size())) return false;
  if (life.reuse_in_place && (*life.reuse_in_place >= problem.lifetimes.size() || *life.reuse_in_place == node))
    return false;
  return !life.alias || alias_is_sound(problem, life);
}

// Resolves every chain of aliases to its root, visiting each node once. Returns a node of a cycle if there is one.
std::uint32_t resolve_roots(const PlanProblem& problem, std::vector<Life>& lives) {
  constexpr std::uint32_t kOnTheWay = kNoNode - 1;
  std::vector<std::uint32_t> chain;
  for (std::uint32_t node = 0; node < lives.size(); ++node) {
    std::uint32_t at = node;
    chain.clear();
    while (lives[at].root == kNoNode && problem.lifetimes[at].alias) {
      lives[at].root = kOnTheWay;
      chain.push_back(at);
      at = problem.lifetimes[at].alias->node;
    }
    if (lives[at].root == kOnTheWay) return at;
    if (lives[at].root == kNoNode) lives[at].root = at;
    for (const std::uint32_t link : chain) lives[link].root = lives[at].root;
  }
  return kNoNode;
}

// A root lives from the first level to the last of itself and its aliases; pinned nodes live at every level at which
// another node lives. Nodes of zero bytes hold no data and keep nothing alive.
void resolve_lives(const PlanProblem& problem, std::vector<Life>& lives) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
  for (const Lifetime& life : problem.lifetimes) {
    if (life.bytes == 0 || life.pinned) continue;
    first = std::min(first, life.first);
    last = std::max(last, life.last);
  }
  if (first >= last) first = 0, last = 1;  // only pinned nodes: they still live at the same time
  for (Life& life : lives) {
    life.first = std::numeric_limits<std::int64_t>::max();
    life.last = std::numeric_limits<std::int64_t>::min();
  }
  for (std::size_t node = 0; node < lives.size(); ++node) {
    const Lifetime& life = problem.lifetimes[node];
    if (life.bytes == 0) continue;
    Life& root = lives[lives[node].root];
    root.first = std::min(root.first, life.pinned ? first : life.first);
    root.last = std::max(root.last, life.pinned ? last : life.last);
    root.pinned = root.pinned || life.pinned;
  }
}

Violation check_problem(const PlanProblem& problem, std::vector<Life>& lives) {
  if (!std::has_single_bit(problem.alignment)) return {PlanRule::kInvalidProblem};
  if (problem.lifetimes.size() >= kNoNode - 1) return {PlanRule::kInvalidProblem};
  for (std::uint32_t node = 0; node < problem.lifetimes.size(); ++node)
    if (!node_is_sound(problem, node)) return {PlanRule::kInvalidProblem, node};
  lives.resize(problem.lifetimes.size());
  if (const std::uint32_t node = resolve_roots(problem, lives); node != kNoNode)
    return {PlanRule::kInvalidProblem, node};
  resolve_lives(problem, lives);
  return {};
}

// The first block of a lane in a bank; fixed offsets refer to it.
std::uint32_t home_block(const MemoryPlan& plan, std::uint32_t lane, std::uint32_t bank) {
  for (std::uint32_t b = 0; b < plan.blocks.size(); ++b)
    if (plan.blocks[b].lane == lane && plan.blocks[b].bank == bank) return b;
  return kNoBlock;
}

Violation check_slots(const PlanProblem& problem, const MemoryPlan& plan, const std::vector<Life>& lives) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> homes;
  for (std::uint32_t node = 0; node < plan.slots.size(); ++node) {
    const Lifetime& life = problem.lifetimes[node];
    const Slot& slot = plan.slots[node];
    if (life.bytes == 0) {
      if (slot.block != kNoBlock) return {PlanRule::kUnexpectedSlot, node};
      continue;
    }
    if (slot.block == kNoBlock) return {PlanRule::kMissingSlot, node};
    if (slot.bytes != life.bytes) return {PlanRule::kWrongBytes, node};
    if (slot.block >= plan.blocks.size()) return {PlanRule::kUnknownBlock, node};
    const PlanBlock& block = plan.blocks[slot.block];
    if (slot.offset > block.bytes || slot.bytes > block.bytes - slot.offset) return {PlanRule::kOutsideBlock, node};
    if (block.lane != life.lane) return {PlanRule::kWrongLane, node};
    if (life.alias) {
      const Slot& parent = plan.slots[life.alias->node];
      if (slot.block != parent.block || slot.offset != parent.offset + life.alias->offset)
        return {PlanRule::kBrokenAlias, node, lives[node].root};
    }
    // An alias must satisfy its own alignment, not that of the root.
    if (slot.offset % effective_alignment(problem, life) != 0) return {PlanRule::kMisaligned, node};
    const std::uint32_t preferred = life.bank.value_or(0);
    if (!life.alias && block.bank < preferred) return {PlanRule::kWrongBank, node};
    if (life.offset) {
      const auto [home, fresh] = homes.try_emplace({life.lane, preferred}, kNoBlock);
      if (fresh) home->second = home_block(plan, life.lane, preferred);
      if (slot.offset != *life.offset || slot.block != home->second) return {PlanRule::kMovedFixed, node};
    }
  }
  return {};
}

Violation check_blocks(const PlanProblem& problem, const MemoryPlan& plan) {
  std::vector<std::uint64_t> ends(plan.blocks.size(), 0);
  for (const Slot& slot : plan.slots)
    if (slot.block != kNoBlock) ends[slot.block] = std::max(ends[slot.block], slot.offset + slot.bytes);
  std::vector<std::uint64_t> in_bank(std::max<std::size_t>(1, problem.banks.size()), 0);
  std::uint64_t sum = 0;
  for (std::size_t b = 0; b < plan.blocks.size(); ++b) {
    const PlanBlock& block = plan.blocks[b];
    if (block.bank >= in_bank.size()) return {PlanRule::kWrongBank};
    if (block.bytes != ends[b] || block.bytes == 0) return {PlanRule::kWrongSize};
    if (problem.max_block_bytes != 0 && block.bytes > problem.max_block_bytes) return {PlanRule::kBlockTooLarge};
    if (block.bytes > std::numeric_limits<std::uint64_t>::max() - sum) return {PlanRule::kWrongSize};
    sum += block.bytes;
    in_bank[block.bank] += block.bytes;
  }
  for (std::size_t bank = 0; bank < problem.banks.size(); ++bank)
    if (problem.banks[bank].capacity != 0 && in_bank[bank] > problem.banks[bank].capacity)
      return {PlanRule::kBankOverfull};
  if (plan.size != sum) return {PlanRule::kWrongSize};
  if (problem.capacity && plan.size > *problem.capacity) return {PlanRule::kOverCapacity};
  if (plan.lower_bound > plan.size || plan.optimal != (plan.lower_bound == plan.size)) return {PlanRule::kWrongBound};
  return {};
}

// One interval of levels in which a root holds data.
struct Stretch {
  std::int64_t first;
  std::int64_t last;
  std::uint32_t node;
};

// Sweeps over the levels with the set of bytes in use, as disjoint pieces sorted by address.
class Sweep {
 public:
  Sweep(const PlanProblem& problem, const MemoryPlan& plan, const std::vector<Life>& lives)
      : problem_(problem), plan_(plan), lives_(lives), placed_(lives.size(), kFar), took_(lives.size(), kNoNode) {}

  Violation run() {
    collect_stretches();
    std::vector<std::size_t> by_last(stretches_.size());
    for (std::size_t i = 0; i < by_last.size(); ++i) by_last[i] = i;
    std::sort(stretches_.begin(), stretches_.end(), [](const Stretch& a, const Stretch& b) {
      return a.first != b.first ? a.first < b.first : a.node < b.node;
    });
    std::sort(by_last.begin(), by_last.end(),
              [&](std::size_t a, std::size_t b) { return stretches_[a].last < stretches_[b].last; });
    std::size_t ending = 0;
    for (std::size_t starting = 0; starting < stretches_.size();) {
      level_ = stretches_[starting].first;
      for (; ending < by_last.size() && stretches_[by_last[ending]].last <= level_; ++ending)
        remove(stretches_[by_last[ending]].node);
      const std::size_t end =
          static_cast<std::size_t>(std::find_if(stretches_.begin() + static_cast<std::ptrdiff_t>(starting),
                                                stretches_.end(), [&](const Stretch& s) { return s.first != level_; }) -
                                   stretches_.begin());
      for (std::size_t i = starting; i < end; ++i) starts_now_.push_back(stretches_[i].node);
      for (std::size_t i = starting; i < end; ++i)
        if (const Violation found = place_with_target(stretches_[i].node)) return found;
      starting = end;
      starts_now_.clear();
    }
    return {};
  }

 private:
  static constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::min();
  struct Piece {
    std::uint64_t end;
    std::uint32_t node;
  };
  using Key = std::pair<std::uint32_t, std::uint64_t>;  // block, start
  using Pieces = std::map<Key, Piece>;

  void collect_stretches() {
    // An alias may live inside a gap of its root; the root then holds data there.
    std::map<std::uint32_t, std::vector<LevelRange>> aliases;
    for (std::uint32_t node = 0; node < lives_.size(); ++node) {
      const std::uint32_t root = lives_[node].root;
      const Lifetime& life = problem_.lifetimes[node];
      if (root != node && life.bytes > 0 && !problem_.lifetimes[root].gaps.empty())
        aliases[root].push_back({life.first, life.last});
    }
    for (std::uint32_t node = 0; node < lives_.size(); ++node) {
      const Life& life = lives_[node];
      if (life.root != node || problem_.lifetimes[node].bytes == 0) continue;
      const auto& gaps = problem_.lifetimes[node].gaps;
      if (life.pinned || gaps.empty()) {
        stretches_.push_back({life.first, life.last, node});
        continue;
      }
      // The lifetime without its gaps, as ranges that may touch or overlap, then merged.
      std::vector<LevelRange>& ranges = aliases[node];
      std::int64_t at = problem_.lifetimes[node].first;
      for (const LevelRange& gap : gaps) {
        ranges.push_back({at, gap.first});
        at = gap.last;
      }
      ranges.push_back({at, problem_.lifetimes[node].last});
      // Before and after its own lifetime, the root is needed by its aliases without a gap.
      ranges.push_back({life.first, problem_.lifetimes[node].first});
      ranges.push_back({problem_.lifetimes[node].last, life.last});
      std::erase_if(ranges, [](const LevelRange& range) { return range.first >= range.last; });
      std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      for (std::size_t i = 0; i < ranges.size();) {
        LevelRange joined = ranges[i];
        for (++i; i < ranges.size() && ranges[i].first <= joined.last; ++i)
          joined.last = std::max(joined.last, ranges[i].last);
        stretches_.push_back({joined.first, joined.last, node});
      }
    }
  }

  // A node that may reuse another in place is inserted after it if both start at this level.
  Violation place_with_target(std::uint32_t node) {
    std::vector<std::uint32_t> waiting;
    while (placed_[node] != level_) {
      placed_[node] = level_;
      waiting.push_back(node);
      const auto& wish = problem_.lifetimes[node].reuse_in_place;
      if (!wish || !std::binary_search(starts_now_.begin(), starts_now_.end(), lives_[*wish].root)) break;
      node = lives_[*wish].root;
    }
    for (; !waiting.empty(); waiting.pop_back())
      if (const Violation found = place(waiting.back())) return found;
    return {};
  }

  Violation place(std::uint32_t node) {
    const Slot& slot = plan_.slots[node];
    const std::uint64_t start = slot.offset;
    const std::uint64_t end = start + slot.bytes;
    auto at = pieces_.upper_bound({slot.block, start});
    if (at != pieces_.begin()) {
      const auto before = std::prev(at);
      if (before->first.first == slot.block && before->second.end > start) at = before;
    }
    if (at != pieces_.end() && at->first.first == slot.block && at->first.second < end) {
      if (const Violation found = take_over(node, at->first, at->second)) return found;
    }
    pieces_[{slot.block, start}] = {end, node};
    return {};
  }

  // `node` overlaps a piece. This is valid if it reuses that node in place at that node's last level.
  Violation take_over(std::uint32_t node, Key key, Piece piece) {
    const Violation overlap = {PlanRule::kOverlap, node, piece.node};
    const auto& wish = problem_.lifetimes[node].reuse_in_place;
    if (!wish || lives_[*wish].root != piece.node) return overlap;
    if (lives_[node].first != level_ || lives_[piece.node].last != level_ + 1) return overlap;
    // Pinned bytes are needed before the first level and after the last.
    if (lives_[node].pinned || lives_[piece.node].pinned) return overlap;
    const Slot& mine = plan_.slots[node];
    const Slot& theirs = plan_.slots[*wish];
    if (mine.offset != theirs.offset || mine.bytes > theirs.bytes) return {PlanRule::kBrokenInPlace, node, piece.node};
    // Another node took a part of it at this level, so the two would overlap.
    if (mine.offset + mine.bytes > piece.end || mine.offset < key.second) return overlap;
    // What that node itself reused in place at this level is still in use below.
    if (placed_[piece.node] == level_ && took_[piece.node] != kNoNode)
      return {PlanRule::kOverlap, node, took_[piece.node]};
    took_[node] = piece.node;
    pieces_.erase(key);
    if (key.second < mine.offset) pieces_[key] = {mine.offset, piece.node};
    if (mine.offset + mine.bytes < piece.end) {
      pieces_[{mine.block, mine.offset + mine.bytes}] = {piece.end, piece.node};
      extra_.push_back({{mine.block, mine.offset + mine.bytes}, piece.node});
    }
    return {};
  }

  void remove(std::uint32_t node) {
    const auto erase = [&](const Key& key) {
      const auto at = pieces_.find(key);
      if (at != pieces_.end() && at->second.node == node) pieces_.erase(at);
    };
    erase({plan_.slots[node].block, plan_.slots[node].offset});
    // Only nodes that were cut in the previous level are here.
    if (extra_.empty()) return;
    for (const auto& [key, owner] : extra_)
      if (const auto at = pieces_.find(key); at != pieces_.end() && at->second.node == owner) pieces_.erase(at);
    extra_.clear();
  }

  const PlanProblem& problem_;
  const MemoryPlan& plan_;
  const std::vector<Life>& lives_;
  std::vector<Stretch> stretches_;
  std::vector<std::uint32_t> starts_now_;  // ascending: who starts at level_
  Pieces pieces_;
  std::vector<std::pair<Key, std::uint32_t>> extra_;
  std::vector<std::int64_t> placed_;  // the level at which a node went in last
  std::vector<std::uint32_t> took_;   // whose place it took there
  std::int64_t level_ = 0;
};

}  // namespace

Violation validate(const PlanProblem& problem, const MemoryPlan& plan) {
  std::vector<Life> lives;
  if (const Violation found = check_problem(problem, lives)) return found;
  if (plan.slots.size() != problem.lifetimes.size()) return {PlanRule::kWrongCount};
  if (plan.fingerprint != fingerprint(problem)) return {PlanRule::kWrongProblem};
  if (const Violation found = check_slots(problem, plan, lives)) return found;
  if (const Violation found = Sweep(problem, plan, lives).run()) return found;
  return check_blocks(problem, plan);
}

std::string_view to_string(PlanRule rule) noexcept {
  switch (rule) {
    case PlanRule::kNone: return "None";
    case PlanRule::kInvalidProblem: return "InvalidProblem";
    case PlanRule::kWrongCount: return "WrongCount";
    case PlanRule::kWrongProblem: return "WrongProblem";
    case PlanRule::kMissingSlot: return "MissingSlot";
    case PlanRule::kUnexpectedSlot: return "UnexpectedSlot";
    case PlanRule::kWrongBytes: return "WrongBytes";
    case PlanRule::kUnknownBlock: return "UnknownBlock";
    case PlanRule::kOutsideBlock: return "OutsideBlock";
    case PlanRule::kOverlap: return "Overlap";
    case PlanRule::kMisaligned: return "Misaligned";
    case PlanRule::kMovedFixed: return "MovedFixed";
    case PlanRule::kBrokenAlias: return "BrokenAlias";
    case PlanRule::kBrokenInPlace: return "BrokenInPlace";
    case PlanRule::kWrongLane: return "WrongLane";
    case PlanRule::kWrongBank: return "WrongBank";
    case PlanRule::kBankOverfull: return "BankOverfull";
    case PlanRule::kBlockTooLarge: return "BlockTooLarge";
    case PlanRule::kOverCapacity: return "OverCapacity";
    case PlanRule::kWrongSize: return "WrongSize";
    case PlanRule::kWrongBound: return "WrongBound";
  }
  return "Unknown";
}

namespace {

std::string_view rule_sentence(PlanRule rule) {
  switch (rule) {
    case PlanRule::kNone: return "the plan is valid";
    case PlanRule::kInvalidProblem: return "the problem itself breaks a rule";
    case PlanRule::kWrongCount: return "the plan has not one slot for each lifetime";
    case PlanRule::kWrongProblem: return "the plan was made for another problem";
    case PlanRule::kMissingSlot: return "a node with bytes has no slot";
    case PlanRule::kUnexpectedSlot: return "a node of zero bytes has a slot";
    case PlanRule::kWrongBytes: return "a slot is not as long as its node";
    case PlanRule::kUnknownBlock: return "a slot names a block that is not there";
    case PlanRule::kOutsideBlock: return "a slot ends after its block";
    case PlanRule::kOverlap: return "two nodes share bytes and a level";
    case PlanRule::kMisaligned: return "an offset is not a multiple of its alignment";
    case PlanRule::kMovedFixed: return "a fixed offset was not kept";
    case PlanRule::kBrokenAlias: return "an alias is not the window it should be";
    case PlanRule::kBrokenInPlace: return "a node takes another's place but starts elsewhere or is larger";
    case PlanRule::kWrongLane: return "a slot is in another lane's block";
    case PlanRule::kWrongBank: return "a bank is unknown, or comes before the first one allowed";
    case PlanRule::kBankOverfull: return "the blocks of a bank exceed its capacity";
    case PlanRule::kBlockTooLarge: return "a block exceeds the largest block allowed";
    case PlanRule::kOverCapacity: return "the plan exceeds the capacity";
    case PlanRule::kWrongSize: return "the sizes do not add up";
    case PlanRule::kWrongBound: return "the bound does not fit the size";
  }
  return "unknown rule";
}

std::string describe_node(std::uint32_t node, const PlanProblem& problem, const MemoryPlan& plan) {
  if (node >= problem.lifetimes.size()) return "node " + std::to_string(node);
  const Lifetime& life = problem.lifetimes[node];
  std::string text = life.label.empty() ? "node " + std::to_string(node) : "\"" + life.label + "\"";
  text += " (levels [" + std::to_string(life.first) + ", " + std::to_string(life.last) + ")";
  if (node < plan.slots.size() && plan.slots[node].block != kNoBlock) {
    const Slot& slot = plan.slots[node];
    text += ", bytes [" + std::to_string(slot.offset) + ", " + std::to_string(slot.offset + slot.bytes) +
            ") of block " + std::to_string(slot.block);
  } else {
    text += ", " + std::to_string(life.bytes) + " bytes";
  }
  return text + ")";
}

}  // namespace

std::string describe(const Violation& violation, const PlanProblem& problem, const MemoryPlan& plan) {
  std::string text(to_string(violation.rule));
  text += ": ";
  text += rule_sentence(violation.rule);
  if (violation.node != kNoNode) text += ": " + describe_node(violation.node, problem, plan);
  if (violation.other != kNoNode) text += " and " + describe_node(violation.other, problem, plan);
  switch (violation.rule) {
    case PlanRule::kOverCapacity:
      text += ": " + std::to_string(plan.size) + " of " + std::to_string(problem.capacity.value_or(0)) + " bytes";
      break;
    case PlanRule::kWrongCount:
      text += ": " + std::to_string(plan.slots.size()) + " slots for " + std::to_string(problem.lifetimes.size());
      break;
    case PlanRule::kWrongBound:
      text += ": size " + std::to_string(plan.size) + ", bound " + std::to_string(plan.lower_bound);
      break;
    default: break;
  }
  return text;
}

}  // namespace berth
