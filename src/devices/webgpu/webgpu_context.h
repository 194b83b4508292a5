// One WebGPU device with its instance, adapter and queue, and every driver call that can fail, each as a function that
// returns a Result with the name of the call. Errors that WebGPU reports asynchronously (a callback, an error scope)
// are caught around the call that caused them; other errors are returned by the next submit or wait. Any thread may
// call. The context outlives everything made from it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "berth/base/mutex.h"
#include "berth/base/result.h"
#include "devices/webgpu/webgpu_dialect.h"
#include "devices/webgpu/webgpu_driver.h"

namespace berth::internal::webgpu {

// Selects an adapter. adapter_choice() fills it from the environment variables BERTH_WEBGPU_ADAPTER (a part of its
// name), BERTH_WEBGPU_POWER (low or high) and BERTH_WEBGPU_SOFTWARE (1: a software adapter).
struct AdapterChoice {
  std::string name{};  // any part of the adapter's name, case-insensitive; empty for any
  wgpu::Enum power = wgpu::kPowerUndefined;
  bool software = false;
  std::size_t ordinal = 0;  // among all adapters when not 0
  bool map_storage = true;  // map storage buffers if the adapter can
};

AdapterChoice adapter_choice(std::size_t ordinal);

// The number of a submission, in order over all queues of a context. 0 is before every submission.
using Submission = std::uint64_t;

class Context {
 public:
  // kDeviceUnavailable if there is no such adapter, with what to install; else the driver's error.
  static Result<std::unique_ptr<Context>> open(const Library& library, const AdapterChoice& choice);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const wgpu::Calls& calls() const noexcept { return library_.calls; }
  Dialect dialect() const noexcept { return dialect_; }
  wgpu::Device device() const noexcept { return device_; }
  wgpu::Queue queue() const noexcept { return queue_; }
  const wgpu::Limits& limits() const noexcept { return limits_; }
  bool f16() const noexcept { return f16_; }
  bool maps_storage() const noexcept { return maps_storage_; }
  // "llvmpipe (LLVM 15.0.6, 256 bits), software, Vulkan, wgpu-native 29.0.1.1"
  const std::string& description() const noexcept { return description_; }

  Result<wgpu::Buffer> create_buffer(wgpu::Flags usage, std::uint64_t bytes, std::string_view label);
  Result<wgpu::ShaderModule> create_shader(std::string_view wgsl);
  Result<wgpu::BindGroupLayout> create_bind_group_layout(const wgpu::BindGroupLayoutDescriptor& descriptor);
  Result<wgpu::PipelineLayout> create_pipeline_layout(const wgpu::PipelineLayoutDescriptor& descriptor);
  Result<wgpu::ComputePipeline> create_pipeline(const wgpu::ComputePipelineDescriptor& descriptor);
  Result<wgpu::BindGroup> create_bind_group(const wgpu::BindGroupDescriptor& descriptor);
  Result<wgpu::CommandEncoder> create_encoder();
  Result<wgpu::ComputePass> begin_pass(wgpu::CommandEncoder encoder);

  // Maps [offset, offset + bytes) for `mode`; blocks until work that uses the buffer is done.
  // Requires: offset is a multiple of 8, bytes of 4; the buffer is not mapped.
  Result<std::byte*> map(wgpu::Buffer buffer, wgpu::Flags mode, std::size_t offset, std::size_t bytes);

  // Enqueues a write that takes effect after previous submissions and before later ones.
  Result<void> write_buffer(wgpu::Buffer buffer, std::uint64_t offset, const void* data, std::size_t bytes);

  // Finishes the encoder and submits it. The encoder and the command buffer are released in any case. An encoder with
  // an invalid command is refused here and never submitted, because wgpu-native would end the process.
  Result<Submission> finish_and_submit(wgpu::CommandEncoder encoder);

  // Blocks, without spinning, until `submission` is done. kDeviceLost if the device was lost.
  Result<void> wait(Submission submission);
  // Never blocks.
  bool is_done(Submission submission) noexcept;
  std::uint64_t submissions() const noexcept { return submitted_count_.load(std::memory_order_relaxed); }

  // An error that no call was waiting for, or the loss of the device.
  Result<void> health();

 private:
  friend class ErrorCatcher;

  explicit Context(const Library& library) : library_(library), dialect_(dialect_of(library.calls)) {}

  Result<void> open_adapter(const AdapterChoice& choice);
  Result<void> open_device(const AdapterChoice& choice);
  Result<void> pick_listed_adapter(const AdapterChoice& choice);
  std::string adapter_name(wgpu::Adapter adapter, bool with_kind) const;
  Error error_of(wgpu::Enum type, std::string_view call, std::string_view message) const;
  // Waits until a future's callback has run.
  Result<void> complete(wgpu::Future future, const char* call);
  void raise_done(Submission submission) noexcept;
  void note_stray(wgpu::Enum type, std::string_view call, std::string_view message) noexcept;
  void note_lost(std::string_view message) noexcept;

  template <class Handle, class Make>
  Result<Handle> checked(const char* call, void (*release)(Handle), Make&& make);

  static void on_error(const wgpu::Device*, wgpu::Enum type, wgpu::StringView message, void* self, void*);
  static void on_lost(const wgpu::Device*, wgpu::Enum reason, wgpu::StringView message, void* self, void*);
  static void on_done(wgpu::Enum status, wgpu::StringView message, void* self, void* submission);

  Library library_;
  Dialect dialect_;
  wgpu::Instance instance_ = nullptr;
  wgpu::Adapter adapter_ = nullptr;
  wgpu::Device device_ = nullptr;
  wgpu::Queue queue_ = nullptr;
  wgpu::Limits limits_{};
  bool f16_ = false;
  bool maps_storage_ = false;
  std::string description_;

  std::atomic<Submission> done_{0};
  std::atomic<std::uint64_t> submitted_count_{0};
  std::atomic<bool> lost_{false};
  std::atomic<bool> stray_there_{false};
  std::atomic<bool> closing_{false};

  Mutex submit_mutex_;  // one submit at a time
  Submission last_ BERTH_GUARDED_BY(submit_mutex_) = 0;
  struct InFlight {
    Submission submission;
    wgpu::Future future;
  };
  std::deque<InFlight> futures_ BERTH_GUARDED_BY(submit_mutex_);  // standard dialect only

  Mutex note_mutex_;
  std::string lost_text_ BERTH_GUARDED_BY(note_mutex_);
  std::optional<Error> stray_ BERTH_GUARDED_BY(note_mutex_);
};

}  // namespace berth::internal::webgpu
