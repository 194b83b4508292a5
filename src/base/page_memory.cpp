#include "base/page_memory.h"

#include <cstdint>
#include <cstdlib>

#include "base/os/system_pages.h"
#include "base/round_up.h"

namespace berth::internal {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kLarge = kHugePage / 2;

}  // namespace

void* allocate_pages(std::size_t bytes) {
  if (bytes < kLarge) return ::operator new(bytes);
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  void* const pages = std::aligned_alloc(kHugePage, round_up(bytes, kHugePage));
  if (pages == nullptr) throw std::bad_alloc();
  want_huge_pages(pages, round_up(bytes, kHugePage));  // best effort: otherwise the pages are small
  return pages;
}

void release_pages(void* pages, std::size_t bytes) noexcept {
  if (bytes < kLarge)
    ::operator delete(pages);
  else
    std::free(pages);
}

}  // namespace berth::internal
