#include "planner/placer.h"

#include <algorithm>
#include <bit>

namespace berth::planner {
namespace {

constexpr unsigned kFirstShift = 2, kShiftStep = 2;

}  // namespace

Placer::Placer(const Model& model) : model_(model) {
  const auto sections = static_cast<std::size_t>(std::max(1, model.sections));
  for (unsigned shift = kFirstShift;; shift += kShiftStep) {
    levels_.push_back({shift, 0, std::vector<std::vector<Rectangle>>((sections >> shift) + 1)});
    if ((sections >> shift) == 0) break;
  }
}

void Placer::clear() {
  for (Level& level : levels_) {
    if (level.count == 0) continue;
    for (auto& block : level.blocks) block.clear();
    level.count = 0;
  }
}

void Placer::put(std::uint32_t item, std::uint64_t offset) {
  for (const Part& part : model_.parts_of(item)) {
    const auto length = static_cast<std::uint32_t>(part.last - part.first);
    const auto bits = static_cast<unsigned>(std::bit_width(length - 1));
    const unsigned index = bits <= kFirstShift ? 0 : (bits - kFirstShift + kShiftStep - 1) / kShiftStep;
    Level& level = levels_[std::min<std::size_t>(index, levels_.size() - 1)];
    const Rectangle rectangle{part.first, part.last, offset, offset + part.height};
    const auto first = static_cast<std::size_t>(part.first) >> level.shift;
    const auto last = static_cast<std::size_t>(part.last - 1) >> level.shift;
    for (std::size_t block = first; block <= last; ++block) level.blocks[block].push_back(rectangle);
    ++level.count;
  }
}

void Placer::collect(const Part& part) {
  for (const Level& level : levels_) {
    if (level.count == 0) continue;
    const auto first = static_cast<std::size_t>(part.first) >> level.shift;
    const auto last = static_cast<std::size_t>(part.last - 1) >> level.shift;
    for (std::size_t block = first; block <= last; ++block) {
      for (const Rectangle& other : level.blocks[block]) {
        if (other.first >= part.last || other.last <= part.first) continue;
        // One that touches two blocks is in both: take it in the first that the query sees.
        if (block != first && (static_cast<std::size_t>(other.first) >> level.shift) != block) continue;
        forbidden_.push_back({static_cast<std::int64_t>(other.low) - static_cast<std::int64_t>(part.height),
                              static_cast<std::int64_t>(other.high)});
      }
    }
  }
}

// By `low`. Radix for many: this sort is where large plans spend their time.
void Placer::sort_forbidden() {
  const std::size_t count = forbidden_.size();
  if (count < 200) {
    std::sort(forbidden_.begin(), forbidden_.end(), [](auto a, auto b) { return a.low < b.low; });
    return;
  }
  std::int64_t least = forbidden_[0].low, most = least;
  for (const Forbidden& it : forbidden_) {
    least = std::min(least, it.low);
    most = std::max(most, it.low);
  }
  constexpr unsigned kDigit = 11;
  const auto width = static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(most - least)));
  scratch_.resize(count);
  std::uint32_t starts[1u << kDigit];
  for (unsigned shift = 0; shift < width; shift += kDigit) {
    std::fill(std::begin(starts), std::end(starts), 0u);
    const auto digit = [&](const Forbidden& it) {
      return (static_cast<std::uint64_t>(it.low - least) >> shift) & ((1u << kDigit) - 1);
    };
    for (const Forbidden& it : forbidden_) ++starts[digit(it)];
    std::uint32_t at = 0;
    for (std::uint32_t& start : starts) {
      const std::uint32_t size = start;
      start = at;
      at += size;
    }
    for (const Forbidden& it : forbidden_) scratch_[starts[digit(it)]++] = it;
    forbidden_.swap(scratch_);
  }
}

std::uint64_t Placer::find(std::uint32_t item, Fit fit) {
  const Item& it = model_.items[item];
  forbidden_.clear();
  for (const Part& part : model_.parts_of(item)) collect(part);
  sort_forbidden();

  const Space& space = model_.space;
  const auto settle = [&](std::int64_t at) {
    return static_cast<std::int64_t>(space.place(static_cast<std::uint64_t>(at), it.height, it.alignment));
  };
  std::int64_t at = settle(static_cast<std::int64_t>(space.base(it.bank)));
  std::int64_t best = -1, best_room = 0;
  const auto hint = it.hint == kNowhere ? -1 : static_cast<std::int64_t>(it.hint);
  for (const Forbidden& other : forbidden_) {
    if (at < 0) return kNowhere;  // settle said kNowhere
    if (at <= other.low) {
      const std::int64_t room = other.low - at;
      if (fit == Fit::kFirst) return static_cast<std::uint64_t>(at);
      if (fit == Fit::kNearHint && hint >= at && hint <= other.low && settle(hint) == hint) {
        return static_cast<std::uint64_t>(hint);
      }
      if (best < 0 || room < best_room) best = at, best_room = room;
    }
    if (at < other.high) at = settle(other.high);
  }
  if (best >= 0) return static_cast<std::uint64_t>(best);
  return at < 0 ? kNowhere : static_cast<std::uint64_t>(at);
}

bool Placer::free_at(std::uint32_t item, std::uint64_t offset) {
  forbidden_.clear();
  for (const Part& part : model_.parts_of(item)) collect(part);
  const auto at = static_cast<std::int64_t>(offset);
  return std::none_of(forbidden_.begin(), forbidden_.end(),
                      [&](const Forbidden& other) { return other.low < at && at < other.high; });
}

Layout place_in_order(const Model& model, std::span<const std::uint32_t> order, Fit fit) {
  Placer placer(model);
  Layout layout;
  layout.offsets.assign(model.items.size(), kNowhere);
  if (model.has_fixed) {
    for (std::uint32_t item = 0; item < model.items.size(); ++item) {
      const Item& it = model.items[item];
      if (it.fixed == kNowhere) continue;
      layout.offsets[item] = model.space.base(it.bank) + it.fixed;
      placer.put(item, layout.offsets[item]);
    }
  }
  for (const std::uint32_t item : order) {
    if (layout.offsets[item] != kNowhere) continue;
    const std::uint64_t offset = placer.find(item, fit);
    layout.offsets[item] = offset;
    if (offset != kNowhere) placer.put(item, offset);
  }
  layout.top = top_of(model, layout.offsets);
  return layout;
}

}  // namespace berth::planner
