// Vectors for tables of several megabytes. Large ones use huge pages, because faulting in 4 KiB pages would cost more
// than parsing the file. New elements are left uninitialised.
#pragma once

#include <cstddef>
#include <new>
#include <utility>
#include <vector>

namespace berth::internal {

void* allocate_pages(std::size_t bytes);
void release_pages(void* pages, std::size_t bytes) noexcept;

template <class T>
struct PageAllocator {
  using value_type = T;
  PageAllocator() = default;
  template <class U>
  PageAllocator(const PageAllocator<U>&) noexcept {}

  T* allocate(std::size_t count) { return static_cast<T*>(allocate_pages(count * sizeof(T))); }
  void deallocate(T* pages, std::size_t count) noexcept { release_pages(pages, count * sizeof(T)); }
  template <class U>
  void construct(U* at) noexcept {
    ::new (static_cast<void*>(at)) U;
  }
  template <class U, class... Arguments>
  void construct(U* at, Arguments&&... arguments) {
    ::new (static_cast<void*>(at)) U(std::forward<Arguments>(arguments)...);
  }
  friend bool operator==(PageAllocator, PageAllocator) noexcept { return true; }
};

template <class T>
using PageVector = std::vector<T, PageAllocator<T>>;

}  // namespace berth::internal
