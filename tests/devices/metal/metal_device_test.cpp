#include <unistd.h>

#include <fstream>

#include "berth/interop/dlpack.h"
#include "berth/memory/registry.h"
#include "devices/metal/metal_support.h"
#include "support/support.h"

namespace berth::metal_test {
namespace {

using test::counting_bytes;
using test::fails_with;

using MetalDevice = MetalTest;

TEST_F(MetalDevice, TellsWhatItIs) {
  const DevicePtr gpu = device("metal").value();
  EXPECT_EQ(gpu->name(), "METAL:0");
  EXPECT_EQ(gpu->kind(), "METAL");
  EXPECT_TRUE(gpu->limits().unified_memory);
  EXPECT_EQ(gpu->limits().max_block_bytes, std::size_t{2} << 30);
  EXPECT_EQ(gpu->limits().total_bytes, std::size_t{3} << 30);
  const MetalInfo info = metal_info(*gpu).value();
  EXPECT_FALSE(info.name.empty());
  EXPECT_TRUE(info.residency_sets);
  EXPECT_NE(gpu->description().find(info.name), std::string::npos);
  EXPECT_EQ(gpu->native(), &static_cast<internal::metal::MetalDevice&>(*gpu).native_device());
}

TEST_F(MetalDevice, IsNotThereUnderAnOrdinalThatMetalLacks) {
  const auto refused = device("METAL:7");
  ASSERT_TRUE(fails_with(refused, Code::kDeviceUnavailable));
  EXPECT_NE(refused.error().message().find("1 GPU"), std::string::npos) << refused.error().message();
}

TEST_F(MetalDevice, IsNotThereWhereMetalHasNoGpu) {
  restart({.devices = 0});
  EXPECT_TRUE(fails_with(device("METAL"), Code::kDeviceUnavailable));
}

TEST_F(MetalDevice, OpensTheSecondGpu) {
  restart({.devices = 2});
  const DevicePtr first = device("METAL:0").value();
  const DevicePtr second = device("METAL:1").value();
  EXPECT_NE(first->native(), second->native());
}

TEST_F(MetalDevice, IsTheFirstOfAllWhereTheSystemNamesNoDefault) {
  restart({.devices = 2});
  const auto first_name = [] { return metal_info(*device("METAL:0").value()).value().name; };
  const std::string first = first_name();
  EXPECT_NE(metal_info(*device("METAL:1").value()).value().name, first);
  metal_double().fail("MTLCreateSystemDefaultDevice", 1);
  EXPECT_EQ(first_name(), first);
}

TEST_F(MetalDevice, CopiesBetweenTwoGpusThroughTheHost) {
  restart({.devices = 2});
  register_kernels();
  const DevicePtr first = device("METAL:0").value();
  const DevicePtr second = device("METAL:1").value();
  EXPECT_FALSE(first->reaches(*second));
  const Bytes bytes = counting_bytes((5 << 20) + 3);
  for (const HostAccess from : {HostAccess::kPreferred, HostAccess::kNone})
    for (const HostAccess to : {HostAccess::kPreferred, HostAccess::kNone}) {
      const Buffer here = Buffer::allocate(first, u8, {bytes.size()}, {.host = from}).value();
      const Buffer there = Buffer::allocate(second, u8, {bytes.size()}, {.host = to}).value();
      // Work that is still on its way on the first GPU comes before the copy.
      const QueuePtr queue = first->make_queue().value();
      ASSERT_TRUE(queue->fill(here.window().value(), 9));
      ASSERT_TRUE(queue->write(here.window().value(), bytes));
      ASSERT_TRUE(queue->submit());
      ASSERT_TRUE(there.copy_from(here));
      Bytes seen(bytes.size());
      ASSERT_TRUE(there.copyout(seen));
      EXPECT_TRUE(seen == bytes);
    }
}

TEST_F(MetalDevice, GivesSharedMemoryThatTheHostReachesAtItsOffset) {
  const DevicePtr gpu = device("METAL").value();
  const Buffer buffer = Buffer::allocate(gpu, f32, {4, 8}).value();
  auto* const native = reinterpret_cast<MTL::Buffer*>(buffer.native_handle());
  EXPECT_EQ(native->storageMode(), MTL::StorageModeShared);
  EXPECT_EQ(buffer.as_raw_ptr(), native->contents());
  const Buffer slice = buffer.slice_view(32, 8).value().slice_view(16, 2).value();
  EXPECT_EQ(slice.byte_offset(), 48u);
  EXPECT_EQ(slice.element_count(), 2u);
  EXPECT_EQ(slice.as_raw_ptr(), static_cast<std::byte*>(native->contents()) + 48);
  slice.as_slice_mut<float>().value()[1] = 2.5f;
  EXPECT_EQ(static_cast<float*>(native->contents())[13], 2.5f);
  EXPECT_EQ(buffer.with_shape({32}).value().as_slice<float>().value()[13], 2.5f);
  EXPECT_TRUE(fails_with(buffer.with_shape({31}), Code::kSizeMismatch));
  EXPECT_TRUE(fails_with(buffer.slice_view(120, 3), Code::kInvalidView));
}

TEST_F(MetalDevice, GivesPrivateMemoryWhereTheHostIsNotWanted) {
  const DevicePtr gpu = device("METAL").value();
  const Buffer buffer = Buffer::allocate(gpu, u8, {1000}, {.host = HostAccess::kNone, .zero = true}).value();
  EXPECT_EQ(reinterpret_cast<MTL::Buffer*>(buffer.native_handle())->storageMode(), MTL::StorageModePrivate);
  EXPECT_TRUE(fails_with(buffer.as_host_bytes(), Code::kNotCpuAccessible));
  Bytes seen(1000, std::byte{1});
  ASSERT_TRUE(buffer.copyout(seen));
  EXPECT_EQ(seen, Bytes(1000));
  ASSERT_TRUE(buffer.copyin(counting_bytes(1000)));
  ASSERT_TRUE(buffer.view(3, 501).value().copyout(std::span(seen).first(501)));
  EXPECT_EQ(Bytes(seen.begin(), seen.begin() + 501), counting_bytes(501, 3));
  EXPECT_TRUE(fails_with(gpu->allocate({.bytes = 64, .alignment = std::size_t{1} << 20, .host = HostAccess::kNone}),
                         Code::kUnsupported));
}

TEST_F(MetalDevice, ReportsPrivateMemoryThatMetalRefuses) {
  restart({.private_memory = 0});
  const DevicePtr gpu = device("METAL").value();
  EXPECT_TRUE(fails_with(gpu->allocate({.bytes = 64, .host = HostAccess::kNone}), Code::kOutOfMemory));
  EXPECT_EQ(gpu->counters().live_bytes, 0u);
}

TEST_F(MetalDevice, ReachesAlignmentsThatMetalDoesNotGive) {
  const DevicePtr gpu = device("METAL").value();
  for (const std::size_t alignment : {std::size_t{1} << 16, std::size_t{1} << 21}) {
    const Block block = gpu->allocate({.bytes = 100, .alignment = alignment}).value();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.host) % alignment, 0u);
    gpu->release(block);
  }
}

