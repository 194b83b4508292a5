#include "devices/webgpu/webgpu_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <vector>

#include "base/atomic_peak.h"
#include "base/try.h"
#include "berth/base/mutex.h"

namespace berth::internal::webgpu {

namespace {

constexpr std::uint64_t kForever = std::numeric_limits<std::uint64_t>::max();

std::string_view view(wgpu::StringView text) noexcept {
  if (text.data == nullptr) return {};
  if (text.length == std::numeric_limits<std::size_t>::max()) return {text.data};
  return {text.data, text.length};
}

wgpu::StringView view(std::string_view text) noexcept {
  return {text.data(), text.size()};
}

// Driver messages have several lines; an error is one line.
std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const bool blank = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (blank && (line.empty() || line.back() == ' ')) continue;
    line += blank ? ' ' : c;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

const char* backend_name(wgpu::Enum backend) noexcept {
  switch (backend) {
    case wgpu::kBackendVulkan: return "Vulkan";
    case wgpu::kBackendMetal: return "Metal";
    case wgpu::kBackendD3D12: return "D3D12";
    default: return "other backend";
  }
}

const char* kind_name(wgpu::Enum kind) noexcept {
  switch (kind) {
    case wgpu::kAdapterDiscrete: return "discrete";
    case wgpu::kAdapterIntegrated: return "integrated";
    case wgpu::kAdapterCpu: return "software";
    default: return "unknown kind";
  }
}

struct Answer {
  wgpu::Enum status = 0;
  void* handle = nullptr;
  std::string message;
};

}  // namespace

// Catches what the driver reports on this thread during its lifetime. wgpu-native calls the uncaptured-error callback
// on the thread that caused the error and shares its scopes between threads, so the callback is the safe way there; in
// the standard, scopes belong to a thread.
class ErrorCatcher {
 public:
  ErrorCatcher(Context& context, const char* call) : context_(context), call_(call), outer_(current_) {
    current_ = this;
    if (context_.dialect_ == Dialect::kStandard && context_.device_ != nullptr)
      for (const wgpu::Enum filter : {wgpu::kFilterInternal, wgpu::kFilterOutOfMemory, wgpu::kFilterValidation})
        context_.calls().DevicePushErrorScope(context_.device_, filter);
  }
  ~ErrorCatcher() { static_cast<void>(take()); }
  ErrorCatcher(const ErrorCatcher&) = delete;
  ErrorCatcher& operator=(const ErrorCatcher&) = delete;

  // Returns the first error so far and stops catching.
  std::optional<Error> take() {
    if (taken_) return std::nullopt;
    taken_ = true;
    if (context_.dialect_ == Dialect::kStandard && context_.device_ != nullptr) pop_scopes();
    current_ = outer_;
    return std::move(error_);
  }

  static bool note(const Context& context, wgpu::Enum type, std::string_view message) {
    if (current_ == nullptr || &current_->context_ != &context) return false;
    current_->set(type, message);
    return true;
  }

 private:
  void set(wgpu::Enum type, std::string_view message) {
    if (!error_) error_ = context_.error_of(type, call_, message);
  }

  void pop_scopes() {
    for (int i = 0; i < 3; ++i) {
      wgpu::CallbackInfo<wgpu::ScopeCallback> info{};
      info.mode = wgpu::kCallbackWaitAnyOnly;
      info.userdata1 = this;
      info.callback = [](wgpu::Enum status, wgpu::Enum type, wgpu::StringView message, void* self, void*) {
        if (status == wgpu::kStatusSuccess && type != wgpu::kErrorNone)
          static_cast<ErrorCatcher*>(self)->set(type, view(message));
      };
      const wgpu::Future future = context_.calls().DevicePopErrorScope(context_.device_, info);
      if (auto ok = context_.complete(future, "wgpuDevicePopErrorScope"); !ok && !error_) error_ = ok.error();
    }
  }

