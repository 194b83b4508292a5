// A device from outside the library. The ARENA device divides one mapping of 64 MiB, as a driver of a small accelerator
// would divide its memory. The program registers it by name and uses it as any other: docs/adding_a_device.md explains
// each part.
#include <berth/alloc/caching_pool.h>
#include <berth/alloc/offset_allocator.h>
#include <berth/berth.h>
#include <berth/memory/out_of_memory.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

namespace {

using berth::Block;
using berth::BlockSpec;
using berth::Result;
using berth::Window;

constexpr std::size_t kArenaBytes = std::size_t{64} << 20;

// Copies on the host, as they are recorded. A real driver would record them here and start them in do_submit.
class ArenaQueue final : public berth::Queue {
 public:
  explicit ArenaQueue(berth::Device& device) : Queue(device) {}
  ~ArenaQueue() override { close(); }

 protected:
  bool executes_at_once() const noexcept override { return true; }
  Result<void> do_write(const Window& target, std::span<const std::byte> source) override {
    std::memcpy(address(target), source.data(), source.size());
    return {};
  }
  Result<void> do_read(const Window& source, std::span<std::byte> target) override {
    std::memcpy(target.data(), address(source), target.size());
    return {};
  }
  Result<void> do_copy(const Window& source, const Window& target) override {
    std::memmove(address(target), address(source), source.bytes);
    return {};
  }
  Result<void> do_fill(const Window& target, std::uint8_t value) override {
    std::memset(address(target), value, target.bytes);
    return {};
  }
  Result<void> do_submit(std::uint64_t value) override {
    done_.store(value, std::memory_order_release);
    return {};
  }
  Result<void> do_wait(std::uint64_t) override { return {}; }
  std::uint64_t poll() noexcept override { return done_.load(std::memory_order_acquire); }

 private:
  static std::byte* address(const Window& window) noexcept {
    return reinterpret_cast<std::byte*>(window.block.handle) + window.offset;
  }

  std::atomic<std::uint64_t> done_{0};
};

class ArenaDevice final : public berth::Device {
 public:
  ArenaDevice(const std::string& ordinal, std::byte* memory, berth::OffsetAllocator offsets)
      : Device("ARENA:" + ordinal, {.max_block_bytes = kArenaBytes, .total_bytes = kArenaBytes}),
        memory_(memory),
        offsets_(std::move(offsets)) {}
  ~ArenaDevice() override { munmap(memory_, kArenaBytes); }

  std::string description() const override { return "one mapping of " + berth::format_bytes(kArenaBytes); }
  // No host pointer: the bytes can be reached through a queue only, as on most accelerators.
  berth::BlockFlags expected_flags(const BlockSpec&) noexcept override { return berth::BlockFlags::kNone; }

 protected:
  Result<Block> allocate_block(const BlockSpec& spec) override {
    const std::lock_guard lock(mutex_);
    const auto offset = offsets_.allocate(spec.bytes, spec.alignment);
    if (!offset) return out_of_memory(berth::OutOfMemory::Cause::kCapacity, *this, spec);
    std::byte* const start = memory_ + *offset;
    if (spec.zero) std::memset(start, 0, spec.bytes);
    return Block{.handle = reinterpret_cast<std::uint64_t>(start), .bytes = spec.bytes};
  }
  void free_block(const Block& block, berth::Timepoint) noexcept override {
    const std::lock_guard lock(mutex_);
    // Cannot fail: the block came from allocate_block.
    static_cast<void>(offsets_.release(block.handle - reinterpret_cast<std::uint64_t>(memory_)));
  }
  Result<std::unique_ptr<berth::Queue>> create_queue() override {
    return std::unique_ptr<berth::Queue>(std::make_unique<ArenaQueue>(*this));
  }

 private:
  std::byte* const memory_;
  std::mutex mutex_;  // any thread may allocate; guards what follows
  berth::OffsetAllocator offsets_;
};

Result<berth::DevicePtr> open_arena(const std::string& ordinal) {
  auto offsets = berth::OffsetAllocator::make(kArenaBytes);
  if (!offsets) return offsets.error();
  void* const memory = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return berth::Error(berth::Code::kDeviceUnavailable, berth::Layer::kDevice,
                        "the system has no {} bytes of addresses for an arena", kArenaBytes);
  return berth::share_device(
      std::make_unique<ArenaDevice>(ordinal, static_cast<std::byte*>(memory), *std::move(offsets)));
}

}  // namespace

int main() {
  berth::register_backend({.kind = "ARENA", .open = open_arena}).value();
  const auto arena = berth::device("arena").value();  // names are matched without regard to case
  std::printf("%s: %s\n", std::string(arena->name()).c_str(), arena->description().c_str());

  // A buffer, through the stack of allocators that every device can have.
  const auto pool = berth::make_caching_pool(arena);
  std::vector<float> numbers(1024);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  const auto source = berth::Buffer::allocate(pool, berth::f32, {1024}, {.label = "source"}).value();
  const auto target = berth::Buffer::allocate(pool, berth::f32, {1024}, {.label = "target", .zero = true}).value();
  source.copyin(std::as_bytes(std::span(numbers))).value();

  // Half of it, copied by a queue of the device.
  const auto queue = arena->make_queue().value();
  const auto half = source.view(512 * sizeof(float), berth::f32, {512}).value();
  const auto into = target.view(0, berth::f32, {512}).value();
  queue->copy(half.window().value(), into.window().value()).value();
  queue->finish().value();

  std::vector<float> copied(1024);
  target.copyout(std::as_writable_bytes(std::span(copied))).value();
  const auto refused = berth::Buffer::allocate(pool, berth::f32, {32 << 20}, {.label = "too much"});
  std::printf("copied %g to %g; %zu bytes live\n%s\n", static_cast<double>(copied[0]), static_cast<double>(copied[511]),
              arena->counters().live_bytes, refused.error().message().c_str());
  return copied[0] == 512 && copied[511] == 1023 && copied[512] == 0 && !refused ? 0 : 1;
}