TEST_F(MetalDevice, SaysHowMuchOneBlockHolds) {
  const DevicePtr gpu = device("METAL").value();
  const auto refused = gpu->allocate({.bytes = (std::size_t{2} << 30) + 1});
  ASSERT_TRUE(fails_with(refused, Code::kOutOfMemory));
  EXPECT_NE(refused.error().message().find("2147483648"), std::string::npos);
}

TEST_F(MetalDevice, WrapsAForeignBufferWithoutOwningIt) {
  const DevicePtr gpu = device("METAL").value();
  auto& native = static_cast<internal::metal::MetalDevice&>(*gpu).native_device();
  MTL::Buffer* const raw = native.newBuffer(4096, MTL::ResourceStorageModeShared);
  const auto members = gpu->residency()->counters();
  {
    const Buffer wrapped =
        Buffer::import(gpu, {.address = internal::metal::handle_of(raw), .bytes = 4096}, f32, {1024}).value();
    EXPECT_TRUE(wrapped.is_foreign());
    EXPECT_EQ(wrapped.as_raw_ptr(), raw->contents());
    EXPECT_EQ(raw->retainCount(), 1u);
  }
  EXPECT_EQ(raw->retainCount(), 1u) << "a buffer without a release callback is not ours";
  EXPECT_EQ(gpu->residency()->counters().added, members.added);
  EXPECT_TRUE(fails_with(Buffer::import(gpu, {.address = internal::metal::handle_of(raw), .bytes = 4097}, u8, {4097}),
                         Code::kSizeMismatch));
  EXPECT_TRUE(fails_with(Buffer::import(gpu, {.address = 0, .bytes = 16}, u8, {16}), Code::kInvalidArgument));
  raw->release();
}