  Context& context_;
  const char* call_;
  ErrorCatcher* outer_;
  std::optional<Error> error_;
  bool taken_ = false;
  static thread_local ErrorCatcher* current_;
};

thread_local ErrorCatcher* ErrorCatcher::current_ = nullptr;

AdapterChoice adapter_choice(std::size_t ordinal) {
  const auto text = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  AdapterChoice choice;
  choice.ordinal = ordinal;
  choice.name = text("BERTH_WEBGPU_ADAPTER");
  const std::string power = lower(text("BERTH_WEBGPU_POWER"));
  if (power == "low") choice.power = wgpu::kPowerLow;
  if (power == "high") choice.power = wgpu::kPowerHigh;
  choice.software = text("BERTH_WEBGPU_SOFTWARE") == "1";
  choice.map_storage = text("BERTH_WEBGPU_MAP_STORAGE") != "0";
  return choice;
}

// ---- opening and closing ------------------------------------------------------------------------------------

Result<std::unique_ptr<Context>> Context::open(const Library& library, const AdapterChoice& choice) {
  std::unique_ptr<Context> context(new Context(library));
  context->instance_ = create_instance(library.calls);
  if (context->instance_ == nullptr)
    return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice,
                            fmt::format("wgpuCreateInstance failed in {}", library.path));
  BERTH_TRY(context->open_adapter(choice));
  BERTH_TRY(context->open_device(choice));
  return context;
}

std::string Context::adapter_name(wgpu::Adapter adapter, bool with_kind) const {
  wgpu::AdapterInfo info{};
  if (calls().AdapterGetInfo(adapter, &info) != wgpu::kStatusSuccess) return "unnamed adapter";
  std::string text(view(info.device));
  if (text.empty()) text = view(info.description);
  if (with_kind)
    text += fmt::format(", {}, {}, {}", kind_name(info.adapter_type), backend_name(info.backend_type),
                        dialect_version(calls()));
  calls().AdapterInfoFreeMembers(info);
  return text;
}

Result<void> Context::pick_listed_adapter(const AdapterChoice& choice) {
  if (calls().InstanceEnumerateAdapters == nullptr)
    return Error::with_text(Code::kUnsupported, Layer::kDevice,
                            "this WebGPU library cannot list its adapters: choose by BERTH_WEBGPU_POWER or "
                            "BERTH_WEBGPU_SOFTWARE instead of by name or number");
  std::vector<wgpu::Adapter> all(calls().InstanceEnumerateAdapters(instance_, nullptr, nullptr));
  all.resize(std::min(all.size(), calls().InstanceEnumerateAdapters(instance_, nullptr, all.data())));
  std::string known;
  std::size_t at = 0;
  for (wgpu::Adapter adapter : all) {
    const std::string name = adapter_name(adapter, false);
    known += (known.empty() ? "" : "; ") + name;
    const bool named = choice.name.empty() || lower(name).find(lower(choice.name)) != std::string::npos;
    if (named && adapter_ == nullptr && at++ == choice.ordinal)
      adapter_ = adapter;
    else
      calls().AdapterRelease(adapter);
  }
  if (adapter_ == nullptr)
    return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice,
                            fmt::format("no WebGPU adapter number {} named \"{}\"; there are {}: {}", choice.ordinal,
                                        choice.name, all.size(), known));
  return {};
}

Result<void> Context::open_adapter(const AdapterChoice& choice) {
  if (choice.ordinal > 0 || !choice.name.empty()) return pick_listed_adapter(choice);
  wgpu::RequestAdapterOptions options{};
  options.power_preference = choice.power;
  options.force_fallback_adapter = choice.software ? 1 : 0;
  Answer answer;
  wgpu::CallbackInfo<wgpu::AdapterCallback> info{};
  info.mode = dialect_ == Dialect::kStandard ? wgpu::kCallbackWaitAnyOnly : wgpu::kCallbackAllowSpontaneous;
  info.userdata1 = &answer;
  info.callback = [](wgpu::Enum status, wgpu::Adapter adapter, wgpu::StringView message, void* to, void*) {
    *static_cast<Answer*>(to) = {status, adapter, one_line(view(message))};
  };
  const wgpu::Future future = calls().InstanceRequestAdapter(instance_, &options, info);
  const auto completed = complete(future, "wgpuInstanceRequestAdapter");
  adapter_ = static_cast<wgpu::Adapter>(answer.handle);  // must be released even if something else failed
  BERTH_TRY(completed);
  if (answer.status != wgpu::kStatusSuccess || adapter_ == nullptr)
    return Error::with_text(
        Code::kDeviceUnavailable, Layer::kDevice,
        fmt::format("wgpuInstanceRequestAdapter found no adapter ({}); a Vulkan driver is needed: install Debian's "
                    "mesa-vulkan-drivers for one that runs on the CPU",
                    answer.message.empty() ? "no reason given" : answer.message));
  return {};
}

