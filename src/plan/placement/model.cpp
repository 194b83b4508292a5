#include "plan/placement/model.h"

#include <algorithm>
#include <map>

#include "base/try.h"
#include "plan/placement/sections.h"

namespace berth::internal::planner {
namespace {

constexpr std::uint64_t kLargest = std::uint64_t{1} << 50;  // of any size or offset, so that sums stay in range

bool power_of_two(std::uint64_t x) noexcept {
  return x != 0 && (x & (x - 1)) == 0;
}

template <class... Numbers>
Error invalid(const char* format, Numbers... numbers) {
  return Error(Code::kInvalidArgument, Layer::kPlan, format, numbers...);
}

Result<void> check_lifetime(const PlanProblem& problem, std::size_t node) {
  const Lifetime& it = problem.lifetimes[node];
  const std::size_t count = problem.lifetimes.size();
  if (!power_of_two(it.alignment) || it.alignment > kLargest) {
    return invalid("node {}: alignment {} is not a power of two up to 2^50", node, it.alignment);
  }
  if (it.bytes > kLargest)
    return invalid("node {}: {} bytes are more than the {b} that a plan can hold", node, it.bytes, kLargest);
  if (it.bytes > 0 && !it.pinned && it.first >= it.last) {
    return invalid("node {}: levels [{}, {}) are empty; last must be after first", node, it.first, it.last);
  }
  if (it.bank && *it.bank >= std::max<std::size_t>(1, problem.banks.size())) {
    return invalid("node {}: bank {} is not among the problem's {}", node, *it.bank, problem.banks.size());
  }
  if (it.reuse_in_place && (*it.reuse_in_place >= count || *it.reuse_in_place == node)) {
    return invalid("node {}: reuses node {} in place, which is not another of the {} nodes", node, *it.reuse_in_place,
                   count);
  }
  if (!it.alias && it.offset) {
    if (*it.offset > kLargest) return invalid("node {}: offset {} is beyond {b}", node, *it.offset, kLargest);
    const std::uint64_t alignment = std::max(it.alignment, problem.alignment);
    if (*it.offset % alignment != 0) {
      return invalid("node {}: fixed offset {} is not a multiple of its alignment {}", node, *it.offset, alignment);
    }
  }
  if (it.pinned && !it.gaps.empty()) return invalid("node {}: is pinned, so it cannot have gaps", node);
  std::int64_t after = it.first;
  for (const LevelRange& gap : it.gaps) {
    if (gap.first < after || gap.last <= gap.first || gap.last > it.last) {
      return invalid("node {}: gap [{}, {}) is empty, out of order or outside its levels", node, gap.first, gap.last);
    }
    after = gap.last;
  }
  if (it.alias) {
    if (it.alias->node >= count)
      return invalid("node {}: alias of node {}, but there are {}", node, it.alias->node, count);
    const Lifetime& of = problem.lifetimes[it.alias->node];
    if (it.alias->offset > of.bytes || it.bytes > of.bytes - it.alias->offset) {
      return invalid("node {}: window at {} of {} bytes is outside the {} bytes it is an alias of", node,
                     it.alias->offset, it.bytes, of.bytes);
    }
    if (it.alias->offset % it.alignment != 0) {
      return invalid("node {}: alias offset {} is not a multiple of its alignment {}", node, it.alias->offset,
                     it.alignment);
    }
    if (it.lane != of.lane)
      return invalid("node {}: alias of a node of lane {}, not its own lane {}", node, of.lane, it.lane);
    if (it.offset || it.bank || it.reuse_in_place || !it.gaps.empty()) {
      return invalid("node {}: is an alias, so it cannot have an offset, bank, gaps or in-place node of its own", node);
    }
  }
  return {};
}

// What nodes become before they are items: a root with all that is a window of it.
struct Group {
  std::int64_t first = 0, last = 0;
  std::uint64_t alignment = 1;
  bool pinned = false;
};

struct Folding {
  std::vector<std::uint32_t> root;                               // of each node
  std::vector<std::uint64_t> delta;                              // of each node from its root
  std::vector<Group> groups;                                     // of each root
  std::vector<std::uint32_t> heir;                               // of each root: who takes its bytes over, or kNoItem
  std::vector<std::uint32_t> donor;                              // of each root: whose bytes it takes over, or kNoItem
  std::vector<bool> unbound;                                     // of each root: may be free of charge in some plan
  std::map<std::uint32_t, std::vector<LevelRange>> alias_lives;  // of roots that have gaps
};

Result<void> fold_aliases(const PlanProblem& problem, Folding& folding) {
  const auto count = static_cast<std::uint32_t>(problem.lifetimes.size());
  folding.root.assign(count, kNoItem);
  folding.delta.assign(count, 0);
  std::vector<std::uint32_t> path;
  for (std::uint32_t node = 0; node < count; ++node) {
    path.clear();
    std::uint32_t at = node;
    while (folding.root[at] == kNoItem && problem.lifetimes[at].alias) {
      if (path.size() > count)
        return Error(Code::kCycle, Layer::kPlan, "node {}: its chain of aliases leads back to itself", node);
      path.push_back(at);
      at = problem.lifetimes[at].alias->node;
    }
    if (folding.root[at] == kNoItem) folding.root[at] = at;
    while (!path.empty()) {
      const std::uint32_t alias = path.back();
      path.pop_back();
      folding.root[alias] = folding.root[at];
      folding.delta[alias] = folding.delta[at] + problem.lifetimes[alias].alias->offset;
      at = alias;
    }
  }
  std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = std::numeric_limits<std::int64_t>::min();
  for (const Lifetime& it : problem.lifetimes) {
    if (it.bytes == 0 || it.pinned) continue;
    begin = std::min(begin, it.first);
    end = std::max(end, it.last);
  }
  if (begin >= end) begin = 0, end = 1;
  folding.groups.resize(count);
  for (std::uint32_t node = 0; node < count; ++node) {
    const Lifetime& it = problem.lifetimes[node];
    if (it.bytes == 0) continue;
    Group& group = folding.groups[folding.root[node]];
    const std::int64_t first = it.pinned ? begin : it.first, last = it.pinned ? end : it.last;
    const bool fresh = group.first == group.last;
    group.first = fresh ? first : std::min(group.first, first);
    group.last = fresh ? last : std::max(group.last, last);
    group.pinned = group.pinned || it.pinned;
    group.alignment = std::max({group.alignment, it.alignment, it.alias ? 1 : problem.alignment});
    if (it.alias && !problem.lifetimes[folding.root[node]].gaps.empty()) {
      folding.alias_lives[folding.root[node]].push_back({first, last});
    }
  }
  return {};
}

// Chooses for each node at most one heir, and for each heir one donor. Only one may take a node's bytes over: of
// several, the largest, so that the live load of the result is a bound for all choices.
void fold_in_place(const PlanProblem& problem, Folding& folding) {
  const auto count = static_cast<std::uint32_t>(problem.lifetimes.size());
  folding.heir.assign(count, kNoItem);
  folding.donor.assign(count, kNoItem);
  folding.unbound.assign(count, false);
  for (std::uint32_t node = 0; node < count; ++node) {
    const Lifetime& it = problem.lifetimes[node];
    if (!it.reuse_in_place || it.bytes == 0 || it.alias) continue;
    const std::uint32_t named = *it.reuse_in_place, donor = folding.root[named];
    const Lifetime& from = problem.lifetimes[donor];
    const Group &mine = folding.groups[node], &theirs = folding.groups[donor];
    if (donor == node || it.lane != from.lane || it.bytes > problem.lifetimes[named].bytes) continue;
    if (theirs.last != it.first + 1 || mine.pinned || theirs.pinned) continue;
    // Legal, but not something an item can express: leave it, and do not let a bound count on it.
    const bool odd = folding.delta[named] != 0 || mine.first != it.first || it.offset ||
                     (from.offset && *from.offset % mine.alignment != 0) ||
                     (!from.gaps.empty() && from.gaps.back().last == from.last) ||
                     (!it.gaps.empty() && it.gaps.front().first == it.first);
    if (odd) {
      folding.unbound[node] = true;
      continue;
    }
    const std::uint32_t rival = folding.heir[donor];
    if (rival != kNoItem && problem.lifetimes[rival].bytes >= it.bytes) continue;
    if (rival != kNoItem) folding.donor[rival] = kNoItem;
    folding.heir[donor] = node;
    folding.donor[node] = donor;
  }
  // A node that lives in one level only cannot both inherit and bequeath in that level.
  for (std::uint32_t node = 0; node < count; ++node) {
    const std::uint32_t heir = folding.heir[node];
    if (heir == kNoItem || folding.donor[node] == kNoItem) continue;
    if (folding.groups[node].first == folding.groups[heir].first) {
      folding.heir[node] = kNoItem;
      folding.donor[heir] = kNoItem;
      folding.unbound[heir] = true;
    }
  }
}

// Appends the levels in which the group of `root` holds data, from `from` on.
void live_ranges(const PlanProblem& problem, const Folding& folding, std::uint32_t root, std::int64_t from,
                 std::vector<LevelRange>& out) {
  const Group& group = folding.groups[root];
  std::vector<LevelRange> holes;
  for (const LevelRange& gap : problem.lifetimes[root].gaps) {
    std::int64_t at = gap.first;
    if (const auto lives = folding.alias_lives.find(root); lives != folding.alias_lives.end()) {
      for (const LevelRange& life : lives->second) {  // ascending, see build_models
        if (life.last <= at || life.first >= gap.last) continue;
        if (life.first > at) holes.push_back({at, life.first});
        at = std::max(at, life.last);
      }
    }
    if (at < gap.last) holes.push_back({at, gap.last});
  }
  std::int64_t at = std::max(group.first, from);
  for (const LevelRange& hole : holes) {
    if (hole.first > at) out.push_back({at, hole.first});
    at = std::max(at, hole.last);
  }
  if (at < group.last) out.push_back({at, group.last});
}

}  // namespace

bool has_in_place(const PlanProblem& problem) noexcept {
  return std::any_of(problem.lifetimes.begin(), problem.lifetimes.end(),
                     [](const Lifetime& it) { return it.reuse_in_place.has_value(); });
}

Result<std::vector<Model>> build_models(const PlanProblem& problem, bool in_place) {
  const std::size_t count = problem.lifetimes.size();
  if (count >= (std::size_t{1} << 28)) return invalid("{} nodes are more than a plan can hold", count);
  if (!power_of_two(problem.alignment) || problem.alignment > kLargest)
    return invalid("the problem's alignment {} is not a power of two up to 2^50", problem.alignment);
  if (problem.banks.size() > 4000) return invalid("{} banks are more than 4000", problem.banks.size());
  std::uint64_t total = 0;
  for (std::size_t node = 0; node < count; ++node) {
    BERTH_TRY(check_lifetime(problem, node));
    total += problem.lifetimes[node].bytes;
    if (total > kLargest) return invalid("the nodes' bytes sum to more than the {b} that a plan can hold", kLargest);
  }
  Folding folding;
  BERTH_TRY(fold_aliases(problem, folding));
  const bool joined = in_place && has_in_place(problem);
  if (joined) fold_in_place(problem, folding);
  for (auto& [root, lives] : folding.alias_lives) {
    std::sort(lives.begin(), lives.end(), [](auto a, auto b) { return a.first < b.first; });
  }

  std::map<std::uint32_t, Model> lanes;
  std::map<std::uint32_t, std::vector<LevelRange>> ranges;  // of each lane's parts
  std::vector<std::uint32_t> item_of(count, kNoItem);
  for (std::uint32_t node = 0; node < count; ++node) {
    const Lifetime& it = problem.lifetimes[node];
    if (it.bytes == 0 || it.alias || (joined && folding.donor[node] != kNoItem)) continue;
    Model& model = lanes[it.lane];
    std::vector<LevelRange>& lives = ranges[it.lane];
    Item item;
    item.part_begin = static_cast<std::uint32_t>(model.parts.size());
    item.start = folding.groups[node].first;
    item.height = it.bytes;
    if (it.offset) item.fixed = *it.offset;
    if (it.hint) item.hint = *it.hint;
    const auto id = static_cast<std::uint32_t>(model.items.size());
    std::int64_t from = std::numeric_limits<std::int64_t>::min();
    for (std::uint32_t link = node; link != kNoItem; link = joined ? folding.heir[link] : kNoItem) {
      const Lifetime& link_it = problem.lifetimes[link];
      item_of[link] = id;
      item.alignment = std::max(item.alignment, folding.groups[link].alignment);
      item.bank = std::max(item.bank, link_it.bank.value_or(0));
      const std::size_t before = lives.size();
      live_ranges(problem, folding, link, from, lives);
      for (std::size_t i = before; i < lives.size(); ++i) {
        if (joined && folding.unbound[link])
          model.unbound_parts.push_back(static_cast<std::uint32_t>(model.parts.size()));
        model.parts.push_back({0, 0, id, link_it.bytes});
      }
      from = folding.groups[link].last;
      item.levels = static_cast<std::uint64_t>(from) - static_cast<std::uint64_t>(item.start);
      if (link != node || (joined && folding.unbound[link])) model.exact = false;
    }
    item.part_end = static_cast<std::uint32_t>(model.parts.size());
    model.has_fixed = model.has_fixed || it.offset.has_value();
    model.alignment = std::max(model.alignment, item.alignment);
    model.items.push_back(item);
  }
  std::vector<Model> models;
  for (auto& [lane, model] : lanes) {
    model.lane = lane;
    std::vector<SectionRange> sections(model.parts.size());
    model.sections = compress(ranges[lane], sections);
    for (std::size_t p = 0; p < sections.size(); ++p) {
      model.parts[p].first = sections[p].first;
      model.parts[p].last = sections[p].last;
    }
    for (Item& item : model.items) {
      item.first = model.parts[item.part_begin].first;
      item.last = model.parts[item.part_end - 1].last;
    }
    models.push_back(std::move(model));
  }
  for (std::uint32_t node = 0; node < count; ++node) {
    const Lifetime& it = problem.lifetimes[node];
    if (it.bytes == 0) continue;
    const auto model = std::lower_bound(models.begin(), models.end(), it.lane,
                                        [](const Model& m, std::uint32_t lane) { return m.lane < lane; });
    model->nodes.push_back(node);
    model->item_of.push_back(item_of[folding.root[node]]);
    model->delta.push_back(folding.delta[node]);
  }
  return models;
}

std::uint64_t top_of(const Model& model, std::span<const std::uint64_t> offsets) noexcept {
  std::uint64_t top = 0;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] == kNowhere) return kNowhere;
    top = std::max(top, offsets[i] + model.items[i].height);
  }
  return top;
}

}  // namespace berth::internal::planner