TEST_F(MetalDevice, RefusesABufferOfAnotherGpu) {
  restart({.devices = 2});
  const DevicePtr first = device("METAL:0").value();
  const DevicePtr second = device("METAL:1").value();
  const Buffer there = Buffer::allocate(second, u8, {64}).value();
  EXPECT_TRUE(fails_with(Buffer::import(first, {.address = there.native_handle(), .bytes = 64}, u8, {64}),
                         Code::kInvalidArgument));
}

TEST_F(MetalDevice, WrapsPagesOfTheHostWithoutACopy) {
  const DevicePtr gpu = device("METAL").value();
  const DevicePtr cpu = device("CPU").value();
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  Buffer wrapped;
  {
    const Buffer host = Buffer::allocate(cpu, u32, {page / 2}, {.alignment = page}).value();
    host.as_slice_mut<std::uint32_t>().value()[5] = 77;
    wrapped = metal_wrap(gpu, host.slice_view(16, 100).value()).value();
    EXPECT_EQ(wrapped.as_raw_ptr(), static_cast<std::byte*>(host.as_raw_ptr()) + 16);
  }
  EXPECT_EQ(wrapped.dtype(), u32);
  EXPECT_EQ(wrapped.element_count(), 100u);
  EXPECT_EQ(wrapped.as_slice<std::uint32_t>().value()[1], 77u) << "the host's memory lives as long as the wrapped";
  const Buffer mapped = Buffer::allocate(cpu, u8, {(1 << 20) + 5}).value();
  EXPECT_TRUE(metal_wrap(gpu, mapped).has_value());
}

TEST_F(MetalDevice, RefusesToWrapMemoryThatSharesPages) {
  const DevicePtr gpu = device("METAL").value();
  const Buffer small = Buffer::allocate(device("CPU").value(), u8, {100}).value();
  EXPECT_TRUE(fails_with(metal_wrap(gpu, small), Code::kMisaligned));
  EXPECT_TRUE(fails_with(metal_wrap(gpu, Buffer::lazy(device("CPU").value(), u8, {100}).value()), Code::kNotAllocated));
  EXPECT_TRUE(fails_with(metal_wrap(gpu, Buffer::allocate(gpu, u8, {100}).value()), Code::kNotCpuAccessible));
  EXPECT_TRUE(
      fails_with(metal_wrap(gpu, Buffer::allocate(device("CPU").value(), u8, {0}).value()), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(metal_wrap(device("CPU").value(), small), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(metal_info(*device("CPU").value()), Code::kInvalidArgument));
}

TEST_F(MetalDevice, RunsAKernelOnAMappedFile) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "weights.bin";
  {
    std::vector<std::uint32_t> numbers(3000);
    for (std::uint32_t i = 0; i < 3000; ++i) numbers[i] = i;
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(numbers.data()), 12000);
  }
  const DevicePtr gpu = device("METAL").value();
  const Buffer tensor = map_file(path).value().view(4096, u32, {256}).value();
  const Buffer wrapped = metal_wrap(gpu, tensor).value();
  EXPECT_TRUE(wrapped.is_read_only());
  EXPECT_TRUE(fails_with(wrapped.copyin(Bytes(1024)), Code::kReadOnly));
  StepBuffers pool(gpu);
  ASSERT_TRUE(pool.register_existing(wrapped));
  const Buffer out = pool.allocate(u32, {256}).value();
  const QueuePtr queue = gpu->make_queue().value();
  const Kernel add = make_add_kernel(*gpu).value();
  const std::uint32_t constant = 5;
  ASSERT_TRUE(queue->launch(add,
                            std::array{KernelArgument{wrapped.window().value(), Access::kRead},
                                       KernelArgument{out.window().value(), Access::kWrite}},
                            {.groups = {4, 1, 1}, .threads = {64, 1, 1}}, std::as_bytes(std::span(&constant, 1))));
  ASSERT_TRUE(queue->finish());
  EXPECT_EQ(out.as_slice<std::uint32_t>().value()[255], 1024u + 255 + 5);
}

