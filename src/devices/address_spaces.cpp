#include <string>

#include "memory/address_space.h"
#include "devices/cpu/cpu_address_space.h"
#include "devices/cuda/cuda_address_space.h"

namespace berth {

Result<std::unique_ptr<AddressSpace>> make_address_space(Device& device) {
  switch (device.kind()) {
    case DeviceKind::kCpu: return cpu::make_address_space();
    case DeviceKind::kCuda: return cuda::make_address_space(device);
    default:
      return Error::with_text(Code::kUnsupported, Layer::kDevice,
                              std::string(device.name()) + " cannot give memory back and keep its address");
  }
}

}  // namespace berth
