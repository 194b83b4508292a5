#include "berth/memory/shared_memory.h"

#include <unistd.h>

#include "berth/memory/address_space.h"
#include "berth/memory/allocator.h"

namespace berth {
namespace {

Error not_here() {
  return Error(Code::kUnsupported, Layer::kDevice, "this device has no memory that processes can share");
}

Error no_frames() {
  return Error(Code::kUnsupported, Layer::kDevice, "this device cannot map one memory at several addresses");
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Result<SharedMemory> Allocator::share(const Block& block, SharedAccess) {
  return Error::with_text(Code::kUnsupported, Layer::kAllocator,
                          std::to_string(block.bytes) + " bytes of \"" + std::string(name()) +
                              "\" cannot be shared with another process: allocate them from make_shareable()");
}

Result<std::unique_ptr<Frames>> AddressSpace::make_frames(std::size_t, std::size_t) {
  return no_frames();
}

Result<void> AddressSpace::map_frames(std::uint64_t, const Frames&, std::size_t, std::size_t) {
  return no_frames();
}

Result<void> AddressSpace::unmap_frames(std::uint64_t, const Frames&, std::size_t) {
  return no_frames();
}

Result<SharedMapping> AddressSpace::map_shareable(std::size_t) {
  return not_here();
}

Result<Descriptor> AddressSpace::copy_descriptor(const Descriptor&, SharedAccess) {
  return not_here();
}

Result<SharedMapping> AddressSpace::map_shared(int, std::size_t, SharedAccess) {
  return not_here();
}

void AddressSpace::unmap_shared(std::uint64_t, std::size_t) noexcept {}

}  // namespace berth
