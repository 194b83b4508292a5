// What a device hands out and what is asked of it. A Block is one piece of device memory as the layers below
// Buffer see it: an opaque handle, a size and perhaps a host pointer; it owns nothing, and goes back unchanged
// to the allocator it came from. A BlockSpec is a request. A Timepoint is a moment on a queue's line.
// All three are plain values.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "berth/base/name.h"

namespace berth {

class Device;

// A moment on one queue: reached when the queue has finished everything submitted up to it. Eight bytes, so
// that a storage can be stamped with one atomic store. The default is the moment that is always reached, and
// the moments of a queue that is gone are reached: a timepoint never dangles.
struct Timepoint {
  std::uint64_t bits = 0;

  static constexpr Timepoint at(std::uint16_t timeline, std::uint64_t value) noexcept {
    return {static_cast<std::uint64_t>(timeline) << 48 | value};
  }
  constexpr std::uint16_t timeline() const noexcept { return static_cast<std::uint16_t>(bits >> 48); }
  constexpr std::uint64_t value() const noexcept { return bits & 0xffff'ffff'ffff; }
  friend constexpr bool operator==(Timepoint, Timepoint) = default;
};

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
  kPreferred,  // a host pointer if the device gives one at no cost
  kRequired,   // a host pointer, or Unsupported
  kNone,       // device only, wherever the device does best
};

struct BlockSpec {
  std::size_t bytes = 0;
  std::size_t alignment = 64;  // a power of two
  Usage usage = Usage::kDefault;
  HostAccess host = HostAccess::kPreferred;
  Name tag{};  // counted, trimmed and freed together
  bool zero = false;
  // The line of the queue that will use the block first, 0 for none. A block is idle when it is returned,
  // unless a line is named: then work of that line may still be using it, which is safe because lines are in
  // order.
  std::uint16_t on = 0;
  Name label{};  // shown in reports
};

enum class BlockFlags : std::uint8_t {
  kNone = 0,
  kHostPointer = 1,   // `host` may be dereferenced
  kHostTransfer = 2,  // and memcpy through it is a legal transfer whenever no submitted work uses the block
  kReadOnly = 4,
  kForeign = 8,  // imported: somebody else's memory
  // 128 is no flag of a block: the pool marks with it what is not live.
};
constexpr BlockFlags operator|(BlockFlags a, BlockFlags b) noexcept {
  return static_cast<BlockFlags>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}

struct Block {
  std::uint64_t handle = 0;   // the device's own: an address, an object pointer, ...
  std::byte* host = nullptr;  // the first byte on the host, or null
  std::size_t bytes = 0;      // what may be used, at least what was asked for
  std::uint16_t label = 0;    // a Name's id
  BlockFlags flags = BlockFlags::kNone;
  Usage usage = Usage::kDefault;
  std::uint32_t key = 0;  // the allocator's own

  constexpr bool has(BlockFlags flag) const noexcept {
    return (static_cast<std::uint8_t>(flags) & static_cast<std::uint8_t>(flag)) != 0;
  }
};
static_assert(sizeof(Block) == 32);

// Whoever owns a block while queues use it. A queue stamps the owner with the moment of the last use; when
// another queue's unreached stamp is there already, it keeps a reference instead.
class BlockOwner {
 public:
  virtual void retain() noexcept = 0;
  virtual void drop() noexcept = 0;
  std::atomic<std::uint64_t> last_use{0};  // Timepoint::bits

 protected:
  ~BlockOwner() = default;
};

// A byte range of a block, as queues take it.
struct Window {
  Block block{};
  std::size_t offset = 0;
  std::size_t bytes = 0;
  BlockOwner* owner = nullptr;  // null: the caller keeps the block alive
  Device* device = nullptr;
};

}  // namespace berth
