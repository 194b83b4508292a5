#include "plan/placement/placer.h"

#include <algorithm>
#include <bit>

namespace berth::internal::planner {

Placer::Placer(const Model& model) : model_(model) {
  // Blocks of the first level are about as long as an average part.
  const auto sections = static_cast<std::uint64_t>(std::max(1, model.sections));
  std::uint64_t total = 1;
  for (const Part& part : model.parts) total += static_cast<std::uint64_t>(part.last - part.first);
  auto shift = static_cast<unsigned>(std::bit_width(total / std::max<std::size_t>(1, model.parts.size())));
  for (;; shift += 2) {
    levels_.push_back({shift, std::vector<std::vector<Rectangle>>((sections >> shift) + 1)});
    if ((sections >> shift) == 0) break;
  }
}

void Placer::put(std::uint32_t item, std::uint64_t offset) {
  for (const Part& part : model_.parts_of(item)) {
    const auto length = static_cast<std::uint32_t>(part.last - part.first);
    std::size_t index = 0;
    while (index + 1 < levels_.size() && length > (1u << levels_[index].shift)) ++index;
    Level& level = levels_[index];
    const Rectangle rectangle{part.first, part.last, offset, offset + part.height};
    const auto first = static_cast<std::size_t>(part.first) >> level.shift;
    const auto last = static_cast<std::size_t>(part.last - 1) >> level.shift;
    for (std::size_t b = first; b <= last; ++b) {
      std::vector<Rectangle>& block = level.blocks[b];
      const auto at = std::upper_bound(block.begin(), block.end(), offset,
                                       [](std::uint64_t low, const Rectangle& other) { return low < other.low; });
      block.insert(at, rectangle);
    }
  }
}

void Placer::begin_walks(std::uint32_t item) {
  walks_.clear();
  for (const Part& part : model_.parts_of(item)) {
    for (const Level& level : levels_) {
      const auto first = static_cast<std::size_t>(part.first) >> level.shift;
      const auto last = static_cast<std::size_t>(part.last - 1) >> level.shift;
      for (std::size_t b = first; b <= last; ++b) {
        const std::vector<Rectangle>& block = level.blocks[b];
        if (!block.empty())
          walks_.push_back({block.data(), block.data() + block.size(), part.first, part.last, part.height});
      }
    }
  }
}

// The lowest offset at or above `at` where the item overlaps nothing. Each walk moves up past what is below; when a
// whole round moves nothing, the offset is free. A rectangle that stands in two blocks is met twice, which is harmless.
std::uint64_t Placer::clear_from(std::uint64_t at, const Item& item) {
  const Space& space = model_.space;
  std::size_t quiet = 0;
  for (std::size_t w = 0; quiet < walks_.size() && at != kNowhere; w = w + 1 == walks_.size() ? 0 : w + 1) {
    Walk& walk = walks_[w];
    std::uint64_t raised = at;
    const Rectangle* next = walk.next;
    const Rectangle* const end = walk.end;
    for (; next != end && next->low < raised + walk.height; ++next) {
      if (next->high > raised && next->first < walk.last && walk.first < next->last) raised = next->high;
    }
    walk.next = next;
    if (raised == at) {
      ++quiet;
    } else {
      at = space.place(raised, item.height, item.alignment);
      quiet = 0;
    }
  }
  return at;
}

// How far the gap that clear_from found goes up: the lowest `low` above it, less the height of the part it limits.
std::uint64_t Placer::next_above() {
  std::uint64_t limit = kNowhere;
  for (Walk& walk : walks_) {
    const Rectangle* next = walk.next;
    while (next != walk.end && (next->first >= walk.last || walk.first >= next->last)) ++next;
    walk.next = next;
    if (next != walk.end) limit = std::min(limit, next->low - walk.height);
  }
  return limit;
}

std::uint64_t Placer::find(std::uint32_t item, Fit fit) {
  const Item& it = model_.items[item];
  begin_walks(item);
  const Space& space = model_.space;
  std::uint64_t best = kNowhere, best_room = kNowhere;
  std::uint64_t at = space.place(space.base(it.bank), it.height, it.alignment);
  for (;;) {
    at = clear_from(at, it);
    if (at == kNowhere || fit == Fit::kFirst) break;
    // The item can start anywhere from `at` to `limit`.
    const std::uint64_t limit = next_above();
    if (fit == Fit::kNearHint && it.hint != kNowhere && it.hint >= at && (limit == kNowhere || it.hint <= limit) &&
        space.place(it.hint, it.height, it.alignment) == it.hint) {
      return it.hint;
    }
    if (limit == kNowhere) break;
    if (limit - at < best_room) best = at, best_room = limit - at;
    at = space.place(limit + 1, it.height, it.alignment);
    if (at == kNowhere) break;
  }
  return best != kNowhere ? best : at;
}

bool Placer::free_at(std::uint32_t item, std::uint64_t offset) {
  begin_walks(item);
  return std::none_of(walks_.begin(), walks_.end(), [&](const Walk& walk) {
    return std::any_of(walk.next, walk.end, [&](const Rectangle& other) {
      return other.first < walk.last && walk.first < other.last && other.low < offset + walk.height &&
             offset < other.high;
    });
  });
}

Layout place_in_order(const Model& model, std::span<const std::uint32_t> order, Fit fit, const Interrupt* interrupt) {
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
  std::size_t count = 0;
  for (const std::uint32_t item : order) {
    if (layout.offsets[item] != kNowhere) continue;
    if (interrupt && (++count & 255) == 0 && interrupt->requested()) break;
    const std::uint64_t offset = placer.find(item, fit);
    layout.offsets[item] = offset;
    if (offset != kNowhere) placer.put(item, offset);
  }
  layout.top = top_of(model, layout.offsets);
  return layout;
}

}  // namespace berth::internal::planner
