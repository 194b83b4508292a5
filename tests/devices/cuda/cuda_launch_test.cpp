// Modules and launches of kernels.
#include <gtest/gtest.h>

#include <fstream>

#include "berth/berth.h"
#include "devices/cuda/cuda_device.h"
#include "doubles/cuda/cuda_kernels.h"
#include "support/support.h"

namespace berth {
namespace {

using namespace cuda_test;
using namespace test;
using Bytes = std::vector<std::byte>;

class CudaLaunch : public cuda_test::CudaTest {};
class CudaLaunchOnDouble : public cuda_test::CudaDoubleTest {};

TEST_F(CudaLaunch, ChecksALaunchAgainstWhatTheKernelDeclares) {
  const DevicePtr gpu = device("CUDA").value();
  const Kernel add = cuda_test::make_add_kernel(*gpu).value();
  const Buffer a = Buffer::allocate(gpu, u32, {256}).value();
  const Buffer b = Buffer::allocate(gpu, u32, {256}).value();
  const QueuePtr queue = gpu->make_queue().value();
  const KernelArgument in{a.window().value(), Access::kRead};
  const KernelArgument out{b.window().value(), Access::kWrite};
  const Bytes four(4);
  const Bytes many(64);
  EXPECT_TRUE(fails_with(queue->launch(add, std::array{in, out}, {}, {}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(queue->launch(add, std::array{in, out}, {}, many), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(queue->launch(add, std::array{in, out, in}, {}, four), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(queue->launch(add, std::array{in, out, in, in}, {}, four), Code::kInvalidArgument));
}

TEST_F(CudaLaunch, SaysWhyAModuleCannotBeLoaded) {
  const DevicePtr gpu = device("CUDA").value();
  EXPECT_TRUE(fails_with(gpu->make_kernel({}), Code::kInvalidArgument));
  constexpr char nonsense[] = "this is no PTX";
  const auto refused = gpu->make_kernel({.code = std::as_bytes(std::span(nonsense)), .entry = "x"});
  ASSERT_TRUE(fails_with(refused, Code::kDriver));
  EXPECT_NE(refused.error().message().find("cuModuleLoadData"), std::string::npos);
  EXPECT_TRUE(fails_with(gpu->make_kernel({.code = std::as_bytes(std::span(cuda_test::kAddPtx)), .entry = "absent"}),
                         Code::kNotFound));
}

#ifdef BERTH_CUDA_MODULES
// nvcc made these from tests/doubles/cuda/scale.cu.
TEST_F(CudaLaunch, LoadsAndLaunchesAModuleThatNvccCompiled) {
  cuda_test::register_scale_kernel();
  const DevicePtr gpu = device("CUDA").value();
  for (const char* name : {"scale.ptx", "scale.cubin"}) {
    std::ifstream file(std::string(BERTH_CUDA_MODULES) + "/" + name, std::ios::binary);
    ASSERT_TRUE(file) << name;
    const std::string image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const auto scale = gpu->make_kernel({.code = std::as_bytes(std::span(image)), .entry = "berth_scale"});
    if (cuda_test::on_real_gpu() && !scale && std::string_view(name) == "scale.cubin")
      continue;  // another architecture
    ASSERT_TRUE(scale.has_value()) << name << ": " << scale.error().message();
    std::vector<float> values(100);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    const auto in = GpuBuffer<float>::alloc_from(gpu, values).value();
    const auto out = GpuBuffer<float>::alloc_zeros(gpu, values.size()).value();
    // The constants, as a C struct of the kernel's last parameters.
    const struct {
      std::uint32_t count;
      float factor;
      double offset;
    } constants{100, 2.0f, 0.5};
    Queue* const queue = gpu->default_queue().value();
    ASSERT_TRUE(queue->launch(*scale,
                              std::array{KernelArgument{in.slice().buffer().window().value(), Access::kRead},
                                         KernelArgument{out.slice().buffer().window().value(), Access::kWrite}},
                              {.groups = {1, 1, 1}, .threads = {128, 1, 1}}, std::as_bytes(std::span(&constants, 1))));
    const std::vector<float> seen = out.to_host(*gpu).value();
    EXPECT_EQ(seen[99], 198.5f) << name;
    EXPECT_EQ(seen[0], 0.5f) << name;
  }
}
#endif

TEST_F(CudaLaunchOnDouble, KeepsAKernelLoadedWhileItIsUnderWay) {
  const DevicePtr gpu = device("CUDA").value();
  Kernel add = cuda_test::make_add_kernel(*gpu).value();
  const QueuePtr queue = gpu->make_queue().value();
  const Buffer a = Buffer::allocate(gpu, u32, {256}, {.zero = true}).value();
  const Buffer b = Buffer::allocate(gpu, u32, {256}).value();
  const std::uint32_t constant = 3;
  ASSERT_TRUE(queue->launch(
      add,
      std::array{KernelArgument{a.window().value(), Access::kRead}, KernelArgument{b.window().value(), Access::kWrite}},
      {.groups = {4, 1, 1}, .threads = {64, 1, 1}}, std::as_bytes(std::span(&constant, 1))));
  add.reset();
  EXPECT_EQ(cuda_double().calls("cuModuleUnload"), 0u);
  ASSERT_TRUE(queue->finish());
  EXPECT_EQ(cuda_double().calls("cuModuleUnload"), 1u);
  Bytes seen(1024);
  ASSERT_TRUE(b.copyout(seen));
  EXPECT_EQ(seen[0], std::byte{3});
}

TEST_F(CudaLaunch, RefusesToLaunchOnMemoryOfAnotherDevice) {
  const DevicePtr gpu = device("CUDA").value();
  const Kernel add = cuda_test::make_add_kernel(*gpu).value();
  const Buffer here = Buffer::allocate(gpu, u32, {256}).value();
  const Buffer there = Buffer::allocate(device("CPU").value(), u32, {256}).value();
  const QueuePtr queue = gpu->make_queue().value();
  const KernelArgument ours{here.window().value(), Access::kRead}, theirs{there.window().value(), Access::kRead};
  for (const auto& arguments : {std::array{theirs, ours}, std::array{ours, theirs}}) {
    const auto launched = queue->launch(add, arguments, {}, Bytes(4));
    ASSERT_FALSE(launched.has_value());
    EXPECT_TRUE(launched.error().code() == Code::kInvalidArgument || launched.error().code() == Code::kUnsupported)
        << launched.error().message();
  }
}

}  // namespace
}  // namespace berth