Result<void> Context::open_device(const AdapterChoice& choice) {
  if (calls().AdapterGetLimits(adapter_, &limits_) != wgpu::kStatusSuccess)
    return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice, "wgpuAdapterGetLimits failed");
  limits_.next = nullptr;
  wgpu::AdapterInfo about{};
  wgpu::Enum kind = wgpu::kAdapterDiscrete;
  if (calls().AdapterGetInfo(adapter_, &about) == wgpu::kStatusSuccess) {
    kind = about.adapter_type;
    calls().AdapterInfoFreeMembers(about);
  }
  std::array<wgpu::Enum, 2> features{};
  std::size_t count = 0;
  f16_ = calls().AdapterHasFeature(adapter_, wgpu::kFeatureShaderF16) != 0;
  if (f16_) features[count++] = wgpu::kFeatureShaderF16;
  // On a discrete GPU, mapped memory is on the wrong side of the bus; on others it is the same memory.
  const wgpu::Enum mappable = mappable_storage_feature(dialect_);
  maps_storage_ = choice.map_storage && mappable != 0 && kind != wgpu::kAdapterDiscrete &&
                  calls().AdapterHasFeature(adapter_, mappable) != 0;
  if (maps_storage_) features[count++] = mappable;

  wgpu::DeviceDescriptor descriptor{};
  descriptor.required_feature_count = count;
  descriptor.required_features = features.data();
  descriptor.required_limits = &limits_;
  descriptor.lost.mode = wgpu::kCallbackAllowSpontaneous;
  descriptor.lost.callback = on_lost;
  descriptor.lost.userdata1 = this;
  descriptor.uncaptured_error.callback = on_error;
  descriptor.uncaptured_error.userdata1 = this;
  Answer answer;
  wgpu::CallbackInfo<wgpu::DeviceCallback> info{};
  info.mode = dialect_ == Dialect::kStandard ? wgpu::kCallbackWaitAnyOnly : wgpu::kCallbackAllowSpontaneous;
  info.userdata1 = &answer;
  info.callback = [](wgpu::Enum status, wgpu::Device device, wgpu::StringView message, void* to, void*) {
    *static_cast<Answer*>(to) = {status, device, one_line(view(message))};
  };
  const wgpu::Future future = calls().AdapterRequestDevice(adapter_, &descriptor, info);
  const auto completed = complete(future, "wgpuAdapterRequestDevice");
  device_ = static_cast<wgpu::Device>(answer.handle);
  BERTH_TRY(completed);
  if (answer.status != wgpu::kStatusSuccess || device_ == nullptr)
    return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice,
                            fmt::format("wgpuAdapterRequestDevice failed: {}", answer.message));
  if (calls().DeviceGetLimits(device_, &limits_) != wgpu::kStatusSuccess)
    return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice, "wgpuDeviceGetLimits failed");
  queue_ = calls().DeviceGetQueue(device_);
  if (queue_ == nullptr)
    return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice, "wgpuDeviceGetQueue gave no queue");
  description_ = adapter_name(adapter_, true);
  return {};
}

Context::~Context() {
  closing_ = true;
  if (queue_ != nullptr) calls().QueueRelease(queue_);
  if (device_ != nullptr) {
    calls().DeviceDestroy(device_);
    // The callback for the loss of the device refers to this object: let it run while the object exists.
    if (dialect_ == Dialect::kWgpuNative)
      calls().DevicePoll(device_, 0, nullptr);
    else
      calls().InstanceProcessEvents(instance_);
    calls().DeviceRelease(device_);
  }
  if (adapter_ != nullptr) calls().AdapterRelease(adapter_);
  if (instance_ != nullptr) calls().InstanceRelease(instance_);
}

// ---- errors -------------------------------------------------------------------------------------------------

Error Context::error_of(wgpu::Enum type, std::string_view call, std::string_view message) const {
  const std::string text = one_line(message);
  Code code = type == wgpu::kErrorOutOfMemory ? Code::kOutOfMemory : Code::kDriver;
  if (lost_.load(std::memory_order_acquire) || text.find("device is lost") != std::string::npos)
    code = Code::kDeviceLost;
  return Error::with_text(code, Layer::kDevice, fmt::format("{} failed: {}", call, text));
}

