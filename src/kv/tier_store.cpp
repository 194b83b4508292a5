#include "kv/tier_store.h"

#include <cstring>
#include <vector>

#include "base/try.h"
#include "berth/memory/device.h"
#include "berth/tensor/buffer.h"
#include "tensor/spill_file.h"

namespace berth::internal::kv_cache {
namespace {

// A window of [at, at + bytes) of the tier's memory.
Window part_of(const Window& memory, std::size_t at, std::size_t bytes) {
  Window part = memory;
  part.offset += at;
  part.bytes = bytes;
  return part;
}

// Memory of the host, or of a device that the cache's queue reaches.
class MemoryStore final : public TierStore {
 public:
  // Requires: `direct`, or the host may copy from and to the memory.
  MemoryStore(Buffer buffer, const Window& memory, std::size_t slot, std::size_t slots, bool direct)
      : slot_(slot), buffer_(std::move(buffer)), memory_(memory), direct_(direct) {
    (direct_ ? staging_.resize(slot) : written_.resize(slots));
  }

  Result<void> store(std::size_t at, const Window& page, Queue& queue) override {
    const Window target = part_of(memory_, at, page.bytes);
    if (direct_) return queue.copy(page, target);
    BERTH_TRY(queue.read(page, target.host_bytes()));
    written_[at / slot_] = queue.next();
    return {};
  }

  Result<void> load(std::size_t at, const Window& page, Queue& queue) override {
    const Window source = part_of(memory_, at, page.bytes);
    if (direct_) return queue.copy(source, page);
    BERTH_TRY(wait_for(at, queue));
    return queue.write(page, source.host_bytes());
  }

  Result<void> move_to(TierStore& target, std::size_t from, std::size_t to, std::size_t bytes, Queue& queue) override {
    const Window source = part_of(memory_, from, bytes);
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
    const Window target = part_of(memory_, at, bytes.size());
    if (direct_) return queue.write(target, bytes);
    BERTH_TRY(wait_for(at, queue));  // what was written to the slot before must not come later
    std::memcpy(target.host_bytes().data(), bytes.data(), bytes.size());
    return {};
  }

 private:
  // The host may not touch a slot before the queue has written it.
  Result<void> wait_for(std::size_t at, Queue& queue) {
    const Timepoint moment = written_[at / slot_];
    if (is_reached(moment)) return {};
    if (moment == queue.next()) BERTH_TRY(queue.submit());
    return queue.wait(moment);
  }

  const std::size_t slot_;
  const Buffer buffer_;
  const Window memory_;
  const bool direct_;
  std::vector<std::byte> staging_;  // of one slot, on the way to a file or another device
  std::vector<Timepoint> written_;  // [slot]: when the host may read it. Empty if the queue copies by itself
};

// Memory of another device that only a queue of its own reaches: that of a neighbour, or another kind of GPU.
class FarStore final : public TierStore {
 public:
  FarStore(Buffer buffer, const Window& memory, QueuePtr queue, std::size_t slot)
      : buffer_(std::move(buffer)), memory_(memory), far_(std::move(queue)), staging_(slot) {}
  // Bytes may be on their way. If they are lost, so is the tier.
  ~FarStore() override { static_cast<void>(far_->finish()); }

  Result<void> store(std::size_t at, const Window& page, Queue& queue) override {
    const std::span<std::byte> bytes = std::span(staging_).first(page.bytes);
    BERTH_TRY(queue.read(page, bytes));
    BERTH_TRY(queue.finish());
    return store_bytes(at, bytes, queue);
  }
  Result<void> load(std::size_t at, const Window& page, Queue& queue) override {
    BERTH_TRY_ASSIGN(const std::span<const std::byte> bytes, fetch(at, page.bytes));
    return queue.write(page, bytes);
  }
  Result<void> move_to(TierStore& target, std::size_t from, std::size_t to, std::size_t bytes, Queue& queue) override {
    BERTH_TRY_ASSIGN(const std::span<const std::byte> copy, fetch(from, bytes));
    return target.store_bytes(to, copy, queue);
  }
  // Nothing waits for the bytes to arrive: what is read later is recorded after them.
  Result<void> store_bytes(std::size_t at, std::span<const std::byte> bytes, Queue&) override {
    BERTH_TRY(far_->write(part_of(memory_, at, bytes.size()), bytes));
    BERTH_TRY(far_->submit());
    return {};
  }

 private:
  Result<std::span<const std::byte>> fetch(std::size_t at, std::size_t bytes) {
    const std::span<std::byte> copy = std::span(staging_).first(bytes);
    BERTH_TRY(far_->read(part_of(memory_, at, bytes), copy));
    BERTH_TRY(far_->finish());
    return std::span<const std::byte>(copy);
  }

  const Buffer buffer_;
  const Window memory_;
  const QueuePtr far_;
  std::vector<std::byte> staging_;  // of one slot
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
    BERTH_TRY_ASSIGN(Buffer buffer,
                     Buffer::allocate(tier.allocator, DType::kU8, {slot * slots}, {.label = tier.label}));
    BERTH_TRY_ASSIGN(const Window memory, buffer.window());
    if (memory.block.has(BlockFlags::kReadOnly))
      return Error(Code::kReadOnly, Layer::kAllocator, "a tier of {b} is memory that cannot be written", slot * slots);
    Device& from = tier.allocator->device();
    const bool direct = queue.device().reaches(from);
    if (direct || memory.block.has(BlockFlags::kHostTransfer))
      return std::unique_ptr<TierStore>(std::make_unique<MemoryStore>(std::move(buffer), memory, slot, slots, direct));
    BERTH_TRY_ASSIGN(QueuePtr far, from.make_queue());
    return std::unique_ptr<TierStore>(std::make_unique<FarStore>(std::move(buffer), memory, std::move(far), slot));
  }
  auto file = std::make_unique<FileStore>(tier.folder, slot);
  BERTH_TRY(file->prepare(slot * slots));
  return std::unique_ptr<TierStore>(std::move(file));
}

}  // namespace berth::internal::kv_cache
