#include "devices/metal/metal_residency.h"

#include <fmt/format.h>

#include "devices/metal/metal_context.h"

namespace berth::internal::metal {
namespace {

// metal-cpp keeps this function private to its own classes.
class Ask : public NS::Object {
 public:
  static bool responds(const void* object, const char* selector) {
    return respondsToSelector(object, sel_registerName(selector));
  }
};

const MTL::Allocation* allocation_of(const Block& block) noexcept {
  return reinterpret_cast<const MTL::Buffer*>(block.handle);
}

}  // namespace

MetalResidency::MetalResidency(MTL::Device& device) {
  const AutoreleaseScope scope;
  // An older system has neither the class nor the selector; messages to nil return nil.
  auto* const made = MTL::ResidencySetDescriptor::alloc();
  auto* const descriptor = made == nullptr ? nullptr : made->init();
  if (descriptor == nullptr || !Ask::responds(&device, "newResidencySetWithDescriptor:error:")) {
    if (descriptor != nullptr) descriptor->release();
    why_not_ = "this system has no Metal residency sets, which came with macOS 15";
    return;
  }
  NS::Error* error = nullptr;
  set_ = device.newResidencySet(descriptor, &error);
  descriptor->release();
  if (set_ == nullptr) why_not_ = driver_error(error, "newResidencySetWithDescriptor").message();
}

MetalResidency::~MetalResidency() {
  close();
}

void MetalResidency::close() noexcept {
  if (set_ == nullptr) return;
  set_->endResidency();
  set_->release();
  set_ = nullptr;
}

Result<void> MetalResidency::put(std::span<const Block> blocks, std::vector<Refused>& refused) {
  if (set_ == nullptr) {
    for (std::size_t i = 0; i < blocks.size(); ++i) refused.push_back({i, why_not_});
    return {};
  }
  std::vector<const MTL::Allocation*> allocations;
  allocations.reserve(blocks.size());
  for (const Block& block : blocks) allocations.push_back(allocation_of(block));
  set_->addAllocations(allocations.data(), allocations.size());
  changed_ = grew_ = true;
  return {};
}

void MetalResidency::take(const Block& block) noexcept {
  if (set_ == nullptr) return;
  // Removed at once, while the buffer certainly exists; Metal applies it at the commit.
  set_->removeAllocation(allocation_of(block));
  changed_ = true;
}

Result<void> MetalResidency::flush() {
  if (set_ == nullptr || !changed_) return {};
  set_->commit();
  if (grew_) set_->requestResidency();
  changed_ = grew_ = false;
  return {};
}

void MetalResidency::do_renew(std::span<const Block> given) noexcept {
  if (set_ != nullptr && !given.empty()) set_->requestResidency();
}

}  // namespace berth::internal::metal
