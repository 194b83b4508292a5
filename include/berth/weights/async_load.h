// Loading in the background: tensors arrive in the order requested, and the first can be used while the others are
// read. The arrival of each is a Timepoint of one timeline, so a queue waits for it as for other work.
//
//   auto load = berth::load_async(file, names, gpu).value();
//   for (std::size_t i = 0; i < names.size(); ++i) {
//     queue->wait_for(load.arrivals()[i]).value();          // tensor i, and all before it
//     queue->launch(..., load.buffers()[i].window() ...);   // runs while the next ones are read
//   }
//   load.finish().value();
//
// Blocking copies of a buffer wait for its arrival by themselves; so do Device::synchronize and wait(). Host pointers
// and recorded work do not: wait for the arrival first. Tensors that share a storage (share_below) arrive for a
// blocking copy when the last of them has.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "berth/base/result.h"
#include "berth/memory/timepoint.h"
#include "berth/weights/weights.h"

namespace berth {

enum class ReadMethod : std::uint8_t {
  kThreads,  // threads that read: the default, because it is the faster one (`./run bench weights`)
  kRing,     // io_uring, for memory that the host can write; threads where the kernel has none, and for other memory
};
std::string_view to_string(ReadMethod method) noexcept;

struct AsyncLoadOptions {
  ReadMethod method = ReadMethod::kThreads;
  // The number of reader threads, or of reads in progress; 0: one per processor, at most 8.
  unsigned readers = 0;
  // As in LoadOptions.
  std::size_t share_below = std::size_t{8} << 20;
  BufferOptions buffer{};
};

// A load in progress. The buffers may be used from any thread; the other functions from one at a time, if they do not
// say otherwise.
class AsyncLoad {
 public:
  // Cancels what has not arrived, and waits until nothing is written any more. A tensor that has not arrived has
  // undefined contents then, and its arrival counts as reached, as for every timeline that ends: keep the load until
  // the last tensor has arrived.
  ~AsyncLoad();
  AsyncLoad(AsyncLoad&& other) noexcept;
  AsyncLoad& operator=(AsyncLoad&& other) noexcept;

  // In the order requested.
  std::span<const Buffer> buffers() const& noexcept;
  // arrivals()[i] is reached when buffers()[0 .. i] hold their bytes. It is never reached if reading one of them fails:
  // wait() and Queue::wait_for() then return that error.
  std::span<const Timepoint> arrivals() const& noexcept;
  void buffers() const&& = delete;
  void arrivals() const&& = delete;

  // Waits until buffers()[0 .. index] have arrived, but no longer than `at_most`: false if the time was over first. The
  // errors of finish(). Any thread may call it. Requires: index < buffers().size().
  Result<bool> wait(std::size_t index, std::chrono::nanoseconds at_most) const;
  // Waits until all tensors have arrived. kIo, the device's error, or kCancelled after cancel().
  Result<void> finish();
  // Ends reading soon; waits and finish() then return kCancelled. Any thread may call it.
  void cancel() noexcept;

  // What is used.
  ReadMethod method() const noexcept;

 private:
  struct State;
  explicit AsyncLoad(std::unique_ptr<State> state) noexcept;
  friend Result<AsyncLoad> load_async(const WeightFile& file, std::span<const std::string_view> names,
                                      const AllocatorPtr& allocator, const AsyncLoadOptions& options);
  std::unique_ptr<State> state_;
};

// Allocates new buffers for the tensors and begins to read them. The file stays open until the load ends. kNotFound for
// a name; kOutOfMemory; kInvalidArgument without an allocator; kIo if no thread can be started.
Result<AsyncLoad> load_async(const WeightFile& file, std::span<const std::string_view> names,
                             const AllocatorPtr& allocator, const AsyncLoadOptions& options = {});
// All tensors, in the order of tensors().
Result<AsyncLoad> load_all_async(const WeightFile& file, const AllocatorPtr& allocator,
                                 const AsyncLoadOptions& options = {});

}  // namespace berth
