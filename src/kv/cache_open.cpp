#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/try.h"
#include "kv/cache_state.h"

namespace berth::kv {
using namespace berth::internal;
using namespace berth::internal::kv_cache;

namespace {
// How many blocks ahead of the walk the index and the blocks are fetched.
constexpr std::size_t kAhead = 8;
}  // namespace

Result<Cache::State::Sequence*> Cache::State::find(SequenceId id) {
  const auto index = static_cast<std::uint32_t>(id.bits);
  if (index >= sequences.size() || sequences[index].generation != id.bits >> 32 || !sequences[index].open)
    return Error(Code::kNotFound, Layer::kAllocator, "no open sequence has the id {}: it was closed, or never opened",
                 id.bits);
  return &sequences[index];
}

Cache::State::Opening Cache::State::prepare_opening(std::span<const Token> tokens, const OpenOptions& wishes) {
  Opening opening;
  opening.blocks = blocks_of(tokens.size());
  const std::size_t most = (tokens.size() - (wishes.compute_last && !tokens.empty() ? 1 : 0)) / block_tokens;
  hits.clear();
  hashes.clear();
  if (const Node root = tree.find_root(wishes.salt); root != kNoNode) {
    // Hashes depend on tokens only, so the memory that the walk will need can be fetched ahead of it.
    std::uint32_t hash = tree.root_hash(root);
    const auto more = [&] {
      mutex.assert_held();
      const std::size_t at = hashes.size();
      if (at == most) return;
      hash = hash_block(hash, tokens.subspan(at * block_tokens, block_tokens));
      hashes.push_back(hash);
      tree.prefetch(hash);
    };
    Node parent = root;
    for (std::size_t i = 0; i < 2 * kAhead; ++i) more();
    for (std::size_t i = 0; i < most; ++i) {
      more();
      if (i + kAhead < hashes.size()) tree.prefetch_block(hashes[i + kAhead]);
      parent = tree.find(parent, hashes[i], tokens.subspan(i * block_tokens, block_tokens));
      if (parent == kNoNode) break;
      hits.push_back(parent);
    }
  }
  places.clear();
  if (!tiers.empty()) find_below(tokens, wishes.salt, most);
  // Only as far as every window before the place is there, and every state at it.
  std::size_t usable = hits.size() + places.size();
  if (!identity && (has(GroupKind::kWindow) || has(GroupKind::kState))) {
    std::array<std::size_t, kMostGroups> run{};  // blocks up to here whose pages are there
    usable = 0;
    for (std::size_t i = 0; i < hits.size() + places.size(); ++i) {
      bool all = true;
      for (std::uint32_t g = 0; g < group_count; ++g) {
        if (groups[g].kind == GroupKind::kFull) continue;
        const bool there = i < hits.size() ? page_of(hits[i], g) != kNoPage
                                           : (tiers.block(places[i - hits.size()]).groups >> g & 1) != 0;
        run[g] = there ? run[g] + 1 : 0;
        const std::size_t needed =
            groups[g].kind == GroupKind::kState ? 1 : i + 1 - window_start(g, (i + 1) * std::uint64_t{block_tokens});
        all &= run[g] >= needed;
      }
      if (all) usable = i + 1;
    }
  }
  places.resize(usable - std::min(usable, hits.size()));
  hits.resize(usable - places.size());
  opening.hits = hits.size();
  opening.below = places.size();

  // Blocks of tiers take pages like new ones.
  const std::uint64_t fresh = opening.blocks - opening.hits;
  const std::uint64_t later = blocks_of(tokens.size() + wishes.max_new_tokens) - opening.blocks;
  std::uint64_t unpinned = 0;
  for (const Node node : hits) unpinned += tree.references(node) == 0 ? 1 : 0;
  for (std::uint32_t g = 0; g < group_count; ++g) {
    switch (groups[g].kind) {
      case GroupKind::kFull:
        opening.fresh[g] = fresh;
        opening.set_aside[g] = later;
        opening.extra[g] = fresh + unpinned + later;
        break;
      case GroupKind::kWindow: {
        const std::uint64_t start = window_start(g, usable * std::uint64_t{block_tokens});
        // Blocks of tiers that are behind the window give their pages back at once.
        std::uint64_t own = fresh - (start - std::min<std::uint64_t>(start, opening.hits)), taken = fresh;
        for (std::size_t i = static_cast<std::size_t>(start); i < hits.size(); ++i)
          if (windows[g].pins[hits[i]] == 0) ++taken, ++own;
        // Pages of its own come back as the window moves; shared ones do not.
        const std::uint64_t most_held = window_blocks(g);
        opening.fresh[g] = fresh;
        opening.set_aside[g] = std::min(later, most_held - std::min(own, most_held));
        opening.extra[g] = taken + opening.set_aside[g];
        break;
      }
      case GroupKind::kState:
        // The kept state stays while it is copied.
        opening.fresh[g] = 1;
        opening.extra[g] = usable == 0 ? 1 : 2;
        break;
    }
  }
  return opening;
}

SequenceId Cache::State::add_sequence() {
  if (closed.empty()) {
    sequences.emplace_back();
    crossing.reserve(sequences.capacity());  // so that append() allocates nothing
    closed.reserve(sequences.capacity());
    closed.push_back(static_cast<std::uint32_t>(sequences.size() - 1));
  }
  const std::uint32_t index = closed.back();
  closed.pop_back();
  Sequence& sequence = sequences[index];
  sequence.length = sequence.published = 0;
  sequence.tail = kNoNode;
  sequence.batch = 0;
  sequence.number = taking_for = numbered++;
  sequence.range = kNoRange;
  sequence.shown = 0;
  sequence.open = true;
  sequence.plain = false;
  sequence.limit = 0;
  sequence.first.fill(0);
  sequence.set_aside.fill(0);
  sequence.states.fill(kNoPage);
  sequence.blocks.clear();
  ++open_count;
  return {std::uint64_t{sequence.generation} << 32 | index};
}

Result<Opened> Cache::State::open(std::span<const Token> tokens, const OpenOptions& wishes) {
  if (tokens.size() > most_tokens || wishes.max_new_tokens > most_tokens - tokens.size())
    return Error(Code::kInvalidArgument, Layer::kAllocator,
                 "a sequence of {} tokens and {} new ones is longer than {} tokens", tokens.size(),
                 wishes.max_new_tokens, most_tokens);
  set_now(wishes.now);
  const Opening opening = prepare_opening(tokens, wishes);
  if (!feasible(opening.extra)) {
    ++count.refused;
    return refusal(opening.extra);
  }
  const SequenceId id = add_sequence();
  Sequence& sequence = sequences[static_cast<std::uint32_t>(id.bits)];
  sequence.root = tree.enter_root(wishes.salt);
  sequence.prompt = tokens.size();
  sequence.opened = now;
  sequence.limit = tokens.size() + wishes.max_new_tokens;
  // Tokens for which pages are set aside are appended without an allocation.
  sequence.blocks.reserve(static_cast<std::size_t>(blocks_of(sequence.limit)));
  // The hits are pinned first, so that making room does not evict them.
  for (const Node node : hits) {
    tree.add_reference(node);
    sequence.blocks.push_back(node);
  }
  sequence.published = static_cast<std::uint32_t>(hits.size());
  sequence.length = sequence.published * block_tokens;
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (groups[g].kind != GroupKind::kWindow) continue;
    // The window at the end of what is cached, with what comes back from tiers.
    const std::uint64_t cached = (opening.hits + opening.below) * block_tokens;
    sequence.first[g] = std::min(window_start(g, cached), sequence.published);
    for (std::size_t i = sequence.first[g]; i < hits.size(); ++i) pin_window(g, hits[i]);
    for (std::size_t i = 0; i < sequence.first[g]; ++i)
      if (windows[g].pins[hits[i]] == 0 && page_of(hits[i], g) != kNoPage) drop_behind(g, hits[i]);
  }
  // The state that the prefix ends with must stay until it is copied.
  const Node last = hits.empty() ? kNoNode : hits.back();
  for (std::uint32_t g = 0; g < group_count && last != kNoNode; ++g)
    if (groups[g].kind == GroupKind::kState) take_from_behind(g, last);
  const std::vector<Tiers::Place> below = std::exchange(places, {});
  for (const Tiers::Place place : below) tiers.hold(place);
  std::size_t back = 0;  // blocks that came back from tiers
  const auto undo = [&] {
    mutex.assert_held();
    for (std::size_t i = back; i < below.size(); ++i) tiers.let_go(below[i]);
    for (std::uint32_t g = 0; g < group_count && last != kNoNode; ++g)
      if (groups[g].kind == GroupKind::kState) leave_behind(g, last);
    close(sequence);
  };
  const auto give_up = [&](Error error) {
    mutex.assert_held();
    undo();
    ++count.refused;
    return error;
  };
  if (!evict_for(opening.fresh, opening.blocks - opening.hits)) return give_up(refusal(opening.extra));
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (groups[g].kind != GroupKind::kState) continue;
    auto page = take_page(g, kSequenceOwner | static_cast<std::uint32_t>(id.bits));
    if (!page) return give_up(page.error());
    sequence.states[g] = *page;
    if (last == kNoNode) continue;
    if (auto copied = copy_page(g, page_of(last, g), *page); !copied) return give_up(copied.error());
  }
  for (std::uint64_t i = opening.hits; i < opening.blocks; ++i) {
    auto node = take_block();
    if (!node) return give_up(node.error());
    sequence.blocks.push_back(*node);
    if (back < below.size()) {
      const std::size_t at = back;
      if (bring_back(sequence, *node, below[at], tokens.subspan(i * block_tokens, block_tokens),
                     (opening.hits + opening.below) * block_tokens)) {
        ++back;
        continue;
      }
      // Without this block those after it are of no use, and a window may begin elsewhere: once more without it.
      ++back;
      tiers.take(below[at], false);
      undo();
      return open(tokens, wishes);
    }
    const std::size_t first = static_cast<std::size_t>(i) * block_tokens;
    const std::size_t some = std::min<std::size_t>(block_tokens, tokens.size() - first);
    std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(first), some, tree.tokens(*node));
  }
  if (auto given = give_range(sequence); !given) return give_up(given.error());
  for (std::uint32_t g = 0; g < group_count && last != kNoNode; ++g)
    if (groups[g].kind == GroupKind::kState) leave_behind(g, last);
  sequence.length = static_cast<std::uint32_t>(tokens.size());
  sequence.tail = sequence.blocks.empty() ? kNoNode : sequence.blocks.back();
  for (std::uint32_t g = 0; g < group_count; ++g) {
    sequence.set_aside[g] = static_cast<std::uint32_t>(opening.set_aside[g]);
    set_aside[g] += opening.set_aside[g];
  }
  ++count.opened;
  count.prompt_tokens += tokens.size();
  count.cached_tokens += (opening.hits + opening.below) * block_tokens;
  count.tier_tokens += opening.below * block_tokens;
  return Opened{id, (opening.hits + opening.below) * block_tokens};
}

