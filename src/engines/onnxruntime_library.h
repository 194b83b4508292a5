// The shared library of ONNX Runtime, found and opened at run time. Opened once and never closed: the engine has
// threads and registries that do not survive closing. Any thread may call.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "berth/base/result.h"
#include "engines/onnxruntime_abi.h"

namespace berth::internal::ort {

struct Library {
  const Api* api = nullptr;
  std::string path;     // of the shared library
  std::string version;  // "1.31.1"
};

// Tries the environment variable BERTH_ONNXRUNTIME (the library, or a folder with it), then the folder `preferred`,
// then the wheel in the project's and in the active Python environment, then the system's loader. Once opened, it is
// the same for all later calls. kDeviceUnavailable if none is found or it is too old; the message contains the command
// that installs it.
Result<const Library*> library(const std::string& preferred = {});

// Folders that may contain Python packages: build/venv beside or above the program and the working directory, then the
// active environment.
std::vector<std::filesystem::path> python_environments();

// Turns a status into a Result and releases it. `doing` completes "ONNX Runtime failed to ...".
Result<void> check(const Api& api, Status* status, const char* doing);

}  // namespace berth::internal::ort
