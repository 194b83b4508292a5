#include "berth/memory/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "memory/built_in.h"

namespace berth {

using namespace internal;

namespace {

// Backends are never removed and std::map does not move its elements, so a pointer to a backend stays valid.
struct Registry {
  Mutex mutex;  // never held while a backend opens a device
  std::map<std::string, Backend, std::less<>> backends BERTH_GUARDED_BY(mutex);
  std::vector<const Backend*> in_order BERTH_GUARDED_BY(mutex);
  Mutex open_mutex;  // so that two threads do not open the same device twice
  std::map<std::string, std::weak_ptr<Device>> open_devices BERTH_GUARDED_BY(open_mutex);

  Registry() {
    for (Backend& backend : built_in_backends()) add(std::move(backend));
  }

  bool add(Backend backend) BERTH_REQUIRES(mutex) {
    std::string kind = backend.kind;
    const auto [at, fresh] = backends.try_emplace(std::move(kind), std::move(backend));
    if (fresh) in_order.push_back(&at->second);
    return fresh;
  }

  std::vector<const Backend*> all() {
    const MutexLock lock(mutex);
    return in_order;
  }
};

// Never destroyed: devices with static lifetime may be opened or released at exit.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

std::string known_kinds() {
  std::string text;
  for (const Backend* backend : registry().all()) text += (text.empty() ? "" : ", ") + backend->kind;
  return text;
}

const Backend* find_backend(std::string_view kind) {
  Registry& known = registry();
  const MutexLock lock(known.mutex);
  const auto found = known.backends.find(kind);
  return found == known.backends.end() ? nullptr : &found->second;
}

struct DeviceName {
  const Backend* backend;
  std::string argument;    // path or ordinal
  std::string normalised;  // one spelling per device
};

Result<DeviceName> parse(std::string_view name) {
  const std::size_t colon = name.find(':');
  std::string kind(name.substr(0, colon));
  std::transform(kind.begin(), kind.end(), kind.begin(), [](unsigned char c) { return std::toupper(c); });
  const Backend* const backend = find_backend(kind);
  if (backend == nullptr)
    return Error::with_text(Code::kInvalidArgument, Layer::kDevice,
                            fmt::format("\"{}\" names no device; known kinds: {}", name, known_kinds()));
  std::string argument(colon == std::string_view::npos ? "" : name.substr(colon + 1));
  if (backend->argument == Backend::Argument::kPath) {
    if (argument.empty())
      return Error::with_text(Code::kInvalidArgument, Layer::kDevice,
                              fmt::format("\"{}\" lacks a path: write {}:/path/to/file", name, kind));
  } else {
    if (colon == std::string_view::npos) argument.assign(1, '0');
    const bool number = !argument.empty() && argument.size() < 6 &&
                        std::all_of(argument.begin(), argument.end(), [](unsigned char c) { return std::isdigit(c); });
    if (!number)
      return Error::with_text(Code::kInvalidArgument, Layer::kDevice,
                              fmt::format("\"{}\": what follows the colon must be a number, as in {}:0", name, kind));
    argument = std::to_string(std::stoul(argument));
  }
  return DeviceName{backend, argument, kind + ":" + argument};
}

}  // namespace

Result<void> register_backend(Backend backend) {
  const bool spelled = !backend.kind.empty() && std::none_of(backend.kind.begin(), backend.kind.end(),
                                                             [](char c) { return c == ':' || (c >= 'a' && c <= 'z'); });
  if (!spelled || !backend.open)
    return Error::with_text(
        Code::kInvalidArgument, Layer::kDevice,
        fmt::format("backend \"{}\": a kind is upper case without a colon, and needs an open function", backend.kind));
  const std::string kind = backend.kind;
  Registry& known = registry();
  const MutexLock lock(known.mutex);
  if (known.add(std::move(backend))) return {};
  return Error::with_text(Code::kAlreadyExists, Layer::kDevice,
                          fmt::format("a backend of kind \"{}\" is registered already", kind));
}

Result<DevicePtr> device(std::string_view name) {
  BERTH_TRY_ASSIGN(const DeviceName parsed, parse(name));
  Registry& known = registry();
  const MutexLock lock(known.open_mutex);
  if (const auto found = known.open_devices.find(parsed.normalised); found != known.open_devices.end()) {
    DevicePtr alive = found->second.lock();
    if (alive != nullptr && (!parsed.backend->is_current || parsed.backend->is_current(*alive))) return alive;
  }
  BERTH_TRY_ASSIGN(DevicePtr fresh, parsed.backend->open(parsed.argument));
  std::erase_if(known.open_devices, [](const auto& entry) { return entry.second.expired(); });
  known.open_devices[parsed.normalised] = fresh;
  return fresh;
}

Result<DevicePtr> device_for_dlpack(std::int32_t device_type, std::int32_t device_id) {
  for (const Backend* backend : registry().all()) {
    const auto& types = backend->dlpack_types;
    if (std::find(types.begin(), types.end(), device_type) != types.end())
      return device(fmt::format("{}:{}", backend->kind, device_id));
  }
  return Error(Code::kDeviceUnavailable, Layer::kInterop,
               "DLPack device type {} has no device in Berth; export from CPU, CUDA, Metal or WebGPU memory",
               device_type);
}

std::vector<DeviceStatus> list_devices() {
  std::vector<DeviceStatus> rows;
  for (const Backend* backend : registry().all()) {
    if (backend->argument == Backend::Argument::kPath) {
      rows.push_back({backend->kind + ":PATH", true, backend->about, {}});
      continue;
    }
    auto opened = device(backend->kind);
    if (opened)
      rows.push_back({std::string((*opened)->name()), true, (*opened)->description(), (*opened)->limits()});
    else
      rows.push_back({backend->kind, false, opened.error().message(), {}});
  }
  return rows;
}

}  // namespace berth
