#include "berth/kv/cache.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <string>

#include "base/try.h"
#include "berth/plan/memory_map.h"
#include "kv/cache_state.h"
#include "kv/host_room.h"

namespace berth::kv {
using namespace berth::internal;
using namespace berth::internal::kv_cache;
namespace {

Result<std::vector<std::size_t>> page_sizes(const CacheOptions& options) {
  if (options.groups.empty() || options.groups.size() > kMostGroups)
    return Error(Code::kInvalidArgument, Layer::kAllocator, "a cache has 1 to {} groups, not {}", kMostGroups,
                 options.groups.size());
  if (options.block_tokens == 0 || options.block_tokens > 4096)
    return Error(Code::kInvalidArgument, Layer::kAllocator, "a block has 1 to 4096 tokens, not {}",
                 options.block_tokens);
  std::vector<std::size_t> sizes;
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    const Group& group = options.groups[g];
    const bool state = group.kind == GroupKind::kState;
    const std::size_t bytes = state ? group.state_bytes : group.bytes_per_token;
    if (bytes == 0)
      return Error(Code::kInvalidArgument, Layer::kAllocator,
                   "group {} has no size: give bytes_per_token, or state_bytes for a state", g);
    if (!state && bytes > std::numeric_limits<std::size_t>::max() / options.block_tokens)
      return Error(Code::kInvalidArgument, Layer::kAllocator, "group {}: {} tokens of {} bytes overflow", g,
                   options.block_tokens, bytes);
    if (group.kind == GroupKind::kWindow && group.window == 0)
      return Error(Code::kInvalidArgument, Layer::kAllocator, "group {} has a window of 0 tokens", g);
    sizes.push_back(state ? bytes : bytes * options.block_tokens);
  }
  return sizes;
}

// Blocks that the tree can hold. Each has a page in every group of kind kFull; without such a group a block can outlive
// its pages, and the tree may be larger than the pool.
std::uint32_t node_count(const std::vector<Group>& groups, const PagePool& pool, bool reserves_first) {
  std::uint64_t full = ~std::uint64_t{0}, other = 0;
  for (std::uint32_t g = 0; g < pool.groups(); ++g) {
    if (groups[g].kind == GroupKind::kFull)
      full = std::min(full, pool.capacity(g));
    else
      other = std::max(other, pool.capacity(g) * (groups[g].kind == GroupKind::kState ? 64 : 4));
  }
  if (full == ~std::uint64_t{0}) full = std::max<std::uint64_t>(other, 4096);
  // With one group, nodes have the numbers of pages.
  const std::uint64_t nodes = full + (pool.groups() == 1 && reserves_first ? 1 : 0);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(nodes, 0x3fff'ffff));
}

// What the contiguous way asks of the options. Rounds the alignment up to pages of the system.
Result<std::unique_ptr<AddressSpace>> prepare_contiguous(Allocator& allocator, CacheOptions& options) {
  if (&allocator != static_cast<Allocator*>(&allocator.device()))
    return Error::with_text(Code::kUnsupported, Layer::kAllocator,
                            "contiguous addresses are mapped by the device itself: make the cache with the device "
                            "instead of an allocator on it");
  if (options.contiguous_tokens > kMostTokens)
    return Error(Code::kInvalidArgument, Layer::kAllocator, "{} contiguous tokens are more than {}",
                 options.contiguous_tokens, kMostTokens);
  BERTH_TRY_ASSIGN(std::unique_ptr<AddressSpace> space, allocator.device().make_address_space());
  const std::size_t page = space->granularity();
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    const Group& group = options.groups[g];
    if (group.kind == GroupKind::kState || group.bytes_per_token * options.block_tokens % page == 0) continue;
    return Error(Code::kInvalidArgument, Layer::kAllocator,
                 "group {}: a block must fill pages of {} bytes for contiguous addresses, and {} bytes for each token "
                 "do so with a multiple of {} tokens a block",
                 g, page, group.bytes_per_token, page / std::gcd(page, group.bytes_per_token));
  }
  options.alignment = std::max(options.alignment, page);
  return space;
}

}  // namespace

Cache::State::State(AllocatorPtr from, CacheOptions&& given)
    : allocator(std::move(from)),
      groups(std::move(given.groups)),
      group_count(static_cast<std::uint32_t>(groups.size())),
      block_tokens(given.block_tokens),
      block_mask(std::has_single_bit(given.block_tokens) ? given.block_tokens - 1 : 0),
      identity(groups.size() == 1 && groups[0].kind == GroupKind::kFull),
      most_tokens(given.contiguous_tokens == 0 ? kMostTokens : given.contiguous_tokens),
      options{.groups = {},
              .block_tokens = given.block_tokens,
              .budget = given.budget,
              .alignment = given.alignment,
              .reserve_first_page = given.reserve_first_page,
              .eviction = {},
              .tiers = std::move(given.tiers),
              .contiguous_tokens = given.contiguous_tokens,
              .timeline_uses = given.timeline_uses,
              .record_to = std::move(given.record_to),
              .queue = {},
              .label = given.label},
      policy(given.eviction ? std::move(given.eviction) : make_return_eviction()),
      queue(std::move(given.queue)) {}

