// The CUDA driver: libcuda.so.1, opened at run time and never linked, and a table of its functions, so that one binary
// runs with and without a GPU. An open driver stays open until the process ends, because the real one cannot be
// unloaded. Any thread may call.
#pragma once

#include <string>

#include "berth/base/result.h"
#include "devices/cuda/cuda_abi.h"

namespace berth::internal::cuda {

struct Driver {
#define BERTH_FIELD(name, symbol, version, need, parameters) Status(*name) parameters = nullptr;
  BERTH_CUDA_FUNCTIONS(BERTH_FIELD)
#undef BERTH_FIELD
  int version = 0;   // of the driver: 13000 is CUDA 13.0
  std::string path;  // the library it came from

  // The driver at BERTH_CUDA_LIBRARY, otherwise libcuda.so.1, opened and initialised. kDeviceUnavailable with the
  // message of the loader or the driver, and what to do.
  static Result<const Driver*> open();
  static Result<const Driver*> open(const std::string& path);

  // The error for a failed call: out of memory, a lost device, or the driver's message.
  Error error(Status status, const char* call, Layer layer = Layer::kDevice) const;

  // "CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)".
  std::string words(Status status) const;
};

// True if a context is unusable after this status.
bool loses_device(Status status) noexcept;

}  // namespace berth::internal::cuda
