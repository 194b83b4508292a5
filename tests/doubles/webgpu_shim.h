// Stands between Berth and a real WebGPU library: counts every call that can fail, makes the nth fail, and counts
// handles, so that a sweep can see each failure handled and nothing leaked. It can also make wgpu-native look like
// a library that knows only the standard header (futures, error scopes, no poll). One shim at a time; the calls
// that fail may come from one thread only.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "devices/webgpu/webgpu_dialect.h"
#include "devices/webgpu/webgpu_driver.h"

namespace berth::test {

struct WebgpuShim {
  internal::wgpu::Calls real{};
  std::uint64_t calls = 0;    // that can fail, since arm()
  std::uint64_t fail_at = 0;  // the number of the one that fails; 0 for none
  bool gives_null = true;     // a failed creation gives null; else an object, as wgpu-native does
  bool standard = false;
  std::string failed;                 // the call that was made to fail
  std::atomic<std::int64_t> live{0};  // handles given out and not released
  internal::wgpu::Device device = nullptr;
  internal::wgpu::ErrorCallbackInfo on_error{};
  std::optional<internal::wgpu::Enum> in_scope;  // an injected error that the next popped scope gives
  std::vector<internal::wgpu::Enum> scopes;
  std::uint64_t last_future = 0;

  void arm(std::uint64_t nth) {
    calls = 0;
    fail_at = nth;
    failed.clear();
    in_scope.reset();
  }

  bool enter(const char* name) {
    ++calls;
    if (calls != fail_at) return false;
    failed = name;
    return true;
  }

  static constexpr internal::wgpu::StringView message() { return {"made to fail", 12}; }

