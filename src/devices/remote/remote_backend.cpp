#include "devices/remote/remote_backend.h"

#include <fmt/format.h>

#include <vector>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "devices/remote/ucx_driver.h"

namespace berth::internal::remote {
namespace {

struct Offers {
  Mutex mutex;
  std::vector<std::weak_ptr<Offer>> all BERTH_GUARDED_BY(mutex);
};

Offers& offers() {
  static auto* const instance = new Offers;  // devices with static lifetime may be opened at exit
  return *instance;
}

std::shared_ptr<Offer> current() {
  Offers& known = offers();
  const MutexLock lock(known.mutex);
  std::erase_if(known.all, [](const std::weak_ptr<Offer>& each) { return each.expired(); });
  for (const std::weak_ptr<Offer>& each : known.all)
    if (auto alive = each.lock()) return alive;
  return nullptr;
}

}  // namespace

void offer(std::weak_ptr<Offer> cluster) {
  Offers& known = offers();
  const MutexLock lock(known.mutex);
  known.all.push_back(std::move(cluster));
}

Result<DevicePtr> open(const std::string& ordinal) {
  if (const auto cluster = current()) return cluster->open_device(static_cast<std::uint32_t>(std::stoul(ordinal)));
  BERTH_TRY_ASSIGN(const ucx::Driver* const driver, ucx::Driver::open());
  return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice,
                          fmt::format("memory of other ranks, by UCX {}.{}.{}: call Cluster::join first", driver->major,
                                      driver->minor, driver->release));
}

bool is_current(const Device& device) {
  const auto cluster = current();
  return cluster != nullptr && cluster->owns(device);
}

}  // namespace berth::internal::remote
