// Finds a WebGPU library at run time and reads its functions into a table, so that one binary runs with and without
// WebGPU. Any thread may call; an open library stays loaded until the process ends, because its threads may outlive
// every device made from it.
#pragma once

#include <string>
#include <vector>

#include "berth/base/result.h"
#include "devices/webgpu/webgpu_abi.h"

namespace berth::internal::webgpu {

struct Library {
  wgpu::Calls calls;
  std::string path;
};

// The paths that are tried, in order: the install prefix of Berth, the search of the dynamic linker, then the Python
// package `wgpu` in a virtual environment near the program, in the active one, and in the folders of the system.
std::vector<std::string> library_candidates();

// Opens the file named by the environment variable BERTH_WEBGPU_LIBRARY if it is set, otherwise the first candidate
// that exists. kDeviceUnavailable, with what to install, if there is none or if it has another version of webgpu.h.
Result<Library> open_library();

// The same for one file. kDeviceUnavailable with the loader's message.
Result<Library> open_library_at(const std::string& path);

}  // namespace berth::internal::webgpu
