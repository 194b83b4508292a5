#include "base/os/shared_library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

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

TEST(LibraryPages, AreLeftAloneWhereThereIsNoLibrary) {
  int on_the_stack = 0;
  EXPECT_EQ(forget_library_pages(&on_the_stack), 0u);
}

}  // namespace
}  // namespace berth
