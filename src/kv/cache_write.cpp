#include <algorithm>
#include <cstring>

#include "base/try.h"
#include "kv/cache_state.h"

namespace berth::kv {
using namespace berth::internal;
using namespace berth::internal::kv_cache;

void Cache::State::prefetch_publish(const Sequence& sequence) const noexcept {
  const std::uint32_t at = sequence.published;
  if (at >= sequence.length / block_tokens) return;
  const std::uint32_t before = at == 0 ? tree.root_hash(sequence.root) : tree.hash(sequence.blocks[at - 1]);
  tree.prefetch(hash_block(before, {tree.tokens(sequence.blocks[at]), block_tokens}));
}

void Cache::State::publish(Sequence& sequence) {
  const auto full = static_cast<std::uint32_t>(sequence.length / block_tokens);
  for (; sequence.published < full; ++sequence.published) {
    const std::uint32_t at = sequence.published;
    const Node node = sequence.blocks[at];
    if (tree.in_index(node)) continue;  // a fork published it
    const Node parent = at == 0 ? sequence.root : sequence.blocks[at - 1];
    const std::uint32_t before = at == 0 ? tree.root_hash(parent) : tree.hash(parent);
    const std::span<const Token> tokens(tree.tokens(node), block_tokens);
    const std::uint32_t hash = hash_block(before, tokens);
    const Node other = tree.find(parent, hash, tokens);
    if (other == kNoNode) {
      tree.insert(node, parent, hash);
      if (!tiers.empty()) name_block(node);
      continue;
    }
    // Another sequence computed the same tokens meanwhile. This one joins it and frees its own pages. It waits while a
    // fork holds these pages too: both copies would be in use, which takes pages that nobody counted, and the blocks
    // that follow, which the fork shares, would hang on a block that it does not hold.
    if (tree.references(node) != 1) break;
    tree.add_reference(other);
    for (std::uint32_t g = 0; g < group_count; ++g) {
      if (groups[g].kind != GroupKind::kWindow) continue;
      if (at < sequence.first[g]) {
        if (windows[g].pins[other] == 0 && page_of(other, g) != kNoPage) drop_behind(g, other);
        continue;
      }
      if (page_of(other, g) == kNoPage) {
        std::swap(page_ref(other, g), page_ref(node, g));
        owners[g][static_cast<std::size_t>(page_of(other, g))] = other;
      }
      pin_window(g, other);
      unpin_window(g, node);
    }
    sequence.blocks[at] = other;
    sequence.shown = std::min(sequence.shown, at);
    if (sequence.tail == node) sequence.tail = other;
    if (tree.drop_reference(node)) free_block(node);
  }
}

void Cache::State::advance_windows(Sequence& sequence) noexcept {
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (groups[g].kind != GroupKind::kWindow) continue;
    const std::uint32_t start =
        std::min(window_start(g, sequence.length), static_cast<std::uint32_t>(sequence.blocks.size()));
    for (std::uint32_t& at = sequence.first[g]; at < start; ++at) {
      const Node node = sequence.blocks[at];
      if (!unpin_window(g, node)) continue;
      // The page that this sequence gives back is the one that it will ask for next.
      const std::uint64_t left =
          blocks_of(std::max<std::uint64_t>(sequence.limit, sequence.length)) - sequence.blocks.size();
      if (sequence.set_aside[g] < left) {
        ++sequence.set_aside[g];
        ++set_aside[g];
      }
      drop_behind(g, node);
    }
  }
}

void Cache::State::commit(Sequence& sequence) {
  publish(sequence);
  advance_windows(sequence);
  sequence.plain = sequence.tail != kNoNode && tree.references(sequence.tail) == 1 && !tree.in_index(sequence.tail) &&
                   sequence.length % block_tokens != 0;
}

Cache::State::Growth Cache::State::growth(const Sequence& sequence, std::uint64_t tokens) const noexcept {
  Growth growth;
  if (tokens == 0) return growth;
  // A block may be there already, if the copy of another page failed.
  const std::uint64_t wanted = blocks_of(sequence.length + tokens);
  const std::uint64_t fresh = wanted - std::min<std::uint64_t>(wanted, sequence.blocks.size());
  const bool copies =
      sequence.length % block_tokens != 0 && (tree.in_index(sequence.tail) || tree.references(sequence.tail) > 1);
  growth.blocks = fresh + (copies ? 1 : 0);
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (groups[g].kind == GroupKind::kState) continue;
    growth.pages[g] = growth.blocks;
    growth.extra[g] = growth.blocks - std::min<std::uint64_t>(fresh, sequence.set_aside[g]);
  }
  return growth;
}

