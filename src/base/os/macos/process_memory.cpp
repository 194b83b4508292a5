#include "base/os/process_memory.h"

namespace berth::internal {

std::unique_ptr<ProcessMemory> ProcessMemory::open(pid_t) {
  return nullptr;
}

}  // namespace berth::internal
