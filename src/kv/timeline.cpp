#include "kv/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace berth::internal::kv_cache {

using kv::Page;
using kv::PagePool;

Timeline::Timeline(std::size_t most, const PagePool& pool) : most_(std::min<std::size_t>(most, kNone)) {
  for (std::uint32_t g = 0; g < pool.groups(); ++g) current_.emplace_back(pool.bytes() / pool.page_bytes(g), kNone);
}

void Timeline::take(std::uint32_t group, Page page, std::uint64_t sequence) {
  if (uses_.size() == most_) {
    ++left_out_;
    return;
  }
  current_[group][static_cast<std::size_t>(page)] = static_cast<std::uint32_t>(uses_.size());
  uses_.push_back({.first = now_, .sequence = sequence, .page = page, .group = group});
}

void Timeline::give(std::uint32_t group, Page page) noexcept {
  const std::uint32_t use = std::exchange(current_[group][static_cast<std::size_t>(page)], kNone);
  if (use != kNone) uses_[use].last = now_;
}

void Timeline::move(std::uint32_t group, Page from, Page to) {
  const std::uint32_t use = current_[group][static_cast<std::size_t>(from)];
  give(group, from);
  if (use != kNone) take(group, to, uses_[use].sequence);
}

MapPanel Timeline::panel(const PagePool& pool, const std::vector<std::string>& groups) const {
  MapPanel panel{.title = "Pages of the key-value cache"};
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> nodes;
  for (const Use& use : uses_) {
    const std::uint64_t last = use.last == kStillInUse ? now_ + 1 : use.last;
    if (last == use.first) continue;  // taken and given back by one call
    const auto [node, is_new] = nodes.try_emplace({use.group, use.sequence}, static_cast<std::uint32_t>(nodes.size()));
    if (is_new) panel.names.push_back(fmt::format("{}, sequence {}", groups[use.group], use.sequence));
    panel.rectangles.push_back({.node = node->second,
                                .offset = static_cast<std::uint64_t>(use.page) * pool.page_bytes(use.group),
                                .bytes = pool.page_bytes(use.group),
                                .first = static_cast<std::int64_t>(use.first),
                                .last = static_cast<std::int64_t>(last)});
  }
  panel.blocks = {{.name = "pages", .bytes = pool.bytes()}};
  panel.held = pool.bytes();
  panel.facts = {{"calls", std::to_string(now_)}, {"uses of pages", std::to_string(uses_.size())}};
  panel.notes = {
      "A rectangle is a page, from the call that took it to the one that gave it back. It has the name of "
      "the sequence that took it, and stays while others share it and while it is cached."};
  if (left_out_ != 0) panel.notes.push_back(fmt::format("{} later uses of pages are not shown.", left_out_));
  return panel;
}

std::size_t Timeline::bookkeeping_bytes() const noexcept {
  std::size_t bytes = sizeof *this + uses_.capacity() * sizeof(Use);
  for (const auto& pages : current_) bytes += pages.capacity() * sizeof(std::uint32_t);
  return bytes;
}

}  // namespace berth::internal::kv_cache
