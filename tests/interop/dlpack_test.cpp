#include "berth/interop/dlpack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <limits>
#include <thread>
#include <vector>

#include "berth/memory/registry.h"
#include "berth/weights/weights.h"
#include "devices/cuda/cuda_device.h"
#include "doubles/cuda/cuda_testing.h"
#include "support/support.h"

namespace berth::dlpack {

using namespace internal;

namespace {

DevicePtr cpu() {
  return device("CPU").value();
}

// A foreign producer that counts its deleter's calls.
struct Producer {
  std::array<float, 12> values{};
  std::array<std::int64_t, 2> shape{3, 4};
  std::array<std::int64_t, 2> strides{4, 1};
  ManagedTensorVersioned managed{};
  ManagedTensor legacy{};
  int deleted = 0;

  Producer() {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    const Tensor tensor{values.data(), {kCpu, 0}, 2, {kFloat, 32, 1}, shape.data(), strides.data(), 0};
    managed = {kVersion, this, [](ManagedTensorVersioned* self) { ++static_cast<Producer*>(self->context)->deleted; },
               0, tensor};
    legacy = {tensor, this, [](ManagedTensor* self) { ++static_cast<Producer*>(self->context)->deleted; }};
  }
};

TEST(DLPack, ExportsTheSameBytesWithShapeStridesAndPlace) {
  const Buffer buffer = Buffer::allocate(cpu(), f32, {2, 3}).value();
  ManagedTensorVersioned* tensor = export_buffer(buffer).value();
  EXPECT_EQ(tensor->version.major, 1u);
  EXPECT_EQ(tensor->flags, 0u);
  EXPECT_EQ(tensor->tensor.data, buffer.as_raw_ptr());
  EXPECT_EQ(tensor->tensor.device.type, kCpu);
  EXPECT_EQ(tensor->tensor.ndim, 2);
  EXPECT_EQ(tensor->tensor.shape[1], 3);
  EXPECT_EQ(tensor->tensor.strides[0], 3);
  EXPECT_EQ(tensor->tensor.dtype.code, kFloat);
  EXPECT_EQ(tensor->tensor.dtype.bits, 32);
  const auto deleter = tensor->deleter;
  deleter(tensor);
  deleter(nullptr);  // some receivers do
}

TEST(DLPack, KeepsTheParentOfAViewAliveAfterEverythingElseIsGone) {
  const std::size_t live = cpu()->counters().live_count;
  ManagedTensorVersioned* tensor = nullptr;
  {
    const Buffer whole = Buffer::allocate(cpu(), i32, {4}).value();
    whole.as_slice_mut<std::int32_t>().value()[2] = 7;
    tensor = export_buffer(whole.view(8, 8).value()).value();
  }
  EXPECT_EQ(cpu()->counters().live_count, live + 1);
  EXPECT_EQ(static_cast<const std::int32_t*>(tensor->tensor.data)[0], 7);
  std::thread([tensor] { tensor->deleter(tensor); }).join();
  EXPECT_EQ(cpu()->counters().live_count, live);
}

TEST(DLPack, ExportsTheOlderFormButNotOfReadOnlyMemory) {
  const Buffer buffer = Buffer::allocate(cpu(), DType::kBF16, {2}).value();
  ManagedTensor* tensor = export_buffer_legacy(buffer).value();
  EXPECT_EQ(tensor->tensor.dtype.code, kBfloat);
  const auto deleter = tensor->deleter;
  deleter(tensor);
  deleter(nullptr);
  Producer producer;
  producer.managed.flags = kReadOnly;
  const Buffer read_only = import_tensor(&producer.managed).value();
  EXPECT_EQ(export_buffer_legacy(read_only).error().code(), Code::kReadOnly);
  ManagedTensorVersioned* versioned = export_buffer(read_only).value();
  EXPECT_EQ(versioned->flags, kReadOnly);
  versioned->deleter(versioned);
}

TEST(DLPack, HasATypeForEveryDtypeButQuantisedBlocks) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const DType dtype = static_cast<DType>(i);
    const auto type = type_of(dtype);
    EXPECT_EQ(type.has_value(), info(dtype).block_elements <= 4) << to_string(dtype);
    if (!type) {
      EXPECT_EQ(type.error().code(), Code::kUnsupported);
      continue;
    }
    EXPECT_EQ(type->bits * info(dtype).block_elements, 8 * info(dtype).block_bytes) << to_string(dtype);
    const Buffer buffer = Buffer::allocate(cpu(), dtype, {8}).value();
    const Buffer back = import_tensor(export_buffer(buffer).value()).value();
    EXPECT_EQ(back.dtype(), dtype);
    EXPECT_EQ(back.as_raw_ptr(), buffer.as_raw_ptr());
  }
}

