#include "base/os/process_barrier.h"

namespace berth::internal {

bool prepare_process_barrier() noexcept {
  return true;
}

void process_barrier() noexcept {}

}  // namespace berth::internal