void Context::note_stray(wgpu::Enum type, std::string_view call, std::string_view message) noexcept {
  try {
    const MutexLock lock(note_mutex_);
    if (!stray_) stray_ = error_of(type, call, message);
    stray_there_.store(true, std::memory_order_release);
  } catch (...) {
    // No memory even for the message: it is lost.
  }
}

void Context::note_lost(std::string_view message) noexcept {
  try {
    const MutexLock lock(note_mutex_);
    if (lost_text_.empty()) lost_text_ = one_line(message);
  } catch (...) {
    // The flag below says what matters.
  }
  lost_.store(true, std::memory_order_release);
}

Result<void> Context::health() {
  if (lost_.load(std::memory_order_acquire)) {
    const MutexLock lock(note_mutex_);
    return Error::with_text(
        Code::kDeviceLost, Layer::kDevice,
        fmt::format("the WebGPU device was lost: {}; open the device again and upload its data again",
                    lost_text_.empty() ? "no reason given" : lost_text_));
  }
  if (stray_there_.load(std::memory_order_acquire)) {
    const MutexLock lock(note_mutex_);
    stray_there_.store(false, std::memory_order_release);
    if (stray_) {
      Error error = *std::move(stray_);
      stray_.reset();
      return error;
    }
  }
  return {};
}

void Context::on_error(const wgpu::Device*, wgpu::Enum type, wgpu::StringView message, void* self, void*) {
  auto& context = *static_cast<Context*>(self);
  if (!ErrorCatcher::note(context, type, view(message)))
    context.note_stray(type, "an earlier WebGPU call", view(message));
}

void Context::on_lost(const wgpu::Device*, wgpu::Enum reason, wgpu::StringView message, void* self, void*) {
  auto& context = *static_cast<Context*>(self);
  if (context.closing_ || reason == wgpu::kLostCallbackCancelled) return;
  context.note_lost(view(message));
}

Result<void> Context::complete(wgpu::Future future, const char* call) {
  if (dialect_ == Dialect::kWgpuNative) return {};  // such callbacks have run when the call returns
  wgpu::FutureWaitInfo info{future, 0};
  const wgpu::Enum status = calls().InstanceWaitAny(instance_, 1, &info, kForever);
  if (status == wgpu::kWaitSuccess && info.completed != 0) return {};
  return Error::with_text(Code::kDriver, Layer::kDevice,
                          fmt::format("wgpuInstanceWaitAny for {} gave status {}", call, status));
}

// ---- making things ------------------------------------------------------------------------------------------

template <class Handle, class Make>
Result<Handle> Context::checked(const char* call, void (*release)(Handle), Make&& make) {
  ErrorCatcher catcher(*this, call);
  Handle handle = make();
  std::optional<Error> error = catcher.take();
  if (!error && handle == nullptr)
    error = Error::with_text(Code::kDriver, Layer::kDevice, fmt::format("{} gave nothing", call));
  if (!error) return handle;
  // A failed call still returns an object; every use of that object is an error.
  if (handle != nullptr) release(handle);
  return *std::move(error);
}

Result<wgpu::Buffer> Context::create_buffer(wgpu::Flags usage, std::uint64_t bytes, std::string_view label) {
  wgpu::BufferDescriptor descriptor{};
  descriptor.label = view(label);
  descriptor.usage = usage;
  descriptor.size = bytes;
  return checked("wgpuDeviceCreateBuffer", calls().BufferRelease,
                 [&] { return calls().DeviceCreateBuffer(device_, &descriptor); });
}

Result<wgpu::ShaderModule> Context::create_shader(std::string_view wgsl) {
  wgpu::ShaderSourceWgsl source{};
  source.chain.type = wgpu::kTypeShaderSourceWgsl;
  source.code = view(wgsl);
  wgpu::ShaderModuleDescriptor descriptor{};
  descriptor.next = &source.chain;
  return checked("wgpuDeviceCreateShaderModule", calls().ShaderModuleRelease,
                 [&] { return calls().DeviceCreateShaderModule(device_, &descriptor); });
}

