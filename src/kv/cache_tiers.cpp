// Blocks on their way to tiers and back.
#include <algorithm>

#include "base/try.h"
#include "kv/cache_state.h"

namespace berth::kv {
using namespace berth::internal;
using namespace berth::internal::kv_cache;

Before Cache::State::before(Node node) const noexcept {
  const Node parent = tree.parent(node);
  if ((parent & kRootBit) != 0) return {tree.salt(parent), true};
  return {serials[parent], false};
}

void Cache::State::find_below(std::span<const Token> tokens, std::uint64_t salt, std::size_t most) {
  Before at{salt, true};
  std::uint32_t hash = BlockTree::hash_of_salt(salt);
  if (!hits.empty()) {
    at = {serials[hits.back()], false};
    hash = tree.hash(hits.back());
  }
  for (std::size_t i = hits.size(); i < most; ++i) {
    const std::span<const Token> block = tokens.subspan(i * block_tokens, block_tokens);
    hash = hash_block(hash, block);
    const auto place = tiers.find(at, hash, block);
    if (!place) return;
    places.push_back(*place);
    at = {tiers.block(*place).serial, false};
  }
}

void Cache::State::put_below(Node node) noexcept {
  Tiers::Block block{.before = before(node), .serial = serials[node], .hash = tree.hash(node), .groups = 0};
  for (std::uint32_t g = 0; g < group_count; ++g)
    if (page_of(node, g) != kNoPage) block.groups |= 1u << g;
  tiers.put(block, {tree.tokens(node), block_tokens}, *queue, [&](std::uint32_t group) {
    mutex.assert_held();
    return page_window(group, page_of(node, group));
  });
}

Result<void> Cache::State::bring_back(Sequence& sequence, Node node, Tiers::Place place, std::span<const Token> tokens,
                                      std::uint64_t cached) {
  const Tiers::Block block = tiers.block(place);
  for (std::uint32_t g = 0; g < group_count; ++g)
    if ((block.groups >> g & 1) != 0) BERTH_TRY(tiers.load(place, g, page_window(g, page_of(node, g)), *queue));
  std::copy_n(tokens.begin(), block_tokens, tree.tokens(node));
  const std::uint32_t at = sequence.published;
  tree.insert(node, at == 0 ? sequence.root : sequence.blocks[at - 1], block.hash);
  serials[node] = block.serial;
  tiers.take(place, true);
  ++sequence.published;
  sequence.length = sequence.published * block_tokens;
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (groups[g].kind != GroupKind::kWindow || at >= window_start(g, cached)) continue;
    // Behind the window of this sequence: its page may have been gone when the block was evicted.
    unpin_window(g, node);
    sequence.first[g] = at + 1;
    if ((block.groups >> g & 1) != 0) {
      drop_behind(g, node);
    } else {
      give_page(g, page_of(node, g));
      page_ref(node, g) = kNoPage;
    }
  }
  return {};
}

void Cache::State::name_block(Node node) noexcept {
  const auto place = tiers.find(before(node), tree.hash(node), {tree.tokens(node), block_tokens});
  serials[node] = place ? tiers.block(*place).serial : tiers.new_serial();
  if (place) tiers.forget(*place);
}

Result<void> Cache::State::check_tiers() const {
  BERTH_TRY(tiers.check());
  for (Node node = 0; node < tree.nodes(); ++node)
    if (tree.in_index(node) && tiers.find(before(node), tree.hash(node), {tree.tokens(node), block_tokens}))
      return Error(Code::kInvalidData, Layer::kAllocator, "block {} is in the pages and in a tier", node);
  return {};
}

}  // namespace berth::kv