TEST(DLPack, ImportsForeignMemoryAndRunsItsDeleterOnce) {
  Producer producer;
  {
    const Buffer buffer = import_tensor(&producer.managed).value();
    EXPECT_TRUE(buffer.is_foreign());
    EXPECT_EQ(buffer.as_raw_ptr(), producer.values.data());
    EXPECT_EQ(buffer.shape(), (Shape{3, 4}));
    const Buffer view = buffer.view(0, 16).value();
    EXPECT_EQ(producer.deleted, 0);
  }
  EXPECT_EQ(producer.deleted, 1);
  { const Buffer buffer = import_tensor(&producer.legacy).value(); }
  EXPECT_EQ(producer.deleted, 2);
  producer.managed.deleter = nullptr;
  { EXPECT_TRUE(import_tensor(&producer.managed)); }
}

TEST(DLPack, HonoursReadOnlyAndByteOffset) {
  Producer producer;
  producer.managed.flags = kReadOnly;
  producer.managed.tensor.byte_offset = 16;
  producer.shape = {2, 4};
  const Buffer buffer = import_tensor(&producer.managed).value();
  EXPECT_EQ(buffer.as_slice<float>().value()[0], 4.0f);
  EXPECT_EQ(buffer.as_slice_mut<float>().error().code(), Code::kReadOnly);
}

TEST(DLPack, CopiesAStridedTensorOnlyWhereThatIsAllowed) {
  Producer producer;
  producer.shape = {4, 3};
  producer.strides = {1, 4};  // the transpose
  const Buffer copy = import_tensor(&producer.managed).value();
  EXPECT_FALSE(copy.is_foreign());
  EXPECT_EQ(producer.deleted, 1);
  EXPECT_THAT(copy.as_slice<float>().value(), ::testing::ElementsAre(0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11));
  producer.shape = {3, 2};
  producer.strides = {4, 1};  // the left half: dense rows with gaps
  EXPECT_THAT(import_tensor(&producer.managed).value().as_slice<float>().value(),
              ::testing::ElementsAre(0, 1, 4, 5, 8, 9));
  EXPECT_EQ(import_tensor(&producer.managed, Copy::kNever).error().code(), Code::kUnsupported);
  EXPECT_EQ(producer.deleted, 3);
  producer.shape = {1, 4};
  producer.strides = {99, 1};  // the stride of a single row does not matter
  EXPECT_TRUE(import_tensor(&producer.managed, Copy::kNever).value().is_foreign());
  producer.managed.tensor.strides = nullptr;
  EXPECT_TRUE(import_tensor(&producer.managed, Copy::kNever).value().is_foreign());
}

