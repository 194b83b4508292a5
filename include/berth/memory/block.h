// Blocks and requests for blocks. A Block is one piece of device memory as the layers below Buffer see it: an opaque
// handle, a size and, on some devices, a host pointer. It owns nothing and is returned unchanged to the allocator that
// made it. A BlockSpec describes a request. Both are plain values.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "berth/base/name.h"
#include "berth/memory/timepoint.h"

namespace berth {

class Device;

// What a block may be used for. Checked by the queue at each use.
enum class Usage : std::uint8_t {
  kCopySource = 1,
  kCopyTarget = 2,
  kKernel = 4,   // read and written by kernels
  kUniform = 8,  // small constants of kernels
  kDefault = 7,
  kAll = 15,
};
constexpr Usage operator|(Usage a, Usage b) noexcept {
  return static_cast<Usage>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}
constexpr bool allows(Usage have, Usage want) noexcept {
  return (static_cast<std::uint8_t>(have) & static_cast<std::uint8_t>(want)) == static_cast<std::uint8_t>(want);
}

enum class HostAccess : std::uint8_t {
  kPreferred,  // a host pointer if the device has one at no cost
  kRequired,   // a host pointer, or kUnsupported
  kNone,       // device only: the device chooses its fastest memory
};

struct BlockSpec {
  std::size_t bytes = 0;
  std::size_t alignment = 64;  // a power of two
  Usage usage = Usage::kDefault;
  HostAccess host = HostAccess::kPreferred;
  Name tag{};  // blocks of one tag are counted, trimmed and freed together
  bool zero = false;
  // The timeline of the queue that will use the block first, if known. Without one, the returned block is idle. With
  // one, earlier work of that timeline may still use the block; this is safe because a timeline executes in order. A
  // block that must be zeroed is idle in any case, or is zeroed in the order of that timeline.
  TimelineId on = TimelineId::kNone;
  Name label{};  // shown in reports
};

enum class BlockFlags : std::uint8_t {
  kNone = 0,
  kHostPointer = 1,   // `host` may be dereferenced
  kHostTransfer = 2,  // memcpy through `host` is a valid transfer if no submitted work uses the block
  kReadOnly = 4,
  kForeign = 8,     // imported: allocated by another library
  kEvictable = 16,  // the memory may be taken away while the block lives: others must not rely on its pages
  // The bit 128 is not a block flag: the pool uses it to mark blocks that are not live.
};
constexpr BlockFlags operator|(BlockFlags a, BlockFlags b) noexcept {
  return static_cast<BlockFlags>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}
constexpr bool has(BlockFlags flags, BlockFlags flag) noexcept {
  return (static_cast<std::uint8_t>(flags) & static_cast<std::uint8_t>(flag)) != 0;
}

struct Block {
  std::uint64_t handle = 0;   // device-specific: an address, an object pointer, ...
  std::byte* host = nullptr;  // the first byte on the host, or null
  std::size_t bytes = 0;      // usable bytes, at least the requested size
  Name label{};               // shown in reports
  BlockFlags flags = BlockFlags::kNone;
  Usage usage = Usage::kDefault;
  std::uint32_t key = 0;  // for use by the allocator

  constexpr bool has(BlockFlags flag) const noexcept { return berth::has(flags, flag); }
};
static_assert(sizeof(Block) == 32);

// The owner of a block while queues use it. A queue stores the timepoint of the last use in the owner. If an unreached
// timepoint of another queue is already stored, the queue keeps a reference to the owner instead.
class BlockOwner {
 public:
  virtual void retain() noexcept = 0;
  virtual void drop() noexcept = 0;
  // One more, or one less, AddressHold of a block that may move; the first is taken where the window is made.
  virtual void hold_again() noexcept {}
  virtual void let_go() noexcept {}
  std::atomic<std::uint64_t> last_use{0};  // Timepoint::bits
  std::atomic<bool> is_kept{false};        // some queue keeps, or has kept, a reference

 protected:
  ~BlockOwner() = default;
};

// Keeps a block that may move where it is, and alive, while this object or a copy of it exists. Empty for blocks that
// never move. See GrowableMemory::defragment.
class AddressHold {
 public:
  AddressHold() = default;
  // Takes over a hold that `owner` has counted.
  explicit AddressHold(BlockOwner& owner) noexcept : owner_(&owner) {}
  AddressHold(const AddressHold& other) noexcept : owner_(other.owner_) {
    if (owner_ != nullptr) owner_->hold_again();
  }
  AddressHold(AddressHold&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}
  AddressHold& operator=(const AddressHold& other) noexcept {
    AddressHold copy(other);
    std::swap(owner_, copy.owner_);
    return *this;
  }
  AddressHold& operator=(AddressHold&& other) noexcept {
    AddressHold taken(std::move(other));
    std::swap(owner_, taken.owner_);
    return *this;
  }
  ~AddressHold() {
    if (owner_ != nullptr) owner_->let_go();
  }

 private:
  BlockOwner* owner_ = nullptr;
};

// A byte range of a block: the argument type of queue operations. The addresses in it are valid while it, or a copy of
// it, exists.
struct Window {
  Block block{};
  std::size_t offset = 0;
  std::size_t bytes = 0;
  BlockOwner* owner = nullptr;  // null: the caller keeps the block alive
  Device* device = nullptr;
  AddressHold hold{};

  // The bytes on the host; empty if the host has no pointer.
  std::span<std::byte> host_bytes() const noexcept {
    return block.host == nullptr ? std::span<std::byte>() : std::span(block.host + offset, bytes);
  }
};

}  // namespace berth
