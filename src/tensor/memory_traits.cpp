#include "berth/tensor/memory_traits.h"

#include "base/try.h"
#include "berth/alloc/growable.h"
#include "berth/alloc/shareable.h"
#include "berth/tensor/evictable.h"

namespace berth {
namespace {

Error excluded(const char* why) {
  return Error(Code::kUnsupported, Layer::kAllocator, why);
}

}  // namespace

Result<AllocatorPtr> make_memory(DevicePtr device, const MemoryTraits& traits) {
  if (device == nullptr) return Error(Code::kInvalidArgument, Layer::kAllocator, "memory needs a device");
  if (traits.growable && traits.evictable)
    return excluded(
        "growable memory cannot be evictable: its buffers share pages, and eviction releases the pages of one buffer");
  if (traits.growable && traits.shareable)
    return excluded(
        "growable memory cannot be shareable: its buffers share pages, and another process would reach them all");
  if (traits.evictable && traits.shareable)
    return excluded(
        "evictable memory cannot be shareable: while another process has it mapped, eviction would free nothing or "
        "take its bytes away");
  if (traits.evictable && traits.registrable)
    return excluded(
        "evictable memory cannot be registered: a transport writes to its pages at any time, also while it is evicted");
  if (traits.growable) return make_growable(std::move(device));
  if (traits.evictable) return make_evictable(std::move(device));
  if (traits.shareable) return make_shareable(std::move(device));
  return AllocatorPtr(std::move(device));
}

}  // namespace berth
