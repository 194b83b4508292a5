#include "base/os/shared_library.h"

namespace berth::internal {

std::size_t forget_library_pages(const void*) noexcept {
  return 0;
}

}  // namespace berth::internal