Result<void> Cache::State::open_tail(Sequence& sequence) {
  taking_for = sequence.number;
  const std::uint32_t used = sequence.length % block_tokens;
  if (used == 0) {
    if (sequence.blocks.size() > sequence.length / block_tokens) return show_range(sequence);
    BERTH_TRY_ASSIGN(const Node node, take_block());
    sequence.blocks.push_back(node);
    sequence.tail = node;
    for (std::uint32_t g = 0; g < group_count; ++g) use_set_aside(sequence, g);
    return show_range(sequence);
  }
  const Node shared = sequence.tail;
  if (tree.references(shared) == 1 && !tree.in_index(shared)) return show_range(sequence);
  BERTH_TRY_ASSIGN(const Node node, take_block());
  Result<void> copied;
  for (std::uint32_t g = 0; g < group_count && copied; ++g)
    if (groups[g].kind != GroupKind::kState) copied = copy_page(g, page_of(shared, g), page_of(node, g));
  const Node gone = copied ? shared : node;
  if (copied) {
    std::copy_n(tree.tokens(shared), used, tree.tokens(node));
    sequence.blocks.back() = node;
    sequence.tail = node;
    sequence.shown = std::min(sequence.shown, static_cast<std::uint32_t>(sequence.blocks.size() - 1));
  }
  for (std::uint32_t g = 0; g < group_count; ++g)
    if (groups[g].kind == GroupKind::kWindow && unpin_window(g, gone) && tree.references(gone) > 1)
      drop_behind(g, gone);
  if (tree.drop_reference(gone)) free_block(gone);
  if (copied) copied = show_range(sequence);
  return copied;
}

Result<void> Cache::State::append(std::span<const SequenceId> ids, std::span<const Token> tokens,
                                  std::span<std::int64_t> slots) {
  const std::size_t n = ids.size();
  if (tokens.size() != n || slots.size() != n * group_count)
    return Error(Code::kSizeMismatch, Layer::kAllocator,
                 "append of {} sequences was given {} tokens and {} slots: it needs one token each, and {} slots", n,
                 tokens.size(), slots.size(), n * group_count);
  ++batch;
  crossing.clear();
  for (const SequenceId id : ids) {
    const auto index = static_cast<std::uint32_t>(id.bits);
    if (index >= sequences.size() || sequences[index].generation != id.bits >> 32 || !sequences[index].open)
      return find(id).error();
    Sequence& sequence = sequences[index];
    if (sequence.batch == batch)
      return Error(Code::kInvalidArgument, Layer::kAllocator, "sequence {} is twice in one append: use extend()",
                   index);
    sequence.batch = batch;
    if (sequence.length >= most_tokens)
      return Error(Code::kInvalidArgument, Layer::kAllocator, "sequence {} has the most tokens that fit: {}", index,
                   sequence.length);
    if (!sequence.plain) crossing.push_back(index);
  }
  if (!crossing.empty()) BERTH_TRY(cross_blocks());
  for (std::size_t i = 0; i < n; ++i) {
    Sequence& sequence = sequences[static_cast<std::uint32_t>(ids[i].bits)];
    const std::uint32_t offset = offset_of(sequence.length);
    tree.tokens(sequence.tail)[offset] = tokens[i];
    ++sequence.length;
    sequence.plain = offset + 1 != block_tokens;
    if (identity) {
      slots[i] = std::int64_t{sequence.tail} * block_tokens + offset;
      continue;
    }
    for (std::uint32_t g = 0; g < group_count; ++g)
      slots[g * n + i] =
          groups[g].kind == GroupKind::kState ? -1 : std::int64_t{page_of(sequence.tail, g)} * block_tokens + offset;
  }
  return {};
}

