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

// Trivially copyable, and cannot be made from nothing.
struct Handle {
  explicit Handle(std::uint32_t v) : value(v) {}
  std::uint32_t value;
};
struct alignas(128) Wide {
  explicit Wide(int v) : value(v) {}
  int value;
};

TEST_F(GpuBufferTest, HoldsBooleansAndValuesWithoutADefault) {
  const DevicePtr gpu = device("CUDA").value();
  const bool flags[] = {true, false, true};
  const auto booleans = GpuBuffer<bool>::alloc_from(gpu, flags).value();
  EXPECT_EQ(booleans.slice().buffer().dtype(), DType::kBool);
  EXPECT_EQ(booleans.to_host(*gpu).value(), (std::vector<bool>{true, false, true}));
  const std::vector<Handle> handles{Handle(7), Handle(8)};
  EXPECT_EQ(GpuBuffer<Handle>::alloc_from(gpu, handles).value().to_host(*gpu).value()[1].value, 8u);
  const std::vector<Wide> wide{Wide(1), Wide(2)};
  EXPECT_EQ(GpuBuffer<Wide>::alloc_from(gpu, wide).value().to_host(*gpu).value()[1].value, 2);
}

TEST_F(GpuBufferOnDouble, RefusesALengthThatOverflows) {
  const DevicePtr gpu = device("CUDA").value();
  struct Eight {
    std::uint32_t value[2];
  };
  for (const std::size_t length : {(std::size_t{1} << 61) + 1, ~std::size_t{0}, ~std::size_t{0} / 8 + 1}) {
    EXPECT_TRUE(fails_with(GpuBuffer<Eight>::alloc_uninit(gpu, length), Code::kInvalidArgument)) << length;
    EXPECT_TRUE(fails_with(GpuBuffer<Eight>::alloc_zeros(gpu, length), Code::kInvalidArgument)) << length;
    EXPECT_TRUE(fails_with(GpuBuffer<double>::alloc_uninit(gpu, length), Code::kInvalidArgument)) << length;
    const auto owner = GpuBuffer<Eight>::alloc_zeros(gpu, 1).value();
    int released = 0;
    const auto release = [&] { ++released; };
    EXPECT_TRUE(fails_with(CudaSlice<Eight>::adopt(gpu, owner.pointer(), length, release), Code::kInvalidArgument));
    EXPECT_TRUE(fails_with(CudaSlice<double>::adopt(gpu, owner.pointer(), length, release), Code::kInvalidArgument));
    EXPECT_EQ(released, 2);
  }
}

TEST_F(GpuBufferOnDouble, RefusesAWindowThatIsMisalignedForItsType) {
  const DevicePtr gpu = device("CUDA").value();
  const Buffer bytes = Buffer::lazy(gpu, u8, {64}).value();
  for (const std::size_t offset : {1u, 2u, 3u}) {
    EXPECT_TRUE(fails_with(GpuBuffer<float>::from_buffer(bytes.view(offset, f32, {1}).value()), Code::kMisaligned));
    EXPECT_TRUE(fails_with(GpuBuffer<Particle>::from_buffer(bytes.view(offset, 16).value()), Code::kMisaligned));
    EXPECT_FALSE(bytes.is_allocated()) << "and takes no memory for it";
  }
  ASSERT_TRUE(bytes.ensure_allocated());
  EXPECT_TRUE(fails_with(GpuBuffer<float>::from_buffer(bytes.view(2, f32, {1}).value()), Code::kMisaligned));
  EXPECT_EQ(GpuBuffer<float>::from_buffer(bytes.view(4, f32, {1}).value()).value().pointer(),
            bytes.native_handle() + 4);
  int released = 0;
  EXPECT_TRUE(
      fails_with(CudaSlice<float>::adopt(gpu, bytes.native_handle() + 2, 1, [&] { ++released; }), Code::kMisaligned));
  EXPECT_EQ(released, 1);
  EXPECT_TRUE(GpuBuffer<float>::from_buffer(bytes.view(2, f32, {0}).value())) << "nothing is at the address";
}

TEST_F(GpuBufferOnDouble, RefusesReadOnlyMemory) {
  const DevicePtr gpu = device("CUDA").value();
  const auto owner = GpuBuffer<float>::alloc_zeros(gpu, 4).value();
  const Buffer read_only =
      Buffer::import(gpu, {.address = owner.pointer(), .bytes = 16, .read_only = true}, f32, {4}).value();
  EXPECT_TRUE(fails_with(GpuBuffer<float>::from_buffer(read_only), Code::kReadOnly));
  EXPECT_TRUE(fails_with(CudaSlice<float>::from_buffer(read_only.view(0, 8).value()), Code::kReadOnly));
}

TEST_F(GpuBufferOnDouble, TakesNoMemoryForALazyBufferThatItRefuses) {
  const DevicePtr gpu = device("CUDA").value();
  const Buffer lazy = Buffer::lazy(gpu, f32, {3}).value();
  EXPECT_TRUE(fails_with(GpuBuffer<std::int32_t>::from_buffer(lazy), Code::kTypeMismatch));
  EXPECT_TRUE(fails_with(GpuBuffer<Particle>::from_buffer(lazy), Code::kSizeMismatch));
  EXPECT_FALSE(lazy.is_allocated());
  EXPECT_EQ(GpuBuffer<float>::from_buffer(lazy).value().size(), 3u);
  EXPECT_TRUE(lazy.is_allocated());
}

TEST_F(GpuBufferOnDouble, ChecksTheDeviceAlsoOfNoElements) {
  const DevicePtr gpu = device("CUDA:0").value();
  const auto none = GpuBuffer<float>::alloc_zeros(gpu, 0).value();
  EXPECT_TRUE(none.to_host(*gpu).value().empty());
  EXPECT_TRUE(fails_with(none.to_host(*device("CUDA:1").value()), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(none.to_host(*device("CPU").value()), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(GpuBuffer<float>().to_host(*gpu), Code::kInvalidArgument)) << "it is on no device";
  EXPECT_TRUE(fails_with(GpuBuffer<float>::alloc_zeros(device("CPU").value(), 0), Code::kInvalidArgument));
}

TEST_F(GpuBufferTest, RefusesAScopeWithoutADevice) {
  EXPECT_TRUE(fails_with(CudaScope::enter(nullptr), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(CudaScope::enter(device("CPU").value()), Code::kInvalidArgument));
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
