#include "base/try.h"
#include "kv/cache_state.h"

namespace berth::kv {
using namespace berth::internal;
using namespace berth::internal::kv_cache;

CacheCounters Cache::counters() const {
  const State& state = *state_;
  const MutexLock lock(state.mutex);
  CacheCounters counters = state.count;
  counters.sequences = state.open_count;
  for (const State::Sequence& sequence : state.sequences)
    if (sequence.open) counters.tokens_in_use += sequence.length;
  counters.bookkeeping_bytes = state.bookkeeping_bytes();
  for (std::uint32_t g = 0; g < state.group_count; ++g)
    counters.groups.push_back({.pages_in_use = state.in_use(g),
                               .pages_cached = state.pool.live(g) - state.in_use(g),
                               .pages_set_aside = state.set_aside[g],
                               .capacity = state.pool.capacity(g),
                               .page_bytes = state.pool.page_bytes(g)});
  state.tiers.add_counters(counters.tiers);
  return counters;
}

Result<void> Cache::State::check() const {
  BERTH_TRY(pool.check());
  BERTH_TRY(tree.check());
  const auto broken = [](const char* what, auto... numbers) {
    return Error(Code::kInvalidData, Layer::kAllocator, what, numbers...);
  };
  std::vector<std::uint32_t> references(tree.nodes());
  std::vector<std::vector<std::uint32_t>> pins(group_count, std::vector<std::uint32_t>(tree.nodes()));
  PerGroup aside{}, live{};
  std::uint64_t opened = 0;
  for (std::uint32_t s = 0; s < sequences.size(); ++s) {
    const Sequence& sequence = sequences[s];
    if (!sequence.open) continue;
    ++opened;
    const std::uint64_t blocks = blocks_of(sequence.length);
    if (sequence.blocks.size() < blocks || sequence.blocks.size() > sequence.length / block_tokens + 1)
      return broken("sequence {} has {} tokens in {} blocks", s, sequence.length, sequence.blocks.size());
    if (sequence.tail != (sequence.blocks.empty() ? kNoNode : sequence.blocks.back()))
      return broken("sequence {} has another tail than its last block", s);
    for (std::size_t i = 0; i < sequence.blocks.size(); ++i) {
      const Node node = sequence.blocks[i];
      if (node >= tree.nodes()) return broken("sequence {} has block {} that does not exist", s, node);
      ++references[node];
      if (i < sequence.published) {
        const Node before = i == 0 ? sequence.root : sequence.blocks[i - 1];
        if (!tree.in_index(node) || tree.parent(node) != before)
          return broken("block {} of sequence {} is published and hangs elsewhere", i, s);
      }
      for (std::uint32_t g = 0; g < group_count; ++g) {
        if (groups[g].kind == GroupKind::kState) continue;
        if (groups[g].kind == GroupKind::kWindow) {
          if (i < sequence.first[g]) continue;
          ++pins[g][node];
        }
        if (!pool.is_live(g, page_of(node, g)))
          return broken("block {} of sequence {} has no page in group {}", i, s, g);
      }
    }
    for (std::uint32_t g = 0; g < group_count; ++g) {
      aside[g] += sequence.set_aside[g];
      if (groups[g].kind != GroupKind::kState) continue;
      ++live[g];
      if (!pool.is_live(g, sequence.states[g])) return broken("sequence {} has no state in group {}", s, g);
      if (owners[g][static_cast<std::size_t>(sequence.states[g])] != (kSequenceOwner | s))
        return broken("the state of sequence {} in group {} has another owner", s, g);
    }
  }
  if (opened != open_count) return broken("{} sequences are open and {} are counted", opened, open_count);
  for (Node node = 0; node < tree.nodes(); ++node) {
    const bool used = tree.state(node) != kFreeBlock;
    if (tree.references(node) != references[node] && used)
      return broken("block {} has {} references and counts {}", node, references[node], tree.references(node));
    if (!used && references[node] != 0) return broken("block {} is free and in use", node);
    if (used && !tree.in_index(node) && references[node] == 0) return broken("block {} is lost", node);
    if (identity) {
      if (used != pool.is_live(0, static_cast<Page>(node))) return broken("block {} and its page disagree", node);
      live[0] += used ? 1 : 0;
      continue;
    }
    for (std::uint32_t g = 0; g < group_count; ++g) {
      const Page page = page_of(node, g);
      if (groups[g].kind == GroupKind::kFull && (page != kNoPage) != used)
        return broken("block {} and its page in group {} disagree", node, g);
      if (groups[g].kind == GroupKind::kWindow && windows[g].pins[node] != pins[g][node])
        return broken("block {} is in {} windows of group {} and counts {}", node, pins[g][node], g,
                      windows[g].pins[node]);
      if (page == kNoPage) continue;
      ++live[g];
      if (!used || !pool.is_live(g, page)) return broken("block {} has a page of group {} that is free", node, g);
      if (owners[g][static_cast<std::size_t>(page)] != node)
        return broken("page {} of group {} belongs to block {} and says another", page, g, node);
    }
  }
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (aside[g] != set_aside[g])
      return broken("group {} has {} pages set aside and counts {}", g, aside[g], set_aside[g]);
    if (live[g] != pool.live(g)) return broken("group {} has {} pages and the pool {}", g, live[g], pool.live(g));
    if (groups[g].kind != GroupKind::kWindow) continue;
    std::uint64_t pinned = 0;
    for (const std::uint32_t n : windows[g].pins) pinned += n != 0 ? 1 : 0;
    if (pinned != windows[g].in_use)
      return broken("group {} has {} pages in windows and counts {}", g, pinned, windows[g].in_use);
  }
  if (!tiers.empty()) BERTH_TRY(check_tiers());
  if (frames) BERTH_TRY(check_ranges());
  PerGroup none{};
  if (!feasible(none)) return broken("more pages are in use and set aside than there are");
  return {};
}

}  // namespace berth::kv
