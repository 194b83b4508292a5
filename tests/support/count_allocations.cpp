// operator new counts. Under a sanitizer, whose own operators must stay, its allocator counts. A file of its own,
// because a compiler that sees both operators and their users takes new and free() for a mistake.
#include "support/count_allocations.h"

#include <cstdlib>
#include <new>

#include "base/sanitizers.h"

namespace berth::test {
std::atomic<std::size_t> allocations{0};
}

#if BERTH_ADDRESS_SANITIZER || BERTH_THREAD_SANITIZER
#include <sanitizer/allocator_interface.h>

namespace {
[[maybe_unused]] const int counts_from_the_start = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t) { berth::test::allocations.fetch_add(1, std::memory_order_relaxed); },
    [](const volatile void*) {});
}
#else
void* operator new(std::size_t bytes) {
  berth::test::allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
#endif
