#include "base/os/shared_library.h"

#include <link.h>
#include <sys/mman.h>

#include <cstdint>

#include "base/os/system_pages.h"

namespace berth::internal {
namespace {

struct Wanted {
  std::uintptr_t address;
  std::size_t forgotten = 0;
};

bool contains(const dl_phdr_info& library, std::uintptr_t address) noexcept {
  for (int i = 0; i < library.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = library.dlpi_phdr[i];
    if (segment.p_type == PT_LOAD && address - (library.dlpi_addr + segment.p_vaddr) < segment.p_memsz) return true;
  }
  return false;
}

// The loader wrote into the code of such a library: those pages are not in the file.
bool was_changed_by_the_loader(const dl_phdr_info& library) noexcept {
  for (int i = 0; i < library.dlpi_phnum; ++i) {
    if (library.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + library.dlpi_phdr[i].p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_TEXTREL || (entry->d_tag == DT_FLAGS && (entry->d_un.d_val & DF_TEXTREL) != 0))
        return true;
    }
  }
  return false;
}

int forget_if_wanted(dl_phdr_info* library, std::size_t, void* argument) noexcept {
  auto& wanted = *static_cast<Wanted*>(argument);
  if (!contains(*library, wanted.address)) return 0;
  if (was_changed_by_the_loader(*library)) return 1;
  const std::uintptr_t page = page_bytes();
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = library->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
    const std::uintptr_t begin = (library->dlpi_addr + segment.p_vaddr + page - 1) / page * page;
    const std::uintptr_t end = (library->dlpi_addr + segment.p_vaddr + segment.p_memsz) / page * page;
    if (begin < end && madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED) == 0)
      wanted.forgotten += end - begin;
  }
  return 1;
}

}  // namespace

std::size_t forget_library_pages(const void* symbol) noexcept {
  Wanted wanted{reinterpret_cast<std::uintptr_t>(symbol)};
  dl_iterate_phdr(forget_if_wanted, &wanted);
  return wanted.forgotten;
}

}  // namespace berth::internal