TEST(DLPack, ImportsATensorWithoutElementsWhateverItsPointerOffsetAndStrides) {
  const std::array<std::int64_t, 2> shapes[] = {{0, 3}, {3, 0}, {0, 0}, {0, std::numeric_limits<std::int64_t>::max()}};
  const std::array<std::int64_t, 2> strides[] = {{6, 2}, {-1, -1}, {std::numeric_limits<std::int64_t>::min(), 7}};
  for (const auto& shape : shapes)
    for (const auto& stride : strides)
      for (const bool null : {false, true})
        for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{5}, ~std::uint64_t{0}}) {
          Producer producer;
          producer.shape = shape;
          producer.strides = stride;
          if (null) producer.managed.tensor.data = nullptr;
          producer.managed.tensor.byte_offset = offset;
          {
            const auto buffer = import_tensor(&producer.managed, Copy::kNever);
            ASSERT_TRUE(buffer.has_value()) << buffer.error().message();
            EXPECT_EQ(buffer->size(), 0u);
            EXPECT_EQ(buffer->shape()[1], static_cast<std::size_t>(shape[1]));
            EXPECT_TRUE(buffer->as_host_bytes().value().empty());
          }
          EXPECT_EQ(producer.deleted, 1);
        }
}

TEST(DLPack, ExportsStridesOfATensorWithoutElements) {
  const Buffer buffer = Buffer::allocate(cpu(), f32, {0, std::size_t{1} << 40, std::size_t{1} << 40}).value();
  ManagedTensorVersioned* const tensor = export_buffer(buffer).value();
  EXPECT_EQ(tensor->tensor.shape[2], std::int64_t{1} << 40);
  EXPECT_EQ(tensor->tensor.strides[1], std::int64_t{1} << 40);
  EXPECT_EQ(import_tensor(tensor).value().shape(), buffer.shape());
}

TEST(DLPack, ExportsExtentsOf63Bits) {
  const std::size_t most = std::numeric_limits<std::int64_t>::max();
  const Buffer buffer = Buffer::allocate(cpu(), u8, {0, most}).value();
  const auto tensor = export_buffer(buffer);
  ASSERT_TRUE(tensor.has_value()) << tensor.error().message();
  EXPECT_EQ(import_tensor(*tensor).value().shape(), buffer.shape());
  const Buffer longer = Buffer::allocate(cpu(), u8, {0, most + 1}).value();
  EXPECT_TRUE(test::fails_with(export_buffer(longer), Code::kUnsupported));
}

TEST(DLPack, TakesAScalarWithoutAShape) {
  Producer producer;
  producer.managed.tensor.ndim = 0;
  producer.managed.tensor.shape = nullptr;
  producer.managed.tensor.strides = nullptr;
  const auto scalar = import_tensor(&producer.managed);
  ASSERT_TRUE(scalar.has_value()) << scalar.error().message();
  EXPECT_EQ(scalar->shape().rank(), 0u);
  EXPECT_EQ(scalar->size(), sizeof(float));
}

TEST(DLPack, TakesEightDimensionsAndNoMore) {
  std::array<std::int64_t, 9> ones{};
  ones.fill(1);
  Producer producer;
  producer.managed.tensor.shape = ones.data();
  producer.managed.tensor.strides = nullptr;
  producer.managed.tensor.ndim = 8;
  EXPECT_EQ(import_tensor(&producer.managed).value().shape().rank(), 8u);
  producer.managed.tensor.ndim = 9;
  const auto refused = import_tensor(&producer.managed);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.error().message(), "a DLPack tensor of 9 dimensions; Berth holds 8");
  producer.managed.tensor.ndim = std::numeric_limits<std::int32_t>::min();
  EXPECT_FALSE(import_tensor(&producer.managed).has_value());
  EXPECT_EQ(producer.deleted, 3);
}

