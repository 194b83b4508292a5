#include <algorithm>
#include <chrono>

#include "base/try.h"
#include "kv/cache_state.h"

namespace berth::kv {
using namespace berth::internal;
using namespace berth::internal::kv_cache;

void Cache::State::set_now(std::optional<std::uint64_t> given) noexcept {
  const std::uint64_t value = given
                                  ? *given
                                  : static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                                                   std::chrono::steady_clock::now().time_since_epoch())
                                                                   .count());
  now = static_cast<std::uint32_t>(value);
  tree.set_now(now);
}

std::uint64_t Cache::State::in_use(std::uint32_t group) const noexcept {
  switch (groups[group].kind) {
    case GroupKind::kFull: return tree.pinned();
    case GroupKind::kWindow: return windows[group].in_use;
    case GroupKind::kState: return open_count;
  }
  return 0;
}

bool Cache::State::feasible(const PerGroup& extra) const noexcept {
  if (group_count == 1) return in_use(0) + set_aside[0] + extra[0] <= pool.capacity(0);
  std::uint64_t left = pool.larges();
  for (std::uint32_t g = 0; g < group_count; ++g) {
    const std::uint64_t per = pool.pages_per_large(g);
    const std::uint64_t needs = (in_use(g) + set_aside[g] + extra[g] + per - 1) / per;
    if (needs > left) return false;
    left -= needs;
  }
  return true;
}

bool Cache::State::evict_block(bool keep) noexcept {
  if (tree.idle() == 0) return false;
  const Node node = policy->victim(tree);
  if (keep && !tiers.empty()) put_below(node);
  tree.remove(node);
  free_block(node);
  ++count.blocks_evicted;
  return true;
}

bool Cache::State::evict_loose(GroupKind kind) noexcept {
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (groups[g].kind != kind || kind == GroupKind::kFull || windows[g].oldest == kNoNode) continue;
    const Node node = windows[g].oldest;
    take_from_behind(g, node);
    give_page(g, page_of(node, g));
    page_ref(node, g) = kNoPage;
    return true;
  }
  return false;
}

bool Cache::State::evict_for(const PerGroup& wanted, std::uint64_t blocks) noexcept {
  // Pages behind windows are worth least. A state that is kept is worth a whole prefix, so it goes last.
  while (!pool.fits({wanted.data(), group_count}))
    if (!evict_loose(GroupKind::kWindow) && !evict_block() && !evict_loose(GroupKind::kState)) return false;
  if (!identity)
    while (free_nodes.size() < blocks)
      if (!evict_block()) return false;
  return true;
}

Window Cache::State::page_window(std::uint32_t group, Page page) const noexcept {
  Window window = memory;
  window.bytes = pool.page_bytes(group);
  window.offset += static_cast<std::size_t>(page) * window.bytes;
  return window;
}

Result<void> Cache::State::copy_page(std::uint32_t group, Page from, Page to) {
  BERTH_TRY(queue->copy(page_window(group, from), page_window(group, to)));
  ++count.pages_copied;
  return {};
}

Result<Page> Cache::State::take_page(std::uint32_t group, std::uint32_t owner) {
  Page page = pool.take(group);
  Result<void> copied;
  while (page == kNoPage) {
    const bool made = pool.make_room(group, [&](const PagePool::Move& move) {
      mutex.assert_held();
      copied = copy_page(move.group, move.from, move.to);
      if (!copied) return false;
      const std::uint32_t who = owners[move.group][static_cast<std::size_t>(move.from)];
      owners[move.group][static_cast<std::size_t>(move.to)] = who;
      if ((who & kSequenceOwner) != 0)
        sequences[who & ~kSequenceOwner].states[move.group] = move.to;
      else
        page_ref(who, move.group) = move.to;
      if (timeline) timeline->move(move.group, move.from, move.to);
      moved = frames != nullptr;
      return true;
    });
    if (!copied) return copied.error();
    if (!made) return Error(Code::kOutOfMemory, Layer::kAllocator, "no page of group {} is free", group);
    page = pool.take(group);
  }
  if (!identity) owners[group][static_cast<std::size_t>(page)] = owner;
  if (timeline) timeline->take(group, page, taking_for);
  return page;
}

void Cache::State::give_page(std::uint32_t group, Page page) noexcept {
  if (timeline) timeline->give(group, page);
  pool.give(group, page);
}