Result<void> Cache::State::prepare(std::unique_ptr<AddressSpace> space) {
  const MutexLock lock(mutex);
  const std::uint32_t nodes = node_count(groups, pool, options.reserve_first_page);
  // Of the tree and, with several groups, of their pages.
  const std::size_t each = 32 + block_tokens * sizeof(Token) + (identity ? 0 : group_count * 3 * sizeof(Page));
  BERTH_TRY(check_host_room(nodes * each, nodes));
  BERTH_TRY(tree.reserve(nodes, block_tokens, *policy));
  windows.resize(group_count);
  owners.resize(group_count);
  if (!identity) {
    pages.assign(std::size_t{nodes} * group_count, kNoPage);
    free_nodes.resize(nodes);
    for (Node node = 0; node < nodes; ++node) free_nodes[node] = nodes - 1 - node;
    for (std::uint32_t g = 0; g < group_count; ++g) {
      if (group_count > 1) owners[g].resize(pool.bytes() / pool.page_bytes(g));
      if (group_count == 1) owners[g].resize(static_cast<std::size_t>(pool.capacity(g)) + 1);
      if (groups[g].kind == GroupKind::kFull) continue;
      windows[g].older.resize(nodes);
      windows[g].newer.resize(nodes);
      for (Node node = 0; node < nodes; ++node) windows[g].newer[node] = node;
      if (groups[g].kind == GroupKind::kWindow) windows[g].pins.resize(nodes);
    }
  }
  if (!queue) {
    BERTH_TRY_ASSIGN(queue, allocator->device().make_queue());
  }
  if (space) {
    BERTH_TRY(prepare_ranges(std::move(space)));
  } else {
    BERTH_TRY_ASSIGN(
        buffer, Buffer::allocate(allocator, DType::kU8, {pool.bytes()},
                                 {.label = options.label, .alignment = std::max<std::size_t>(64, options.alignment)}));
    BERTH_TRY_ASSIGN(memory, buffer.window());
  }
  if (options.timeline_uses != 0) timeline = std::make_unique<Timeline>(options.timeline_uses, pool);
  if (!options.record_to.empty()) {
    BERTH_TRY_ASSIGN(log, CallLog::make(options.record_to));
  }
  if (options.tiers.empty()) return {};
  if (has(GroupKind::kState))
    return Error::with_text(
        Code::kUnsupported, Layer::kAllocator,
        "a cache with a group of states has no tiers: every slot of a tier would have to hold a state, which is as "
        "large as many blocks, and few blocks have one");
  std::vector<std::size_t> sizes;
  for (std::uint32_t g = 0; g < group_count; ++g) sizes.push_back(pool.page_bytes(g));
  BERTH_TRY(tiers.prepare(options.tiers, sizes, block_tokens, *queue));
  serials.resize(nodes);
  return {};
}

Result<std::unique_ptr<Cache>> Cache::make(AllocatorPtr allocator, CacheOptions options) {
  BERTH_TRY_ASSIGN(const std::vector<std::size_t> sizes, page_sizes(options));
  std::unique_ptr<AddressSpace> space;
  if (options.contiguous_tokens != 0) {
    BERTH_TRY_ASSIGN(space, prepare_contiguous(*allocator, options));
  }
  BERTH_TRY_ASSIGN(PagePool pool,
                   PagePool::make(sizes, options.budget,
                                  {.alignment = options.alignment, .reserve_first = options.reserve_first_page}));
  if (pool.groups() > 1 && pool.larges() < pool.groups())
    return Error(Code::kOutOfMemory, Layer::kAllocator,
                 "a budget of {b} is less than one large page of {b} for each of {} groups", options.budget,
                 pool.large_bytes(), pool.groups());
  auto state = std::make_unique<State>(std::move(allocator), std::move(options));
  {
    const MutexLock lock(state->mutex);
    state->pool = std::move(pool);
  }
  BERTH_TRY(state->prepare(std::move(space)));
  return std::unique_ptr<Cache>(new Cache(std::move(state)));
}