TEST_F(MetalDevice, ImportsAWindowOfABufferThroughDlpack) {
  const DevicePtr gpu = device("METAL").value();
  const Buffer whole = Buffer::allocate(gpu, u8, {256}).value();
  ASSERT_TRUE(whole.copyin(counting_bytes(256)));
  for (const std::size_t offset : {std::size_t{0}, std::size_t{64}}) {
    const Buffer window = whole.view(offset, f32, {16}).value();
    auto* const tensor = dlpack::export_buffer(window).value();
    EXPECT_EQ(tensor->tensor.byte_offset, offset) << "the address is that of an object";
    const Buffer same = dlpack::import_tensor(tensor).value();
    EXPECT_EQ(same.dtype(), f32);
    EXPECT_EQ(same.size(), 64u);
    EXPECT_EQ(same.byte_offset(), offset);
    Bytes seen(64);
    ASSERT_TRUE(same.copyout(seen));
    EXPECT_EQ(seen, counting_bytes(64, offset));
  }
}

TEST_F(MetalDevice, MakesAKernelFromACompiledLibrary) {
  const DevicePtr gpu = device("METAL").value();
  const std::span code = std::as_bytes(std::span(kAddLibrary));
  metal_double().clear_messages();
  EXPECT_TRUE(gpu->make_kernel({.code = code, .entry = "add_constant"}).has_value());
  EXPECT_EQ(metal_double().messages("newLibraryWithData:error:"), 1u);
  EXPECT_TRUE(fails_with(gpu->make_kernel({.code = code, .entry = "absent"}), Code::kNotFound));
  metal_double().fail("newLibraryWithData:error:", 1);
  EXPECT_TRUE(fails_with(gpu->make_kernel({.code = code, .entry = "add_constant"}), Code::kInvalidArgument));
}

TEST_F(MetalDevice, GivesTheCompilersWordsForSourceThatDoesNotCompile) {
  const DevicePtr gpu = device("METAL").value();
  metal_double().fail("newLibraryWithSource:options:error:", 1);
  const auto refused = make_add_kernel(*gpu);
  ASSERT_TRUE(fails_with(refused, Code::kInvalidArgument));
  EXPECT_NE(refused.error().message().find("newLibraryWithSource says: "), std::string::npos)
      << refused.error().message();
  EXPECT_TRUE(
      fails_with(gpu->make_kernel({.code = std::as_bytes(std::span(kAddSource)), .entry = "absent"}), Code::kNotFound));
  const auto garbled = gpu->make_kernel({.code = std::as_bytes(std::span("kernel \xff\xfe")), .entry = "absent"});
  ASSERT_TRUE(fails_with(garbled, Code::kInvalidArgument));
  EXPECT_NE(garbled.error().message().find("not UTF-8"), std::string::npos) << garbled.error().message();
  EXPECT_TRUE(fails_with(gpu->make_kernel({}), Code::kInvalidArgument));
}

}  // namespace
}  // namespace berth::metal_test
