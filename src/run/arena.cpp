#include "berth/run/arena.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/memory/device.h"
#include "berth/tensor/f16.h"
#include "memory/check_alignment.h"
#include "run/shadow_state.h"

namespace berth {

using namespace internal;

namespace {

// The number of floats converted at a time: small enough that they and the result stay in the L1 cache.
constexpr std::size_t kPieceFloats = 8192;
// The number of floats read back at a time for a refresh: large enough that waiting for the device does not dominate.
constexpr std::size_t kRefreshFloats = std::size_t{1} << 18;

constexpr std::size_t kShadowAlignment = 8;

constexpr std::size_t even(std::size_t count) {
  return (count + 1) / 2 * 2;
}

Error no_block(std::size_t block, std::size_t count) {
  return Error(Code::kNotFound, Layer::kArena, "block {} is not in this arena, whose plan has {} blocks", block, count);
}

struct ArenaBlock {
  Buffer memory{};
  Window window{};
  Buffer shadow{};
  Window shadow_window{};
};

Window part(const Window& whole, std::size_t offset, std::size_t bytes) {
  Window window = whole;
  window.offset += offset;
  window.bytes = bytes;
  return window;
}

Result<void> check_queue(const Queue& queue, const Window& window) {
  if (&queue.device() != window.device)
    return Error(Code::kInvalidArgument, Layer::kArena,
                 "the queue belongs to another device than the arena's block of {b}; make one with the arena's device",
                 window.block.bytes);
  return {};
}

// Checks of the plan that need no device.
Result<void> check_slots(const MemoryPlan& plan) {
  for (std::size_t node = 0; node < plan.slots.size(); ++node) {
    const Slot& slot = plan.slots[node];
    if (slot.block == kNoBlock) continue;
    if (slot.block >= plan.blocks.size())
      return Error(Code::kInvalidArgument, Layer::kArena, "node {} is in block {} of a plan with {} blocks", node,
                   slot.block, plan.blocks.size());
    const std::uint64_t size = plan.blocks[slot.block].bytes;
    if (slot.bytes > size || slot.offset > size - slot.bytes)
      return Error(Code::kInvalidArgument, Layer::kArena, "node {} at {} with {} bytes ends outside its block of {}",
                   node, slot.offset, slot.bytes, size);
  }
  return {};
}

Result<void> check_limits(const MemoryPlan& plan, const std::vector<AllocatorPtr>& allocators) {
  for (std::size_t index = 0; index < plan.blocks.size(); ++index) {
    if (allocators[index] == nullptr) continue;
    const DeviceLimits& limits = allocators[index]->device().limits();
    const std::uint64_t bytes = plan.blocks[index].bytes;
    if (limits.max_block_bytes != 0 && bytes > limits.max_block_bytes)
      return Error(
          Code::kInfeasible, Layer::kArena,
          "block {} needs {} bytes, {} more than one allocation of this device; plan with max_block_bytes = {}", index,
          bytes, bytes - limits.max_block_bytes, limits.max_block_bytes);
  }
  for (std::size_t node = 0; node < plan.slots.size(); ++node) {
    const Slot& slot = plan.slots[node];
    if (slot.block == kNoBlock || allocators[slot.block] == nullptr) continue;
    const DeviceLimits& limits = allocators[slot.block]->device().limits();
    if (limits.max_binding_bytes == 0) continue;
    // A binding starts at a multiple of the device's alignment, at or before the slot.
    const std::uint64_t reach = slot.bytes + slot.offset % std::max<std::size_t>(1, limits.binding_alignment);
    if (reach > limits.max_binding_bytes)
      return Error(
          Code::kInfeasible, Layer::kArena,
          "node {} needs a binding of {} bytes, {} more than this device binds; split the node into parts of {}", node,
          reach, reach - limits.max_binding_bytes, limits.max_binding_bytes);
  }
  return {};
}

// The largest padded end of the block's nodes that can have a shadow.
std::size_t shadow_bytes(const MemoryPlan& plan, std::size_t block) {
  std::size_t end = 0;
  for (const Slot& slot : plan.slots)
    if (slot.block == block && slot.offset % kShadowAlignment == 0)
      end = std::max<std::size_t>(end, slot.offset / 2 + even(slot.bytes / sizeof(float)) * sizeof(F16));
  return end;
}

}  // namespace

struct Arena::State {
  std::vector<Slot> slots;
  std::vector<std::size_t> lengths;
  std::vector<ArenaBlock> blocks;  // as the plan's; those of other lanes are empty
  std::size_t size = 0;
  std::size_t shadow_size = 0;
  bool shadowed = false;
  Mutex mutex;
  std::vector<ShadowState> shadows BERTH_GUARDED_BY(mutex);  // of each block