void Cache::State::release_blocks(Sequence& sequence, std::size_t keep) noexcept {
  const std::uint64_t limit = blocks_of(sequence.limit);
  // From the tail, so that a block becomes idle before the one that it hangs on.
  while (sequence.blocks.size() > keep) {
    const Node node = sequence.blocks.back();
    for (std::uint32_t g = 0; g < group_count; ++g) {
      bool comes_back = false;
      if (groups[g].kind == GroupKind::kFull) comes_back = tree.references(node) == 1;
      if (groups[g].kind == GroupKind::kWindow && sequence.blocks.size() > sequence.first[g])
        comes_back = unpin_window(g, node);
      // A block that others use behind their windows keeps its page only until it is needed.
      if (comes_back && groups[g].kind == GroupKind::kWindow && tree.references(node) > 1) drop_behind(g, node);
      // What was set aside for the sequence and used by it is set aside again.
      if (comes_back && sequence.set_aside[g] + sequence.blocks.size() <= limit) {
        ++sequence.set_aside[g];
        ++set_aside[g];
      }
    }
    sequence.blocks.pop_back();
    if (tree.drop_reference(node)) free_block(node);
  }
  sequence.shown = std::min(sequence.shown, static_cast<std::uint32_t>(sequence.blocks.size()));
  sequence.tail = sequence.blocks.empty() ? kNoNode : sequence.blocks.back();
}