Result<void> Cache::State::cross_blocks() {
  // The index is random memory: all of it is fetched before the first look.
  for (const std::uint32_t index : crossing) prefetch_publish(sequences[index]);
  // Everything that can be refused comes before the first change that can be seen.
  for (const std::uint32_t index : crossing) commit(sequences[index]);
  Growth all;
  for (const std::uint32_t index : crossing) {
    const Growth own = growth(sequences[index], 1);
    all.blocks += own.blocks;
    for (std::uint32_t g = 0; g < group_count; ++g) {
      all.pages[g] += own.pages[g];
      all.extra[g] += own.extra[g];
    }
  }
  if (all.blocks != 0 && (!feasible(all.extra) || !evict_for(all.pages, all.blocks))) {
    ++count.refused;
    return refusal(all.extra);
  }
  for (const std::uint32_t index : crossing) {
    Sequence& sequence = sequences[index];
    if (auto opened = sequence.plain ? show_range(sequence) : open_tail(sequence); !opened) {
      // Blocks that were opened for the others go back, since they would be empty.
      for (const std::uint32_t other : crossing)
        release_blocks(sequences[other], static_cast<std::size_t>(blocks_of(sequences[other].length)));
      return opened.error();
    }
  }
  return {};
}

Result<void> Cache::State::extend(Sequence& sequence, std::span<const Token> tokens, std::span<std::int64_t> slots) {
  if (slots.size() != tokens.size() * group_count)
    return Error(Code::kSizeMismatch, Layer::kAllocator, "{} tokens in {} groups need {} slots, not {}", tokens.size(),
                 group_count, tokens.size() * group_count, slots.size());
  if (tokens.size() > most_tokens - sequence.length)
    return Error(Code::kInvalidArgument, Layer::kAllocator, "a sequence of {} tokens cannot grow by {}: the most is {}",
                 sequence.length, tokens.size(), most_tokens);
  commit(sequence);
  if (tokens.empty()) return {};  // the tail may be shared or published, and stays so
  const Growth own = growth(sequence, tokens.size());
  if (!feasible(own.extra) || !evict_for(own.pages, own.blocks)) {
    ++count.refused;
    return refusal(own.extra);
  }
  const std::uint32_t before = sequence.length;
  std::size_t done = 0;
  while (done < tokens.size()) {
    if (auto opened = open_tail(sequence); !opened) {
      sequence.length = before;
      release_blocks(sequence, static_cast<std::size_t>(blocks_of(before)));
      commit(sequence);
      return opened.error();
    }
    const std::uint32_t offset = sequence.length % block_tokens;
    const std::size_t some = std::min<std::size_t>(tokens.size() - done, block_tokens - offset);
    std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(done), some, tree.tokens(sequence.tail) + offset);
    sequence.length += static_cast<std::uint32_t>(some);
    done += some;
  }
  // Only now: making room for one of the blocks may have moved pages of those before it.
  for (std::uint32_t g = 0; g < group_count; ++g)
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::size_t at = before + i;
      slots[g * tokens.size() + i] = groups[g].kind == GroupKind::kState
                                         ? -1
                                         : std::int64_t{page_of(sequence.blocks[at / block_tokens], g)} * block_tokens +
                                               static_cast<std::int64_t>(at % block_tokens);
    }
  sequence.plain = sequence.length % block_tokens != 0 && sequence.published == sequence.length / block_tokens &&
                   tree.references(sequence.tail) == 1;
  return {};
}

Result<SequenceId> Cache::State::fork(SequenceId id) {
  BERTH_TRY_ASSIGN(Sequence * source, find(id));
  PerGroup extra{};
  for (std::uint32_t g = 0; g < group_count; ++g) extra[g] = groups[g].kind == GroupKind::kState ? 1 : 0;
  if (has(GroupKind::kState) && (!feasible(extra) || !evict_for(extra, 0))) {
    ++count.refused;
    return refusal(extra);
  }
  const SequenceId forked = add_sequence();
  source = find(id).value();  // adding one may have moved it
  Sequence& target = sequences[static_cast<std::uint32_t>(forked.bits)];
  target.blocks.assign(source->blocks.begin(), source->blocks.end());
  target.length = source->length;
  target.tail = source->tail;
  target.published = source->published;
  target.prompt = source->prompt;
  target.opened = now;
  target.first = source->first;
  target.root = tree.enter_root(tree.salt(source->root));
  for (const Node node : target.blocks) tree.add_reference(node);
  for (std::uint32_t g = 0; g < group_count; ++g)
    if (groups[g].kind == GroupKind::kWindow)
      for (std::size_t i = target.first[g]; i < target.blocks.size(); ++i) pin_window(g, target.blocks[i]);
  source->plain = target.plain = false;
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (groups[g].kind != GroupKind::kState) continue;
    auto page = take_page(g, kSequenceOwner | static_cast<std::uint32_t>(forked.bits));
    Result<void> copied;
    if (page) {
      target.states[g] = *page;
      copied = copy_page(g, source->states[g], *page);
    }
    if (!page || !copied) {
      const Error error = !page ? page.error() : copied.error();
      close(target);
      return error;
    }
  }
  if (auto given = give_range(target); !given) {
    close(target);
    return given.error();
  }
  return forked;
}

