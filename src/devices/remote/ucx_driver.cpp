#include "devices/remote/ucx_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <map>
#include <memory>

#include "berth/base/mutex.h"

namespace berth::internal::ucx {
namespace {

constexpr const char* kDefaultLibrary = "libucp.so.0";
constexpr const char* kInstall =
    "install it with `apt install libucx0` or `pip install libucx-cu12`, or set BERTH_UCX to its libucp.so.0";
constexpr unsigned kMajor = 1, kMinor = 13;

Error unavailable(std::string text) {
  return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice, "REMOTE is not available: " + std::move(text));
}

// Loading libucs installs handlers of its own for the signals of a crash. Those of the program are put back: a library
// that moves bytes should not change what a crash looks like.
class SignalsKept {
 public:
  SignalsKept() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &before_[i]);
  }
  ~SignalsKept() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  SignalsKept(const SignalsKept&) = delete;
  SignalsKept& operator=(const SignalsKept&) = delete;

 private:
  static constexpr std::array kSignals = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
  std::array<struct sigaction, kSignals.size()> before_{};
};

Result<std::unique_ptr<Driver>> load(const std::string& path) {
  const SignalsKept kept;
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return unavailable(fmt::format("{}; {}", dlerror(), kInstall));
  auto driver = std::make_unique<Driver>();
  driver->path = path;
  const char* missing = nullptr;
  const auto look_up = [&](auto& field, const char* symbol) {
    field = reinterpret_cast<std::remove_reference_t<decltype(field)>>(dlsym(library, symbol));
    if (field == nullptr && missing == nullptr) missing = symbol;
  };
#define BERTH_LOOK_UP(name, result, parameters) look_up(driver->name.raw, "ucp_" #name);
  BERTH_UCX_FUNCTIONS(BERTH_LOOK_UP)
#undef BERTH_LOOK_UP
  look_up(driver->status_string, "ucs_status_string");
  if (missing != nullptr)
    return unavailable(
        fmt::format("{} has no {}, so it is not UCX {}.{} or later; {}", path, missing, kMajor, kMinor, kInstall));
  keep_quiet(library);
  driver->get_version(&driver->major, &driver->minor, &driver->release);
  if (driver->major != kMajor || driver->minor < kMinor)
    return unavailable(fmt::format("{} is UCX {}.{} and Berth needs {}.{} or a later {}.x; {}", path, driver->major,
                                   driver->minor, kMajor, kMinor, kMajor, kInstall));
  return driver;
}

}  // namespace

Result<const Driver*> Driver::open() {
  const char* const chosen = std::getenv("BERTH_UCX");
  return open(chosen != nullptr && *chosen != '\0' ? chosen : kDefaultLibrary);
}

Result<const Driver*> Driver::open(const std::string& path) {
  static Mutex mutex;
  static auto* const open_drivers = new std::map<std::string, std::unique_ptr<Driver>>;  // never unloaded
  const MutexLock lock(mutex);
  std::unique_ptr<Driver>& known = (*open_drivers)[path];
  if (known == nullptr) {
    auto loaded = load(path);
    if (!loaded) return loaded.error();
    known = *std::move(loaded);
  }
  return known.get();
}

std::string Driver::words(Status status) const {
  const char* const text = status_string(status);
  return text == nullptr ? fmt::format("UCX status {}", static_cast<int>(status)) : text;
}

Error Driver::error(Status status, const char* call) const {
  const Code code = status == kNoMemory ? Code::kOutOfMemory : Code::kDriver;
  return Error::with_text(code, Layer::kDevice, fmt::format("ucp_{} says: {}", call, words(status)));
}

}  // namespace berth::internal::ucx
