#include "base/os/read_ring.h"

namespace berth::internal {

Result<std::unique_ptr<ReadRing>> ReadRing::make(unsigned) {
  return Error(Code::kUnsupported, Layer::kFormat, "this system has no io_uring");
}

}  // namespace berth::internal
