// For tests of the CUDA device: chooses the driver double, unless BERTH_TEST_CUDA=real asks for the machine's own
// GPU, and checks after each test that the double saw no misuse, no race and no leak.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "cuda_double_paths.h"
#include "support/cuda_double.h"

namespace berth::cuda_test {

inline bool on_real_gpu() {
  const char* chosen = std::getenv("BERTH_TEST_CUDA");
  return chosen != nullptr && std::string_view(chosen) == "real";
}

// The double's controls. Requires: not on_real_gpu().
inline const CudaDoubleControl& cuda_double() {
  static const auto* const control = static_cast<const CudaDoubleControl*>(
      dlsym(dlopen(BERTH_CUDA_DOUBLE, RTLD_NOW | RTLD_LOCAL), "cuda_double_control"));
  return *control;
}

// Gives the double something to run in a kernel's place, where the driver in use is the double: that may also be so
// with BERTH_TEST_CUDA=real, if it is installed as libcuda.so.1. A GPU runs the kernel itself.
inline void register_kernel(const CudaDoubleKernel& kernel) {
  void* const library = on_real_gpu() ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : nullptr;
  const auto* const control =
      library != nullptr ? static_cast<const CudaDoubleControl*>(dlsym(library, "cuda_double_control")) : nullptr;
  if (control != nullptr)
    control->register_kernel(&kernel);
  else if (!on_real_gpu())
    cuda_double().register_kernel(&kernel);
}

inline std::vector<std::string> cuda_violations(std::string_view kind = "") {
  std::vector<std::string> found;
  for (std::size_t i = 0; i < cuda_double().violation_count(); ++i) {
    const std::string text = cuda_double().violation(i);
    if (text.starts_with(kind)) found.push_back(text);
  }
  return found;
}

// While it lives, "CUDA" is the double with these options, or the real GPU if that was asked for.
class CudaChoice {
 public:
  explicit CudaChoice(const CudaDoubleOptions& options = {}) {
    if (on_real_gpu()) return;
    setenv("BERTH_CUDA_LIBRARY", BERTH_CUDA_DOUBLE, 1);
    EXPECT_EQ(cuda_double().reset(&options), 1) << "an earlier test left a CUDA context behind";
  }
  ~CudaChoice() {
    if (!on_real_gpu()) unsetenv("BERTH_CUDA_LIBRARY");
  }
  CudaChoice(const CudaChoice&) = delete;
  CudaChoice& operator=(const CudaChoice&) = delete;
};

// The double saw no broken rule, and everything that was made is gone. Requires: not on_real_gpu().
inline void expect_nothing_left() {
  for (const std::string& text : cuda_violations()) ADD_FAILURE() << text;
  EXPECT_EQ(cuda_double().live_objects(), 0u) << "driver objects outlived the test";
}

// A test on the double or a real GPU.
class CudaTest : public ::testing::Test {
 protected:
  void TearDown() override {
    if (on_real_gpu()) return;
    expect_nothing_left();
  }

  CudaChoice choice_;
};

// A test that needs the double's controls.
class CudaDoubleTest : public CudaTest {
 protected:
  void SetUp() override {
    if (on_real_gpu()) GTEST_SKIP() << "needs the driver double";
  }
};

}  // namespace berth::cuda_test
