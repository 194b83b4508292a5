#include "berth/engines/onnxruntime.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>

#include "base/os/shared_library.h"
#include "base/os/system_pages.h"
#include "base/try.h"
#include "berth/base/mutex.h"
#include "engines/host_pages.h"
#include "engines/onnxruntime_abi.h"
#include "engines/onnxruntime_library.h"
#include "engines/weight_memory.h"

namespace berth::engines {

using namespace internal;

namespace {

// MLAS, the engine's kernels, reads up to 63 bytes past the end of a tensor on some processors.
constexpr std::uint64_t kReadPastEnd = 64;

// The load that the calling thread makes; 0: none.
thread_local std::uint64_t current_load = 0;

// Environments with a memory attached: the engine itself would silently replace one by another.
struct Attached {
  Mutex mutex;
  std::set<const ort::Env*> environments BERTH_GUARDED_BY(mutex);
};
Attached& attached() {
  static Attached instance;
  return instance;
}
// Not in a destructor: the thread-safety analysis leaves those out.
void detach(const ort::Env* environment) {
  const MutexLock guard(attached().mutex);
  attached().environments.erase(environment);
}

}  // namespace

// The engine identifies the allocator by the address of its function table, which is our base class, so a call leads
// back to this object.
class OnnxRuntimeMemory::Impl : public ort::Allocator {
 public:
  Impl(const ort::Api& table, ort::Env* env, ort::MemoryInfo* memory_info, EngineMemory tensor_memory,
       std::function<void()> before_weights)
      : ort::Allocator{
            .version = ort::kAllocatorVersion,
            .alloc = [](ort::Allocator* self, std::size_t bytes) { return of(self).allocate(bytes); },
            .free =
                [](ort::Allocator* self, void* memory) {
                  if (!of(self).release_weight(memory)) of(self).tensors.release(memory);
                },
            .info = [](const ort::Allocator* self) -> const ort::MemoryInfo* {
              return static_cast<const Impl*>(self)->info_;
            },
            .reserve = [](ort::Allocator* self, std::size_t bytes) { return of(self).reserve_weights(bytes); },
            .get_stats = nullptr,
            .alloc_on_stream = nullptr,
            .shrink = nullptr},
        api(table),
        tensors(std::move(tensor_memory)),
        env_(env),
        info_(memory_info),
        before_weights_(std::move(before_weights)) {}

  ~Impl() {
    if (registered) {
      if (ort::Status* status = api.unregister_allocator(env_, info_)) api.release_status(status);
      detach(env_);
    }
    api.release_memory_info(info_);
  }

  const ort::Api& api;
  EngineMemory tensors;
  WeightMemory weights;
  std::atomic<bool> has_loaded{false};  // a Load was made: pointers may be of `weights`
  std::atomic<std::uint64_t> weight_bytes{0};
  bool registered = false;

 private:
  static Impl& of(ort::Allocator* self) noexcept { return *static_cast<Impl*>(self); }

  void* allocate(std::size_t bytes) noexcept {
    if (current_load == 0 || bytes < WeightMemory::kSmallest || bytes > SIZE_MAX / 2) return tensors.allocate(bytes);
    if (void* memory = weights.allocate(bytes + kReadPastEnd, current_load)) return memory;
    return tensors.allocate(bytes);
  }

  bool release_weight(void* memory) noexcept {
    return memory != nullptr && has_loaded.load(std::memory_order_acquire) && weights.release(memory);
  }

  void* reserve_weights(std::size_t bytes) noexcept {
    if (before_weights_) before_weights_();
    weight_bytes.fetch_add(bytes, std::memory_order_relaxed);
    return allocate(bytes);
  }

  ort::Env* env_;
  ort::MemoryInfo* info_;
  std::function<void()> before_weights_;
};

Result<const OrtApi*> find_onnxruntime() {
  BERTH_TRY_ASSIGN(const ort::Library* library, ort::library());
  return reinterpret_cast<const OrtApi*>(library->api);
}

OnnxRuntimeMemory::OnnxRuntimeMemory() = default;
OnnxRuntimeMemory::~OnnxRuntimeMemory() = default;

Result<std::unique_ptr<OnnxRuntimeMemory>> OnnxRuntimeMemory::attach(const OrtApi* api, OrtEnv* env,
                                                                     OnnxRuntimeOptions options) {
  const auto& table = *reinterpret_cast<const ort::Api*>(api);
  auto* environment = reinterpret_cast<ort::Env*>(env);
  options.read_past_end = std::max<std::uint64_t>(options.read_past_end, kReadPastEnd);
  BERTH_TRY_ASSIGN(EngineMemory tensors, EngineMemory::create(options));
  ort::MemoryInfo* info = nullptr;
  BERTH_TRY(ort::check(table, table.create_cpu_memory_info(0, 0, &info), "describe CPU memory"));
  std::unique_ptr<OnnxRuntimeMemory> memory(new OnnxRuntimeMemory);
  memory->impl_ =
      std::make_unique<Impl>(table, environment, info, std::move(tensors), std::move(options.before_weights));
  const MutexLock guard(attached().mutex);
  if (attached().environments.count(environment) != 0)
    return Error(Code::kAlreadyExists, Layer::kEngine,
                 "this environment's memory is Berth already: share that OnnxRuntimeMemory, or destroy it first");
  BERTH_TRY(ort::check(table, table.register_allocator(environment, memory->impl_.get()), "take Berth's allocator"));
  memory->impl_->registered = true;
  attached().environments.insert(environment);
  return memory;
}

Result<void> OnnxRuntimeMemory::prepare(OrtSessionOptions* session_options) const {
  auto* options = reinterpret_cast<ort::SessionOptions*>(session_options);
  const ort::Api& api = impl_->api;
  BERTH_TRY(ort::check(api, api.add_session_config_entry(options, "session.use_env_allocators", "1"),
                       "use the environment's allocator"));
  return ort::check(api, api.disable_mem_pattern(options), "allocate each tensor by itself");
}

OnnxRuntimeMemory::Load::Load(OnnxRuntimeMemory& memory, std::string folder)
    : memory_(memory), folder_(std::move(folder)), before_(current_load) {
  static std::atomic<std::uint64_t> numbers{0};
  number_ = numbers.fetch_add(1, std::memory_order_relaxed) + 1;
  memory_.impl_->has_loaded.store(true, std::memory_order_release);
  current_load = number_;
}

OnnxRuntimeMemory::Load::~Load() {
  if (!ended_) current_load = before_;
}

SharedWeights OnnxRuntimeMemory::Load::end() {
  if (std::exchange(ended_, true)) return {};
  current_load = before_;
  WeightMemory::Shared shared = memory_.impl_->weights.share(folder_, number_);
  trim_heap();  // loading leaves much there that no run needs
  return {.bytes = shared.bytes, .shared = shared.shared, .problem = std::move(shared.problem)};
}

void OnnxRuntimeMemory::forget_loading() const noexcept {
  forget_library_pages(reinterpret_cast<const void*>(impl_->api.run));
}

Replay& OnnxRuntimeMemory::replay() noexcept {
  return impl_->tensors.replay();
}

std::uint64_t OnnxRuntimeMemory::weight_bytes() const noexcept {
  return impl_->weight_bytes.load(std::memory_order_relaxed);
}

OrtAllocator* OnnxRuntimeMemory::allocator() noexcept {
  return reinterpret_cast<OrtAllocator*>(static_cast<ort::Allocator*>(impl_.get()));
}

}  // namespace berth::engines
