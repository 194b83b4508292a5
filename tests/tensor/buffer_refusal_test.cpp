// A call that is refused must not cost memory: a lazy buffer stays lazy.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "berth/alloc/caching_pool.h"
#include "berth/alloc/dry_run.h"
#include "berth/alloc/growable.h"
#include "berth/alloc/limit.h"
#include "berth/interop/dlpack.h"
#include "berth/memory/registry.h"
#include "berth/tensor/buffer.h"
#include "berth/tensor/evictable.h"
#include "devices/cpu/cpu_device.h"
#include "doubles/cuda/cuda_testing.h"
#include "doubles/lagging_device.h"
#include "doubles/opaque_device.h"
#include "support/support.h"

namespace berth {
namespace {

using test::counting_bytes;
using test::fails_with;

DevicePtr cpu() {
  return device("CPU").value();
}

// Every way to write a buffer from the host.
template <class Expect>
void each_write(const Buffer& buffer, const Expect& expect) {
  expect(buffer.as_host_bytes_mut());
  expect(buffer.as_slice_mut<float>());
  expect(buffer.as_array_mut<float>());
}

TEST(BufferRefusal, LeavesABufferOfAnotherTypeLazy) {
  const Buffer buffer = Buffer::lazy(cpu(), i32, {4}).value();
  EXPECT_TRUE(fails_with(buffer.as_slice_mut<float>(), Code::kTypeMismatch));
  EXPECT_TRUE(fails_with(buffer.as_array_mut<float>(), Code::kTypeMismatch));
  EXPECT_FALSE(buffer.is_allocated());
  EXPECT_TRUE(buffer.as_slice_mut<std::int32_t>());
}

TEST(BufferRefusal, LeavesAMisalignedViewLazy) {
  const Buffer buffer = Buffer::lazy(cpu(), u8, {64}).value();
  for (std::size_t offset = 1; offset < 4; ++offset) {
    const Buffer view = buffer.view(offset, f32, {4}).value();
    EXPECT_TRUE(fails_with(view.as_slice_mut<float>(), Code::kMisaligned)) << offset;
    EXPECT_TRUE(fails_with(view.as_array_mut<float>(), Code::kMisaligned)) << offset;
    EXPECT_FALSE(buffer.is_allocated());
  }
  EXPECT_TRUE(buffer.view(4, f32, {4}).value().as_slice_mut<float>());
}

TEST(BufferRefusal, DecidesByTheAddressIfTheRequestedAlignmentPromisesNothing) {
  const Buffer buffer = Buffer::lazy(cpu(), u8, {64}, {.alignment = 1}).value();
  const Buffer view = buffer.view(1, f32, {4}).value();
  EXPECT_TRUE(fails_with(view.as_slice_mut<float>(), Code::kMisaligned)) << "the memory begins at a multiple of 64";
}

TEST(BufferRefusal, LeavesMemoryThatTheHostCannotReachLazy) {
  for (const DevicePtr& far : {opaque_device(), DevicePtr(doubles::LaggingDevice::make(false))}) {
    const Buffer buffer = Buffer::lazy(far, f32, {4}).value();
    each_write(buffer, [](const auto& result) { EXPECT_TRUE(fails_with(result, Code::kNotCpuAccessible)); });
    EXPECT_FALSE(buffer.is_allocated());
    EXPECT_EQ(far->counters().allocations, 0u);
    EXPECT_TRUE(Buffer::lazy(far, f32, {0}).value().as_host_bytes_mut()) << "zero bytes can be accessed anywhere";
  }
}

TEST(BufferRefusal, HasTheSameReasonBeforeAndAfterTheBufferIsAllocated) {
  for (const DevicePtr& far : {opaque_device(), DevicePtr(doubles::LaggingDevice::make(false)), cpu()}) {
    const Buffer lazy = Buffer::lazy(far, i32, {4}).value();
    const Buffer ready = Buffer::allocate(far, i32, {4}).value();
    const auto before = lazy.as_slice_mut<float>();  // of another type, and out of the host's reach but on CPU
    const auto after = ready.as_slice_mut<float>();
    ASSERT_FALSE(before.has_value() || after.has_value());
    EXPECT_EQ(before.error().code(), after.error().code()) << before.error().message() << after.error().message();
  }
}

class BufferRefusalOnCuda : public cuda_test::CudaDoubleTest {};

TEST_F(BufferRefusalOnCuda, LeavesDeviceMemoryLazyAndAllocatesManagedMemory) {
  const DevicePtr gpu = device("CUDA").value();
  const Buffer buffer = Buffer::lazy(gpu, f32, {4}).value();
  each_write(buffer, [](const auto& result) { EXPECT_TRUE(fails_with(result, Code::kNotCpuAccessible)); });
  EXPECT_EQ(dlpack::device_of(buffer).type, dlpack::kCuda);
  EXPECT_FALSE(buffer.is_allocated());
  const Buffer managed = Buffer::lazy(gpu, f32, {4}, {.host = HostAccess::kRequired}).value();
  EXPECT_TRUE(managed.cpu_accessible());
  EXPECT_EQ(dlpack::device_of(managed).type, dlpack::kCudaManaged);
  EXPECT_FALSE(managed.is_allocated());
  EXPECT_TRUE(managed.as_slice_mut<float>());
}

TEST(BufferRefusal, LeavesWebGpuMemoryLazy) {
  const auto gpu = device("WEBGPU");
  if (!gpu) GTEST_SKIP() << gpu.error().message();
  const Buffer buffer = Buffer::lazy(*gpu, f32, {4}).value();
  each_write(buffer, [](const auto& result) { EXPECT_TRUE(fails_with(result, Code::kNotCpuAccessible)); });
  EXPECT_FALSE(buffer.cpu_accessible());
  EXPECT_FALSE(buffer.is_allocated());
}

class BufferRefusalOnDisk : public ::testing::Test {
 protected:
  test::TemporaryFolder folder_;
  std::string path_ = folder_.write("bytes", counting_bytes(4096));
  DevicePtr disk_ = device("DISK:" + path_).value();
};

TEST_F(BufferRefusalOnDisk, LeavesAFileUnmapped) {
  const Buffer file = Buffer::lazy(disk_, f32, {4}).value();
  each_write(file, [](const auto& result) { EXPECT_TRUE(fails_with(result, Code::kReadOnly)); });
  EXPECT_TRUE(fails_with(file.copyin(counting_bytes(16)), Code::kReadOnly));
  EXPECT_TRUE(fails_with(file.copy_from(Buffer::allocate(cpu(), f32, {4}, {.zero = true}).value()), Code::kReadOnly));
  EXPECT_TRUE(fails_with(dlpack::export_buffer_legacy(file), Code::kReadOnly));
  EXPECT_TRUE(file.is_read_only());
  EXPECT_FALSE(file.is_allocated());
}

TEST_F(BufferRefusalOnDisk, LeavesTheTargetOfATruncatedFileLazy) {
  const Buffer file = map_file(path_).value();
  const Buffer target = Buffer::lazy(cpu(), u8, {4096}).value();
  std::filesystem::resize_file(path_, 100);
  EXPECT_TRUE(fails_with(target.copy_from(file), Code::kIo));
  EXPECT_FALSE(target.is_allocated());
  const Buffer part = Buffer::lazy(cpu(), u8, {100}).value();
  EXPECT_TRUE(part.copy_from(file.view(0, 100).value())) << "what is left of the file can be read";
}

TEST(BufferRefusal, LeavesATargetLazyThatNoCopyMayWrite) {
  const DevicePtr far = opaque_device();
  const Buffer target = Buffer::lazy(far, u8, {16}, {.usage = Usage::kKernel}).value();
  EXPECT_TRUE(fails_with(target.copyin(counting_bytes(16)), Code::kInvalidUsage));
  EXPECT_TRUE(
      fails_with(target.copy_from(Buffer::allocate(cpu(), u8, {16}, {.zero = true}).value()), Code::kInvalidUsage));
  EXPECT_FALSE(target.is_allocated());
}

TEST(BufferRefusal, LeavesTheTargetLazyIfTheSourceMayNotBeCopied) {
  const Buffer source = Buffer::allocate(opaque_device(), u8, {16}, {.usage = Usage::kKernel}).value();
  const Buffer target = Buffer::lazy(cpu(), u8, {16}).value();
  EXPECT_TRUE(fails_with(target.copy_from(source), Code::kInvalidUsage));
  EXPECT_FALSE(target.is_allocated());
}

TEST(BufferRefusal, LeavesABufferLazyThatDlpackCannotDescribe) {
  const Buffer blocks = Buffer::lazy(cpu(), DType::kQ4_0, {32}).value();
  EXPECT_TRUE(fails_with(dlpack::export_buffer(blocks), Code::kUnsupported));
  EXPECT_TRUE(fails_with(dlpack::export_buffer_legacy(blocks), Code::kUnsupported));
  EXPECT_FALSE(blocks.is_allocated());
  const Buffer wide = Buffer::lazy(cpu(), u8, {std::size_t{1} << 63, 0}).value();
  EXPECT_TRUE(fails_with(dlpack::export_buffer(wide), Code::kUnsupported)) << "DLPack counts in 63 bits";
  EXPECT_FALSE(wide.is_allocated());
}

// --- cpu_accessible ---

TEST(CpuAccessible, AnswersForALazyBufferWhatIsTrueOnceItIsAllocated) {
  const DevicePtr host = internal::cpu::open().value();
  std::vector<AllocatorPtr> allocators{host,
                                       opaque_device(),
                                       doubles::LaggingDevice::make(true),
                                       doubles::LaggingDevice::make(false),
                                       make_caching_pool(host),
                                       make_caching_pool(opaque_device()),
                                       make_limit(make_caching_pool(opaque_device()), 1 << 20),
                                       make_dry_run(host),
                                       make_growable(host).value(),
                                       make_evictable(host).value()};
  for (const char* name : {"WEBGPU", "CUDA", "METAL"})
    if (const auto gpu = device(name)) allocators.push_back(*gpu);
  for (const AllocatorPtr& allocator : allocators)
    for (const HostAccess access : {HostAccess::kPreferred, HostAccess::kNone}) {
      const Buffer buffer = Buffer::lazy(allocator, f32, {4}, {.host = access}).value();
      const bool before = buffer.cpu_accessible();
      EXPECT_FALSE(buffer.is_allocated());
      ASSERT_TRUE(buffer.ensure_allocated()) << allocator->name();
      EXPECT_EQ(buffer.cpu_accessible(), before) << allocator->name();
      EXPECT_EQ(buffer.as_host_bytes().has_value(), before) << allocator->name();
    }
}

TEST(CpuAccessible, IsFalseForAnEmptyHandleAndTrueForZeroBytes) {
  EXPECT_FALSE(Buffer().cpu_accessible());
  EXPECT_TRUE(Buffer::lazy(opaque_device(), f32, {0}).value().cpu_accessible());
}

}  // namespace
}  // namespace berth
