#include "tensor/storage.h"

#include <array>
#include <new>
#include <utility>

namespace berth::internal {
namespace {

// Memory of destroyed storages, kept for new ones of this thread.
struct Spare {
  static constexpr std::size_t kMost = 32;
  std::array<void*, kMost> memory{};
  std::size_t count = 0;
  bool gone = false;

  ~Spare() {
    gone = true;
    while (count > 0) ::operator delete(memory[--count]);
  }
};

thread_local Spare spare;

}  // namespace

// Each thread takes many ids from the counter at a time; otherwise threads that create views would contend for it.
std::uint64_t next_id() noexcept {
  constexpr std::uint64_t kAtOnce = 256;
  static std::atomic<std::uint64_t> last{0};
  [[gnu::tls_model("initial-exec")]] static constinit thread_local std::uint64_t taken = 0;
  if (taken % kAtOnce == 0) taken = last.fetch_add(kAtOnce, std::memory_order_relaxed);
  return ++taken;
}

void* Storage::operator new(std::size_t bytes) {
  if (spare.count > 0) return spare.memory[--spare.count];
  return ::operator new(bytes);
}

void Storage::operator delete(void* memory) noexcept {
  // A buffer with static lifetime may outlive the spares of this thread.
  if (!spare.gone && spare.count < Spare::kMost)
    spare.memory[spare.count++] = memory;
  else
    ::operator delete(memory);
}

Storage::Storage(AllocatorPtr allocator, const BlockSpec& spec, std::source_location site)
    : spec_(spec), allocator_(std::move(allocator)), id_(next_id()), site_(site) {
  note_live(*this);
}

Storage::~Storage() {
  note_gone(*this);
  if (is_ready()) allocator_->release(block_, Timepoint{last_use.load(std::memory_order_acquire)});
}

Storage* Storage::make_lazy(AllocatorPtr allocator, const BlockSpec& spec, std::source_location site) {
  return new Storage(std::move(allocator), spec, site);
}

Storage* Storage::make_ready(AllocatorPtr allocator, const Block& block, std::source_location site) {
  auto* storage =
      new Storage(std::move(allocator), {.bytes = block.bytes, .usage = block.usage, .label = block.label}, site);
  storage->block_ = block;
  storage->state_.store(State::kReady, std::memory_order_release);
  return storage;
}

void Storage::drop() noexcept {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

bool Storage::try_retain() noexcept {
  std::uint32_t seen = references_.load(std::memory_order_relaxed);
  while (seen != 0)
    if (references_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) return true;
  return false;
}

Result<void> Storage::ensure_allocated() {
  while (true) {
    State seen = state_.load(std::memory_order_acquire);
    if (seen == State::kReady) return {};
    if (seen == State::kBusy) {
      state_.wait(State::kBusy, std::memory_order_acquire);
      continue;  // ready, or lazy again because the other thread failed: then this thread tries and gets its own error
    }
    if (!state_.compare_exchange_strong(seen, State::kBusy, std::memory_order_acq_rel)) continue;
    // An allocator may throw: it may call the user. Whatever happens, the storage does not stay busy.
    struct Settled {
      std::atomic<State>& state;
      State to = State::kLazy;
      ~Settled() {
        state.store(to, std::memory_order_release);
        state.notify_all();
      }
    } settled{state_};
    Mover* const mover = spec_.bytes == 0 ? nullptr : allocator_->mover();
    auto block = mover == nullptr ? allocator_->allocate(spec_) : mover->allocate_movable(spec_, start_);
    if (!block) return block.error();
    block_ = *block;
    // Set before the allocator knows the owner: it may move the block at once.
    mover_ = mover;
    if (mover != nullptr && !mover->enlist(*block, spec_.alignment, *this)) mover_ = nullptr;
    settled.to = State::kReady;
    return {};
  }
}

}  // namespace berth::internal
