// A MemoryPlan made real: one buffer for each block of the plan, and a slot in it for each node. An Arena lives on
// any device; every transfer goes through a Queue, so it works where the host has no pointer. It is move-only and
// frees its memory when it and every view of it are gone. All const functions may be called from several threads at
// once; that two threads do not use the same bytes at once is the schedule's or the caller's duty. set_actual_len
// must not run beside any other call.
//
//   plan      slots[0] = {offset 0, bytes 4096}, slots[1] = {offset 4096, bytes 8192}
//   whole()   |.. node 0 ..|........ node 1 ........|         f32, or any bytes
//   shadow    |node 0|.. node 1 ..|                           f16, each at half the byte offset
//
// The f16 shadow. Where kernels can read halves, a second buffer for each block holds what write_f32 wrote as f16 at
// half the byte offset: rounded to nearest even, too large becomes infinity, NaN stays NaN, an odd count is followed
// by one zero half. The arena knows for each node whether its shadow still tells the truth: any other write to bytes
// of the node, also through another node that shares them, makes it stale, and shadow() then converts again. A
// buffer() or whole() that was handed out for writing can be written at any time, so the nodes it covers are
// converted at each shadow(). Old data is never handed out in silence.
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

// A node's place in the plan: the index of its lifetime and of its slot.
using NodeId = std::uint32_t;

enum class Shadow : std::uint8_t {
  kAuto,  // where the device's kernels can read f16
  kOn,
  kOff,
};

struct ArenaOptions {
  Shadow f16_shadow = Shadow::kAuto;

  // Only the blocks of this lane: an arena for each lane. Nodes of other lanes are not in it. Absent: all lanes.
  std::optional<std::uint32_t> lane = std::nullopt;

  // Where blocks of bank i come from; past the end, or null, they come from the allocator given to from_plan.
  std::vector<AllocatorPtr> banks = {};

  // Where each block starts: at least this, and at least what the device binds at. Slots start at the plan's offsets
  // in it. A power of two.
  std::size_t alignment = 64;

  HostAccess host = HostAccess::kPreferred;
  Usage usage = Usage::kDefault;
  bool zero = false;  // fresh memory is undefined unless asked
  Name label = "arena";
  Name tag = {};
};

