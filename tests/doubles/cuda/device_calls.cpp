// Initialisation, devices, contexts, and the lookup of functions by name and version.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "entry.h"

namespace {

using cuda_double::DeviceContext;
using cuda_double::State;
using namespace berth::internal::cuda;  // NOLINT

struct NamedStatus {
  Status status;
  const char* name;
  const char* text;
};

constexpr NamedStatus kStatuses[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kErrorInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kErrorOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kErrorNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kErrorNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kErrorInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kErrorInvalidImage, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {kErrorInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kErrorInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kErrorNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kErrorNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kErrorIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kErrorContextIsDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {kErrorLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kErrorNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {kErrorIllegalState, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {kErrorCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {kErrorCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {kErrorCaptureUnjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
};

const NamedStatus* named(Status status) {
  for (const NamedStatus& entry : kStatuses) {
    if (entry.status == status) return &entry;
  }
  return nullptr;
}

// Stands for an older form of a function: reached only by a caller that asked for the wrong version.
Status wrong_version() {
  State& state = State::get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.misuse("cuGetProcAddress", "a function was called by a signature it does not have", kErrorInvalidValue);
}

struct Export {
  const char* name;
  int version;
  void* function;
};

const Export kExports[] = {
#define BERTH_EXPORT(name, symbol, version, need, parameters) {#name, version, reinterpret_cast<void*>(&symbol)},
    BERTH_CUDA_FUNCTIONS(BERTH_EXPORT)
#undef BERTH_EXPORT
    // The other forms that drivers have had under the same names.
    {"cuMemAdvise", 8000, reinterpret_cast<void*>(&wrong_version)},
    {"cuMemPrefetchAsync", 8000, reinterpret_cast<void*>(&wrong_version)},
    {"cuCtxSynchronize", 13000, reinterpret_cast<void*>(&wrong_version)},
    {"cuMemAlloc", 2000, reinterpret_cast<void*>(&wrong_version)},
    {"cuDeviceTotalMem", 2000, reinterpret_cast<void*>(&wrong_version)},
    {"cuDevicePrimaryCtxRelease", 7000, reinterpret_cast<void*>(&wrong_version)},
};

bool known(State& state, Ordinal device) {
  return device >= 0 && device < state.options.devices;
}

}  // namespace

namespace berth::internal::cuda {
extern "C" {

Status cuGetProcAddress_v2(const char* name, void** function, int version, std::uint64_t, ProcAddressResult* result) {
  DOUBLE_ENTER("cuGetProcAddress");
  const Export* best = nullptr;
  bool any = false;
  for (const Export& entry : kExports) {
    if (std::strcmp(entry.name, name) != 0) continue;
    any = true;
    if (entry.version > version || entry.version > state.options.driver_version) continue;
    if (best == nullptr || entry.version > best->version) best = &entry;
  }
  *function = best == nullptr ? nullptr : best->function;
  if (result != nullptr) *result = best != nullptr ? kProcFound : any ? kProcVersionNotSufficient : kProcNotFound;
  return kSuccess;
}

Status cuInit(unsigned flags) {
  DOUBLE_ENTER("cuInit");
  if (flags != 0) return state.misuse(kCall, "flags must be 0", kErrorInvalidValue);
  if (state.options.devices == 0) return kErrorNoDevice;
  state.initialised = true;
  return kSuccess;
}

Status cuDriverGetVersion(int* version) {
  DOUBLE_ENTER("cuDriverGetVersion");
  *version = state.options.driver_version;
  return kSuccess;
}

Status cuGetErrorName(Status status, const char** text) {
  DOUBLE_ENTER("cuGetErrorName");
  const NamedStatus* entry = named(status);
  *text = entry == nullptr ? nullptr : entry->name;
  return entry == nullptr ? kErrorInvalidValue : kSuccess;
}

Status cuGetErrorString(Status status, const char** text) {
  DOUBLE_ENTER("cuGetErrorString");
  const NamedStatus* entry = named(status);
  *text = entry == nullptr ? nullptr : entry->text;
  return entry == nullptr ? kErrorInvalidValue : kSuccess;
}

Status cuDeviceGetCount(int* count) {
  DOUBLE_ENTER("cuDeviceGetCount");
  if (!state.initialised) return state.misuse(kCall, "called before cuInit", kErrorNotInitialized);
  *count = state.options.devices;
  return kSuccess;
}

Status cuDeviceGet(Ordinal* device, int ordinal) {
  DOUBLE_ENTER("cuDeviceGet");
  if (!state.initialised) return state.misuse(kCall, "called before cuInit", kErrorNotInitialized);
  if (!known(state, ordinal)) return kErrorInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

Status cuDeviceGetName(char* name, int length, Ordinal device) {
  DOUBLE_ENTER("cuDeviceGetName");
  if (!known(state, device)) return state.misuse(kCall, "unknown device", kErrorInvalidDevice);
  if (length <= 0) return state.misuse(kCall, "no room for the name", kErrorInvalidValue);
  std::snprintf(name, static_cast<std::size_t>(length), "Berth CUDA double %d", device);
  return kSuccess;
}

Status cuDeviceTotalMem_v2(std::size_t* bytes, Ordinal device) {
  DOUBLE_ENTER("cuDeviceTotalMem");
  if (!known(state, device)) return state.misuse(kCall, "unknown device", kErrorInvalidDevice);
  *bytes = state.options.memory_bytes;
  return kSuccess;
}

Status cuDeviceGetAttribute(int* value, Attribute attribute, Ordinal device) {
  DOUBLE_ENTER("cuDeviceGetAttribute");
  if (!known(state, device)) return state.misuse(kCall, "unknown device", kErrorInvalidDevice);
  switch (attribute) {
    case kAttributeMaxThreadsPerBlock:
    case kAttributeMaxBlockX: *value = 1024; return kSuccess;
    case kAttributeMaxGridX: *value = 2147483647; return kSuccess;
    case kAttributeMultiprocessors: *value = 4; return kSuccess;
    case kAttributeIntegrated: *value = 0; return kSuccess;
    case kAttributeUnifiedAddressing: *value = 1; return kSuccess;
    case kAttributeCapabilityMajor: *value = 9; return kSuccess;
    case kAttributeCapabilityMinor: *value = 0; return kSuccess;
    case kAttributeManagedMemory:
    case kAttributeConcurrentManagedAccess: *value = state.options.managed; return kSuccess;
    case kAttributeVirtualMemory: *value = state.options.virtual_memory; return kSuccess;
    case kAttributeMemoryPools: *value = state.options.pools; return kSuccess;
  }
  return state.misuse(kCall, "unknown attribute", kErrorInvalidValue);
}

Status cuDeviceGetUuid_v2(Uuid* uuid, Ordinal device) {
  DOUBLE_ENTER("cuDeviceGetUuid");
  if (!known(state, device)) return state.misuse(kCall, "unknown device", kErrorInvalidDevice);
  std::memset(uuid->bytes, 0xB0, sizeof uuid->bytes);
  uuid->bytes[15] = static_cast<char>(device);
  return kSuccess;
}

Status cuDeviceCanAccessPeer(int* can, Ordinal device, Ordinal peer) {
  DOUBLE_ENTER("cuDeviceCanAccessPeer");
  if (!known(state, device) || !known(state, peer)) return state.misuse(kCall, "unknown device", kErrorInvalidDevice);
  *can = device != peer ? 1 : 0;
  return kSuccess;
}

Status cuDevicePrimaryCtxRetain(Context* context, Ordinal device) {
  DOUBLE_ENTER("cuDevicePrimaryCtxRetain");
  if (!state.initialised) return state.misuse(kCall, "called before cuInit", kErrorNotInitialized);
  if (!known(state, device)) return state.misuse(kCall, "unknown device", kErrorInvalidDevice);
  DeviceContext*& primary = state.primary[device];
  if (primary == nullptr) {
    // Kept after its end, so that a stale handle is recognised; listed, so that it does not count as leaked.
    static auto* const all = new std::vector<DeviceContext*>;
    primary = all->emplace_back(new DeviceContext);
    primary->device = device;
    state.contexts.insert(primary);
  }
  ++primary->retained;
  *context = reinterpret_cast<Context>(primary);
  return kSuccess;
}

Status cuDevicePrimaryCtxRelease_v2(Ordinal device) {
  DOUBLE_ENTER("cuDevicePrimaryCtxRelease");
  if (!known(state, device)) return state.misuse(kCall, "unknown device", kErrorInvalidDevice);
  DeviceContext* primary = state.primary[device];
  if (primary == nullptr) return state.misuse(kCall, "the context is not retained", kErrorInvalidContext);
  if (--primary->retained != 0) return kSuccess;
  const auto streams = state.all_streams;
  for (const auto& stream : streams) {
    if (stream->context == primary) state.drain(lock, *stream, stream->submitted);
  }
  const auto mine = [&](const auto& object) { return object.context == primary; };
  std::size_t leaked = 0;
  for (auto at = state.mappings.begin(); at != state.mappings.end();) {
    if (!mine(at->second)) {
      ++at;
      continue;
    }
    ++leaked;
    at = state.mappings.erase(at);
  }
  std::size_t objects = std::erase_if(state.captures, [&](const auto& capture) { return mine(*capture->origin); });
  for (auto at = state.streams.begin(); at != state.streams.end();) {
    if (!mine(*at->second)) {
      ++at;
      continue;
    }
    ++objects;
    at->second->destroyed = true;
    at = state.streams.erase(at);
  }
  objects += std::erase_if(state.events, [&](const auto& entry) { return mine(*entry.second); });
  objects += std::erase_if(state.modules, [&](const auto& entry) { return mine(*entry.second); });
  objects += std::erase_if(state.graphs, [&](const auto& entry) { return mine(entry.second); });
  objects += std::erase_if(state.graph_execs, [&](const auto& entry) { return mine(entry.second); });
  objects += std::erase_if(state.pools, [&](const auto& entry) { return mine(entry.second); });
  leaked += std::erase_if(state.handles, [&](const auto& entry) { return entry.second->device == device; });
  std::erase_if(state.all_streams, [&](const auto& stream) { return mine(*stream); });
  state.changed.notify_all();
  state.used[device] = 0;
  if (leaked + objects != 0 && primary->lost == kSuccess) {
    state.violation("leak: the context of device " + std::to_string(device) + " ended with " + std::to_string(leaked) +
                    " allocations and " + std::to_string(objects) + " other objects alive");
  }
  primary->alive = false;
  state.contexts.erase(primary);
  primary = nullptr;
  state.primary.erase(device);
  return kSuccess;
}

Status cuCtxPushCurrent_v2(Context handle) {
  DOUBLE_ENTER("cuCtxPushCurrent");
  auto* context = reinterpret_cast<DeviceContext*>(handle);
  if (!state.contexts.contains(context)) return state.misuse(kCall, "unknown context", kErrorInvalidContext);
  cuda_double::context_stack().push_back(context);
  return kSuccess;
}

Status cuCtxPopCurrent_v2(Context* handle) {
  DOUBLE_ENTER("cuCtxPopCurrent");
  auto& stack = cuda_double::context_stack();
  if (stack.empty()) return state.misuse(kCall, "nothing to pop", kErrorInvalidContext);
  if (handle != nullptr) *handle = reinterpret_cast<Context>(stack.back());
  stack.pop_back();
  return kSuccess;
}

Status cuCtxGetCurrent(Context* handle) {
  DOUBLE_ENTER("cuCtxGetCurrent");
  const auto& stack = cuda_double::context_stack();
  *handle = stack.empty() ? nullptr : reinterpret_cast<Context>(stack.back());
  return kSuccess;
}

Status cuCtxSetCurrent(Context handle) {
  DOUBLE_ENTER("cuCtxSetCurrent");
  auto* context = reinterpret_cast<DeviceContext*>(handle);
  auto& stack = cuda_double::context_stack();
  if (!stack.empty()) stack.pop_back();
  if (context == nullptr) return kSuccess;
  if (!state.contexts.contains(context)) return state.misuse(kCall, "unknown context", kErrorInvalidContext);
  stack.push_back(context);
  return kSuccess;
}

Status cuCtxSynchronize() {
  DOUBLE_ENTER_UNSAFE("cuCtxSynchronize");
  for (const auto& stream : state.all_streams)
    if (stream->context == context && stream->capture != nullptr)
      return state.conflict(kCall, "a stream of the context captures", *stream->capture, kErrorCaptureUnsupported);
  // The youngest stream first: nobody may count on the order in which streams come to their ends.
  auto streams = state.all_streams;
  std::reverse(streams.begin(), streams.end());
  for (const auto& stream : streams) {
    if (stream->context != context) continue;
    const cuda_double::Clock waited = stream->clock;
    state.drain(lock, *stream, stream->submitted);
    state.host.join(waited);
  }
  return context->lost;
}

}  // extern "C"
}  // namespace berth::internal::cuda