void Cache::State::close(Sequence& sequence) noexcept {
  drop_set_aside(sequence);
  release_blocks(sequence, 0);
  for (std::uint32_t g = 0; g < group_count; ++g)
    if (groups[g].kind == GroupKind::kState && sequence.states[g] != kNoPage) give_page(g, sequence.states[g]);
  take_range(sequence);
  tree.leave_root(sequence.root);
  sequence.open = false;
  ++sequence.generation;
  closed.push_back(static_cast<std::uint32_t>(&sequence - sequences.data()));
  --open_count;
}

void Cache::State::explain(Admission& admission, const PerGroup& extra) const {
  std::uint64_t left = pool.larges();
  admission.short_group = group_count - 1;
  for (std::uint32_t g = 0; g < group_count; ++g) {
    const std::uint64_t per = pool.pages_per_large(g), used = in_use(g) + set_aside[g];
    admission.bytes_needed += extra[g] * pool.page_bytes(g);
    const std::uint64_t needs = (used + extra[g] + per - 1) / per;
    if (needs > left && admission.short_group == group_count - 1) admission.short_group = g;
    left -= std::min(left, needs);
  }
  std::uint64_t busy = 0;
  for (std::uint32_t g = 0; g < group_count; ++g) busy += (in_use(g) + set_aside[g]) * pool.page_bytes(g);
  const std::uint64_t all =
      group_count == 1 ? pool.capacity(0) * pool.page_bytes(0) : pool.larges() * pool.large_bytes();
  admission.bytes_free = all - std::min(all, busy);
  if (admission.fits) return;
  // Which sequences to close: those first that alone hold most.
  struct Holder {
    std::uint64_t pages;
    std::uint32_t index;
  };
  std::vector<Holder> holders;
  for (std::uint32_t i = 0; i < sequences.size(); ++i) {
    if (!sequences[i].open) continue;
    std::uint64_t own = 0;
    for (const Node node : sequences[i].blocks) own += tree.references(node) == 1 ? 1 : 0;
    for (std::uint32_t g = 0; g < group_count; ++g) own += sequences[i].set_aside[g];
    holders.push_back({own, i});
  }
  std::sort(holders.begin(), holders.end(), [](const Holder& a, const Holder& b) {
    return a.pages != b.pages ? a.pages > b.pages : a.index < b.index;
  });
  // References fall as sequences are closed in turn, until the pages fit.
  std::vector<std::uint32_t> gone(tree.nodes());
  std::vector<std::vector<std::uint32_t>> unpinned(group_count);
  for (std::uint32_t g = 0; g < group_count; ++g)
    if (groups[g].kind == GroupKind::kWindow) unpinned[g].resize(tree.nodes());
  PerGroup used{};
  for (std::uint32_t g = 0; g < group_count; ++g) used[g] = in_use(g) + set_aside[g] + extra[g];
  const auto fits = [&] {
    mutex.assert_held();
    if (group_count == 1) return used[0] <= pool.capacity(0);
    std::uint64_t larges = 0;
    for (std::uint32_t g = 0; g < group_count; ++g)
      larges += (used[g] + pool.pages_per_large(g) - 1) / pool.pages_per_large(g);
    return larges <= pool.larges();
  };
  for (const Holder& holder : holders) {
    const Sequence& sequence = sequences[holder.index];
    for (std::size_t i = 0; i < sequence.blocks.size(); ++i) {
      const Node node = sequence.blocks[i];
      const bool last = ++gone[node] == tree.references(node);
      for (std::uint32_t g = 0; g < group_count; ++g) {
        if (groups[g].kind == GroupKind::kFull && last) --used[g];
        if (groups[g].kind == GroupKind::kWindow && i >= sequence.first[g] &&
            ++unpinned[g][node] == windows[g].pins[node])
          --used[g];
      }
    }
    for (std::uint32_t g = 0; g < group_count; ++g) {
      used[g] -= sequence.set_aside[g];
      if (groups[g].kind == GroupKind::kState) --used[g];
    }
    if (admission.sequences_to_close++ == 0)
      admission.close_first = {std::uint64_t{sequence.generation} << 32 | holder.index};
    if (fits()) return;
  }
  admission.sequences_to_close = 0;  // not even then
  admission.close_first = {};
}