Result<wgpu::BindGroupLayout> Context::create_bind_group_layout(const wgpu::BindGroupLayoutDescriptor& descriptor) {
  return checked("wgpuDeviceCreateBindGroupLayout", calls().BindGroupLayoutRelease,
                 [&] { return calls().DeviceCreateBindGroupLayout(device_, &descriptor); });
}

Result<wgpu::PipelineLayout> Context::create_pipeline_layout(const wgpu::PipelineLayoutDescriptor& descriptor) {
  return checked("wgpuDeviceCreatePipelineLayout", calls().PipelineLayoutRelease,
                 [&] { return calls().DeviceCreatePipelineLayout(device_, &descriptor); });
}

Result<wgpu::ComputePipeline> Context::create_pipeline(const wgpu::ComputePipelineDescriptor& descriptor) {
  return checked("wgpuDeviceCreateComputePipeline", calls().ComputePipelineRelease,
                 [&] { return calls().DeviceCreateComputePipeline(device_, &descriptor); });
}

Result<wgpu::BindGroup> Context::create_bind_group(const wgpu::BindGroupDescriptor& descriptor) {
  return checked("wgpuDeviceCreateBindGroup", calls().BindGroupRelease,
                 [&] { return calls().DeviceCreateBindGroup(device_, &descriptor); });
}

Result<wgpu::CommandEncoder> Context::create_encoder() {
  return checked("wgpuDeviceCreateCommandEncoder", calls().CommandEncoderRelease,
                 [&] { return calls().DeviceCreateCommandEncoder(device_, nullptr); });
}

Result<wgpu::ComputePass> Context::begin_pass(wgpu::CommandEncoder encoder) {
  return checked("wgpuCommandEncoderBeginComputePass", calls().ComputePassEncoderRelease,
                 [&] { return calls().CommandEncoderBeginComputePass(encoder, nullptr); });
}

// ---- mapping ------------------------------------------------------------------------------------------------

Result<std::byte*> Context::map(wgpu::Buffer buffer, wgpu::Flags mode, std::size_t offset, std::size_t bytes) {
  struct Waiter {
    std::atomic<wgpu::Enum> status{0};
    std::string message;
  } waiter;
  wgpu::CallbackInfo<wgpu::StatusCallback> info{};
  info.mode = dialect_ == Dialect::kStandard ? wgpu::kCallbackWaitAnyOnly : wgpu::kCallbackAllowSpontaneous;
  info.userdata1 = &waiter;
  info.callback = [](wgpu::Enum status, wgpu::StringView message, void* to, void*) {
    auto& waiting = *static_cast<Waiter*>(to);
    if (status != wgpu::kStatusSuccess) waiting.message = one_line(view(message));
    waiting.status.store(status, std::memory_order_release);
    waiting.status.notify_all();
  };
  ErrorCatcher catcher(*this, "wgpuBufferMapAsync");
  const wgpu::Future future = calls().BufferMapAsync(buffer, mode, offset, bytes, info);
  if (dialect_ == Dialect::kWgpuNative) {
    // The callback runs inside a poll, usually ours, possibly of another thread.
    if (waiter.status.load(std::memory_order_acquire) == 0) calls().DevicePoll(device_, 0, nullptr);
    if (waiter.status.load(std::memory_order_acquire) == 0) calls().DevicePoll(device_, 1, nullptr);
    waiter.status.wait(0, std::memory_order_acquire);
  } else if (auto ok = complete(future, "wgpuBufferMapAsync"); !ok) {
    calls().BufferUnmap(buffer);  // takes the request back
    return ok.error();
  }
  const wgpu::Enum status = waiter.status.load(std::memory_order_acquire);
  std::optional<Error> error = catcher.take();
  if (status != wgpu::kStatusSuccess)
    return error_of(wgpu::kErrorValidation, "wgpuBufferMapAsync",
                    waiter.message.empty() ? fmt::format("status {}", status) : waiter.message);
  if (error) return *std::move(error);
  const void* address = mode == wgpu::kMapRead ? calls().BufferGetConstMappedRange(buffer, offset, bytes)
                                               : calls().BufferGetMappedRange(buffer, offset, bytes);
  if (address == nullptr) {
    calls().BufferUnmap(buffer);
    return Error::with_text(
        Code::kDriver, Layer::kDevice,
        fmt::format("{} gave no address for bytes [{}, {})",
                    mode == wgpu::kMapRead ? "wgpuBufferGetConstMappedRange" : "wgpuBufferGetMappedRange", offset,
                    offset + bytes));
  }
  return static_cast<std::byte*>(const_cast<void*>(address));
}