  explicit State(std::size_t count) : blocks(count), shadows(count) {}

  // Bytes of a block were changed other than by write_f32.
  void note_written(std::uint32_t block, std::size_t offset, std::size_t bytes) {
    if (!shadowed) return;
    const MutexLock lock(mutex);
    shadows[block].set_stale({offset, offset + bytes});
  }

  void note_mirrored(std::uint32_t block, std::size_t offset, std::size_t bytes) {
    const MutexLock lock(mutex);
    shadows[block].set_fresh({offset, offset + bytes});
  }

  bool is_mirrored(std::uint32_t block, std::size_t offset, std::size_t bytes) {
    const MutexLock lock(mutex);
    return shadows[block].is_fresh({offset, offset + bytes});
  }

  void note_handed_out(std::uint32_t block, std::size_t offset, std::size_t bytes, Access access) {
    if (!shadowed || access == Access::kRead) return;
    const MutexLock lock(mutex);
    shadows[block].expose({offset, offset + bytes});
  }
};

Arena::Arena(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Arena::Arena(Arena&&) noexcept = default;
Arena& Arena::operator=(Arena&&) noexcept = default;
Arena::~Arena() = default;

// A moved-from arena has the state of a plan without nodes, so that every lookup fails and nothing is null.
Arena::State& Arena::state() const noexcept {
  // Never destroyed: an arena with static lifetime may ask at exit.
  static State* const nothing = new State(0);  // NOLINT(bugprone-unhandled-exception-at-new): once, of a few bytes
  return state_ == nullptr ? *nothing : *state_;
}

Result<Arena> Arena::from_plan(AllocatorPtr allocator, const MemoryPlan& plan, const ArenaOptions& options) {
  if (allocator == nullptr) return Error(Code::kInvalidArgument, Layer::kArena, "an arena needs an allocator");
  BERTH_TRY(check_alignment(options.alignment, Layer::kArena));
  BERTH_TRY(check_slots(plan));

  // One allocator per block; null for blocks of other lanes.
  std::vector<AllocatorPtr> allocators(plan.blocks.size());
  bool any = plan.blocks.empty() && !options.lane;
  for (std::size_t index = 0; index < plan.blocks.size(); ++index) {
    const PlanBlock& block = plan.blocks[index];
    if (options.lane && block.lane != *options.lane) continue;
    any = true;
    const bool banked = block.bank < options.banks.size() && options.banks[block.bank] != nullptr;
    allocators[index] = banked ? options.banks[block.bank] : allocator;
  }
  if (!any)
    return Error(Code::kNotFound, Layer::kArena, "lane {} has no block in a plan of {} blocks",
                 options.lane.value_or(0), plan.blocks.size());
  BERTH_TRY(check_limits(plan, allocators));

  auto state = std::make_unique<State>(plan.blocks.size());
  state->slots = plan.slots;
  for (const Slot& slot : plan.slots) state->lengths.push_back(slot.bytes);
  BufferOptions memory{.label = options.label,
                       .tag = options.tag,
                       .alignment = options.alignment,
                       .usage = options.usage,
                       .host = options.host,
                       .zero = options.zero};
  for (std::size_t index = 0; index < allocators.size(); ++index) {
    if (allocators[index] == nullptr) continue;
    ArenaBlock& block = state->blocks[index];
    const DeviceLimits& limits = allocators[index]->device().limits();
    memory.alignment = std::max(options.alignment, limits.binding_alignment);
    BERTH_TRY_ASSIGN(block.memory, Buffer::allocate(allocators[index], u8, {plan.blocks[index].bytes}, memory));
    BERTH_TRY_ASSIGN(block.window, block.memory.window());
    state->size += block.memory.size();
    const bool wanted =
        options.f16_shadow == Shadow::kOn || (options.f16_shadow == Shadow::kAuto && limits.f16_kernels);
    if (!wanted) continue;
    state->shadowed = true;
    const std::size_t bytes = shadow_bytes(plan, index);
    if (bytes == 0) continue;
    BERTH_TRY_ASSIGN(block.shadow, Buffer::allocate(allocators[index], f16, {bytes / sizeof(F16)}, memory));
    BERTH_TRY_ASSIGN(block.shadow_window, block.shadow.window());
    state->shadow_size += bytes;
  }
  return Arena(std::move(state));
}

bool Arena::has(NodeId node) const noexcept {
  if (node >= state().slots.size()) return false;
  const std::uint32_t block = state().slots[node].block;
  return block != kNoBlock && state().blocks[block].memory.id() != 0;
}

Result<const Slot*> Arena::find(NodeId node) const {
  if (has(node)) return &state().slots[node];
  if (node >= state().slots.size())
    return Error(Code::kNotFound, Layer::kArena, "node {} is not in the plan, which has {} nodes", node,
                 state().slots.size());
  if (state().slots[node].block == kNoBlock)
    return Error(Code::kNotFound, Layer::kArena, "node {} has no bytes and so no slot; ask has() first", node);
  return Error(Code::kNotFound, Layer::kArena, "node {} is in block {}, which belongs to another lane's arena", node,
               state().slots[node].block);
}

Result<std::size_t> Arena::offset(NodeId node) const {
  BERTH_TRY_ASSIGN(const Slot* slot, find(node));
  return slot->offset;
}

Result<std::size_t> Arena::len_of(NodeId node) const {
  BERTH_TRY(find(node));
  return state().lengths[node];
}

Result<std::size_t> Arena::slot_len(NodeId node) const {
  BERTH_TRY_ASSIGN(const Slot* slot, find(node));
  return slot->bytes;
}

Result<std::uint32_t> Arena::block_of(NodeId node) const {
  BERTH_TRY_ASSIGN(const Slot* slot, find(node));
  return slot->block;
}

Result<void> Arena::set_actual_len(NodeId node, std::size_t bytes) {
  BERTH_TRY_ASSIGN(const Slot* slot, find(node));
  if (bytes > slot->bytes)
    return Error(Code::kSizeMismatch, Layer::kArena, "an actual length of {} bytes for node {}, whose slot has {}",
                 bytes, node, slot->bytes);
  state().lengths[node] = bytes;
  return {};
}

std::span<const Slot> Arena::slots() const noexcept {
  return state().slots;
}
std::size_t Arena::block_count() const noexcept {
  return state().blocks.size();
}
std::size_t Arena::total_size() const noexcept {
  return state().size;
}
std::size_t Arena::shadow_size() const noexcept {
  return state().shadow_size;
}
bool Arena::has_shadow() const noexcept {
  return state().shadowed;
}

Result<Buffer> Arena::buffer(NodeId node, Access access) const {
  BERTH_TRY_ASSIGN(const Slot* slot, find(node));
  const std::size_t bytes = state().lengths[node];
  const bool floats = bytes % sizeof(float) == 0 && slot->offset % sizeof(float) == 0;
  auto view = floats ? state().blocks[slot->block].memory.view(slot->offset, f32, {bytes / sizeof(float)})
                     : state().blocks[slot->block].memory.view(slot->offset, u8, {bytes});
  if (view) state().note_handed_out(slot->block, slot->offset, bytes, access);
  return view;
}

Result<Buffer> Arena::whole(std::size_t block, Access access) const {
  if (block >= state().blocks.size() || state().blocks[block].memory.id() == 0)
    return no_block(block, state().blocks.size());
  const Buffer& memory = state().blocks[block].memory;
  state().note_handed_out(static_cast<std::uint32_t>(block), 0, memory.size(), access);
  return memory;
}

Result<void> Arena::mark_written(NodeId node) const {
  BERTH_TRY_ASSIGN(const Slot* slot, find(node));
  state().note_written(slot->block, slot->offset, slot->bytes);
  return {};
}

Result<void> Arena::write_f32(Queue& queue, NodeId node, std::span<const float> data) const {
  BERTH_TRY_ASSIGN(const Slot* slot, find(node));
  if (data.size() > slot->bytes / sizeof(float))
    return Error(Code::kSizeMismatch, Layer::kArena, "{} floats ({} bytes) to write into node {}, whose slot has {}",
                 data.size(), data.size_bytes(), node, slot->bytes);
  ArenaBlock& block = state().blocks[slot->block];
  BERTH_TRY(check_queue(queue, block.window));
  if (data.empty()) return {};
  // Marked stale first and fresh last: a failure in between leaves no false claim.
  state().note_written(slot->block, slot->offset, data.size_bytes());
  BERTH_TRY(queue.write(part(block.window, slot->offset, data.size_bytes()), std::as_bytes(data)));
  if (!state().shadowed || slot->offset % kShadowAlignment != 0) return {};
  for (std::size_t first = 0; first < data.size(); first += kPieceFloats)
    BERTH_TRY(write_shadow(queue, *slot, data.subspan(first, std::min(kPieceFloats, data.size() - first)), first));
  state().note_mirrored(slot->block, slot->offset, data.size_bytes());
  return {};
}

// Converts `data`, the floats of the node from index `first` on, which is even.
Result<void> Arena::write_shadow(Queue& queue, const Slot& slot, std::span<const float> data, std::size_t first) const {
  std::array<F16, kPieceFloats> halves;
  to_f16(data, std::span(halves).first(data.size()));
  if (data.size() % 2 == 1) halves[data.size()] = F16{0};
  const std::span<const F16> padded = std::span(halves).first(even(data.size()));
  const Window& window = state().blocks[slot.block].shadow_window;
  return queue.write(part(window, slot.offset / 2 + first * sizeof(F16), padded.size_bytes()), std::as_bytes(padded));
}

Result<std::vector<float>> Arena::read_f32(Queue& queue, NodeId node) const {
  BERTH_TRY(find(node));
  std::vector<float> floats(state().lengths[node] / sizeof(float));
  BERTH_TRY(read_f32(queue, node, floats));
  return floats;
}

Result<void> Arena::read_f32(Queue& queue, NodeId node, std::span<float> target) const {
  BERTH_TRY(find(node));
  if (target.size() != state().lengths[node] / sizeof(float))
    return Error(Code::kSizeMismatch, Layer::kArena, "room for {} floats, and node {} has {}", target.size(), node,
                 state().lengths[node] / sizeof(float));
  return read_bytes(queue, node, 0, std::as_writable_bytes(target));
}

Result<void> Arena::write_bytes(Queue& queue, NodeId node, std::size_t offset, std::span<const std::byte> data) const {
  BERTH_TRY_ASSIGN(const Slot* slot, find(node));
  if (data.size() > slot->bytes || offset > slot->bytes - data.size())
    return Error(Code::kInvalidView, Layer::kArena, "{} bytes at {} of node {} are outside its slot of {} bytes",
                 data.size(), offset, node, slot->bytes);
  return write_bytes_range(queue, slot->offset + offset, data, slot->block);
}

Result<void> Arena::read_bytes(Queue& queue, NodeId node, std::size_t offset, std::span<std::byte> target) const {
  BERTH_TRY_ASSIGN(const Slot* slot, find(node));
  if (target.size() > slot->bytes || offset > slot->bytes - target.size())
    return Error(Code::kInvalidView, Layer::kArena, "{} bytes at {} of node {} are outside its slot of {} bytes",
                 target.size(), offset, node, slot->bytes);
  const Window& window = state().blocks[slot->block].window;
  BERTH_TRY(check_queue(queue, window));
  BERTH_TRY(queue.read(part(window, slot->offset + offset, target.size()), target));
  return queue.finish();
}

Result<void> Arena::write_bytes_range(Queue& queue, std::size_t offset, std::span<const std::byte> data,
                                      std::size_t block) const {
  if (block >= state().blocks.size() || state().blocks[block].memory.id() == 0)
    return no_block(block, state().blocks.size());
  const Buffer& memory = state().blocks[block].memory;
  if (data.size() > memory.size() || offset > memory.size() - data.size())
    return Error(Code::kInvalidView, Layer::kArena, "{} bytes at {} are outside block {} of {} bytes", data.size(),
                 offset, block, memory.size());
  const Window& window = state().blocks[block].window;
  BERTH_TRY(check_queue(queue, window));
  state().note_written(static_cast<std::uint32_t>(block), offset, data.size());
  return queue.write(part(window, offset, data.size()), data);
}

Result<std::vector<std::byte>> Arena::read_bytes_range(Queue& queue, std::size_t offset, std::size_t bytes,
                                                       std::size_t block) const {
  if (block >= state().blocks.size() || state().blocks[block].memory.id() == 0)
    return no_block(block, state().blocks.size());
  const Buffer& memory = state().blocks[block].memory;
  if (bytes > memory.size() || offset > memory.size() - bytes)
    return Error(Code::kInvalidView, Layer::kArena, "{} bytes at {} are outside block {} of {} bytes", bytes, offset,
                 block, memory.size());
  const Window& window = state().blocks[block].window;
  BERTH_TRY(check_queue(queue, window));
  std::vector<std::byte> target(bytes);
  BERTH_TRY(queue.read(part(window, offset, bytes), target));
  BERTH_TRY(queue.finish());
  return target;
}

Result<bool> Arena::shadow_is_fresh(NodeId node) const {
  BERTH_TRY_ASSIGN(const Slot* slot, find(node));
  if (!state().shadowed)
    return Error(Code::kUnsupported, Layer::kArena,
                 "this arena of {b} has no f16 shadow: the device's kernels read no f16; ask with Shadow::kOn",
                 state().size);
  if (slot->offset % kShadowAlignment != 0)
    return Error(Code::kMisaligned, Layer::kArena,
                 "node {} is at offset {}, which is not a multiple of {}, and has no f16 shadow; plan with alignment = "
                 "8 or more",
                 node, slot->offset, kShadowAlignment);
  const std::size_t bytes = state().lengths[node] / sizeof(float) * sizeof(float);
  return bytes == 0 || state().is_mirrored(slot->block, slot->offset, bytes);
}

Result<Buffer> Arena::shadow(Queue& queue, NodeId node) const {
  BERTH_TRY_ASSIGN(const bool fresh, shadow_is_fresh(node));
  const Slot& slot = state().slots[node];
  const ArenaBlock& block = state().blocks[slot.block];
  BERTH_TRY(check_queue(queue, block.window));
  const std::size_t elements = state().lengths[node] / sizeof(float);
  if (!fresh) BERTH_TRY(refresh_shadow(queue, node, elements));
  if (elements == 0) return block.memory.view(slot.offset, f16, {0});
  return block.shadow.view(slot.offset / 2, f16, {even(elements)});
}

Result<void> Arena::refresh_shadow(Queue& queue, NodeId node, std::size_t elements) const {
  const Slot& slot = state().slots[node];
  // This overwrites the shadow of every node that shares bytes with this one.
  state().note_written(slot.block, slot.offset, elements * sizeof(float));
  std::vector<float> floats(std::min(elements, kRefreshFloats));
  for (std::size_t first = 0; first < elements; first += floats.size()) {
    const std::span<float> piece = std::span(floats).first(std::min(floats.size(), elements - first));
    BERTH_TRY(read_bytes(queue, node, first * sizeof(float), std::as_writable_bytes(piece)));
    for (std::size_t at = 0; at < piece.size(); at += kPieceFloats)
      BERTH_TRY(write_shadow(queue, slot, piece.subspan(at, std::min(kPieceFloats, piece.size() - at)), first + at));
  }
  state().note_mirrored(slot.block, slot.offset, elements * sizeof(float));
  return {};
}

Result<Buffer> Arena::shadow_whole(std::size_t block) const {
  if (!state().shadowed)
    return Error(Code::kUnsupported, Layer::kArena,
                 "this arena of {b} has no f16 shadow: the device's kernels read no f16; ask with Shadow::kOn",
                 state().size);
  if (block >= state().blocks.size() || state().blocks[block].memory.id() == 0)
    return no_block(block, state().blocks.size());
  return state().blocks[block].shadow;
}

}  // namespace berth
