// Online best fit over a free list: what a run-time allocator would do, seen ahead of time.
#include <map>
#include <set>
#include <utility>

#include "plan/placement/strategies.h"

namespace berth::internal::planner {
namespace {

// Holes below the top, by offset and by size.
class FreeList {
 public:
  std::uint64_t take(std::uint64_t size) {
    const auto hole = by_size_.lower_bound({size, 0});
    if (hole == by_size_.end()) {  // grow, from the last hole if it touches the top
      std::uint64_t offset = top_;
      if (!by_offset_.empty()) {
        const auto last = std::prev(by_offset_.end());
        if (last->first + last->second == top_) {
          offset = last->first;
          by_size_.erase({last->second, last->first});
          by_offset_.erase(last);
        }
      }
      top_ = offset + size;
      return offset;
    }
    const auto [room, offset] = *hole;
    by_size_.erase(hole);
    by_offset_.erase(offset);
    if (room > size) add(offset + size, room - size);
    return offset;
  }

  void give(std::uint64_t offset, std::uint64_t size) {
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        size += before->second;
        by_size_.erase({before->second, before->first});
        by_offset_.erase(before);
      }
    }
    if (next != by_offset_.end() && offset + size == next->first) {
      size += next->second;
      by_size_.erase({next->second, next->first});
      by_offset_.erase(next);
    }
    add(offset, size);
  }

 private:
  void add(std::uint64_t offset, std::uint64_t size) {
    by_offset_.emplace(offset, size);
    by_size_.emplace(size, offset);
  }
  std::map<std::uint64_t, std::uint64_t> by_offset_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;
  std::uint64_t top_ = 0;
};

}  // namespace

Layout online_best_fit(const Model& model) {
  // What is alive together stands together here, whatever the order of the items in the model: of many items only a few
  // are then far from the cache.
  struct Life {
    std::uint64_t height, offset;
    std::int32_t first;
    std::uint32_t next;  // another that ends in the same section
  };
  const std::vector<std::uint32_t> starting = order_by_start(model);
  std::vector<Life> lives;
  lives.reserve(starting.size());
  std::vector<std::uint32_t> ending(static_cast<std::size_t>(model.sections) + 1, kNoItem);  // the first of each list
  for (const std::uint32_t item : starting) {
    const Item& it = model.items[item];
    auto& head = ending[static_cast<std::size_t>(it.last)];
    const auto index = static_cast<std::uint32_t>(lives.size());
    lives.push_back({it.height, kNowhere, it.first, std::exchange(head, index)});
  }
  FreeList free;
  std::size_t section = 0;
  for (Life& life : lives) {
    for (; section <= static_cast<std::size_t>(life.first); ++section) {
      for (std::uint32_t gone = ending[section]; gone != kNoItem; gone = lives[gone].next) {
        free.give(lives[gone].offset, lives[gone].height);
      }
    }
    life.offset = free.take(life.height);
  }
  Layout layout;
  layout.offsets.assign(model.items.size(), kNowhere);
  for (std::size_t i = 0; i < lives.size(); ++i) layout.offsets[starting[i]] = lives[i].offset;
  layout.top = top_of(model, layout.offsets);
  return layout;
}

}  // namespace berth::internal::planner
