// The owner of a block that its allocator may move, and the interface of such an allocator. One word per owner decides:
// it counts those who hold the address, and remembers whether an address was given out for good. A mover gets the block
// only if nobody holds it, and whoever wants the address meanwhile waits until the block has arrived. Any thread may
// call.
//
//   free  ->  held x n (windows)  ->  free  ->  moving  ->  free  ->  given (a host pointer, a native handle: for good)
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "berth/base/result.h"
#include "berth/memory/block.h"

namespace berth::internal {

// A block flag: one of several blocks in one object of the driver. Where it begins is in Window::offset alone.
inline constexpr BlockFlags kPart = static_cast<BlockFlags>(32);

class MovableOwner;

class Mover {
 public:
  // Allocates a block that can move. Its bytes begin `start` bytes behind the handle and the host pointer: where the
  // handle is an object of the driver, several blocks are parts of one object. As Allocator::allocate otherwise.
  virtual Result<Block> allocate_movable(const BlockSpec& spec, std::uint64_t& start) = 0;
  // Tells the allocator who owns a block that allocate_movable() returned, until the block is released. False if the
  // block never moves; it then starts at its handle. Wherever it goes, it starts at a multiple of `alignment` and of
  // 64.
  virtual bool enlist(const Block& block, std::size_t alignment, MovableOwner& owner) noexcept = 0;
  // Completes a move that a failed transfer has left unfinished. The error of the transfer if it fails again.
  // Requires: called by the owner, which keeps everybody else out.
  virtual Result<void> complete(MovableOwner& owner) = 0;

 protected:
  ~Mover() = default;
};

class MovableOwner : public BlockOwner {
 public:
  // --- For those who use the block ---
  // Takes one hold: the block lives and stays where it is until let_go(). Waits while the block moves. Completes an
  // unfinished move, and fails if that fails.
  Result<void> hold() {
    auto entered = enter(false);
    if (entered) retain();
    return entered;
  }
  // The address is given to somebody who will not say when he is done: the block never moves again.
  Result<void> give_address() {
    if ((gate_.load(std::memory_order_acquire) & kGiven) != 0) return {};
    return enter(true);
  }
  void hold_again() noexcept final {
    gate_.fetch_add(1, std::memory_order_relaxed);
    retain();
  }
  void let_go() noexcept final {
    gate_.fetch_sub(1, std::memory_order_release);
    drop();
  }

  // --- For the mover ---
  // Takes a reference, unless the owner is being destroyed.
  virtual bool try_retain() noexcept = 0;
  // Keeps everybody out until end_move(). False if somebody holds the address.
  bool begin_move() noexcept;
  enum class Moved : std::uint8_t { kDone, kUnfinished };
  void end_move(Moved moved = Moved::kDone) noexcept;
  bool is_unfinished() const noexcept { return (gate_.load(std::memory_order_acquire) & kUnfinished) != 0; }
  virtual const Block& block() const noexcept = 0;
  struct Place {
    std::uint64_t handle = 0;
    std::byte* host = nullptr;
    std::uint64_t start = 0;  // of the bytes, behind both
  };
  // Requires: between begin_move() and end_move(), or inside complete().
  virtual void set_place(const Place& place) noexcept = 0;

 protected:
  ~MovableOwner() = default;
  // What moves the block. Requires: set before others can see the owner.
  Mover* mover_ = nullptr;

 private:
  static constexpr std::uint32_t kMoving = std::uint32_t{1} << 31;
  static constexpr std::uint32_t kUnfinished = std::uint32_t{1} << 30;
  static constexpr std::uint32_t kGiven = std::uint32_t{1} << 29;  // the bits below count the holds

  Result<void> enter(bool for_good);

  std::atomic<std::uint32_t> gate_{0};
};

}  // namespace berth::internal
