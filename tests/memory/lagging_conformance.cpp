// The double whose work is deferred passes the suite of real devices, once as unified memory and once as memory that
// only queues reach.
#include <cstring>

#include "conformance/device_conformance.h"
#include "doubles/lagging_device.h"

namespace berth::conformance {
namespace {

Result<Kernel> add_kernel(Device& device) {
  return device.make_kernel({.host = [](const HostCall& call) {
    std::uint32_t constant = 0;
    std::memcpy(&constant, call.constants.data(), sizeof constant);
    const auto* from = reinterpret_cast<const std::uint32_t*>(call.windows[0].data());
    auto* to = reinterpret_cast<std::uint32_t*>(call.windows[1].data());
    for (std::uint32_t i = 0; i < call.grid.groups[0] * call.grid.threads[0]; ++i) to[i] = from[i] + constant;
  }});
}

Result<ForeignMemory> foreign(Device&, std::span<const std::byte> contents) {
  auto* bytes = new std::vector<std::byte>(contents.begin(), contents.end());
  return ForeignMemory{.address = reinterpret_cast<std::uint64_t>(bytes->data()),
                       .bytes = bytes->size(),
                       .read_only = false,
                       .release = [bytes] { delete bytes; }};
}

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
                                             .add_kernel = add_kernel,
                                             .foreign = foreign});
BERTH_DEVICE_CONFORMANCE(LaggingOpaque, DeviceCase{.open = [] { return open(false); },
                                                   .never = never(),
                                                   .add_kernel = add_kernel,
                                                   .foreign = foreign});

}  // namespace
}  // namespace berth::conformance
