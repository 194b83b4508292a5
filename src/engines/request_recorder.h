// Memory of ONNX Runtime that writes down each request of a run, with its time and that of its release. It takes the
// bytes from the heap; it is for finding out what a model needs, not for serving it. Any thread may call. It must
// outlive the sessions that use it; the engine must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "berth/base/mutex.h"
#include "berth/base/result.h"
#include "engines/node_memory.h"
#include "engines/onnxruntime_abi.h"

namespace berth::internal::ort {

class RequestRecorder : private Allocator {
 public:
  // Registers the recorder with an environment, which must have no other memory. kDriver if the engine refuses it.
  static Result<std::unique_ptr<RequestRecorder>> attach(const Api& api, Env* env);
  ~RequestRecorder();
  RequestRecorder(const RequestRecorder&) = delete;
  RequestRecorder& operator=(const RequestRecorder&) = delete;

  // Forgets what was recorded, and records from now on.
  void begin() noexcept;
  // Stops, and returns the requests in the order in which they were made. `start`: the time, in nanoseconds of the
  // system's clock, from which theirs are counted.
  std::vector<TimedRequest> end(std::uint64_t start) noexcept;
  // The most bytes live at any time since begin().
  std::uint64_t peak() const noexcept;

 private:
  RequestRecorder(const Api& api, Env* env, MemoryInfo* memory_info) noexcept;
  void* allocate(std::size_t bytes) noexcept;
  void release(void* memory) noexcept;

  const Api& api_;
  Env* env_;
  MemoryInfo* info_;
  bool registered_ = false;
  mutable Mutex mutex_;
  bool recording_ BERTH_GUARDED_BY(mutex_) = false;
  std::uint64_t live_ BERTH_GUARDED_BY(mutex_) = 0, peak_ BERTH_GUARDED_BY(mutex_) = 0;
  std::vector<TimedRequest> requests_ BERTH_GUARDED_BY(mutex_);              // times in nanoseconds
  std::unordered_map<void*, std::size_t> live_at_ BERTH_GUARDED_BY(mutex_);  // the request of each live block
};

}  // namespace berth::internal::ort
