// CUDA, on the driver double unless BERTH_TEST_CUDA=real.
#include "berth/alloc/caching_pool.h"
#include "berth/alloc/linear.h"
#include "berth/interop/cuda.h"
#include "berth/memory/registry.h"
#include "conformance/allocator_conformance.h"
#include "conformance/device_conformance.h"
#include "devices/cuda/cuda_device.h"
#include "doubles/cuda/cuda_kernels.h"

namespace berth::conformance {

using namespace internal;

namespace {

using berth::cuda_test::cuda_double;
using berth::cuda_test::cuda_violations;
using berth::cuda_test::on_real_gpu;

// A device that, when a check lets go of it, fails the check for every misuse, race and leak that the double saw.
Result<DevicePtr> open(const CudaDoubleOptions& options) {
  if (on_real_gpu()) {
    if (options.pools == 1 && options.eager == 0) return device("CUDA:0");
    return Error(Code::kDeviceUnavailable, Layer::kDevice, "needs the driver double");
  }
  const berth::cuda_test::CudaChoice choice(options);
  auto opened = device("CUDA:0");
  if (!opened) return opened;
  // The check's own handle; the device behind it goes with it, and the double is asked then.
  auto inner = *std::move(opened);
  Device* const plain = inner.get();
  return DevicePtr(plain, [inner = std::move(inner)](Device*) mutable {
    inner.reset();
    for (const std::string& text : cuda_violations()) ADD_FAILURE() << text;
    EXPECT_EQ(cuda_double().live_objects(), 0u) << "driver objects outlived the check";
  });
}

// Memory from the driver itself, as another library would allocate it.
Result<ForeignMemory> foreign(Device& device, std::span<const std::byte> contents) {
  const auto& cuda = static_cast<cuda::CudaDevice&>(device);
  const cuda::Driver& driver = cuda.driver();
  const cuda::ContextScope scope(cuda);
  cuda::Address address = 0;
  if (const auto status = driver.cuMemAlloc(&address, contents.size()); status != cuda::kSuccess)
    return driver.error(status, "cuMemAlloc");
  cuda::Stream stream = nullptr;
  EXPECT_EQ(driver.cuStreamCreate(&stream, cuda::kStreamNonBlocking), cuda::kSuccess);
  EXPECT_EQ(driver.cuMemcpyHtoDAsync(address, contents.data(), contents.size(), stream), cuda::kSuccess);
  EXPECT_EQ(driver.cuStreamSynchronize(stream), cuda::kSuccess);
  EXPECT_EQ(driver.cuStreamDestroy(stream), cuda::kSuccess);
  return ForeignMemory{.address = address, .bytes = contents.size(), .read_only = false, .release = [&cuda, address] {
                         const cuda::ContextScope inside(cuda);
                         EXPECT_EQ(cuda.driver().cuMemFree(address), cuda::kSuccess);
                       }};
}

BERTH_DEVICE_CONFORMANCE(Cuda, DeviceCase{.open = [] { return open({}); },
                                          .add_kernel = berth::cuda_test::make_add_kernel,
                                          .foreign = foreign});

// The same on a GPU without stream-ordered memory.
BERTH_DEVICE_CONFORMANCE(CudaPlain, DeviceCase{.open = [] { return open({.pools = 0}); },
                                               .add_kernel = berth::cuda_test::make_add_kernel,
                                               .foreign = foreign});

// And with streams that run as soon as they can, each on its own thread.
BERTH_DEVICE_CONFORMANCE(CudaEager, DeviceCase{.open = [] { return open({.eager = 1}); },
                                               .add_kernel = berth::cuda_test::make_add_kernel,
                                               .foreign = foreign});

Result<AllocatorPtr> root() {
  if (on_real_gpu()) return allocator_of(device("CUDA:0"));
  const berth::cuda_test::CudaChoice choice;
  return allocator_of(device("CUDA:0"));
}

BERTH_ALLOCATOR_CONFORMANCE(CudaRoot, root);
BERTH_ALLOCATOR_CONFORMANCE(LinearOnCuda, [] {
  auto cuda = root();
  return cuda ? Result<AllocatorPtr>(make_linear(*cuda)) : cuda;
});
BERTH_ALLOCATOR_CONFORMANCE(PoolOnCuda, [] {
  auto cuda = root();
  return cuda ? Result<AllocatorPtr>(make_caching_pool(*cuda)) : cuda;
});

}  // namespace
}  // namespace berth::conformance
