#include "berth/interop/metal.h"

#include "base/os/system_pages.h"
#include "base/try.h"
#include "devices/host/host_memory.h"
#include "devices/metal/metal_device.h"

namespace berth {

using namespace internal;

namespace {

Result<metal::MetalDevice*> metal_of(Device* device, Layer layer) {
  if (device == nullptr || typeid(*device) != typeid(metal::MetalDevice))
    return Error::with_text(Code::kInvalidArgument, layer,
                            std::string(device == nullptr ? "no device" : device->name()) + " is not a METAL device");
  return static_cast<metal::MetalDevice*>(device);
}

// True if the pages from the first to the last byte of the block contain only the block.
bool owns_its_pages(const Device& device, const Block& block, std::size_t page) noexcept {
  if (device.kind() == "DISK") return true;
  return reinterpret_cast<std::uintptr_t>(block.host) % page == 0 &&
         (block.bytes % page == 0 || cpu::rounded_host_bytes(block.bytes) >= cpu::kMappedBytes);
}

}  // namespace

Result<MetalInfo> metal_info(Device& device) {
  BERTH_TRY_ASSIGN(const metal::MetalDevice* const gpu, metal_of(&device, Layer::kDevice));
  return gpu->info();
}

Result<Buffer> metal_wrap(DevicePtr metal, const Buffer& host) {
  BERTH_TRY_ASSIGN(metal::MetalDevice* const gpu, metal_of(metal.get(), Layer::kBuffer));
  BERTH_TRY_ASSIGN(const std::span<const std::byte> bytes, host.as_host_bytes());
  if (bytes.empty())
    return Error(Code::kInvalidArgument, Layer::kBuffer, "a buffer of 0 bytes has no pages for Metal to wrap");
  BERTH_TRY_ASSIGN(const Window window, host.window());
  const std::size_t page = page_bytes();
  const std::string_view kind = host.device().kind();
  if (kind != "CPU" && kind != "DISK")
    return Error::with_text(Code::kNotCpuAccessible, Layer::kBuffer,
                            std::string(host.device().name()) + " has no pages that Metal could wrap: use copy_from");
  if (!owns_its_pages(host.device(), window.block, page))
    return Error(Code::kMisaligned, Layer::kBuffer,
                 "{} bytes share a page of {} bytes with other memory: allocate whole pages at that alignment",
                 window.block.bytes, page);
  const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t begin = first / page * page;
  const std::size_t whole = (first + bytes.size() + page - 1) / page * page - begin;
  if (whole > gpu->limits().max_block_bytes)
    return Error(Code::kOutOfMemory, Layer::kBuffer,
                 "{} bytes of pages to wrap, and one Metal buffer holds {}: wrap views of it", whole,
                 gpu->limits().max_block_bytes);
  MTL::Buffer* const wrapped =
      gpu->native_device().newBuffer(reinterpret_cast<void*>(begin), whole, MTL::ResourceStorageModeShared, nullptr);
  if (wrapped == nullptr)
    return Error(Code::kOutOfMemory, Layer::kBuffer, "Metal would not wrap {} bytes of host memory", whole);
  const bool read_only = host.is_read_only();
  // The host buffer is kept alive until the last use of the wrapped one is reached.
  BERTH_TRY_ASSIGN(const Buffer pages, Buffer::import(std::move(metal),
                                                      {.address = metal::handle_of(wrapped),
                                                       .bytes = whole,
                                                       .read_only = read_only,
                                                       .release = [wrapped, host] { wrapped->release(); }},
                                                      DType::kU8, {whole}, {.label = host.label()}));
  return pages.view(first - begin, host.dtype(), host.shape());
}

}  // namespace berth