TEST(DLPack, RefusesAddressesThatWrapAround) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  const auto refused = [](auto change) {
    Producer producer;
    change(producer);
    const auto buffer = import_tensor(&producer.managed);
    EXPECT_FALSE(buffer.has_value());
    if (!buffer) {
      EXPECT_EQ(buffer.error().code(), Code::kInvalidArgument) << buffer.error().message();
    }
    EXPECT_EQ(producer.deleted, 1);
  };
  // Offsets: past the end by themselves, and only with the tensor's own bytes.
  refused([](Producer& p) { p.managed.tensor.byte_offset = ~std::uint64_t{0}; });
  refused(
      [](Producer& p) { p.managed.tensor.byte_offset = 0 - reinterpret_cast<std::uint64_t>(p.values.data()) - 16; });
  // No data: neither with an offset that makes an address of it, nor with strides.
  refused([](Producer& p) { p.managed.tensor.data = nullptr, p.managed.tensor.byte_offset = 64; });
  refused([](Producer& p) { p.managed.tensor.data = nullptr, p.strides = {1, 3}; });
  // Strides.
  refused([](Producer& p) { p.strides = {kMost, 1}; });
  refused([](Producer& p) { p.strides = {kLeast, 1}; });
  refused([](Producer& p) { p.strides = {1, kLeast}; });
  refused([](Producer& p) { p.strides = {kMost / 8, -kMost / 8}; });
  refused([](Producer& p) { p.strides = {-(std::int64_t{1} << 60), 1}; });
}

