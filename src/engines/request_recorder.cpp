#include "engines/request_recorder.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>
#include <utility>

#include "base/try.h"
#include "engines/onnxruntime_library.h"

namespace berth::internal::ort {
namespace {

// Kernels of the engine read up to 63 bytes past the end of a tensor on some processors.
constexpr std::size_t kAlignment = 64, kReadPastEnd = 64;

// The clock of the engine's profiles.
std::uint64_t now() noexcept {
  const auto since = std::chrono::high_resolution_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

}  // namespace

// The engine identifies the allocator by the address of its function table, which is the base class.
RequestRecorder::RequestRecorder(const Api& api, Env* env, MemoryInfo* memory_info) noexcept
    : Allocator{.version = kAllocatorVersion,
                .alloc = [](Allocator* self,
                            std::size_t bytes) { return static_cast<RequestRecorder*>(self)->allocate(bytes); },
                .free = [](Allocator* self, void* memory) { static_cast<RequestRecorder*>(self)->release(memory); },
                .info = [](const Allocator* self) -> const MemoryInfo* {
                  return static_cast<const RequestRecorder*>(self)->info_;
                },
                .reserve = [](Allocator* self,
                              std::size_t bytes) { return static_cast<RequestRecorder*>(self)->allocate(bytes); },
                .get_stats = nullptr,
                .alloc_on_stream = nullptr,
                .shrink = nullptr},
      api_(api),
      env_(env),
      info_(memory_info) {}

Result<std::unique_ptr<RequestRecorder>> RequestRecorder::attach(const Api& api, Env* env) {
  MemoryInfo* info = nullptr;
  BERTH_TRY(check(api, api.create_cpu_memory_info(0, 0, &info), "describe CPU memory"));
  std::unique_ptr<RequestRecorder> recorder(new RequestRecorder(api, env, info));
  BERTH_TRY(check(api, api.register_allocator(env, recorder.get()), "take Berth's allocator"));
  recorder->registered_ = true;
  return recorder;
}

RequestRecorder::~RequestRecorder() {
  if (registered_)
    if (Status* status = api_.unregister_allocator(env_, info_)) api_.release_status(status);
  api_.release_memory_info(info_);
}

void RequestRecorder::begin() noexcept {
  const MutexLock guard(mutex_);
  recording_ = true;
  live_ = peak_ = 0;
  requests_.clear();
  live_at_.clear();
}

std::vector<TimedRequest> RequestRecorder::end(std::uint64_t start) noexcept {
  const MutexLock guard(mutex_);
  recording_ = false;
  live_at_.clear();
  for (TimedRequest& request : requests_)
    for (std::uint64_t* time : {&request.begin, &request.end})
      if (*time != TimedRequest::kNever) *time = (*time - std::min(*time, start)) / 1000;
  return std::exchange(requests_, {});
}

std::uint64_t RequestRecorder::peak() const noexcept {
  const MutexLock guard(mutex_);
  return peak_;
}

void* RequestRecorder::allocate(std::size_t bytes) noexcept {
  if (bytes == 0 || bytes > SIZE_MAX / 2) return nullptr;
  void* memory = std::aligned_alloc(kAlignment, (bytes + kReadPastEnd + kAlignment - 1) / kAlignment * kAlignment);
  const MutexLock guard(mutex_);
  if (memory == nullptr || !recording_) return memory;
  try {
    live_at_.emplace(memory, requests_.size());
    requests_.push_back({.bytes = bytes, .begin = now()});
  } catch (const std::bad_alloc&) {
    live_at_.erase(memory);
    std::free(memory);
    return nullptr;
  }
  live_ += bytes;
  peak_ = std::max(peak_, live_);
  return memory;
}

void RequestRecorder::release(void* memory) noexcept {
  {
    const MutexLock guard(mutex_);
    if (const auto found = live_at_.find(memory); found != live_at_.end()) {
      TimedRequest& request = requests_[found->second];
      request.end = now();
      live_ -= request.bytes;
      live_at_.erase(found);
    }
  }
  std::free(memory);
}

}  // namespace berth::internal::ort
