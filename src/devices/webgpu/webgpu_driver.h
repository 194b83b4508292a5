// Finds a WebGPU library at run time and reads its calls into a table, so that one binary serves machines with
// and without WebGPU. Any thread may call; an opened library stays loaded until the process ends, because its
// own threads may outlive every device made from it.
#pragma once

#include <string>
#include <vector>

#include "berth/base/result.h"
#include "devices/webgpu/webgpu_abi.h"

namespace berth::webgpu {

struct Library {
  wgpu::Calls calls;
  std::string path;
};

// The places where a library is looked for, in order: the install prefix beside Berth itself, the dynamic
// linker's own search, then the Python package `wgpu` in a virtual environment near the program, in the active
// one, and in the system's folders.
std::vector<std::string> library_candidates();

// Opens the file named by the environment variable BERTH_WEBGPU_LIBRARY, and nothing else, where that is set;
// otherwise the first candidate that is there. Fails with kDeviceUnavailable, saying what to install, when there
// is none or when what was found speaks another version of webgpu.h.
Result<Library> open_library();

// The same for one file. Fails with kDeviceUnavailable in the loader's words.
Result<Library> open_library_at(const std::string& path);

}  // namespace berth::webgpu
