// The double whose work is deferred passes the suite of real devices, once as unified memory and once as memory that
// only queues reach.
#include "conformance/host_case.h"
#include "doubles/lagging_device.h"

namespace berth::conformance {
namespace {

Result<DevicePtr> open(bool host_pointers) {
  DevicePtr device = doubles::LaggingDevice::make(host_pointers);
  static_cast<void>(device->keep_resident());  // refused if the environment disables residency
  return device;
}

const std::vector<Never>& never() {
  static const std::vector<Never> list{
      {"HandsOutItsNativeEncoder", Code::kUnsupported, "there is no driver, so there is no encoder"}};
  return list;
}

BERTH_DEVICE_CONFORMANCE(Lagging, DeviceCase{.open = [] { return open(true); },
                                             .never = never(),
                                             .add_kernel = host_add_kernel,
                                             .foreign = host_foreign});
BERTH_DEVICE_CONFORMANCE(LaggingOpaque, DeviceCase{.open = [] { return open(false); },
                                                   .never = never(),
                                                   .add_kernel = host_add_kernel,
                                                   .foreign = host_foreign});

}  // namespace
}  // namespace berth::conformance
