// Residency on METAL: an MTLResidencySet that is attached to every queue of the device. Blocks that were added and
// removed change it only at a commit, with one commit of the set and one request for residency. If the system has no
// residency sets (macOS before 15), the report says so, and Metal makes resident what each command names. Each device
// owns one set; any thread may call.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "berth/memory/residency.h"
#include "devices/metal/metal_cpp.h"

namespace berth::internal::metal {

class MetalResidency final : public Residency {
 public:
  explicit MetalResidency(MTL::Device& device);
  ~MetalResidency() override;

  // Null if there is none; why_not() returns the reason.
  const MTL::ResidencySet* set() const noexcept { return set_; }
  const std::string& why_not() const noexcept { return why_not_; }

  // Releases the set before the device is destroyed. Nothing is put or taken afterwards.
  void close() noexcept;

 protected:
  Result<void> put(std::span<const Block> blocks, std::vector<Refused>& refused) override;
  void take(const Block& block) noexcept override;
  Result<void> flush() override;
  void do_renew(std::span<const Block> given) noexcept override;

 private:
  MTL::ResidencySet* set_ = nullptr;
  std::string why_not_;
  bool changed_ = false;
  bool grew_ = false;
};

}  // namespace berth::internal::metal
