#include "plan/placement/bundles.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace berth::internal::planner {
namespace {

constexpr double kPinwheelCost = 1.5;  // five blocks hardly fit together by chance
constexpr double kByChance = 100;      // how much it counts that heights are equal by chance
// Where more begin and end at a section, their joins are not looked at: nearly all would be wrong, there is a square of
// them, and each join brings all of them up again.
constexpr std::size_t kFewPairs = 4096;
constexpr std::size_t kFewOpen = 16;  // fillers of which pairs are looked at

}  // namespace

Bundler::Bundler(std::span<const Block> items, std::int32_t sections) : items_(items.size()), sections_(sections) {
  const auto count = static_cast<std::size_t>(sections);
  loads_.assign(count, 0);
  begins_.resize(count + 1);
  ends_.resize(count + 1);
  nodes_.reserve(3 * items_);
  std::vector<std::int64_t> heights;
  for (const Block& item : items) heights.push_back(item.height);
  std::sort(heights.begin(), heights.end());
  double equal = 0;
  for (std::size_t i = 0, j = 0; i < heights.size(); i = j) {
    while (j < heights.size() && heights[j] == heights[i]) ++j;
    equal += static_cast<double>(j - i) * static_cast<double>(j - i - 1);
  }
  chance_ = equal / std::max(1.0, static_cast<double>(items_) * static_cast<double>(items_));
  for (const Block& item : items) {
    nodes_.push_back({item});
    for (std::int32_t s = item.first; s < item.last; ++s) loads_[static_cast<std::size_t>(s)] += item.height;
  }
}

void Bundler::list(std::uint32_t node) {
  begins_[static_cast<std::size_t>(block(node).first)].push_back(node);
  ends_[static_cast<std::size_t>(block(node).last)].push_back(node);
}

void Bundler::unlist(std::uint32_t node) {
  for (auto* list :
       {&begins_[static_cast<std::size_t>(block(node).first)], &ends_[static_cast<std::size_t>(block(node).last)]}) {
    list->erase(std::find(list->begin(), list->end(), node));
  }
}

