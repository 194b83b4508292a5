#include "engines/engine_pool.h"

#include <memory>
#include <utility>

#include "base/os/system_pages.h"
#include "berth/alloc/adaptor.h"
#include "berth/alloc/growable.h"

namespace berth::internal {
namespace {

constexpr std::size_t kSmallBytes = std::size_t{1} << 20;  // larger blocks of the CPU device have pages of their own
// Small blocks rarely add up to more than this; what does not fit is left to the device.
constexpr GrowableOptions kRange{.reserve_bytes = std::size_t{256} << 20, .step_bytes = std::size_t{64} << 10};

class EnginePool final : public AllocatorAdaptor {
 public:
  EnginePool(AllocatorPtr cpu, std::shared_ptr<GrowableMemory> small)
      : AllocatorAdaptor(std::move(cpu)), small_(std::move(small)) {}

  Result<Block> allocate(const BlockSpec& spec) override {
    if (small_ != nullptr && spec.bytes != 0 && spec.bytes < kSmallBytes)
      if (Result<Block> block = small_->allocate(spec)) {
        block->key = kFromRange;
        return block;
      }
    return inner()->allocate(spec);
  }
  void release(const Block& block, Timepoint last_use) noexcept override {
    if (block.key != kFromRange) return inner()->release(block, last_use);
    Block original = block;
    original.key = 0;
    small_->release(original, last_use);
  }
  std::string_view name() const noexcept override { return "engine pool"; }
  std::size_t trim(std::size_t keep_bytes) noexcept override {
    const std::size_t bytes = small_ == nullptr ? 0 : small_->trim(keep_bytes);
    trim_heap();
    return bytes + inner()->trim(keep_bytes);
  }

 private:
  static constexpr std::uint32_t kFromRange = 1;  // neither of the two uses Block::key

  const std::shared_ptr<GrowableMemory> small_;
};

}  // namespace

AllocatorPtr make_engine_pool(DevicePtr cpu) {
  auto small = make_growable(cpu, kRange);
  return std::make_shared<EnginePool>(std::move(cpu), small ? std::move(*small) : nullptr);
}

}  // namespace berth::internal
