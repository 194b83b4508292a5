// ONNX Runtime's shared library, found and opened at run time. Opened once and never closed: the engine keeps threads
// and registries that do not survive that. Any thread may call.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "berth/base/result.h"
#include "engines/onnxruntime_abi.h"

namespace berth::ort {

struct Library {
  const Api* api = nullptr;
  std::string path;     // of the shared library
  std::string version;  // "1.31.1"
};

// Looks at the environment variable BERTH_ONNXRUNTIME (the library, or a folder with it), then in the folder
// `preferred`, then for the wheel in the project's and in the active Python environment, then asks the system's loader.
// Once opened, it is the same for all later calls. DeviceUnavailable: nowhere, or too old; the sentence has the command
// that installs it.
Result<const Library*> library(const std::string& preferred = {});

// Where Python packages may be: build/venv beside or above the program and the working directory, then the active
// environment.
std::vector<std::filesystem::path> python_environments();

// Turns a status into a Result and releases it. `doing` completes "ONNX Runtime failed to ...".
Result<void> check(const Api& api, Status* status, const char* doing);

}  // namespace berth::ort
