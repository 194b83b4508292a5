#include "base/os/process_barrier.h"

namespace berth {

bool prepare_process_barrier() noexcept {
  return true;
}

void process_barrier() noexcept {}

}  // namespace berth
