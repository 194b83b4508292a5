// The memory of a MemoryPlan: one buffer per block of the plan, and a slot in it per node. An Arena works on any
// device, because every transfer goes through a Queue. It is move-only; its memory is freed when the arena and all its
// views are destroyed. Const functions may be called from several threads at once; the schedule or the caller must
// ensure that two threads do not use the same bytes at once. set_actual_len must not run concurrently with any other
// call.
//
//   plan      slots[0] = {offset 0, bytes 4096}, slots[1] = {offset 4096, bytes 8192}
//   whole()   |.. node 0 ..|........ node 1 ........|         f32, or any bytes
//   shadow    |node 0|.. node 1 ..|                           f16, each at half the byte offset
//
// The f16 shadow. On devices whose kernels can read f16, a second buffer per block holds a copy of what write_f32
// wrote, converted to f16, at half the byte offset. Conversion rounds to nearest even; values that are too large become
// infinity; NaN stays NaN; an odd count is padded with one zero. The arena tracks for each node whether its shadow is
// current: any other write to bytes of the node, also through another node that shares them, makes it stale, and
// shadow() then converts again. A buffer() or whole() obtained for writing can be written at any time, so the nodes it
// covers are converted at each shadow(). Stale data is never returned silently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "berth/base/name.h"
#include "berth/base/result.h"
#include "berth/memory/allocator.h"
#include "berth/memory/kernel.h"
#include "berth/memory/queue.h"
#include "berth/plan/plan.h"
#include "berth/tensor/buffer.h"

namespace berth {

// The index of a node in the plan: of its lifetime and of its slot.
using NodeId = std::uint32_t;

enum class Shadow : std::uint8_t {
  kAuto,  // on devices whose kernels can read f16
  kOn,
  kOff,
};

struct ArenaOptions {
  Shadow f16_shadow = Shadow::kAuto;

  // Only the blocks of this lane, for one arena per lane. Nodes of other lanes are not in the arena. Absent: all lanes.
  std::optional<std::uint32_t> lane = std::nullopt;

  // The allocator for blocks of bank i. If it is missing or null, they come from the allocator passed to from_plan.
  std::vector<AllocatorPtr> banks = {};

  // Minimum alignment of each block, a power of two; raised to the binding alignment of the device. Slots are at the
  // offsets of the plan within it.
  std::size_t alignment = 64;

  HostAccess host = HostAccess::kPreferred;
  Usage usage = Usage::kDefault;
  bool zero = false;  // otherwise the contents of new memory are undefined
  Name label = "arena";
  Name tag = {};
};

class Arena {
 public:
  // Allocates the blocks of the plan, and their shadows. First checks the plan, in O(nodes); if the check fails,
  // nothing is allocated:
  //   kInvalidArgument  no allocator, an alignment that is not a power of two, or a slot outside its block
  //   kNotFound         the plan has no block in the requested lane
  //   kInfeasible       a block larger than the device allocates, or a node larger than it binds; the message says by
  //                    how much and what to do. A plan made with PlanProblem::max_block_bytes is already split.
  //   kOutOfMemory      from the allocator; blocks allocated before are freed
  static Result<Arena> from_plan(AllocatorPtr allocator, const MemoryPlan& plan, const ArenaOptions& options = {});

  // A moved-from arena has no nodes, no blocks and size 0.
  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) noexcept;
  ~Arena();

  // --- The plan ---
  // False for an unknown node, a node of zero bytes, and a node of another lane. All functions below that take a node
  // fail with kNotFound for these.
  bool has(NodeId node) const noexcept;
  // Bytes from the start of the node's block.
  Result<std::size_t> offset(NodeId node) const;
  // Bytes of data: the size of the slot, unless set_actual_len has set fewer.
  Result<std::size_t> len_of(NodeId node) const;
  // The size of the slot in the plan.
  Result<std::size_t> slot_len(NodeId node) const;
  // Sets how many bytes of the slot are data. kSizeMismatch if they exceed the slot.
  Result<void> set_actual_len(NodeId node, std::size_t bytes);
  // The block that holds the node: an index for whole().
  Result<std::uint32_t> block_of(NodeId node) const;
  // One per node of the plan, in order.
  std::span<const Slot> slots() const noexcept;
  std::size_t node_count() const noexcept { return slots().size(); }
  std::size_t block_count() const noexcept;
  // Total bytes of the blocks, without the shadow.
  std::size_t total_size() const noexcept;
  // Bytes of the shadow; 0 without one.
  std::size_t shadow_size() const noexcept;

