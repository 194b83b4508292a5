// The memory of another rank as a device. Blocks are cut from a lease that is taken once, so that allocating sends no
// message; imported windows are regions beside it. A handle is the number of a region and an offset, so that it can be
// passed on like an address. Any thread may call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "berth/alloc/offset_allocator.h"
#include "berth/memory/device.h"
#include "remote/transfers.h"

namespace berth::internal::remote {

class Member;

class RemoteDevice final : public Device {
 public:
  // Asks the rank for its lease. kDeviceLost. A rank that lends nothing still serves for imports.
  static Result<DevicePtr> open(std::shared_ptr<Member> member, std::uint32_t rank, std::size_t lease_bytes);
  ~RemoteDevice() override;

  Member& member() const noexcept { return *member_; }
  Engine& engine() const noexcept { return engine_; }
  std::uint32_t rank() const noexcept { return rank_; }

  std::string description() const override;
  BlockFlags expected_flags(const BlockSpec& spec) noexcept override;
  bool reaches(const Device& other) const noexcept override;
  Result<void> check_host_access(const Block& block, std::size_t offset, std::size_t bytes) const override;
  Result<Block> import_block(const ForeignMemory& memory) override;
  DlpackPlace dlpack_place(const Block& block) const noexcept override;

  // Adds an imported window; the result is the address for Buffer::import. remove_region() ends it.
  Result<std::uint64_t> add_region(RegionPtr region);
  void remove_region(std::uint64_t handle) noexcept;

  // The region and the offset of a handle. kInvalidArgument if there is none.
  struct Place {
    RegionPtr region;
    std::size_t offset;
  };
  Result<Place> find(std::uint64_t handle) const;
  Result<Place> find(const Window& window) const;

 protected:
  Result<Block> allocate_block(const BlockSpec& spec) override;
  void free_block(const Block& block, Timepoint last_use) noexcept override;
  // After the loss of the rank no work is left that could use a block.
  bool frees_in_order() const noexcept override;
  Result<std::unique_ptr<Queue>> create_queue() override;

 private:
  RemoteDevice(std::shared_ptr<Member> member, std::uint32_t rank, std::size_t lease_bytes);
  void take_lease(Result<RegionPtr> lease);
  BlockFlags flags_of(const Region& region) const noexcept;

  const std::shared_ptr<Member> member_;
  Engine& engine_;
  const std::uint32_t rank_;
  RegionPtr lease_;                // null if there is none
  std::optional<Error> no_lease_;  // and why
  mutable Mutex mutex_;            // guards what follows
  std::optional<OffsetAllocator> offsets_ BERTH_GUARDED_BY(mutex_);
  std::map<std::uint32_t, RegionPtr> regions_ BERTH_GUARDED_BY(mutex_);
};

}  // namespace berth::internal::remote
