#include "devices/webgpu/webgpu_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/os/program_path.h"
#include "base/os/shared_library.h"
#include "devices/webgpu/webgpu_dialect.h"

namespace berth::internal::webgpu {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhatToInstall =
    "install one with `pip install wgpu` (and a Vulkan driver: Debian's mesa-vulkan-drivers), or name a "
    "libwgpu_native.so in BERTH_WEBGPU_LIBRARY";

Error unavailable(std::string text) {
  return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice, std::move(text));
}

void add_file(std::vector<std::string>& list, const fs::path& file) {
  std::error_code ignored;
  if (fs::exists(file, ignored)) list.push_back(file.string());
}

// The wgpu package inside a folder that Python imports from.
void add_package(std::vector<std::string>& list, const fs::path& site) {
  add_file(list, site / "wgpu" / "resources" / (std::string("libwgpu_native-release") + kSharedLibrarySuffix));
}

// Every python3.N below <root>/lib.
void add_environment(std::vector<std::string>& list, const fs::path& root) {
  std::error_code error;
  for (fs::directory_iterator it(root / "lib", error), end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().starts_with("python3")) continue;
    add_package(list, it->path() / "site-packages");
    add_package(list, it->path() / "dist-packages");
  }
}

// The file that holds this code: the program, libberth.so or the Python module.
fs::path own_file() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_file), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  fs::path path = fs::canonical(info.dli_fname, error);
  return error ? program_path() : path;
}

}  // namespace

std::vector<std::string> library_candidates() {
  std::vector<std::string> list;
  const fs::path own = own_file();
  const std::string native = fmt::format("libwgpu_native{}", kSharedLibrarySuffix);
  const std::string dawn = fmt::format("libwebgpu_dawn{}", kSharedLibrarySuffix);
  for (fs::path folder = own.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    for (const std::string& name : {native, dawn}) {
      add_file(list, folder / name);
      add_file(list, folder / "lib" / name);
      add_file(list, folder / "lib" / "berth" / name);
    }
    if (folder == folder.root_path()) break;
  }
  list.push_back(native);
  list.push_back(dawn);
  if (const char* active = std::getenv("VIRTUAL_ENV")) add_environment(list, active);
  for (fs::path folder = own.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    add_package(list, folder);  // beside a Python module of ours
    add_environment(list, folder / "venv");
    add_environment(list, folder / "build" / "venv");
    if (folder == folder.root_path()) break;
  }
  if (const char* home = std::getenv("HOME")) add_environment(list, fs::path(home) / ".local");
  add_package(list, "/usr/lib/python3/dist-packages");
  add_environment(list, "/usr/local");
  add_environment(list, "/usr");
  return list;
}

Result<Library> open_library_at(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return unavailable(
        fmt::format("the WebGPU library does not open: {}; {}", why != nullptr ? why : path, kWhatToInstall));
  }
  Library library{.calls = {}, .path = path};
  Dl_info info{};
  // dlsym returns an object pointer; POSIX allows it to be used as a function pointer.
#define BERTH_WEBGPU_LOAD(name, result, arguments)                                \
  {                                                                               \
    using Function = result(*) arguments;                                         \
    library.calls.name = reinterpret_cast<Function>(dlsym(handle, "wgpu" #name)); \
  }
#define BERTH_WEBGPU_NEED(name, result, arguments)                                                      \
  if (library.calls.name == nullptr) {                                                                  \
    return unavailable(fmt::format("{} has no wgpu" #name                                               \
                                   ": it is not a WebGPU library of a version that Berth supports; {}", \
                                   path, kWhatToInstall));                                              \
  }
  {
    using namespace wgpu;
    BERTH_WEBGPU_CALLS(BERTH_WEBGPU_LOAD)
    BERTH_WEBGPU_OPTIONAL_CALLS(BERTH_WEBGPU_LOAD)
    BERTH_WEBGPU_CALLS(BERTH_WEBGPU_NEED)
  }
#undef BERTH_WEBGPU_LOAD
#undef BERTH_WEBGPU_NEED
  if (dladdr(reinterpret_cast<const void*>(library.calls.CreateInstance), &info) != 0 && info.dli_fname != nullptr) {
    library.path = info.dli_fname;
  }
  // Names stay while layouts change: a library of an older header would misread our structs.
  const bool current_header = dlsym(handle, "wgpuComputePassEncoderSetImmediates") != nullptr;
  if (auto objection = dialect_objection(library.calls, current_header); !objection.empty()) {
    return unavailable(fmt::format("{}: {}; {}", library.path, objection, kWhatToInstall));
  }
  return library;
}

Result<Library> open_library() {
  if (const char* named = std::getenv("BERTH_WEBGPU_LIBRARY"); named != nullptr && *named != '\0') {
    return open_library_at(named);
  }
  std::string objection;
  for (const std::string& candidate : library_candidates()) {
    auto library = open_library_at(candidate);
    if (library) return library;
    // A bare name that the linker does not find is no error; an existing file that cannot be used is.
    if (candidate.find('/') != std::string::npos && objection.empty()) objection = library.error().message();
  }
  if (!objection.empty()) return unavailable(objection);
  return unavailable(fmt::format("no WebGPU library was found; {}", kWhatToInstall));
}

}  // namespace berth::internal::webgpu
