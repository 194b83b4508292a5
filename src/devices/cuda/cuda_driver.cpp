#include "devices/cuda/cuda_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <memory>

#include "base/try.h"
#include "berth/base/mutex.h"

namespace berth::internal::cuda {
namespace {

constexpr const char* kDefaultLibrary = "libcuda.so.1";

using GetProcAddress = Status (*)(const char*, void**, int, std::uint64_t, ProcAddressResult*);

Error unavailable(std::string text) {
  return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice, std::move(text));
}

Error too_old(const std::string& path, int version) {
  return unavailable(
      fmt::format("CUDA is not available: the driver {} is of CUDA {}.{} and Berth needs one of CUDA 12.0 or later; "
                  "update the driver",
                  path, version / 1000, version % 1000 / 10));
}

// Whether a function is required.
constexpr bool kNeeded = true;
constexpr bool kOptional = false;

Result<std::unique_ptr<Driver>> load(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return unavailable(fmt::format(
        "CUDA is not available: {}; install the NVIDIA driver, or set BERTH_CUDA_LIBRARY to its libcuda.so.1",
        dlerror()));
  auto driver = std::make_unique<Driver>();
  driver->path = path;
  const auto version_of = reinterpret_cast<decltype(Driver::cuDriverGetVersion)>(dlsym(library, "cuDriverGetVersion"));
  if (version_of == nullptr)
    return unavailable(
        fmt::format("CUDA is not available: {} has no cuDriverGetVersion, so it is not a CUDA driver", path));
  if (const Status status = version_of(&driver->version); status != kSuccess)
    return unavailable(fmt::format("CUDA is not available: cuDriverGetVersion of {} failed with status {}", path,
                                   static_cast<unsigned>(status)));
  const auto find = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr) return too_old(path, driver->version);

  const char* missing = nullptr;
  const auto look_up = [&](auto& field, const char* name, int version, bool needed) {
    // An older driver would return an older form of the function, with another signature, under the same name.
    if (driver->version >= version) {
      void* function = nullptr;
      ProcAddressResult found = kProcNotFound;
      if (find(name, &function, version, kProcAddressLegacyStream, &found) == kSuccess && found == kProcFound)
        field = reinterpret_cast<std::remove_reference_t<decltype(field)>>(function);
    }
    if (field == nullptr && needed && missing == nullptr) missing = name;
  };
#define BERTH_LOOK_UP(name, symbol, version, need, parameters) look_up(driver->name, #name, version, need);
  BERTH_CUDA_FUNCTIONS(BERTH_LOOK_UP)
#undef BERTH_LOOK_UP
  if (missing != nullptr)
    return unavailable(fmt::format("CUDA is not available: the driver {} of CUDA {}.{} has no {}; update the driver",
                                   path, driver->version / 1000, driver->version % 1000 / 10, missing));
  return driver;
}

}  // namespace

Result<const Driver*> Driver::open() {
  const char* chosen = std::getenv("BERTH_CUDA_LIBRARY");
  return open(chosen != nullptr && *chosen != '\0' ? chosen : kDefaultLibrary);
}

Result<const Driver*> Driver::open(const std::string& path) {
  struct Drivers {
    Mutex mutex;
    std::map<std::string, std::unique_ptr<Driver>> by_path BERTH_GUARDED_BY(mutex);
  };
  static auto* const drivers = new Drivers;  // never unloaded
  const MutexLock lock(drivers->mutex);
  std::unique_ptr<Driver>& known = drivers->by_path[path];
  if (known == nullptr) {
    auto loaded = load(path);
    if (!loaded) return loaded.error();
    known = *std::move(loaded);
  }
  // Cheap after the first call; a driver without a device at first may have one now.
  if (const Status status = known->cuInit(0); status != kSuccess)
    return unavailable(fmt::format("CUDA is not available: cuInit of {} says {}", path, known->words(status)));
  return known.get();
}

std::string Driver::words(Status status) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(status, &name) != kSuccess || name == nullptr)
    return fmt::format("CUDA error {}", static_cast<unsigned>(status));
  if (cuGetErrorString(status, &text) != kSuccess || text == nullptr) return name;
  return fmt::format("{} ({})", name, text);
}

bool loses_device(Status status) noexcept {
  switch (status) {
    case kErrorEccUncorrectable:
    case kErrorNvlinkUncorrectable:
    case kErrorIllegalAddress:
    case kErrorLaunchTimeout:
    case kErrorContextIsDestroyed:
    case kErrorAssert:
    case kErrorHardwareStack:
    case kErrorIllegalInstruction:
    case kErrorMisalignedAddress:
    case kErrorInvalidAddressSpace:
    case kErrorInvalidPc:
    case kErrorLaunchFailed:
    case kErrorDeviceUnavailable: return true;
    default: return false;
  }
}

Error Driver::error(Status status, const char* call, Layer layer) const {
  if (status == kErrorOutOfMemory)
    return Error::with_text(Code::kOutOfMemory, layer, fmt::format("{} says {}", call, words(status)));
  if (loses_device(status))
    return Error::with_text(
        Code::kDeviceLost, layer,
        fmt::format("{} says {}; the context of the device is lost: destroy its buffers and queues and open it again",
                    call, words(status)));
  if (status == kErrorNotSupported)
    return Error::with_text(Code::kUnsupported, layer, fmt::format("{} says {}", call, words(status)));
  return Error::with_text(Code::kDriver, layer, fmt::format("{} says {}", call, words(status)));
}

}  // namespace berth::internal::cuda
