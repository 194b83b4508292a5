// The functions of berth/interop/metal.h in a build without METAL.
#include "berth/interop/metal.h"
#include "devices/metal/metal_open.h"

namespace berth {

using namespace internal;

Result<MetalInfo> metal_info(Device&) {
  return Error::with_text(Code::kInvalidArgument, Layer::kDevice, metal::kHowToGetMetal);
}

Result<Buffer> metal_wrap(DevicePtr, const Buffer&) {
  return Error::with_text(Code::kInvalidArgument, Layer::kBuffer, metal::kHowToGetMetal);
}

}  // namespace berth
