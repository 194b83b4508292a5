#include "devices/metal/metal_device.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/os/system_pages.h"
#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/memory/out_of_memory.h"
#include "devices/metal/metal_kernel.h"
#include "devices/metal/metal_open.h"
#include "devices/metal/metal_queue.h"
#include "devices/metal/metal_shaders.h"

namespace berth::internal::metal {
namespace {

// Block sizes are rounded up to whole vectors, so that a read may include the words around a window.
constexpr std::size_t kLengthMultiple = 16;

Error unavailable(std::string text) {
  return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice, std::move(text));
}

// The system's default GPU, then the others in the system's order.
std::vector<Owned<MTL::Device>> all_devices() {
  const AutoreleaseScope scope;
  std::vector<Owned<MTL::Device>> devices;
  if (auto first = taken(MTL::CreateSystemDefaultDevice())) devices.push_back(first);
  const auto others = taken(MTL::CopyAllDevices());
  const std::size_t count = others ? others->count() : 0;
  for (std::size_t i = 0; i < count; ++i) {
    auto* const device = others->object<MTL::Device>(i);
    if (devices.empty() || device != devices.front().get()) devices.push_back(kept(device));
  }
  return devices;
}

std::string describe(const MTL::Device& device) {
  const AutoreleaseScope scope;
  return fmt::format("{}, {} memory, working set {}", text_of(device.name()),
                     device.hasUnifiedMemory() ? "unified" : "separate",
                     format_bytes(device.recommendedMaxWorkingSetSize()));
}

}  // namespace

Result<DevicePtr> open(const std::string& ordinal) {
  return MetalDevice::open_ordinal(std::stoul(ordinal));
}

MetalDevice::MetalDevice(Owned<MTL::Device> device, std::size_t ordinal, std::string name, DeviceLimits limits)
    : Device(fmt::format("METAL:{}", ordinal), limits),
      device_(std::move(device)),
      description_(std::move(name)),
      staging_(*this) {}

Result<DevicePtr> MetalDevice::open_ordinal(std::size_t ordinal) {
  const auto devices = all_devices();
  if (ordinal >= devices.size())
    return unavailable(fmt::format("METAL:{} is not available: Metal has {} GPU{} here{}", ordinal, devices.size(),
                                   devices.size() == 1 ? "" : "s",
                                   devices.empty() ? "; a virtual machine or a session without one has none" : ""));
  const MTL::Device& native = *devices[ordinal].get();
  const std::size_t longest = native.maxBufferLength();
  const DeviceLimits limits{.max_block_bytes = longest,
                            .max_binding_bytes = longest,
                            .binding_alignment = 16,
                            .transfer_alignment = 4,
                            .total_bytes = native.recommendedMaxWorkingSetSize(),
                            .unified_memory = native.hasUnifiedMemory(),
                            .f16_kernels = true};
  std::unique_ptr<MetalDevice> device(new MetalDevice(devices[ordinal], ordinal, describe(native), limits));
  if (residency_allowed()) BERTH_TRY(device->keep_resident());
  return share_device(std::move(device));
}

void MetalDevice::destroy() noexcept {
  Device::destroy();
  stop();
}

MetalDevice::~MetalDevice() {
  stop();
}

void MetalDevice::stop() noexcept {
  staging_.clear();
  {
    const MutexLock lock(kernels_mutex_);
    kernels_ = {};
  }
  {
    const MutexLock lock(home_mutex_);
    home_ = {};
  }
  if (Residency* set = residency()) static_cast<MetalResidency*>(set)->close();
}

std::string MetalDevice::description() const {
  const auto* const set = static_cast<const MetalResidency*>(const_cast<MetalDevice*>(this)->residency());
  return set == nullptr || set->set() != nullptr ? description_ : description_ + "; " + set->why_not();
}

MetalInfo MetalDevice::info() const {
  const AutoreleaseScope scope;
  return {.name = text_of(device_->name()),
          .registry_id = device_->registryID(),
          .unified_memory = limits().unified_memory,
          .working_set_bytes = limits().total_bytes,
          .max_buffer_bytes = limits().max_block_bytes,
          .allocated_bytes = device_->currentAllocatedSize(),
          .residency_sets = const_cast<MetalDevice*>(this)->residency_set() != nullptr};
}

const MTL::ResidencySet* MetalDevice::residency_set() noexcept {
  Residency* const set = residency();
  return set == nullptr ? nullptr : static_cast<MetalResidency*>(set)->set();
}

std::size_t MetalDevice::trim(std::size_t) noexcept {
  Residency* const set = residency();
  if (set == nullptr) return 0;
  const std::size_t before = device_->currentAllocatedSize();
  static_cast<void>(set->commit());
  const std::size_t after = device_->currentAllocatedSize();
  return before > after ? before - after : 0;
}

