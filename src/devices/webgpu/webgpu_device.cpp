#include "devices/webgpu/webgpu_device.h"

#include <charconv>

#include "base/round_up.h"
#include "base/try.h"
#include "devices/webgpu/webgpu_queue.h"

namespace berth::internal::webgpu {
namespace {

// Driver buffers are whole multiples of this, so that whole words around any byte of a block can be copied and
// mapped.
constexpr std::size_t kGrain = 16;

DeviceLimits limits_of(const Context& context) {
  const wgpu::Limits& limits = context.limits();
  return {.max_block_bytes = limits.max_buffer_size / kGrain * kGrain,
          .max_binding_bytes = limits.max_storage_buffer_binding_size,
          .binding_alignment = limits.min_storage_buffer_offset_alignment,
          .transfer_alignment = 4,
          .unified_memory = context.maps_storage(),
          .f16_kernels = context.f16()};
}

class WebgpuDevice final : public Device {
 public:
  WebgpuDevice(std::string name, std::shared_ptr<Context> context)
      : Device(std::move(name), limits_of(*context)), shared_(std::move(context)) {}

  std::string description() const override { return context().description(); }

  Result<Kernel> make_kernel(const KernelSource& source) override {
    if (source.code.empty())
      return Error(Code::kInvalidArgument, Layer::kDevice, "WEBGPU kernels are WGSL: set KernelSource::code");
    const std::string_view code(reinterpret_cast<const char*>(source.code.data()), source.code.size());
    BERTH_TRY_ASSIGN(auto kernel, shared_.kernel(code, source.entry));
    return Kernel(std::move(kernel));
  }

  DlpackPlace dlpack_place(const Block& block) const noexcept override {
    return {.device_type = 15, .device_id = ordinal(), .data = block.handle, .is_object = true};
  }
  BlockFlags expected_flags(const BlockSpec&) noexcept override { return BlockFlags::kNone; }
  Result<Block> import_block(const ForeignMemory& memory) override {
    if (memory.address == 0)
      return Error(Code::kInvalidArgument, Layer::kDevice, "{} bytes to import from a null WGPUBuffer", memory.bytes);
    const auto buffer = reinterpret_cast<wgpu::Buffer>(memory.address);
    const std::uint64_t size = context().calls().BufferGetSize(buffer);
    if (memory.bytes > size || size % 4 != 0)
      return Error(Code::kSizeMismatch, Layer::kDevice,
                   "{} bytes to import from a WGPUBuffer of {}, which must hold them and be whole 4-byte words",
                   memory.bytes, size);
    const wgpu::Flags bits = context().calls().BufferGetUsage(buffer);
    std::uint8_t usage = 0;
    if ((bits & wgpu::kUsageCopySrc) != 0) usage |= static_cast<std::uint8_t>(Usage::kCopySource);
    if ((bits & wgpu::kUsageCopyDst) != 0) usage |= static_cast<std::uint8_t>(Usage::kCopyTarget);
    if ((bits & wgpu::kUsageStorage) != 0) usage |= static_cast<std::uint8_t>(Usage::kKernel);
    if ((bits & wgpu::kUsageUniform) != 0) usage |= static_cast<std::uint8_t>(Usage::kUniform);
    shared_.buffers.add(buffer, size, false, true);
    context().calls().BufferAddRef(buffer);  // so that the block stays valid if the owner releases the buffer first
    return Block{.handle = memory.address,
                 .bytes = memory.bytes,
                 .flags = BlockFlags::kForeign | (memory.read_only ? BlockFlags::kReadOnly : BlockFlags::kNone),
                 .usage = static_cast<Usage>(usage)};
  }

  void forget_import(const Block& block) noexcept override { forget(block); }

  void* native() noexcept override { return context().device(); }
  std::size_t trim(std::size_t keep_bytes) noexcept override { return shared_.staging.trim(keep_bytes); }

  TransferCounters transfers() const noexcept { return {context().submissions(), shared_.staging.chunks_made()}; }

 protected:
  Result<Block> allocate_block(const BlockSpec& spec) override {
    if (spec.host == HostAccess::kRequired)
      return Error(
          Code::kUnsupported, Layer::kDevice,
          "WEBGPU has no permanent host pointer for {} bytes: use HostAccess::kPreferred with copyin and copyout",
          spec.bytes);
    const bool maps = context().maps_storage() && spec.host != HostAccess::kNone;
    // Berth's own kernels need storage and copy usage for every block; Queue checks the usage of the block.
    wgpu::Flags usage = wgpu::kUsageStorage | wgpu::kUsageCopySrc | wgpu::kUsageCopyDst;
    if (allows(spec.usage, Usage::kUniform)) usage |= wgpu::kUsageUniform;
    if (maps) usage |= wgpu::kUsageMapRead | wgpu::kUsageMapWrite;
    const std::size_t bytes = round_up(spec.bytes, kGrain);
    BERTH_TRY_ASSIGN(const wgpu::Buffer buffer, context().create_buffer(usage, bytes, spec.label.text()));
    shared_.buffers.add(buffer, bytes, maps, false);
    // New WebGPU memory is zero by the standard, so `zero` is always satisfied.
    return Block{.handle = reinterpret_cast<std::uint64_t>(buffer), .bytes = spec.bytes};
  }

  void free_block(const Block& block, Timepoint) noexcept override { forget(block); }

  // WebGPU does not expose residency: the set only counts.
  std::unique_ptr<Residency> make_residency() override { return std::make_unique<CountingResidency>(); }

  Result<std::unique_ptr<Queue>> create_queue() override {
    return std::unique_ptr<Queue>(new WebgpuQueue(*this, shared_));
  }

 private:
  Context& context() const noexcept { return *shared_.context; }

  // Gives up the reference that one block has to its buffer.
  void forget(const Block& block) noexcept {
    const BufferStatePtr last = shared_.buffers.remove(block.handle);
    // A bind group that a queue caches must not keep the memory of a buffer that was made here. Work that was recorded
    // but never submitted must not use a destroyed buffer: the driver keeps it until the recording is dropped.
    if (last != nullptr && !last->foreign && last->users.load(std::memory_order_acquire) == 0)
      context().calls().BufferDestroy(last->buffer);
    context().calls().BufferRelease(reinterpret_cast<wgpu::Buffer>(block.handle));
  }

  Shared shared_;
};

}  // namespace

TransferCounters transfer_counters(const Device& device) noexcept {
  return static_cast<const WebgpuDevice&>(device).transfers();
}

Result<DevicePtr> open_with(const Library& library, const AdapterChoice& choice) {
  BERTH_TRY_ASSIGN(auto context, Context::open(library, choice));
  const std::string name = choice.ordinal == 0 ? "WEBGPU" : "WEBGPU:" + std::to_string(choice.ordinal);
  DevicePtr device = share_device(std::make_unique<WebgpuDevice>(name, std::shared_ptr<Context>(std::move(context))));
  static_cast<void>(device->keep_resident());  // refused if the environment disables residency
  return device;
}

Result<DevicePtr> open(const std::string& ordinal) {
  std::size_t number = 0;
  std::from_chars(ordinal.data(), ordinal.data() + ordinal.size(), number);
  BERTH_TRY_ASSIGN(const Library library, open_library());
  return open_with(library, adapter_choice(number));
}

}  // namespace berth::internal::webgpu
