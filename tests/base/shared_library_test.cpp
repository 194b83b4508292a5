#include "base/os/shared_library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <span>

#include "support/kernel_pages.h"

namespace berth {

using namespace internal;

namespace {

TEST(LibraryPages, AreForgottenAndComeBackWhenTheCodeIsUsed) {
  void* const library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr);
  const auto cosine = reinterpret_cast<double (*)(double)>(dlsym(library, "cos"));
  ASSERT_NE(cosine, nullptr);
  const auto* const code = reinterpret_cast<const void*>(cosine);
  volatile double angle = 1.0;
  const double before = cosine(angle);
  ASSERT_GT(test::kernel_kib(code, "Rss"), 0u);
  EXPECT_GT(forget_library_pages(code), 0u);
  EXPECT_EQ(test::kernel_kib(code, "Rss"), 0u);
  EXPECT_EQ(cosine(angle), before);
  EXPECT_GT(test::kernel_kib(code, "Rss"), 0u);
  dlclose(library);
}

// Bytes of whole pages in the segments of one library that are not writable, counted with the loader's own list.
struct Unwritable {
  std::uintptr_t base;
  std::size_t bytes = 0;
};
int count_unwritable(dl_phdr_info* library, std::size_t, void* argument) {
  auto& wanted = *static_cast<Unwritable*>(argument);
  if (library->dlpi_addr != wanted.base) return 0;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  for (const ElfW(Phdr) & segment : std::span(library->dlpi_phdr, library->dlpi_phnum)) {
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
    const std::uintptr_t begin = (segment.p_vaddr + page - 1) / page * page;
    const std::uintptr_t end = (segment.p_vaddr + segment.p_memsz) / page * page;
    if (begin < end) wanted.bytes += end - begin;
  }
  return 1;
}

TEST(LibraryPages, AreThoseOfEverySegmentForAnAddressInAny) {
  void* const library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr);
  Dl_info found{};
  const void* const code = dlsym(library, "cos");
  ASSERT_NE(dladdr(code, &found), 0);
  Unwritable expected{reinterpret_cast<std::uintptr_t>(found.dli_fbase)};
  ASSERT_EQ(dl_iterate_phdr(count_unwritable, &expected), 1);
  EXPECT_EQ(forget_library_pages(found.dli_fbase), expected.bytes) << "the base is in the first segment";
  EXPECT_EQ(forget_library_pages(code), expected.bytes);
  dlclose(library);
}

TEST(LibraryPages, AreLeftAloneWhereThereIsNoLibrary) {
  int on_the_stack = 0;
  EXPECT_EQ(forget_library_pages(&on_the_stack), 0u);
}

}  // namespace
}  // namespace berth