  void report() {
    const internal::wgpu::Enum type =
        failed == "DeviceCreateBuffer" ? internal::wgpu::kErrorOutOfMemory : internal::wgpu::kErrorInternal;
    if (standard)
      in_scope = type;
    else
      on_error.callback(&device, type, message(), on_error.userdata1, on_error.userdata2);
  }
};

inline WebgpuShim& webgpu_shim() {
  static WebgpuShim shim;
  return shim;
}

namespace shim {

template <auto Member>
inline const char* name_of = "";

template <auto Member, class Type = decltype(Member)>
struct Wrap;

template <auto Member, class R, class... A>
struct Wrap<Member, R (*internal::wgpu::Calls::*)(A...)> {
  // Gives a handle, or fails by null or by an object with an error on the side.
  static R creates(A... arguments) {
    WebgpuShim& s = webgpu_shim();
    const bool fails = s.enter(name_of<Member>);
    if (fails && s.gives_null) {
      s.report();
      return nullptr;
    }
    R handle = (s.real.*Member)(arguments...);
    if (handle != nullptr) ++s.live;
    if (fails) s.report();
    return handle;
  }
  // The same for calls that can only fail by null.
  static R gives(A... arguments) {
    WebgpuShim& s = webgpu_shim();
    R handle = s.enter(name_of<Member>) ? nullptr : (s.real.*Member)(arguments...);
    if (handle != nullptr) ++s.live;
    return handle;
  }
  static R gives_address(A... arguments) {
    return webgpu_shim().enter(name_of<Member>) ? nullptr : (webgpu_shim().real.*Member)(arguments...);
  }
  static R gives_status(A... arguments) {
    return webgpu_shim().enter(name_of<Member>) ? R{2} : (webgpu_shim().real.*Member)(arguments...);
  }
  static R reports(A... arguments) {
    WebgpuShim& s = webgpu_shim();
    const bool fails = s.enter(name_of<Member>);
    if constexpr (std::is_void_v<R>) {
      (s.real.*Member)(arguments...);
      if (fails) s.report();
    } else {
      R result = (s.real.*Member)(arguments...);
      if (fails) s.report();
      return result;
    }
  }
  static void releases(A... arguments) {
    --webgpu_shim().live;
    (webgpu_shim().real.*Member)(arguments...);
  }
};

inline constexpr std::uint64_t kScopeFuture = ~std::uint64_t{0};

inline internal::wgpu::Future next_future() {
  return {++webgpu_shim().last_future};
}

// Asynchronous calls that wgpu-native answers before it returns: the handle they give is counted on the way.
template <class Callback>
struct Asked {
  internal::wgpu::CallbackInfo<Callback> info;
};

inline internal::wgpu::Future request_adapter(internal::wgpu::Instance instance,
                                              const internal::wgpu::RequestAdapterOptions* options,
                                              internal::wgpu::CallbackInfo<internal::wgpu::AdapterCallback> info) {
  WebgpuShim& s = webgpu_shim();
  if (s.enter("InstanceRequestAdapter")) {
    // Nothing, with and without a status that says so.
    info.callback(s.gives_null ? internal::wgpu::kStatusSuccess : internal::wgpu::kRequestAdapterUnavailable, nullptr,
                  WebgpuShim::message(), info.userdata1, info.userdata2);
    return next_future();
  }
  Asked<internal::wgpu::AdapterCallback> asked{info};
  internal::wgpu::CallbackInfo<internal::wgpu::AdapterCallback> mine{};
  mine.mode = internal::wgpu::kCallbackAllowSpontaneous;
  mine.userdata1 = &asked;
  mine.callback = [](internal::wgpu::Enum status, internal::wgpu::Adapter adapter, internal::wgpu::StringView text,
                     void* to, void*) {
    if (adapter != nullptr) ++webgpu_shim().live;
    const auto& original = static_cast<Asked<internal::wgpu::AdapterCallback>*>(to)->info;
    original.callback(status, adapter, text, original.userdata1, original.userdata2);
  };
  s.real.InstanceRequestAdapter(instance, options, mine);
  return next_future();
}

inline internal::wgpu::Future request_device(internal::wgpu::Adapter adapter,
                                             const internal::wgpu::DeviceDescriptor* descriptor,
                                             internal::wgpu::CallbackInfo<internal::wgpu::DeviceCallback> info) {
  WebgpuShim& s = webgpu_shim();
  if (s.enter("AdapterRequestDevice")) {
    info.callback(3, nullptr, WebgpuShim::message(), info.userdata1, info.userdata2);
    return next_future();
  }
  s.on_error = descriptor->uncaptured_error;
  Asked<internal::wgpu::DeviceCallback> asked{info};
  internal::wgpu::CallbackInfo<internal::wgpu::DeviceCallback> mine{};
  mine.mode = internal::wgpu::kCallbackAllowSpontaneous;
  mine.userdata1 = &asked;
  mine.callback = [](internal::wgpu::Enum status, internal::wgpu::Device device, internal::wgpu::StringView text,
                     void* to, void*) {
    if (device != nullptr) ++webgpu_shim().live;
    webgpu_shim().device = device;
    const auto& original = static_cast<Asked<internal::wgpu::DeviceCallback>*>(to)->info;
    original.callback(status, device, text, original.userdata1, original.userdata2);
  };
  s.real.AdapterRequestDevice(adapter, descriptor, mine);
  return next_future();
}

inline internal::wgpu::Future map_async(internal::wgpu::Buffer buffer, internal::wgpu::Flags mode, std::size_t offset,
                                        std::size_t bytes,
                                        internal::wgpu::CallbackInfo<internal::wgpu::StatusCallback> info) {
  if (webgpu_shim().enter("BufferMapAsync"))
    info.callback(internal::wgpu::kMapError, WebgpuShim::message(), info.userdata1, info.userdata2);
  else
    webgpu_shim().real.BufferMapAsync(buffer, mode, offset, bytes, info);
  return next_future();
}

inline internal::wgpu::Future work_done(internal::wgpu::Queue queue,
                                        internal::wgpu::CallbackInfo<internal::wgpu::StatusCallback> info) {
  // The work itself went out and will end: only the answer is bad.
  if (webgpu_shim().enter("QueueOnSubmittedWorkDone"))
    info.callback(3, WebgpuShim::message(), info.userdata1, info.userdata2);
  else
    webgpu_shim().real.QueueOnSubmittedWorkDone(queue, info);
  return next_future();
}

// The standard way, made from wgpu-native's: waiting for any future waits for all work.
inline internal::wgpu::Enum wait_any(internal::wgpu::Instance, std::size_t count,
                                     internal::wgpu::FutureWaitInfo* futures, std::uint64_t) {
  WebgpuShim& s = webgpu_shim();
  // Waits for error scopes are many and all alike: they do not count.
  if (futures[0].future.id != kScopeFuture && s.enter("InstanceWaitAny")) return internal::wgpu::kWaitError;
  if (s.device != nullptr) s.real.DevicePoll(s.device, 1, nullptr);
  for (std::size_t i = 0; i < count; ++i) futures[i].completed = 1;
  return internal::wgpu::kWaitSuccess;
}

// wgpu-native ends the process at the filter for internal errors, so that scope is the shim's alone.
inline void push_scope(internal::wgpu::Device device, internal::wgpu::Enum filter) {
  webgpu_shim().scopes.push_back(filter);
  if (filter != internal::wgpu::kFilterInternal) webgpu_shim().real.DevicePushErrorScope(device, filter);
}

inline internal::wgpu::Future pop_scope(internal::wgpu::Device device,
                                        internal::wgpu::CallbackInfo<internal::wgpu::ScopeCallback> info) {
  WebgpuShim& s = webgpu_shim();
  const internal::wgpu::Enum filter = s.scopes.back();
  s.scopes.pop_back();
  internal::wgpu::CallbackInfo<internal::wgpu::ScopeCallback> pops = info;
  if (s.in_scope)
    pops.callback = [](internal::wgpu::Enum, internal::wgpu::Enum, internal::wgpu::StringView, void*, void*) {};
  pops.mode = internal::wgpu::kCallbackAllowSpontaneous;
  if (filter != internal::wgpu::kFilterInternal) s.real.DevicePopErrorScope(device, pops);
  if (s.in_scope) {
    info.callback(internal::wgpu::kStatusSuccess, *s.in_scope, WebgpuShim::message(), info.userdata1, info.userdata2);
    s.in_scope.reset();
  } else if (filter == internal::wgpu::kFilterInternal) {
    info.callback(internal::wgpu::kStatusSuccess, internal::wgpu::kErrorNone, {}, info.userdata1, info.userdata2);
  }
  return {kScopeFuture};
}

}  // namespace shim

// The library with the shim before it. `standard`: as if it were not wgpu-native.
inline internal::webgpu::Library shimmed(const internal::webgpu::Library& library, bool standard = false) {
  WebgpuShim& s = webgpu_shim();
  s.real = library.calls;
  s.standard = standard;
  s.device = nullptr;
  s.live = 0;
  s.gives_null = true;
  s.scopes.clear();
  s.arm(0);
  internal::webgpu::Library result = library;
  internal::wgpu::Calls& calls = result.calls;
#define BERTH_SHIM(name, how)                           \
  shim::name_of<& internal::wgpu::Calls::name> = #name; \
  calls.name = shim::Wrap<&internal::wgpu::Calls::name>::how;
  BERTH_SHIM(CreateInstance, gives)
  BERTH_SHIM(InstanceRelease, releases)
  BERTH_SHIM(AdapterGetLimits, gives_status)
  BERTH_SHIM(AdapterRelease, releases)
  BERTH_SHIM(DeviceGetQueue, gives)
  BERTH_SHIM(DeviceGetLimits, gives_status)
  BERTH_SHIM(DeviceCreateBuffer, creates)
  BERTH_SHIM(DeviceCreateShaderModule, creates)
  BERTH_SHIM(DeviceCreateBindGroupLayout, creates)
  BERTH_SHIM(DeviceCreatePipelineLayout, creates)
  BERTH_SHIM(DeviceCreateComputePipeline, creates)
  BERTH_SHIM(DeviceCreateBindGroup, creates)
  BERTH_SHIM(DeviceCreateCommandEncoder, creates)
  BERTH_SHIM(DeviceRelease, releases)
  BERTH_SHIM(QueueSubmit, reports)
  BERTH_SHIM(QueueSubmitForIndex, reports)
  BERTH_SHIM(QueueWriteBuffer, reports)
  BERTH_SHIM(QueueRelease, releases)
  BERTH_SHIM(BufferGetMappedRange, gives_address)
  BERTH_SHIM(BufferGetConstMappedRange, gives_address)
  BERTH_SHIM(BufferRelease, releases)
  BERTH_SHIM(CommandEncoderBeginComputePass, creates)
  BERTH_SHIM(CommandEncoderFinish, creates)
  BERTH_SHIM(CommandEncoderRelease, releases)
  BERTH_SHIM(CommandBufferRelease, releases)
  BERTH_SHIM(ComputePassEncoderRelease, releases)
  BERTH_SHIM(BindGroupRelease, releases)
  BERTH_SHIM(BindGroupLayoutRelease, releases)
  BERTH_SHIM(PipelineLayoutRelease, releases)
  BERTH_SHIM(ShaderModuleRelease, releases)
  BERTH_SHIM(ComputePipelineRelease, releases)
#undef BERTH_SHIM
  calls.InstanceRequestAdapter = shim::request_adapter;
  calls.AdapterRequestDevice = shim::request_device;
  calls.BufferMapAsync = shim::map_async;
  calls.QueueOnSubmittedWorkDone = shim::work_done;
  if (standard) {
    calls.InstanceWaitAny = shim::wait_any;
    calls.DevicePushErrorScope = shim::push_scope;
    calls.DevicePopErrorScope = shim::pop_scope;
    calls.DevicePoll = nullptr;
    calls.QueueSubmitForIndex = nullptr;
    calls.GetVersion = nullptr;
    calls.InstanceEnumerateAdapters = nullptr;
    // wgpu-native has not heard of timed waits: it is given what it knows.
    calls.CreateInstance = [](const internal::wgpu::InstanceDescriptor*) {
      if (webgpu_shim().enter("CreateInstance")) return internal::wgpu::Instance{nullptr};
      ++webgpu_shim().live;
      return internal::webgpu::create_instance(webgpu_shim().real);
    };
  }
  return result;
}

}  // namespace berth::test
