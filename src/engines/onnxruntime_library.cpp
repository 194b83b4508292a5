#include "engines/onnxruntime_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/os/program_path.h"
#include "base/try.h"
#include "berth/base/mutex.h"

namespace berth::internal::ort {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInstall =
    "install it with: python3 -m venv build/venv && build/venv/bin/pip install onnxruntime\n"
    "or set BERTH_ONNXRUNTIME to a libonnxruntime.so you have";

bool is_library(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.starts_with("libonnxruntime.so") || (name.starts_with("libonnxruntime") && name.ends_with(".dylib"));
}

std::optional<fs::path> library_in(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& file : fs::directory_iterator(folder, ignored))
    if (is_library(file.path())) return file.path();
  return std::nullopt;
}

// The engine inside a Python environment: lib/python3.x/site-packages/onnxruntime/capi.
std::optional<fs::path> library_in_environment(const fs::path& environment) {
  std::error_code ignored;
  for (const fs::directory_entry& python : fs::directory_iterator(environment / "lib", ignored))
    if (auto found = library_in(python.path() / "site-packages" / "onnxruntime" / "capi")) return found;
  return std::nullopt;
}

Error unavailable(std::string why) {
  return Error::with_text(Code::kDeviceUnavailable, Layer::kEngine, std::move(why) + "\n" + kInstall);
}

Result<Library> open(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return unavailable("ONNX Runtime could not be opened: " + std::string(reason != nullptr ? reason : path));
  }
  const auto base_of = reinterpret_cast<const ApiBase* (*)()>(dlsym(handle, "OrtGetApiBase"));
  if (base_of == nullptr) return unavailable(path + " is not ONNX Runtime: it has no OrtGetApiBase;");
  const ApiBase* base = base_of();
  Library library{.api = base->get_api(kApiVersion), .path = path, .version = base->get_version()};
  if (library.api == nullptr)
    return unavailable("ONNX Runtime 1." + std::to_string(kApiVersion) + " or newer is needed, " + path + " is " +
                       library.version + ";");
  return library;
}

Result<Library> find_and_open(const std::string& preferred) {
  if (const char* named = std::getenv("BERTH_ONNXRUNTIME"); named != nullptr && *named != '\0') {
    std::error_code ignored;
    if (!fs::is_directory(named, ignored)) return open(named);
    if (auto found = library_in(named)) return open(found->string());
    return unavailable("ONNX Runtime was not found: BERTH_ONNXRUNTIME is " + std::string(named) +
                       ", a folder without libonnxruntime.so;");
  }
  if (auto found = library_in(preferred)) return open(found->string());
  for (const fs::path& environment : python_environments())
    if (auto found = library_in_environment(environment)) return open(found->string());
  for (const char* name : {"libonnxruntime.so.1", "libonnxruntime.so", "libonnxruntime.dylib"})
    if (Result<Library> opened = open(name)) return opened;
  return unavailable("ONNX Runtime was not found in build/venv, the active Python environment or the system;");
}

}  // namespace

std::vector<fs::path> python_environments() {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const fs::path& start : {program_path(), fs::current_path(ignored) / "x"})
    for (fs::path folder = start.parent_path(); !folder.empty(); folder = folder.parent_path()) {
      for (const fs::path& candidate : {folder / "venv", folder / "build" / "venv"})
        if (fs::exists(candidate / "pyvenv.cfg", ignored)) found.push_back(candidate);
      if (folder == folder.root_path()) break;
    }
  if (const char* active = std::getenv("VIRTUAL_ENV")) found.emplace_back(active);
  return found;
}

Result<const Library*> library(const std::string& preferred) {
  struct Opened {
    Mutex mutex;
    std::optional<Library> library BERTH_GUARDED_BY(mutex);
  };
  static Opened opened;
  const MutexLock guard(opened.mutex);
  if (!opened.library) {
    BERTH_TRY_ASSIGN(opened.library, find_and_open(preferred));
  }
  return &*opened.library;
}

Result<void> check(const Api& api, Status* status, const char* doing) {
  if (status == nullptr) return {};
  std::string text = std::string("ONNX Runtime failed to ") + doing + ": " + api.get_error_message(status);
  api.release_status(status);
  return Error::with_text(Code::kDriver, Layer::kEngine, std::move(text));
}

}  // namespace berth::internal::ort