// Shared memory with the requested alignment, or nil.
MTL::Buffer* MetalDevice::new_shared(const BlockSpec& spec) {
  MTL::Buffer* const buffer = device_->newBuffer(round_up(spec.bytes, kLengthMultiple), MTL::ResourceStorageModeShared);
  if (buffer == nullptr) return nullptr;
  if (reinterpret_cast<std::uintptr_t>(buffer->contents()) % spec.alignment == 0) return buffer;
  // Metal chooses the address of its buffers, so pages of our own with the right alignment are wrapped.
  buffer->release();
  const std::size_t bytes = round_up(spec.bytes, page_bytes());
  void* pages = nullptr;
  if (posix_memalign(&pages, std::max(spec.alignment, page_bytes()), bytes) != 0) return nullptr;
  MTL::Buffer* const wrapped =
      device_->newBuffer(pages, bytes, MTL::ResourceStorageModeShared, ^(void* memory, NS::UInteger) {
        std::free(memory);
      });
  if (wrapped == nullptr) std::free(pages);
  return wrapped;
}

Result<Block> MetalDevice::allocate_block(const BlockSpec& spec) {
  if (!is_shared(spec)) {
    if (spec.alignment > page_bytes())
      return Error(Code::kUnsupported, Layer::kDevice,
                   "private Metal memory is aligned to pages of {} bytes and {} was requested", page_bytes(),
                   spec.alignment);
    const std::size_t bytes = round_up(spec.bytes, kLengthMultiple);
    MTL::Buffer* const buffer = device_->newBuffer(bytes, MTL::ResourceStorageModePrivate);
    if (buffer == nullptr) return out_of_memory(OutOfMemory::Cause::kCapacity, *this, spec);
    if (spec.zero)
      if (auto zeroed = zero_private(*buffer, bytes); !zeroed) {
        buffer->release();
        return zeroed.error();
      }
    return Block{.handle = handle_of(buffer), .bytes = spec.bytes};
  }
  MTL::Buffer* const buffer = new_shared(spec);
  if (buffer == nullptr) return out_of_memory(OutOfMemory::Cause::kCapacity, *this, spec);
  auto* const host = static_cast<std::byte*>(buffer->contents());
  if (spec.zero) std::memset(host, 0, spec.bytes);
  return Block{.handle = handle_of(buffer), .host = host, .bytes = spec.bytes, .flags = kSharedFlags};
}

void MetalDevice::free_block(const Block& block, Timepoint) noexcept {
  buffer_of(block)->release();
}

Result<void> MetalDevice::zero_private(const MTL::Buffer& buffer, std::size_t bytes) {
  const AutoreleaseScope scope;
  const MutexLock lock(home_mutex_);
  if (!home_) home_ = taken(device_->newCommandQueue());
  if (!home_) return driver_error(nullptr, "newCommandQueue");
  MTL::CommandBuffer* const commands = home_->commandBuffer();
  if (commands == nullptr) return driver_error(nullptr, "commandBuffer");
  MTL::BlitCommandEncoder* const encoder = commands->blitCommandEncoder();
  if (encoder == nullptr) return driver_error(nullptr, "blitCommandEncoder");
  encoder->fillBuffer(&buffer, NS::Range::Make(0, bytes), 0);
  encoder->endEncoding();
  commands->commit();
  commands->waitUntilCompleted();
  if (commands->status() == MTL::CommandBufferStatusError) return execution_error(*commands);
  return {};
}

Result<std::unique_ptr<Queue>> MetalDevice::create_queue() {
  return MetalQueue::make(*this);
}

Result<Kernel> MetalDevice::make_kernel(const KernelSource& source) {
  return MetalKernelBody::load(std::static_pointer_cast<MetalDevice>(shared_from_this()), source);
}

Result<ByteKernels> MetalDevice::byte_kernels() {
  const MutexLock lock(kernels_mutex_);
  if (!kernels_.copy || !kernels_.fill) {
    const AutoreleaseScope scope;
    const std::string_view text(kByteKernels);
    const std::span code(reinterpret_cast<const std::byte*>(text.data()), text.size());
    BERTH_TRY_ASSIGN(const auto library, load_library(native_device(), code));
    BERTH_TRY_ASSIGN(kernels_.copy, make_pipeline(native_device(), *library, "berth_copy_bytes"));
    BERTH_TRY_ASSIGN(kernels_.fill, make_pipeline(native_device(), *library, "berth_fill_bytes"));
  }
  return kernels_;
}

Result<Block> MetalDevice::import_block(const ForeignMemory& memory) {
  Block block{.handle = memory.address,
              .bytes = memory.bytes,
              .flags = BlockFlags::kForeign | (memory.read_only ? BlockFlags::kReadOnly : BlockFlags::kNone),
              .usage = Usage::kAll};
  if (memory.bytes == 0) return block;
  if (memory.address == 0)
    return Error(Code::kInvalidArgument, Layer::kDevice,
                 "{} bytes to import and no buffer: the address is an MTL::Buffer*", memory.bytes);
  const MTL::Buffer& buffer = *buffer_of(block);
  const AutoreleaseScope scope;
  if (buffer.device() != device_.get())
    return Error::with_text(Code::kInvalidArgument, Layer::kDevice,
                            fmt::format("the MTL::Buffer to import belongs to another GPU than {}", name()));
  if (memory.bytes > buffer.length())
    return Error(Code::kSizeMismatch, Layer::kDevice, "{} bytes to import from an MTL::Buffer of {}", memory.bytes,
                 buffer.length());
  if (buffer.storageMode() == MTL::StorageModeShared) {
    block.host = static_cast<std::byte*>(const_cast<MTL::Buffer&>(buffer).contents());
    block.flags = block.flags | kSharedFlags;
  }
  return block;
}

}  // namespace berth::internal::metal
