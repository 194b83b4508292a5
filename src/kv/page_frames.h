// The physical memory of a cache whose sequences have contiguous addresses: frames that are mapped wherever they are
// needed. As an allocator it gives out reserved addresses without memory; show() and hide() change what is behind them.
// It lives as long as its blocks. Used under the lock of the cache, except for the release of a block.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/memory/address_space.h"
#include "berth/memory/device.h"

namespace berth::internal::kv_cache {

class PageFrames final : public Allocator {
 public:
  // `count` frames of `bytes` bytes, which count against the budget of the device. kUnsupported if the device cannot
  // map one memory at several addresses. kOutOfMemory. Requires: bytes is a multiple of the granularity.
  static Result<std::shared_ptr<PageFrames>> make(DevicePtr device, std::unique_ptr<AddressSpace> space,
                                                  std::size_t bytes, std::size_t count, Name label);
  ~PageFrames() override;

  // Reserves addresses. Nothing is mapped there.
  Result<Block> allocate(const BlockSpec& spec) override;
  // Waits for the last use, unmaps what is there and gives the addresses back.
  void release(const Block& block, Timepoint last_use) noexcept override;
  Device& device() noexcept override { return *device_; }
  std::string_view name() const noexcept override { return "pages"; }
  BlockFlags expected_flags(const BlockSpec& spec) noexcept override;
  void explain(OutOfMemory& report) const override { device_->explain(report); }

  // Byte `at` of the block and those after it show bytes [from, from + bytes) of the frames. What is there already
  // stays; something else is unmapped first, for which the device is waited for. If mapping fails, nothing is behind
  // some of these addresses. O(frames). Requires: multiples of the frame.
  Result<void> show(std::uint64_t block, std::size_t at, std::size_t from, std::size_t bytes);
  // Nothing is behind these addresses any more. What cannot be unmapped stays. O(frames).
  Result<void> hide(std::uint64_t block, std::size_t at, std::size_t bytes);
  // True if show() with these arguments would change nothing.
  bool shows(std::uint64_t block, std::size_t at, std::size_t from, std::size_t bytes) const;
  std::size_t bookkeeping_bytes() const;

 private:
  static constexpr std::uint32_t kNothing = 0xffff'ffff;
  // The frame behind each frame of addresses. Addresses may be far more than memory, so the table has memory only where
  // something was mapped.
  class Mapped {
   public:
    explicit Mapped(std::size_t size) : size_(size), chunks_((size + kChunk - 1) / kChunk) {}
    std::size_t size() const noexcept { return size_; }
    std::uint32_t operator[](std::size_t i) const noexcept {
      return chunks_[i / kChunk] ? chunks_[i / kChunk][i % kChunk] : kNothing;
    }
    // The first place from `i` on that may have a frame.
    std::size_t skip(std::size_t i) const noexcept {
      while (i < size_ && !chunks_[i / kChunk]) i = (i / kChunk + 1) * kChunk;
      return i;
    }
    // Makes room, so that set() does not allocate.
    void reserve(std::size_t first, std::size_t end);
    void set(std::size_t i, std::uint32_t frame) noexcept { chunks_[i / kChunk][i % kChunk] = frame; }
    std::size_t bytes() const noexcept;

   private:
    static constexpr std::size_t kChunk = 1024;
    std::size_t size_;
    std::vector<std::unique_ptr<std::uint32_t[]>> chunks_;
  };

  PageFrames(DevicePtr device, std::unique_ptr<AddressSpace> space, std::size_t bytes)
      : device_(std::move(device)), space_(std::move(space)), bytes_(bytes) {}
  Result<void> unmap(std::uint64_t block, Mapped& mapped, std::size_t first, std::size_t end) BERTH_REQUIRES(mutex_);

  const DevicePtr device_;
  const std::unique_ptr<AddressSpace> space_;
  const std::size_t bytes_;         // of a frame
  std::unique_ptr<Frames> frames_;  // null until make() has charged the device
  std::size_t charged_ = 0;
  Name label_{};
  mutable Mutex mutex_;
  std::map<std::uint64_t, Mapped> blocks_ BERTH_GUARDED_BY(mutex_);  // by address
};

}  // namespace berth::internal::kv_cache
