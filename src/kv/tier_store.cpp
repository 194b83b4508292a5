#include "kv/tier_store.h"

#include <cstring>
#include <vector>

#include "base/try.h"
#include "berth/memory/device.h"
#include "berth/tensor/buffer.h"
#include "tensor/spill_file.h"

namespace berth::internal::kv_cache {
namespace {

class MemoryStore final : public TierStore {
 public:
  Result<void> prepare(const kv::Tier& tier, std::size_t slot, std::size_t slots, Queue& queue) {
    slot_ = slot;
    BERTH_TRY_ASSIGN(buffer_, Buffer::allocate(tier.allocator, DType::kU8, {slot * slots}, {.label = tier.label}));
    BERTH_TRY_ASSIGN(memory_, buffer_.window());
    direct_ = queue.device().reaches(tier.allocator->device());
    if (!direct_ && !memory_.block.has(BlockFlags::kHostTransfer))
      return Error::with_text(Code::kUnsupported, Layer::kAllocator,
                              "a tier must be memory of the host, or memory that the cache's device can reach");
    (direct_ ? staging_.resize(slot) : written_.resize(slots));
    return {};
  }

  Result<void> store(std::size_t at, const Window& page, Queue& queue) override {
    const Window target = window(at, page.bytes);
    if (direct_) return queue.copy(page, target);
    BERTH_TRY(queue.read(page, target.host_bytes()));
    written_[at / slot_] = queue.next();
    return {};
  }

  Result<void> load(std::size_t at, const Window& page, Queue& queue) override {
    const Window source = window(at, page.bytes);
    if (direct_) return queue.copy(source, page);
    BERTH_TRY(wait_for(at, queue));
    return queue.write(page, source.host_bytes());
  }

  Result<void> move_to(TierStore& target, std::size_t from, std::size_t to, std::size_t bytes, Queue& queue) override {
    const Window source = window(from, bytes);
    if (direct_) {
      if (auto* const memory = dynamic_cast<MemoryStore*>(&target); memory != nullptr)
        return memory->store(to, source, queue);
      const std::span<std::byte> copy = std::span(staging_).first(bytes);
      BERTH_TRY(queue.read(source, copy));
      BERTH_TRY(queue.finish());
      return target.store_bytes(to, copy, queue);
    }
    BERTH_TRY(wait_for(from, queue));
    return target.store_bytes(to, source.host_bytes(), queue);
  }

  Result<void> store_bytes(std::size_t at, std::span<const std::byte> bytes, Queue& queue) override {
    const Window target = window(at, bytes.size());
    if (direct_) return queue.write(target, bytes);
    BERTH_TRY(wait_for(at, queue));  // what was written to the slot before must not come later
    std::memcpy(target.host_bytes().data(), bytes.data(), bytes.size());
    return {};
  }

 private:
  Window window(std::size_t at, std::size_t bytes) const {
    Window part = memory_;
    part.offset += at;
    part.bytes = bytes;
    return part;
  }
  // The host may not touch a slot before the queue has written it.
  Result<void> wait_for(std::size_t at, Queue& queue) {
    const Timepoint moment = written_[at / slot_];
    if (is_reached(moment)) return {};
    if (moment == queue.next()) BERTH_TRY(queue.submit());
    return queue.wait(moment);
  }

  std::size_t slot_ = 0;
  Buffer buffer_;
  Window memory_{};
  bool direct_ = false;
  std::vector<std::byte> staging_;  // of one slot, on the way to a file
  std::vector<Timepoint> written_;  // [slot]: when the host may read it. Empty if the queue copies by itself
};

class FileStore final : public TierStore {
 public:
  FileStore(const std::string& folder, std::size_t slot) : file_(folder), staging_(slot) {}
  Result<void> prepare(std::size_t bytes) {
    BERTH_TRY(file_.reserve(bytes));
    return {};
  }

  Result<void> store(std::size_t at, const Window& page, Queue& queue) override {
    const std::span<std::byte> bytes = std::span(staging_).first(page.bytes);
    BERTH_TRY(queue.read(page, bytes));
    BERTH_TRY(queue.finish());
    return file_.write(at, bytes);
  }
  Result<void> load(std::size_t at, const Window& page, Queue& queue) override {
    const std::span<std::byte> bytes = std::span(staging_).first(page.bytes);
    BERTH_TRY(file_.read(at, bytes));
    return queue.write(page, bytes);
  }
  Result<void> move_to(TierStore& target, std::size_t from, std::size_t to, std::size_t bytes, Queue& queue) override {
    BERTH_TRY(file_.read(from, std::span(staging_).first(bytes)));
    return target.store_bytes(to, std::span(staging_).first(bytes), queue);
  }
  Result<void> store_bytes(std::size_t at, std::span<const std::byte> bytes, Queue&) override {
    return file_.write(at, bytes);
  }

 private:
  SpillFile file_;
  std::vector<std::byte> staging_;
};

}  // namespace

Result<std::unique_ptr<TierStore>> make_tier_store(const kv::Tier& tier, std::size_t slot, std::size_t slots,
                                                   Queue& queue) {
  if (tier.allocator) {
    auto memory = std::make_unique<MemoryStore>();
    BERTH_TRY(memory->prepare(tier, slot, slots, queue));
    return std::unique_ptr<TierStore>(std::move(memory));
  }
  auto file = std::make_unique<FileStore>(tier.folder, slot);
  BERTH_TRY(file->prepare(slot * slots));
  return std::unique_ptr<TierStore>(std::move(file));
}

}  // namespace berth::internal::kv_cache