Error Cache::State::refusal(const PerGroup& extra) const {
  Admission admission;
  explain(admission, extra);
  std::string text = fmt::format("the cache needs {} for this and has {} that no open sequence uses",
                                 format_bytes(admission.bytes_needed), format_bytes(admission.bytes_free));
  if (group_count > 1)
    text += fmt::format("; group {} ({}) is the first that lacks pages", admission.short_group,
                        groups[admission.short_group].name.text());
  if (admission.sequences_to_close != 0)
    text += fmt::format(": close {} of {} open sequences, sequence {} first", admission.sequences_to_close, open_count,
                        admission.close_first.bits);
  else
    text += fmt::format(": closing all {} open sequences would not free enough; raise the budget of {}", open_count,
                        format_bytes(pool.bytes()));
  return Error::with_text(Code::kOutOfMemory, Layer::kAllocator, std::move(text));
}

Admission Cache::State::can_admit(std::span<const Token> tokens, const OpenOptions& wishes) {
  Admission admission;
  if (tokens.size() > most_tokens || wishes.max_new_tokens > most_tokens - tokens.size()) return admission;
  const Opening opening = prepare_opening(tokens, wishes);
  admission.fits = feasible(opening.extra);
  if (admission.fits && !identity) {
    // The tree must have nodes for the blocks too: cached ones that are not hits can go.
    std::uint64_t unpinned = 0;
    for (const Node node : hits) unpinned += tree.references(node) == 0 ? 1 : 0;
    admission.fits = tree.pinned() + unpinned + opening.blocks - opening.hits <= tree.nodes();
  }
  admission.cached_tokens = (opening.hits + opening.below) * block_tokens;
  explain(admission, opening.extra);
  return admission;
}

}  // namespace berth::kv
