// Every device that Berth knows, one line each. A new device adds its line here.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <mutex>
#include <string>

#include "berth/memory/device.h"
#include "base/try.h"
#include "devices/cpu/cpu_device.h"
#include "devices/cuda/cuda_device.h"
#include "devices/disk/disk_device.h"
#include "devices/metal/metal_open.h"
#include "devices/webgpu/webgpu_device.h"

namespace berth {
namespace {

struct Backend {
  std::string_view kind;
  bool takes_path;  // else what follows the colon is an ordinal
  // Opens "KIND:argument", or says what would make it available.
  Result<DevicePtr> (*open)(const std::string& argument);
};

Result<DevicePtr> open_cpu(const std::string& ordinal) {
  if (ordinal != "0")
    return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice,
                            fmt::format("CPU:{} does not exist: there is one CPU device, \"CPU\"", ordinal));
  return cpu::open();
}

Result<DevicePtr> open_disk(const std::string& path) {
  return disk::open(path);
}

Result<DevicePtr> open_cuda(const std::string& ordinal) {
  return cuda::CudaDevice::open(std::stoi(ordinal));
}

constexpr std::array kBackends = {
    Backend{"CPU", false, open_cpu},      Backend{"DISK", true, open_disk},       Backend{"CUDA", false, open_cuda},
    Backend{"METAL", false, metal::open}, Backend{"WEBGPU", false, webgpu::open},
};

std::string known_kinds() {
  std::string text;
  for (const Backend& backend : kBackends) text += (text.empty() ? "" : ", ") + std::string(backend.kind);
  return text;
}

struct DeviceName {
  const Backend* backend;
  std::string argument;    // path or ordinal
  std::string normalised;  // one spelling for one device
};

Result<DeviceName> parse(std::string_view name) {
  const std::size_t colon = name.find(':');
  std::string kind(name.substr(0, colon));
  std::transform(kind.begin(), kind.end(), kind.begin(), [](unsigned char c) { return std::toupper(c); });
  const auto* backend =
      std::find_if(kBackends.begin(), kBackends.end(), [&](const Backend& known) { return known.kind == kind; });
  if (backend == kBackends.end())
    return Error::with_text(Code::kInvalidArgument, Layer::kDevice,
                            fmt::format("\"{}\" names no device; known kinds: {}", name, known_kinds()));
  std::string argument(colon == std::string_view::npos ? "" : name.substr(colon + 1));
  if (backend->takes_path) {
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

Result<DevicePtr> device(std::string_view name) {
  BERTH_TRY_ASSIGN(const DeviceName parsed, parse(name));
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Device>> open_devices;
  const std::lock_guard lock(mutex);
  std::weak_ptr<Device>& known = open_devices[parsed.normalised];
  if (DevicePtr alive = known.lock()) return alive;
  BERTH_TRY_ASSIGN(DevicePtr fresh, parsed.backend->open(parsed.argument));
  known = fresh;
  return fresh;
}

std::vector<DeviceStatus> list_devices() {
  std::vector<DeviceStatus> rows;
  for (const Backend& backend : kBackends) {
    if (backend.takes_path) {
      rows.push_back({std::string(backend.kind) + ":PATH", true, "any regular file, mapped read-only", {}});
      continue;
    }
    auto opened = device(backend.kind);
    if (opened)
      rows.push_back({std::string((*opened)->name()), true, (*opened)->description(), (*opened)->limits()});
    else
      rows.push_back({std::string(backend.kind), false, opened.error().message(), {}});
  }
  return rows;
}

}  // namespace berth