class Arena {
 public:
  // Allocates the plan's blocks, and their shadows. Checks the plan first, in O(nodes), and allocates nothing if it
  // cannot work:
  //   kInvalidArgument  no allocator, an alignment that is not a power of two, or a slot outside its block
  //   kNotFound         the plan has no block in the lane asked for
  //   kInfeasible       a block larger than the device allocates, or a node larger than it binds; the sentence says by
  //                    how much and what to do. A plan made with PlanProblem::max_block_bytes is already split.
  //   kOutOfMemory      from the allocator; what was allocated before is freed
  static Result<Arena> from_plan(AllocatorPtr allocator, const MemoryPlan& plan, const ArenaOptions& options = {});

  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) noexcept;
  ~Arena();

  // --- The plan, as it is here ---
  // False for an unknown node, one of zero bytes, and one of another lane. Everything below that takes a node gives
  // kNotFound for these.
  bool has(NodeId node) const noexcept;
  // Bytes from the start of the node's block.
  Result<std::size_t> offset(NodeId node) const;
  // Bytes of data: those of the slot, until set_actual_len says less.
  Result<std::size_t> len_of(NodeId node) const;
  // Bytes that the plan gave the node.
  Result<std::size_t> slot_len(NodeId node) const;
  // Records how many bytes of the slot are data. kSizeMismatch if they are more than the slot has.
  Result<void> set_actual_len(NodeId node, std::size_t bytes);
  // Which buffer the node is in: an index for whole().
  Result<std::uint32_t> block_of(NodeId node) const;
  // One for each node of the plan, in its order.
  std::span<const Slot> slots() const noexcept;
  std::size_t node_count() const noexcept { return slots().size(); }
  std::size_t block_count() const noexcept;
  // Bytes of all blocks held, without the shadow.
  std::size_t total_size() const noexcept;
  // Bytes of the shadow; 0 without one.
  std::size_t shadow_size() const noexcept;

  // --- Buffers ---
  // The node's len_of() bytes as a view with its own id: f32 where they are whole floats, else u8. Reinterpret it
  // with Buffer::view(0, dtype, shape). Say kRead when nothing will be written through it: else the node's shadow is
  // converted at each shadow() from now on.
  Result<Buffer> buffer(NodeId node, Access access = Access::kReadWrite) const;
  // A whole block, as bytes. kNotFound for an index that is not there, or another lane's. The same rule for `access`.
  Result<Buffer> whole(std::size_t block = 0, Access access = Access::kReadWrite) const;
  // Says that the node's bytes were written by means the arena cannot see, such as a kernel given a kRead view.
  Result<void> mark_written(NodeId node) const;

  // --- Transfers. kInvalidArgument if the queue is another device's; else as Queue::write and Queue::read. ---
  // Work recorded on the queue after this sees the floats. kSizeMismatch if they are longer than the slot, and then
  // nothing is written. Fewer are legal; the rest keeps its bytes.
  Result<void> write_f32(Queue& queue, NodeId node, std::span<const float> data) const;
  // The node's data, as whole floats. Submits the queue and waits.
  Result<std::vector<float>> read_f32(Queue& queue, NodeId node) const;
  // The same into the caller's memory. kSizeMismatch unless there is room for exactly the node's floats.
  Result<void> read_f32(Queue& queue, NodeId node, std::span<float> target) const;
  // Bytes [offset, offset + size) of the node's slot; any offset and size inside it. kInvalidView outside it, and then
  // nothing is written.
  Result<void> write_bytes(Queue& queue, NodeId node, std::size_t offset, std::span<const std::byte> data) const;
  Result<void> read_bytes(Queue& queue, NodeId node, std::size_t offset, std::span<std::byte> target) const;
  // Bytes of a whole block, wherever nodes are in it. kInvalidView outside the block.
  Result<void> write_bytes_range(Queue& queue, std::size_t offset, std::span<const std::byte> data,
                                 std::size_t block = 0) const;
  Result<std::vector<std::byte>> read_bytes_range(Queue& queue, std::size_t offset, std::size_t bytes,
                                                  std::size_t block = 0) const;

  // --- The f16 shadow ---
  bool has_shadow() const noexcept;
  // Whether a shadow() of the node would need no conversion now. kNotFound, kUnsupported and kMisaligned as shadow().
  Result<bool> shadow_is_fresh(NodeId node) const;
  // The node's data as f16: a view of the shadow whose element count is rounded up to even. If the shadow is stale,
  // the data is read through the queue (which is submitted and waited for), converted and written back; work recorded
  // after this sees it. Ask again after each write. kUnsupported without a shadow; kMisaligned if the node's offset is
  // no multiple of 8, where halves of two nodes would fall on one another: plan with alignment = 8 or more.
  Result<Buffer> shadow(Queue& queue, NodeId node) const;
  // The whole shadow of a block, as it is: fresh only where shadow_is_fresh() says so. Empty handle if the block has
  // no node with a shadow. Its size is the largest padded end: a slot at offset 32 with 12 bytes gives 24.
  Result<Buffer> shadow_whole(std::size_t block = 0) const;

 private:
  struct State;
  explicit Arena(std::unique_ptr<State> state) noexcept;

  Result<const Slot*> find(NodeId node) const;
  Result<void> refresh_shadow(Queue& queue, NodeId node, std::size_t elements) const;
  Result<void> write_shadow(Queue& queue, const Slot& slot, std::span<const float> data, std::size_t first) const;

  std::unique_ptr<State> state_;
};

}  // namespace berth