  // --- Buffers ---
  // The len_of() bytes of the node as a view with its own id: f32 if they are whole floats, otherwise u8. Use
  // Buffer::view(0, dtype, shape) to reinterpret it. Pass kRead if nothing will be written through it; otherwise the
  // shadow of the node is converted at each shadow() from now on.
  Result<Buffer> buffer(NodeId node, Access access = Access::kReadWrite) const;
  // A whole block as bytes. kNotFound for an unknown index or a block of another lane. `access` as for buffer().
  Result<Buffer> whole(std::size_t block = 0, Access access = Access::kReadWrite) const;
  // Declares that the bytes of the node were written in a way that the arena cannot observe, such as by a kernel that
  // was given a kRead view.
  Result<void> mark_written(NodeId node) const;

  // --- Transfers. kInvalidArgument for a queue of another device; otherwise fail like Queue::write and Queue::read.
  // ---
  // Work recorded on the queue after this call reads the new values. kSizeMismatch if they exceed the slot; nothing is
  // written then. Fewer values are allowed; the rest of the slot keeps its contents.
  Result<void> write_f32(Queue& queue, NodeId node, std::span<const float> data) const;
  // Reads the data of the node as floats. Submits the queue and waits.
  Result<std::vector<float>> read_f32(Queue& queue, NodeId node) const;
  // The same into memory of the caller. kSizeMismatch unless it holds exactly the floats of the node.
  Result<void> read_f32(Queue& queue, NodeId node, std::span<float> target) const;
  // Bytes [offset, offset + size) of the node's slot. kInvalidView outside the slot; nothing is written then.
  Result<void> write_bytes(Queue& queue, NodeId node, std::size_t offset, std::span<const std::byte> data) const;
  Result<void> read_bytes(Queue& queue, NodeId node, std::size_t offset, std::span<std::byte> target) const;
  // A byte range of a whole block, independent of nodes. kInvalidView outside the block.
  Result<void> write_bytes_range(Queue& queue, std::size_t offset, std::span<const std::byte> data,
                                 std::size_t block = 0) const;
  Result<std::vector<std::byte>> read_bytes_range(Queue& queue, std::size_t offset, std::size_t bytes,
                                                  std::size_t block = 0) const;

  // --- The f16 shadow ---
  bool has_shadow() const noexcept;
  // True if shadow() would not convert the node now. Fails like shadow().
  Result<bool> shadow_is_fresh(NodeId node) const;
  // The data of the node as f16: a view of the shadow, with the element count rounded up to even. If the shadow is
  // stale, the data is read through the queue (which is submitted and waited for), converted and written back; work
  // recorded after this call sees it. Call it again after each write. kNotFound; kUnsupported without a shadow;
  // kMisaligned if the offset of the node is not a multiple of 8, because the shadows of two nodes would then overlap:
  // plan with an alignment of at least 8.
  Result<Buffer> shadow(Queue& queue, NodeId node) const;
  // The whole shadow of a block in its present state: current only for nodes for which shadow_is_fresh() is true. An
  // empty handle if no node of the block has a shadow. Its size is the largest padded end: a slot of 12 bytes at offset
  // 32 gives 24.
  Result<Buffer> shadow_whole(std::size_t block = 0) const;

 private:
  struct State;
  explicit Arena(std::unique_ptr<State> state) noexcept;
  State& state() const noexcept;

  Result<const Slot*> find(NodeId node) const;
  Result<void> refresh_shadow(Queue& queue, NodeId node, std::size_t elements) const;
  Result<void> write_shadow(Queue& queue, const Slot& slot, std::span<const float> data, std::size_t first) const;

  std::unique_ptr<State> state_;
};

}  // namespace berth