Cache::Cache(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Cache::~Cache() {
  // Copies of pages may be recorded or in flight. If the device is lost, so are they.
  if (state_ && state_->queue) static_cast<void>(state_->queue->finish());
}

Result<Opened> Cache::open(std::span<const Token> tokens, const OpenOptions& options) {
  const MutexLock lock(state_->mutex);
  state_->tick();
  auto opened = state_->open(tokens, options);
  state_->show_moved();
  // What was refused for its memory may fit another cache.
  if (state_->log && (opened || opened.error().code() == Code::kOutOfMemory))
    state_->log->open(state_->now, tokens, options, opened ? &opened->id : nullptr);
  return opened;
}

Result<void> Cache::append(std::span<const SequenceId> sequences, std::span<const Token> tokens,
                           std::span<std::int64_t> slots) {
  const MutexLock lock(state_->mutex);
  state_->tick();
  auto done = state_->append(sequences, tokens, slots);
  state_->show_moved();
  if (state_->log && done) state_->log->append(sequences, tokens);
  return done;
}

Result<void> Cache::extend(SequenceId sequence, std::span<const Token> tokens, std::span<std::int64_t> slots) {
  const MutexLock lock(state_->mutex);
  BERTH_TRY_ASSIGN(State::Sequence * found, state_->find(sequence));
  state_->tick();
  auto done = state_->extend(*found, tokens, slots);
  state_->show_moved();
  if (state_->log && done) state_->log->extend(sequence, tokens);
  return done;
}

Result<void> Cache::commit(SequenceId sequence) {
  const MutexLock lock(state_->mutex);
  BERTH_TRY_ASSIGN(State::Sequence * found, state_->find(sequence));
  state_->tick();
  state_->commit(*found);
  static_cast<void>(state_->show_range(*found));  // tried again when the addresses are asked for
  if (state_->log) state_->log->call(RecordedCall::Kind::kCommit, sequence);
  return {};
}

Result<SequenceId> Cache::fork(SequenceId sequence) {
  const MutexLock lock(state_->mutex);
  state_->tick();
  auto forked = state_->fork(sequence);
  state_->show_moved();
  if (state_->log && forked) state_->log->fork(sequence, *forked);
  return forked;
}

Result<void> Cache::truncate(SequenceId sequence, std::uint64_t tokens) {
  const MutexLock lock(state_->mutex);
  BERTH_TRY_ASSIGN(State::Sequence * found, state_->find(sequence));
  state_->tick();
  auto done = state_->truncate(*found, tokens);
  if (state_->log && done) state_->log->truncate(sequence, tokens);
  return done;
}

Result<void> Cache::keep_state(SequenceId sequence) {
  const MutexLock lock(state_->mutex);
  BERTH_TRY_ASSIGN(State::Sequence * found, state_->find(sequence));
  state_->tick();
  auto done = state_->keep_state(*found);
  state_->show_moved();
  if (state_->log && done) state_->log->call(RecordedCall::Kind::kKeepState, sequence);
  return done;
}

Result<void> Cache::close(SequenceId sequence, std::optional<std::uint64_t> now) {
  const MutexLock lock(state_->mutex);
  BERTH_TRY_ASSIGN(State::Sequence * found, state_->find(sequence));
  state_->set_now(now);
  state_->policy->visited({.opened = found->opened,
                           .closed = state_->now,
                           .prompt_tokens = found->prompt,
                           .tokens = found->length,
                           .path = std::span<const Node>(found->blocks).first(found->published)},
                          state_->tree);
  state_->tick();
  state_->close(*found);
  if (state_->log) state_->log->close(state_->now, sequence);
  return {};
}

Result<void> Cache::flush_recording() {
  const MutexLock lock(state_->mutex);
  return state_->log ? state_->log->flush() : Result<void>();
}

Admission Cache::can_admit(std::span<const Token> tokens, const OpenOptions& options) const {
  const MutexLock lock(state_->mutex);
  return state_->can_admit(tokens, options);
}

void Cache::drop_cached() noexcept {
  const MutexLock lock(state_->mutex);
  state_->tick();
  while (state_->evict_loose(GroupKind::kWindow) || state_->evict_loose(GroupKind::kState) ||
         state_->evict_block(false)) {
  }
  state_->tiers.clear();
}

const Buffer& Cache::buffer() const noexcept {
  return state_->buffer;
}

Result<Buffer> Cache::pages(std::uint32_t group) const {
  const MutexLock lock(state_->mutex);
  BERTH_TRY(state_->check_group(group));
  const std::size_t bytes = state_->pool.page_bytes(group);
  return state_->buffer.view(0, DType::kU8, {state_->pool.bytes() / bytes, bytes});
}

std::size_t Cache::page_bytes(std::uint32_t group) const noexcept {
  const MutexLock lock(state_->mutex);
  return group < state_->group_count ? state_->pool.page_bytes(group) : 0;
}

std::uint32_t Cache::block_tokens() const noexcept {
  return state_->block_tokens;
}

Queue& Cache::queue() const noexcept {
  return *state_->queue;
}

Result<std::uint64_t> Cache::length(SequenceId sequence) const {
  const MutexLock lock(state_->mutex);
  BERTH_TRY_ASSIGN(const State::Sequence* found, state_->find(sequence));
  return found->length;
}

MapPanel Cache::timeline() const {
  const MutexLock lock(state_->mutex);
  if (!state_->timeline) return {};
  std::vector<std::string> names;
  for (std::uint32_t g = 0; g < state_->group_count; ++g) {
    const std::string_view name = state_->groups[g].name.text();
    names.push_back(name.empty() ? "group " + std::to_string(g) : std::string(name));
  }
  return state_->timeline->panel(state_->pool, names);
}

Result<void> Cache::check() const {
  const MutexLock lock(state_->mutex);
  return state_->check();
}

}  // namespace berth::kv