Result<void> Context::write_buffer(wgpu::Buffer buffer, std::uint64_t offset, const void* data, std::size_t bytes) {
  ErrorCatcher catcher(*this, "wgpuQueueWriteBuffer");
  calls().QueueWriteBuffer(queue_, buffer, offset, data, bytes);
  if (std::optional<Error> error = catcher.take()) return *std::move(error);
  return {};
}

// ---- submitting and waiting -----------------------------------------------------------------------------------

Result<Submission> Context::finish_and_submit(wgpu::CommandEncoder encoder) {
  auto finished = checked("wgpuCommandEncoderFinish", calls().CommandBufferRelease,
                          [&] { return calls().CommandEncoderFinish(encoder, nullptr); });
  calls().CommandEncoderRelease(encoder);
  if (!finished) return finished.error();
  const wgpu::CommandBuffer commands = *finished;
  if (auto ok = health(); !ok) {
    calls().CommandBufferRelease(commands);
    return ok.error();
  }
  wgpu::CallbackInfo<wgpu::StatusCallback> info{};
  info.mode = dialect_ == Dialect::kStandard ? wgpu::kCallbackAllowProcessEvents : wgpu::kCallbackAllowSpontaneous;
  info.callback = on_done;
  info.userdata1 = this;
  std::optional<Error> error;
  Submission submission = 0;
  {
    const MutexLock lock(submit_mutex_);
    ErrorCatcher catcher(*this, dialect_ == Dialect::kWgpuNative ? "wgpuQueueSubmitForIndex" : "wgpuQueueSubmit");
    if (dialect_ == Dialect::kWgpuNative) {
      submission = calls().QueueSubmitForIndex(queue_, 1, &commands);
    } else {
      submission = last_ + 1;
      calls().QueueSubmit(queue_, 1, &commands);
    }
    error = catcher.take();
    last_ = std::max(last_, submission);
    info.userdata2 = reinterpret_cast<void*>(static_cast<std::uintptr_t>(submission));
    const wgpu::Future future = calls().QueueOnSubmittedWorkDone(queue_, info);
    if (dialect_ == Dialect::kStandard) {
      while (!futures_.empty() && futures_.front().submission <= done_.load(std::memory_order_acquire))
        futures_.pop_front();
      futures_.push_back({submission, future});
    }
  }
  calls().CommandBufferRelease(commands);
  if (error) return *std::move(error);
  submitted_count_.fetch_add(1, std::memory_order_relaxed);
  return submission;
}

void Context::raise_done(Submission submission) noexcept {
  raise_to(done_, submission, std::memory_order_acq_rel);
}

void Context::on_done(wgpu::Enum status, wgpu::StringView message, void* self, void* submission) {
  auto& context = *static_cast<Context*>(self);
  // Failed work is over too; health() reports the failure.
  if (status != wgpu::kStatusSuccess && !context.closing_)
    context.note_stray(wgpu::kErrorInternal, "wgpuQueueOnSubmittedWorkDone",
                       fmt::format("submitted work ended with status {}: {}", status, one_line(view(message))));
  context.raise_done(static_cast<Submission>(reinterpret_cast<std::uintptr_t>(submission)));
}

bool Context::is_done(Submission submission) noexcept {
  if (done_.load(std::memory_order_acquire) >= submission) return true;
  if (dialect_ == Dialect::kWgpuNative)
    calls().DevicePoll(device_, 0, nullptr);
  else
    calls().InstanceProcessEvents(instance_);
  return done_.load(std::memory_order_acquire) >= submission;
}

Result<void> Context::wait(Submission submission) {
  if (done_.load(std::memory_order_acquire) < submission) {
    if (dialect_ == Dialect::kWgpuNative) {
      calls().DevicePoll(device_, 1, &submission);
    } else {
      wgpu::Future future{};
      {
        const MutexLock lock(submit_mutex_);
        for (const InFlight& flight : futures_)
          if (flight.submission == submission) future = flight.future;
      }
      if (future.id != 0) BERTH_TRY(complete(future, "wgpuQueueOnSubmittedWorkDone"));
    }
    raise_done(submission);
  }
  return health();
}

}  // namespace berth::internal::webgpu
