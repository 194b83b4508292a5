#include <gtest/gtest.h>

#include "berth/interop/cuda.h"
#include "berth/memory/registry.h"
#include "doubles/cuda/cuda_testing.h"
#include "support/support.h"

namespace berth {
namespace {

using cuda_test::cuda_double;
using test::fails_with;

struct Particle {
  float position[3];
  std::uint32_t id;
};

// The promise a bridge relies on, for several element types.
template <class T>
constexpr bool same_layout = sizeof(GpuBuffer<T>) == sizeof(CudaSlice<T>) &&
                             alignof(GpuBuffer<T>) == alignof(CudaSlice<T>) && std::is_standard_layout_v<GpuBuffer<T>>;
static_assert(same_layout<float> && same_layout<F16> && same_layout<std::int8_t> && same_layout<std::uint32_t> &&
              same_layout<Particle>);
static_assert(!std::is_copy_constructible_v<GpuBuffer<float>> && !std::is_copy_assignable_v<GpuBuffer<float>>);
static_assert(std::is_nothrow_move_constructible_v<GpuBuffer<float>>);
static_assert(!DeviceValue<std::vector<int>>);

class GpuBufferTest : public cuda_test::CudaTest {};
class GpuBufferOnDouble : public cuda_test::CudaDoubleTest {};

TEST_F(GpuBufferTest, BringsBackWhatItWasMadeFrom) {
  const DevicePtr gpu = device("CUDA").value();
  std::vector<float> host{1, 2, 3};
  const auto buffer = GpuBuffer<float>::alloc_from(gpu, host).value();
  host = {0, 0, 0};  // the source is free at once
  EXPECT_EQ(buffer.size(), 3u);
  EXPECT_NE(buffer.pointer(), 0u);
  EXPECT_EQ(buffer.to_host(*gpu).value(), (std::vector<float>{1, 2, 3}));
}

TEST_F(GpuBufferTest, HoldsStructsAndHalves) {
  const DevicePtr gpu = device("CUDA").value();
  const std::vector<Particle> host{{{1, 2, 3}, 7}, {{4, 5, 6}, 8}};
  const auto particles = GpuBuffer<Particle>::alloc_from(gpu, host).value();
  EXPECT_EQ(particles.to_host(*gpu).value()[1].id, 8u);
  EXPECT_EQ(particles.slice().buffer().dtype(), u8);
  const auto halves = GpuBuffer<F16>::alloc_zeros(gpu, 5).value();
  EXPECT_EQ(halves.slice().buffer().dtype(), f16);
  EXPECT_EQ(halves.to_host(*gpu).value()[4].bits, 0u);
}

TEST_F(GpuBufferTest, GivesZeroesOnRequest) {
  const DevicePtr gpu = device("CUDA").value();
  EXPECT_EQ(GpuBuffer<std::int32_t>::alloc_zeros(gpu, 1000).value().to_host(*gpu).value(),
            std::vector<std::int32_t>(1000));
  EXPECT_EQ(GpuBuffer<std::int32_t>::alloc_uninit(gpu, 1000).value().size(), 1000u);
}

TEST_F(GpuBufferOnDouble, IsLegalWithNoElementsAndCallsNoDriver) {
  const DevicePtr gpu = device("CUDA").value();
  cuda_double().clear_calls();
  {
    const auto none = GpuBuffer<float>::alloc_from(gpu, {}).value();
    const auto zeros = GpuBuffer<float>::alloc_zeros(gpu, 0).value();
    EXPECT_TRUE(none.empty());
    EXPECT_EQ(none.pointer(), 0u);
    EXPECT_TRUE(zeros.to_host(*gpu).value().empty());
  }
  EXPECT_EQ(cuda_double().calls(nullptr), 0u);
}

TEST_F(GpuBufferOnDouble, RefusesToReadAnotherDevicesBuffer) {
  const DevicePtr gpu = device("CUDA:0").value();
  const DevicePtr other = device("CUDA:1").value();
  const auto buffer = GpuBuffer<float>::alloc_zeros(gpu, 4).value();
  const auto refused = buffer.to_host(*other);
  ASSERT_TRUE(fails_with(refused, Code::kInvalidArgument));
  EXPECT_EQ(refused.error().message(), "the buffer is on CUDA:0, not on CUDA:1");
}

TEST_F(GpuBufferTest, RefusesAnAllocatorThatIsNotCuda) {
  EXPECT_TRUE(fails_with(GpuBuffer<float>::alloc_zeros(device("CPU").value(), 4), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(GpuBuffer<float>::alloc_zeros(nullptr, 4), Code::kInvalidArgument));
}

TEST_F(GpuBufferOnDouble, MovesOwnershipToAndFromASliceWithoutACopy) {
  const DevicePtr gpu = device("CUDA").value();
  auto buffer = GpuBuffer<float>::alloc_from(gpu, std::vector<float>{5, 6}).value();
  const auto pointer = buffer.pointer();
  cuda_double().clear_calls();
  CudaSlice<float> slice = std::move(buffer).into_slice();
  EXPECT_EQ(slice.pointer(), pointer);
  EXPECT_EQ(buffer.pointer(), 0u);
  EXPECT_EQ(buffer.size(), 0u);
  auto again = GpuBuffer<float>::from_slice(std::move(slice));
  EXPECT_EQ(again.pointer(), pointer);
  EXPECT_EQ(cuda_double().calls(nullptr), 0u);
  EXPECT_EQ(again.to_host(*gpu).value(), (std::vector<float>{5, 6}));
}

TEST_F(GpuBufferTest, IsASliceToWhoeverHoldsAReference) {
  const DevicePtr gpu = device("CUDA").value();
  auto made = GpuBuffer<float>::alloc_from(gpu, std::vector<float>{1}).value();
  const CudaSlice<float> slice = std::move(made).into_slice();
  // What a bridge does with a slice borrowed from another framework.
  const auto& buffer = reinterpret_cast<const GpuBuffer<float>&>(slice);
  EXPECT_EQ(buffer.pointer(), slice.pointer());
  EXPECT_EQ(*reinterpret_cast<const unsigned long long*>(&slice), slice.pointer())
      << "a pointer to the slice is a kernel's pointer parameter";
  EXPECT_EQ(buffer.to_host(*gpu).value(), std::vector<float>{1});
}

TEST_F(GpuBufferOnDouble, BecomesABufferAndComesBackWithoutACopy) {
  const DevicePtr gpu = device("CUDA").value();
  auto typed = GpuBuffer<float>::alloc_from(gpu, std::vector<float>{1, 2, 3, 4}).value();
  const auto pointer = typed.pointer();
  cuda_double().clear_calls();
  Buffer buffer = std::move(typed).into_buffer();
  EXPECT_EQ(buffer.dtype(), f32);
  EXPECT_EQ(buffer.native_handle(), pointer);
  const auto half = GpuBuffer<float>::from_buffer(buffer.view(8, 8).value()).value();
  EXPECT_EQ(half.pointer(), pointer + 8);
  EXPECT_EQ(cuda_double().calls(nullptr), 0u);
  EXPECT_EQ(half.to_host(*gpu).value(), (std::vector<float>{3, 4}));
  EXPECT_TRUE(fails_with(GpuBuffer<std::int32_t>::from_buffer(buffer), Code::kTypeMismatch));
  EXPECT_TRUE(fails_with(GpuBuffer<Particle>::from_buffer(buffer.view(0, 8).value()), Code::kSizeMismatch));
  EXPECT_TRUE(fails_with(GpuBuffer<float>::from_buffer(Buffer::allocate(device("CPU").value(), f32, {2}).value()),
                         Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(GpuBuffer<float>::from_buffer(Buffer()), Code::kInvalidArgument));
}

TEST_F(GpuBufferOnDouble, AdoptsMemoryAndTellsItsOwnerOnceWhenItGoes) {
  const DevicePtr gpu = device("CUDA").value();
  const auto owner = GpuBuffer<float>::alloc_from(gpu, std::vector<float>{9}).value();
  int released = 0;
  {
    auto slice = CudaSlice<float>::adopt(gpu, owner.pointer(), 1, [&] { ++released; }).value();
    const auto buffer = GpuBuffer<float>::from_slice(std::move(slice));
    EXPECT_EQ(buffer.to_host(*gpu).value(), std::vector<float>{9});
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}

TEST_F(GpuBufferOnDouble, KeepsTheContextAliveAndFreesInStreamOrder) {
  DevicePtr gpu = device("CUDA").value();
  {
    const auto buffer = GpuBuffer<float>::alloc_from(gpu, std::vector<float>(1000, 1.0f)).value();
    gpu.reset();
    cuda_double().clear_calls();
  }
  EXPECT_EQ(cuda_double().calls("cuMemFreeAsync"), 1u);
  EXPECT_EQ(cuda_double().calls("cuMemFree"), 0u);
}

TEST_F(GpuBufferOnDouble, IsOutOfMemoryAsAValue) {
  const DevicePtr gpu = device("CUDA").value();
  EXPECT_TRUE(fails_with(GpuBuffer<double>::alloc_uninit(gpu, std::size_t{1} << 28), Code::kOutOfMemory));
  EXPECT_TRUE(fails_with(GpuBuffer<double>::alloc_uninit(gpu, std::size_t{1} << 62), Code::kInvalidArgument));
}

TEST_F(GpuBufferOnDouble, TakesTwoDriverCallsToBeMadeFromHostMemory) {
  const DevicePtr gpu = device("CUDA").value();
  const std::vector<float> host(1000, 2.0f);
  static_cast<void>(GpuBuffer<float>::alloc_from(gpu, host).value());  // pins the staging memory, once
  cuda_double().clear_calls();
  const auto buffer = GpuBuffer<float>::alloc_from(gpu, host).value();
  EXPECT_EQ(cuda_double().calls(nullptr), 2u);
  EXPECT_EQ(cuda_double().calls("cuMemAllocFromPoolAsync"), 1u);
  EXPECT_EQ(cuda_double().calls("cuMemcpyHtoDAsync"), 1u);
}

TEST_F(GpuBufferOnDouble, MakesTheContextOfAnotherGpuCurrentOnceForBothCalls) {
  const DevicePtr gpu = device("CUDA:1").value();
  const std::vector<float> host(1000, 2.0f);
  static_cast<void>(GpuBuffer<float>::alloc_from(gpu, host).value());
  cuda_double().clear_calls();
  const auto buffer = GpuBuffer<float>::alloc_from(gpu, host).value();
  EXPECT_EQ(cuda_double().calls("cuCtxPushCurrent"), 1u);
  EXPECT_EQ(cuda_double().calls("cuCtxPopCurrent"), 1u);
  const CudaScope scope = CudaScope::enter(gpu).value();
  cuda_double().clear_calls();
  const auto second = GpuBuffer<float>::alloc_from(gpu, host).value();
  EXPECT_EQ(cuda_double().calls(nullptr), 2u) << "and in a scope there is nothing to do";
}

}  // namespace
}  // namespace berth
