// The state of each buffer of the device, so that bytes can be written in place if that is valid, and never while the
// driver may use them: WebGPU forbids a buffer to be mapped and in use at once, and wgpu-native ends the process if
// such work is submitted. `users` is a small readers-writer lock that spans calls: every recorded and not yet submitted
// command holds it shared; an in-place transfer holds it exclusively. Any thread may call. A BufferState lives until
// its block is freed and no recording refers to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "base/atomic_peak.h"
#include "berth/base/mutex.h"
#include "devices/webgpu/webgpu_context.h"

namespace berth::internal::webgpu {

struct BufferState {
  wgpu::Buffer buffer = nullptr;
  std::uint64_t id = 0;     // never reused: a safe key, unlike a pointer
  std::uint64_t bytes = 0;  // of the driver's buffer: the block's, rounded up
  bool maps = false;
  bool foreign = false;
  std::uint32_t blocks = 1;            // that stand for this buffer; guarded by the table
  std::atomic<std::int32_t> users{0};  // recorded commands; -1 while mapped
  std::atomic<Submission> last_use{0};

  void begin_use() noexcept {
    std::int32_t seen = users.load(std::memory_order_acquire);
    while (true) {
      if (seen < 0) {
        users.wait(seen, std::memory_order_acquire);
        seen = users.load(std::memory_order_acquire);
      } else if (users.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) {
        return;
      }
    }
  }
  // The command was submitted as part of `submission`, or dropped (0).
  void end_use(Submission submission) noexcept {
    raise_to(last_use, submission, std::memory_order_acq_rel);
    users.fetch_sub(1, std::memory_order_acq_rel);
  }
  // Acquires the buffer for the host if nothing recorded or submitted uses it.
  bool try_take(Context& context) noexcept {
    std::int32_t idle = 0;
    if (!maps || !users.compare_exchange_strong(idle, -1, std::memory_order_acq_rel)) return false;
    if (context.is_done(last_use.load(std::memory_order_acquire))) return true;
    give_back();
    return false;
  }
  void give_back() noexcept {
    users.store(0, std::memory_order_release);
    users.notify_all();
  }
};

using BufferStatePtr = std::shared_ptr<BufferState>;

// Finds the state by the driver's handle, which is the handle of the Block. Several blocks may stand for one buffer: a
// buffer can be imported more than once, and a buffer of Berth can be imported too. They share one state, because a
// recorded command of one forbids mapping by another.
class BufferTable {
 public:
  // `foreign` is ignored for a buffer that is known already.
  BufferStatePtr add(wgpu::Buffer buffer, std::uint64_t bytes, bool maps, bool foreign) {
    auto state = std::make_shared<BufferState>();
    state->buffer = buffer;
    state->bytes = bytes;
    state->maps = maps;
    state->foreign = foreign;
    const ScopedLock lock(mutex_);
    const auto [at, is_new] = states_.try_emplace(buffer, state);
    if (is_new)
      state->id = ++last_id_;
    else
      ++at->second->blocks;
    return at->second;
  }
  // Null for an unknown handle.
  BufferStatePtr find(std::uint64_t handle) const {
    const SharedLock lock(mutex_);
    const auto it = states_.find(reinterpret_cast<wgpu::Buffer>(handle));
    return it == states_.end() ? nullptr : it->second;
  }
  // Takes one block away. Returns the state if it was the last, otherwise null.
  BufferStatePtr remove(std::uint64_t handle) noexcept {
    const ScopedLock lock(mutex_);
    const auto it = states_.find(reinterpret_cast<wgpu::Buffer>(handle));
    if (it == states_.end() || --it->second->blocks > 0) return nullptr;
    BufferStatePtr state = std::move(it->second);
    states_.erase(it);
    return state;
  }

 private:
  mutable SharedMutex mutex_;
  std::unordered_map<wgpu::Buffer, BufferStatePtr> states_ BERTH_GUARDED_BY(mutex_);
  std::uint64_t last_id_ BERTH_GUARDED_BY(mutex_) = 0;
};

}  // namespace berth::internal::webgpu
