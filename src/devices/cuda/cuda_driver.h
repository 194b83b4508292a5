// The CUDA driver as Berth sees it: libcuda.so.1 opened at run time, never linked, and a table of its functions.
// One binary therefore runs with and without a GPU. A driver, once opened, stays open until the process ends,
// because the real one cannot be unloaded; any thread may call through it.
#pragma once

#include <string>

#include "berth/base/result.h"
#include "devices/cuda/cuda_abi.h"

namespace berth::cuda {

struct Driver {
#define BERTH_FIELD(name, symbol, version, need, parameters) Status(*name) parameters = nullptr;
  BERTH_CUDA_FUNCTIONS(BERTH_FIELD)
#undef BERTH_FIELD
  int version = 0;   // of the driver: 13000 is CUDA 13.0
  std::string path;  // the library it came from

  // The driver at BERTH_CUDA_LIBRARY, else libcuda.so.1, opened and initialised.
  // kDeviceUnavailable, in the words of the loader or the driver, and what to do.
  static Result<const Driver*> open();
  static Result<const Driver*> open(const std::string& path);

  // A failed call as an error: out of memory, a lost device, or the driver's own words.
  Error error(Status status, const char* call, Layer layer = Layer::kDevice) const;

  // "CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)".
  std::string words(Status status) const;
};

// Whether a context is unusable after this status, whatever is called next.
bool loses_device(Status status) noexcept;

}  // namespace berth::cuda