Result<Node> Cache::State::take_block() {
  if (identity) {
    BERTH_TRY_ASSIGN(const Page page, take_page(0, 0));
    tree.start(static_cast<Node>(page));
    return static_cast<Node>(page);
  }
  if (free_nodes.empty())
    return Error(Code::kOutOfMemory, Layer::kAllocator, "all {} blocks of the cache are in use", tree.nodes());
  const Node node = free_nodes.back();
  free_nodes.pop_back();
  tree.start(node);
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (groups[g].kind == GroupKind::kState) continue;
    auto page = take_page(g, node);
    if (!page) {
      for (std::uint32_t h = 0; h < g; ++h)
        if (groups[h].kind == GroupKind::kWindow) unpin_window(h, node);
      tree.drop_reference(node);
      free_block(node);
      return page.error();
    }
    page_ref(node, g) = *page;
    if (groups[g].kind == GroupKind::kWindow) pin_window(g, node);
  }
  return node;
}

void Cache::State::free_block(Node node) noexcept {
  if (identity) {
    give_page(0, static_cast<Page>(node));
  } else {
    for (std::uint32_t g = 0; g < group_count; ++g) {
      Page& page = page_ref(node, g);
      if (page == kNoPage) continue;
      if (groups[g].kind != GroupKind::kFull) take_from_behind(g, node);
      give_page(g, page);
      page = kNoPage;
    }
    free_nodes.push_back(node);
  }
  tree.set_free(node);
}

void Cache::State::pin_window(std::uint32_t group, Node node) noexcept {
  WindowPages& window = windows[group];
  if (window.pins[node]++ != 0) return;
  ++window.in_use;
  take_from_behind(group, node);
}

bool Cache::State::unpin_window(std::uint32_t group, Node node) noexcept {
  WindowPages& window = windows[group];
  if (--window.pins[node] != 0) return false;
  --window.in_use;
  return true;
}

void Cache::State::leave_behind(std::uint32_t group, Node node) noexcept {
  WindowPages& window = windows[group];
  window.older[node] = window.newest;
  window.newer[node] = kNoNode;
  (window.newest == kNoNode ? window.oldest : window.newer[window.newest]) = node;
  window.newest = node;
}

void Cache::State::drop_behind(std::uint32_t group, Node node) noexcept {
  if (!tree.in_index(node)) {
    give_page(group, page_of(node, group));
    page_ref(node, group) = kNoPage;
  } else if (windows[group].newer[node] == node) {
    leave_behind(group, node);
  }
}

void Cache::State::take_from_behind(std::uint32_t group, Node node) noexcept {
  WindowPages& window = windows[group];
  if (window.newer[node] == node) return;
  const Node older = window.older[node], newer = window.newer[node];
  (older == kNoNode ? window.oldest : window.newer[older]) = newer;
  (newer == kNoNode ? window.newest : window.older[newer]) = older;
  window.newer[node] = node;
}

void Cache::State::use_set_aside(Sequence& sequence, std::uint32_t group) noexcept {
  if (sequence.set_aside[group] == 0) return;
  --sequence.set_aside[group];
  --set_aside[group];
}

void Cache::State::drop_set_aside(Sequence& sequence) noexcept {
  for (std::uint32_t g = 0; g < group_count; ++g) {
    set_aside[g] -= sequence.set_aside[g];
    sequence.set_aside[g] = 0;
  }
  sequence.limit = 0;
}

std::size_t Cache::State::bookkeeping_bytes() const noexcept {
  std::size_t bytes = sizeof *this + pool.bookkeeping_bytes() + tree.bookkeeping_bytes() + policy->bookkeeping_bytes() +
                      pages.capacity() * sizeof(Page) + free_nodes.capacity() * sizeof(Node) + hashes.capacity() * 4 +
                      hits.capacity() * 4 + sequences.capacity() * sizeof(Sequence) + serials.capacity() * 8 +
                      tiers.bookkeeping_bytes();
  for (const auto& table : owners) bytes += table.capacity() * 4;
  for (const WindowPages& window : windows)
    bytes += (window.pins.capacity() + window.older.capacity() + window.newer.capacity()) * 4;
  if (frames) bytes += frames->bookkeeping_bytes() + ranges.all.capacity() * sizeof(Range);
  if (timeline) bytes += timeline->bookkeeping_bytes();
  for (const Sequence& sequence : sequences) bytes += sequence.blocks.capacity() * sizeof(Node);
  return bytes;
}

}  // namespace berth::kv