// Cuts what is free into blocks. Where the free bytes become fewer, one that began when they became more by as much
// ends; if there is none, a part of any.
void Bundler::fill(std::int64_t capacity, Random& random) {
  struct Open {
    std::int32_t first;
    std::int64_t height;
  };
  std::vector<Open> open;
  std::int64_t before = 0;
  for (std::int32_t s = 0; s <= sections_; ++s) {
    const std::int64_t free =
        s < sections_ ? std::max<std::int64_t>(0, capacity - loads_[static_cast<std::size_t>(s)]) : 0;
    std::int64_t less = before - free;
    before = free;
    if (less < 0) open.push_back({s, -less});
    while (less > 0) {
      std::size_t chosen = open.size();
      std::uint64_t ties = 0;
      for (std::size_t i = 0; i < open.size(); ++i) {
        if (open[i].height == less && random.below(++ties) == 0) chosen = i;
      }
      for (std::size_t i = 0; chosen == open.size() && open.size() <= kFewOpen && i < open.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
          if (open[i].height + open[j].height == less) chosen = i;
        }
      }
      if (chosen == open.size()) chosen = random.below(open.size());
      const std::int64_t height = std::min(open[chosen].height, less);
      Node node;
      node.block = {open[chosen].first, s, height, static_cast<double>(s - open[chosen].first), 0};
      node.filler = true;
      nodes_.push_back(node);
      less -= height;
      open[chosen].height -= height;
      if (open[chosen].height == 0) open.erase(open.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
  }
}

void Bundler::offer(Random& random, double cost, Shape shape, std::initializer_list<std::uint32_t> parts) {
  Join join{cost * std::exp(noise_ * (2 * random.unit() - 1)), shape, {}};
  std::copy(parts.begin(), parts.end(), join.parts);
  joins_.push_back(join);
  std::push_heap(joins_.begin(), joins_.end(), [](const Join& a, const Join& b) { return a.cost > b.cost; });
}

void Bundler::offer_stack(std::uint32_t lower, std::uint32_t upper, std::int64_t capacity, Random& random) {
  const Block &a = block(lower), &b = block(upper);
  if (a.first != b.first || a.last != b.last || a.height + b.height > capacity) return;
  const auto first = static_cast<std::size_t>(a.first), last = static_cast<std::size_t>(a.last);
  const double at_begin = static_cast<double>(begins_[first].size()) * static_cast<double>(ends_[first].size() + 1);
  const double at_end = static_cast<double>(ends_[last].size()) * static_cast<double>(begins_[last].size() + 1);
  offer(random, stack_weight_ * std::min(at_begin, at_end), Shape::kStack, {lower, upper});
}

// The pairs to join in a row where one section ends and this one begins, and in a stack that begins or ends there.
void Bundler::offer_pairs(std::int32_t section, std::int64_t capacity, Random& random) {
  const auto& begin = begins_[static_cast<std::size_t>(section)];
  const auto& end = ends_[static_cast<std::size_t>(section)];
  const double row_cost = 1 + row_weight_ * (static_cast<double>(begin.size() * end.size()) - 1);
  const bool few = begin.size() * end.size() <= kFewPairs;
  for (const std::uint32_t left : end) {
    for (std::size_t i = 0; few && i < begin.size(); ++i) {
      const std::uint32_t right = begin[i];
      if (block(left).height == block(right).height) offer(random, row_cost, Shape::kRow, {left, right});
    }
  }
  for (const auto* list : {&begin, &end}) {
    if (list->size() * list->size() > kFewPairs) continue;
    for (std::size_t i = 0; i < list->size(); ++i) {
      for (std::size_t j = i + 1; j < list->size(); ++j) offer_stack((*list)[i], (*list)[j], capacity, random);
    }
  }
}

void Bundler::offer_pinwheels(std::uint32_t middle, Random& random) {
  const Block& e = block(middle);
  for (const std::int32_t s : {e.first, e.last}) {
    if (begins_[static_cast<std::size_t>(s)].size() * ends_[static_cast<std::size_t>(s)].size() > kFewPairs) return;
  }
  for (const std::uint32_t c : begins_[static_cast<std::size_t>(e.first)]) {
    if (block(c).last <= e.last) continue;
    for (const std::uint32_t d : ends_[static_cast<std::size_t>(e.first)]) {
      if (block(d).height != block(c).height + e.height) continue;
      for (const std::uint32_t a : ends_[static_cast<std::size_t>(e.last)]) {
        if (block(a).first != block(d).first) continue;
        for (const std::uint32_t b : begins_[static_cast<std::size_t>(e.last)]) {
          if (block(b).last != block(c).last || block(b).height != block(a).height + e.height) continue;
          offer(random, kPinwheelCost, Shape::kPinwheel, {a, b, c, d, middle});
        }
      }
    }
  }
}

std::uint32_t Bundler::make(const Join& join) {
  const auto part = [&](std::size_t i) -> const Block& { return block(join.parts[i]); };
  const std::size_t count = join.shape == Shape::kPinwheel ? kMostParts : 2;
  Node node;
  node.shape = join.shape;
  std::copy(std::begin(join.parts), std::end(join.parts), node.parts);
  node.filler = true;
  double heat = 0;
  for (std::size_t i = 0; i < count; ++i) {
    node.filler = node.filler && nodes_[join.parts[i]].filler;
    heat = std::max(heat, part(i).heat);
  }
  const std::int64_t both = part(0).height + part(1).height;
  switch (join.shape) {
    case Shape::kRow:
      node.block = {part(0).first, part(1).last, part(0).height, part(0).length + part(1).length, heat};
      break;
    case Shape::kStack:
      node.block = {part(0).first, part(0).last, both, std::max(part(0).length, part(1).length), heat};
      break;
    default:
      node.block = {part(0).first, part(1).last, part(0).height + part(3).height, part(0).length + part(1).length,
                    heat};
  }
  for (std::size_t i = 0; i < count; ++i) {
    unlist(join.parts[i]);
    nodes_[join.parts[i]].joined = true;
  }
  nodes_.push_back(node);
  const auto made = static_cast<std::uint32_t>(nodes_.size() - 1);
  list(made);
  return made;
}

void Bundler::join(std::int64_t capacity, Random& random) {
  nodes_.resize(items_);
  for (Node& node : nodes_) node.joined = false;
  for (auto& list : begins_) list.clear();
  for (auto& list : ends_) list.clear();
  joins_.clear();
  left_.clear();
  noise_ = 0.5 * random.unit();
  stack_weight_ = random.below(2) == 0 ? std::exp(2 * random.unit()) : 1;
  row_weight_ = random.below(2) == 0 ? kByChance * chance_ : 1;
  // Joins with many alternatives are left out in most bundlings: the search decides then.
  const double dearest = random.below(4) == 0 ? std::numeric_limits<double>::infinity() : std::exp(5 * random.unit());
  fill(capacity, random);
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) list(i);
  for (std::int32_t s = 0; s <= sections_; ++s) offer_pairs(s, capacity, random);
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) offer_pinwheels(i, random);
  while (!joins_.empty() && joins_.front().cost <= dearest) {
    std::pop_heap(joins_.begin(), joins_.end(), [](const Join& a, const Join& b) { return a.cost > b.cost; });
    const Join cheapest = joins_.back();
    joins_.pop_back();
    const std::size_t count = cheapest.shape == Shape::kPinwheel ? kMostParts : 2;
    if (std::any_of(cheapest.parts, cheapest.parts + count, [&](std::uint32_t i) { return nodes_[i].joined; }))
      continue;
    const Block made = block(make(cheapest));
    // Where its parts begin or end there is something new, or less to choose from: joins there are cheaper now.
    offer_pairs(made.first, capacity, random);
    offer_pairs(made.last, capacity, random);
    if (cheapest.shape != Shape::kStack) offer_pairs(block(cheapest.parts[1]).first, capacity, random);
    if (cheapest.shape == Shape::kPinwheel) offer_pairs(block(cheapest.parts[2]).first, capacity, random);
    for (const std::int32_t s : {made.first, made.last}) {
      for (const std::uint32_t middle : begins_[static_cast<std::size_t>(s)]) offer_pinwheels(middle, random);
      for (const std::uint32_t middle : ends_[static_cast<std::size_t>(s)]) offer_pinwheels(middle, random);
    }
  }
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].joined && !nodes_[i].filler) left_.push_back(i);
  }
  std::stable_sort(left_.begin(), left_.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return block(a).first < block(b).first; });
}

// Offsets of the parts from those of the whole: bundles are behind what they were made of.
void Bundler::spread_down() {
  for (std::size_t i = nodes_.size(); i-- > items_;) {
    const Node& node = nodes_[i];
    const auto put = [&](std::size_t part, std::int64_t above) { at_[node.parts[part]] = at_[i] + above; };
    if (node.shape == Shape::kSingle) continue;
    put(0, 0);
    if (node.shape == Shape::kRow) put(1, 0);
    if (node.shape == Shape::kStack) put(1, block(node.parts[0]).height);
    if (node.shape == Shape::kPinwheel) {
      put(1, 0);
      put(2, block(node.parts[1]).height);
      put(3, block(node.parts[0]).height);
      put(4, block(node.parts[0]).height);
    }
  }
}

}  // namespace berth::internal::planner
