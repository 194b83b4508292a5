// This process as a member of a cluster: what Cluster does, in shared ownership with the devices that need it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "berth/remote/cluster.h"
#include "devices/remote/remote_backend.h"
#include "remote/arrival.h"
#include "remote/engine.h"
#include "remote/region.h"
#include "remote/served.h"

namespace berth::internal::remote {

class Member final : public Offer, public std::enable_shared_from_this<Member> {
 public:
  static Result<std::shared_ptr<Member>> join(ClusterOptions options);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  Engine& engine() noexcept { return *engine_; }
  Served& served() noexcept { return *served_; }
  const ClusterOptions& options() const noexcept { return options_; }
  std::uint32_t rank() const noexcept { return engine_->options().rank; }
  std::uint32_t ranks() const noexcept { return engine_->options().ranks; }

  Result<DevicePtr> open_device(std::uint32_t rank) override;
  bool owns(const Device& device) const override;

  // The lease that this process has of another rank.
  Result<RegionPtr> lease(std::uint32_t rank, std::size_t bytes);
  Result<Buffer> import(const RemoteWindow& window);
  // Ends an import. The last one of a window tells the owner, and destroys the key.
  void forget(const Region& region) noexcept;

  Result<void> close(const RemoteWindow& window);
  Result<Timepoint> arrived(const RemoteWindow& window, std::uint64_t count);
  Result<void> barrier();

 private:
  Member(ClusterOptions options, std::shared_ptr<Engine> engine);
  // Every rank with every other, one of two at a time, and back again, so that nothing of it is under way later.
  Result<void> connect_all(Deadline deadline);
  void handle(const Message& message) BERTH_REQUIRES(engine_->mutex);
  void count_arrival(std::uint32_t rank, std::uint64_t epoch) BERTH_REQUIRES(engine_->mutex);
  // A region that the answer to a request describes, without the ways to reach it.
  RegionPtr region(std::uint32_t rank, std::uint64_t id, std::uint64_t generation, std::uint64_t address,
                   std::uint64_t bytes) const;
  // The key of a region that only UCX reaches.
  Result<ucx::Key> key(std::uint32_t rank, const Message& answer) BERTH_REQUIRES(engine_->mutex);

  const ClusterOptions options_;
  const std::shared_ptr<Engine> engine_;
  const std::unique_ptr<Served> served_;

  Mutex devices_mutex_;  // held while a device is opened, so that a rank has one
  std::map<std::uint32_t, std::weak_ptr<Device>> devices_ BERTH_GUARDED_BY(devices_mutex_);

  // Guarded by the engine's mutex.
  struct Import {
    RegionPtr region;
    std::uint32_t count = 0;  // buffers
  };
  std::map<std::pair<std::uint32_t, std::uint64_t>, Import> imports_;  // by rank and id of the window
  std::uint64_t barriers_ = 0;                                         // calls of this process
  std::uint64_t released_ = 0;                                         // the last epoch that all ranks reached
  std::map<std::uint64_t, std::set<std::uint32_t>> at_barrier_{};      // of rank 0, by epoch
  std::optional<Error> no_barrier_{};                                  // rank 0 says so

  const DevicePtr arrival_device_;
  Mutex arrivals_mutex_;
  std::map<std::uint64_t, std::unique_ptr<ArrivalQueue>> arrivals_ BERTH_GUARDED_BY(arrivals_mutex_);  // by window
};

}  // namespace berth::internal::remote