TEST(DLPack, CopiesBackwardsAndBroadcastTensors) {
  Producer producer;
  producer.managed.tensor.data = producer.values.data() + 11;
  producer.strides = {-4, -1};
  EXPECT_THAT(import_tensor(&producer.managed).value().as_slice<float>().value(),
              ::testing::ElementsAre(11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  producer.managed.tensor.data = producer.values.data();
  producer.shape = {2, 3};
  producer.strides = {0, 4};  // one column, twice
  EXPECT_THAT(import_tensor(&producer.managed).value().as_slice<float>().value(),
              ::testing::ElementsAre(0, 4, 8, 0, 4, 8));
}

TEST(DLPack, PlacesAnEmptyHandleOnTheHostAndExportsNoneOfIt) {
  EXPECT_EQ(device_of(Buffer()).type, kCpu);
  EXPECT_EQ(export_buffer(Buffer()).error().code(), Code::kNotAllocated);
  EXPECT_EQ(export_buffer_legacy(Buffer()).error().code(), Code::kNotAllocated);
}

TEST(DLPack, RefusesWhatItCannotHoldAndStillRunsTheDeleter) {
  const auto refused = [](auto change, Code code) {
    Producer producer;
    change(producer.managed);
    const auto buffer = import_tensor(&producer.managed);
    EXPECT_FALSE(buffer.has_value());
    if (!buffer) {
      EXPECT_EQ(buffer.error().code(), code) << buffer.error().message();
    }
    EXPECT_EQ(producer.deleted, 1);
  };
  refused([](auto& t) { t.tensor.dtype.lanes = 4; }, Code::kTypeMismatch);
  refused([](auto& t) { t.tensor.dtype = {kFloat, 80, 1}; }, Code::kTypeMismatch);
  refused([](auto& t) { t.tensor.dtype = {kFloat4E2M1FN, 4, 1}, t.flags = kSubbytePadded; }, Code::kTypeMismatch);
  refused([](auto& t) { t.tensor.device.type = 10; }, Code::kDeviceUnavailable);
  refused([](auto& t) { t.tensor.shape[0] = -1; }, Code::kInvalidArgument);
  refused([](auto& t) { t.tensor.ndim = 9; }, Code::kInvalidArgument);
  refused([](auto& t) { t.tensor.shape = nullptr; }, Code::kInvalidArgument);
  refused([](auto& t) { t.tensor.data = nullptr; }, Code::kInvalidArgument);
  refused([](auto& t) { t.version.major = 2; }, Code::kInvalidArgument);
  EXPECT_EQ(import_tensor(static_cast<ManagedTensor*>(nullptr)).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(import_tensor(static_cast<ManagedTensorVersioned*>(nullptr)).error().code(), Code::kInvalidArgument);
}

// Exports a buffer, imports it again and gives both the place that the tensor named and the buffer that came back.
template <class Export>
std::pair<Tensor, Buffer> round_trip(const Export& exported_as, const Buffer& buffer) {
  auto* const tensor = exported_as(buffer).value();
  const Tensor seen = tensor->tensor;
  return {seen, import_tensor(tensor).value()};
}

class DLPackOnCuda : public cuda_test::CudaTest {};

TEST_F(DLPackOnCuda, SharesDeviceMemoryUnderItsGpusNumber) {
  for (const char* name : {"CUDA:0", "CUDA:1"}) {
    const auto gpu = device(name);
    if (!gpu && cuda_test::on_real_gpu()) continue;  // a machine with one GPU
    const Buffer whole = Buffer::allocate(*gpu, f32, {8}).value();
    const Buffer half = whole.view(16, f32, {4}).value();
    const auto [tensor, back] = round_trip(export_buffer, half);
    EXPECT_EQ(tensor.device.type, kCuda);
    EXPECT_EQ(tensor.device.id, name[5] - '0');
    EXPECT_EQ(reinterpret_cast<std::uint64_t>(tensor.data), whole.native_handle() + 16);
    EXPECT_EQ(tensor.byte_offset, 0u);
    EXPECT_TRUE(back.is_foreign());
    EXPECT_EQ(back.device().name(), name);
    const std::array<float, 4> values{1, 2, 3, 4};
    ASSERT_TRUE(half.copyin(std::as_bytes(std::span(values))));
    std::array<float, 4> read{};
    ASSERT_TRUE(back.copyout(std::as_writable_bytes(std::span(read))));
    EXPECT_EQ(read, values);
    EXPECT_EQ(round_trip(export_buffer_legacy, half).first.device.type, kCuda);
  }
}

TEST_F(DLPackOnCuda, KeepsDeviceMemoryAliveForTheReceiver) {
  const DevicePtr gpu = device("CUDA").value();
  ManagedTensorVersioned* const tensor = export_buffer(Buffer::allocate(gpu, u8, {64}).value()).value();
  EXPECT_EQ(gpu->counters().live_count, 1u);
  tensor->deleter(tensor);
  EXPECT_EQ(gpu->counters().live_count, 0u);
}

TEST_F(DLPackOnCuda, NamesManagedMemoryAndTakesItBack) {
  const DevicePtr gpu = device("CUDA").value();
  const auto managed = Buffer::allocate(gpu, f32, {4}, {.host = HostAccess::kRequired});
  if (!managed && cuda_test::on_real_gpu()) GTEST_SKIP() << "no managed memory here";
  EXPECT_EQ(device_of(*managed).type, kCudaManaged);
  const auto [tensor, back] = round_trip(export_buffer, *managed);
  EXPECT_EQ(tensor.device.type, kCudaManaged);
  EXPECT_EQ(back.native_handle(), managed->native_handle());
  EXPECT_EQ(back.device().name(), gpu->name());
}

TEST_F(DLPackOnCuda, TakesPinnedMemoryAsMemoryOfTheHost) {
  Producer producer;
  producer.managed.tensor.device = {kCudaHost, 0};
  const Buffer buffer = import_tensor(&producer.managed).value();
  EXPECT_EQ(buffer.device().kind(), "CPU");
  EXPECT_EQ(buffer.as_raw_ptr(), producer.values.data());
}

TEST_F(DLPackOnCuda, CompletesSubmittedWorkBeforeItExports) {
  const DevicePtr gpu = device("CUDA").value();
  const Buffer buffer = Buffer::allocate(gpu, u8, {64}).value();
  const QueuePtr queue = gpu->make_queue().value();
  ASSERT_TRUE(queue->fill(buffer.window().value(), 1));
  const Timepoint filled = queue->submit().value();
  ManagedTensorVersioned* const tensor = export_buffer(buffer).value();
  EXPECT_TRUE(is_reached(filled));
  tensor->deleter(tensor);
}

TEST_F(DLPackOnCuda, RefusesHostMemoryStridesAndAbsentGpusAndRunsTheDeleter) {
  const DevicePtr gpu = device("CUDA").value();
  Producer host;
  host.managed.tensor.device = {kCuda, 0};
  EXPECT_EQ(import_tensor(&host.managed).error().code(), Code::kInvalidArgument);
  host.strides = {1, 3};
  EXPECT_EQ(import_tensor(&host.managed).error().code(), Code::kUnsupported);
  host.managed.tensor.device.id = 99;
  EXPECT_EQ(import_tensor(&host.managed).error().code(), Code::kDeviceUnavailable);
  EXPECT_EQ(host.deleted, 3);
}

TEST(DLPack, SharesWebGpuBuffersAsObjectsWithAnOffset) {
  const auto gpu = device("WEBGPU");
  if (!gpu) GTEST_SKIP() << gpu.error().message();
  const Buffer whole = Buffer::allocate(*gpu, f32, {128}).value();
  const Buffer part = whole.view(256, f32, {64}).value();
  ManagedTensorVersioned* const tensor = export_buffer(part).value();
  EXPECT_EQ(tensor->tensor.device.type, kWebGpu);
  EXPECT_EQ(reinterpret_cast<std::uint64_t>(tensor->tensor.data), whole.native_handle());
  EXPECT_GE(tensor->tensor.byte_offset, 256u);
  tensor->deleter(tensor);
}

TEST(DLPack, NamesMetalMemoryAsAnObjectWithAnOffset) {
  // A device of this kind with only what an export needs, so that the test runs on every system.
  class AnyMetal final : public Device {
   public:
    AnyMetal() : Device("METAL:1", {}) {}
    DlpackPlace dlpack_place(const Block& block) const noexcept override {
      return {.device_type = kMetal, .device_id = ordinal(), .data = block.handle, .is_object = true};
    }

   protected:
    Result<Block> allocate_block(const BlockSpec& spec) override {
      return Block{.handle = 0x1000, .bytes = spec.bytes};
    }
    void free_block(const Block&, Timepoint) noexcept override {}
    Result<std::unique_ptr<Queue>> create_queue() override { return Error(Code::kUnsupported, Layer::kDevice, "none"); }
  };
  const DevicePtr metal = share_device(std::make_unique<AnyMetal>());
  Buffer part = Buffer::allocate(metal, f32, {128}).value().view(256, f32, {64}).value();
  EXPECT_EQ(device_of(part).type, kMetal);
  ManagedTensorVersioned* const tensor = export_buffer(part).value();
  EXPECT_EQ(tensor->tensor.device.type, 8);
  EXPECT_EQ(tensor->tensor.device.id, 1);
  EXPECT_EQ(reinterpret_cast<std::uint64_t>(tensor->tensor.data), 0x1000u);
  EXPECT_EQ(tensor->tensor.byte_offset, 256u);
  part = Buffer();
  EXPECT_EQ(metal->counters().live_count, 1u) << "the tensor keeps the parent of its view alive";
  tensor->deleter(tensor);
  EXPECT_EQ(metal->counters().live_count, 0u);
}

TEST(DLPack, RunsAReleaseOfTheCallersInPlaceOfTheDeleter) {
  Producer producer;
  int released = 0;
  {
    const Buffer buffer = import_tensor(producer.managed.tensor, kReadOnly, [&] { ++released; }).value();
    EXPECT_TRUE(buffer.is_read_only());
    EXPECT_EQ(buffer.as_raw_ptr(), producer.values.data());
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
  producer.managed.tensor.dtype.lanes = 4;
  EXPECT_EQ(import_tensor(producer.managed.tensor, 0, [&] { ++released; }).error().code(), Code::kTypeMismatch);
  EXPECT_EQ(released, 2) << "also when it fails";
  EXPECT_EQ(producer.deleted, 0);
}

TEST(DLPack, SaysWhyMemoryOfAnAbsentMetalDeviceCannotBeTaken) {
  if (device("METAL")) GTEST_SKIP() << "there is a Metal device here";
  Producer producer;
  producer.managed.tensor.device = {kMetal, 0};
  EXPECT_EQ(import_tensor(&producer.managed).error().code(), Code::kDeviceUnavailable);
  EXPECT_EQ(producer.deleted, 1);
}

}  // namespace
}  // namespace berth::dlpack
