// The REMOTE entry of the list of devices. The devices themselves belong to a cluster (src/remote), a layer above: a
// cluster offers them here while it lives, so that REMOTE is a known kind in every program and its row says what would
// make it available. Any thread may call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "berth/memory/device.h"

namespace berth::internal::remote {

// What a cluster offers.
class Offer {
 public:
  virtual Result<DevicePtr> open_device(std::uint32_t rank) = 0;
  virtual bool owns(const Device& device) const = 0;

 protected:
  ~Offer() = default;
};

// The names REMOTE:n refer to the cluster that was offered first and lives. Expired offers are forgotten.
void offer(std::weak_ptr<Offer> cluster);

// kDeviceUnavailable, with what to do, if there is no cluster, no such rank, or no UCX.
Result<DevicePtr> open(const std::string& ordinal);

// True if the device belongs to the cluster that its name refers to now.
bool is_current(const Device& device);

}  // namespace berth::internal::remote
