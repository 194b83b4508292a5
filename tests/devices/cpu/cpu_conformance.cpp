#include <cstring>

#include "berth/memory/registry.h"
#include "conformance/device_conformance.h"

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

BERTH_DEVICE_CONFORMANCE(Cpu, DeviceCase{.open = [] { return device("CPU"); },
                                         .never = {{"HandsOutItsNativeEncoder", Code::kUnsupported,
                                                    "work on the host has no encoder"},
                                                   {"CommitsResidencyOnceASubmit", Code::kUnsupported,
                                                    "the shared CPU device keeps a residency set only when asked"}},
                                         .add_kernel = add_kernel,
                                         .foreign = foreign});

}  // namespace
}  // namespace berth::conformance