Result<void> Cache::State::truncate(Sequence& sequence, std::uint64_t tokens) {
  if (tokens > sequence.length)
    return Error(Code::kInvalidArgument, Layer::kAllocator, "a sequence of {} tokens cannot be truncated to {}",
                 sequence.length, tokens);
  if (tokens == sequence.length) return {};
  if (has(GroupKind::kState))
    return Error(Code::kUnsupported, Layer::kAllocator,
                 "a sequence of {} tokens with a state cannot go back to {}: open it again", sequence.length, tokens);
  const std::size_t keep = static_cast<std::size_t>(blocks_of(tokens));
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (groups[g].kind != GroupKind::kWindow) continue;
    for (std::uint32_t i = window_start(g, tokens); i < std::min<std::size_t>(keep, sequence.first[g]); ++i)
      if (page_of(sequence.blocks[i], g) == kNoPage)
        return Error(Code::kInvalidArgument, Layer::kAllocator,
                     "group {}: pages of the window before token {} have been freed: open the sequence again", g,
                     tokens);
  }
  PerGroup again{};  // pages behind the window that come back into it
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (groups[g].kind != GroupKind::kWindow) continue;
    for (std::uint32_t i = window_start(g, tokens); i < std::min<std::size_t>(keep, sequence.first[g]); ++i)
      again[g] += windows[g].pins[sequence.blocks[i]] == 0 ? 1 : 0;
  }
  if (!feasible(again)) return refusal(again);
  release_blocks(sequence, keep);
  sequence.length = static_cast<std::uint32_t>(tokens);
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (groups[g].kind != GroupKind::kWindow) continue;
    sequence.first[g] = std::min(sequence.first[g], static_cast<std::uint32_t>(keep));
    while (sequence.first[g] > window_start(g, tokens)) pin_window(g, sequence.blocks[--sequence.first[g]]);
  }
  sequence.published = std::min(sequence.published, static_cast<std::uint32_t>(tokens / block_tokens));
  // Blocks that are in the window again may have moved meanwhile.
  if (has(GroupKind::kWindow)) sequence.shown = 0;
  for (std::uint32_t g = 0; g < group_count; ++g) sequence.hidden[g] = std::min(sequence.hidden[g], sequence.first[g]);
  sequence.plain = false;
  return {};
}

Result<void> Cache::State::keep_state(Sequence& sequence) {
  commit(sequence);
  taking_for = sequence.number;
  if (sequence.length == 0 || sequence.length % block_tokens != 0)
    return Error(Code::kInvalidArgument, Layer::kAllocator,
                 "a state is kept at the end of a block of {} tokens, and the sequence has {}", block_tokens,
                 sequence.length);
  if (sequence.published != sequence.length / block_tokens)
    return Error(Code::kInvalidArgument, Layer::kAllocator,
                 "block {} of the sequence is cached twice, and a fork uses this copy of it: close the fork first",
                 sequence.published);
  const Node node = sequence.tail;
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (groups[g].kind != GroupKind::kState || page_of(node, g) != kNoPage) continue;
    PerGroup extra{};
    extra[g] = 1;
    if (!feasible(extra) || !evict_for(extra, 0)) return refusal(extra);
    BERTH_TRY_ASSIGN(const Page page, take_page(g, node));
    if (auto copied = copy_page(g, sequence.states[g], page); !copied) {
      give_page(g, page);
      return copied.error();
    }
    page_ref(node, g) = page;
    leave_behind(g, node);  // evicted last, and without its block
  }
  return {};
}

}  // namespace berth::kv
