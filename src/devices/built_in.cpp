// The built-in backends, in the order in which `berth devices` lists them. A new built-in backend adds its entry here.
#include "memory/built_in.h"

#include <string>

#include "devices/cpu/cpu_device.h"
#include "devices/cuda/cuda_device.h"
#include "devices/disk/disk_device.h"
#include "devices/metal/metal_open.h"
#include "devices/remote/remote_backend.h"
#include "devices/webgpu/webgpu_device.h"

namespace berth::internal {

namespace {

// DLPack's device types.
constexpr std::int32_t kDlCpu = 1, kDlCuda = 2, kDlCudaHost = 3, kDlMetal = 8, kDlCudaManaged = 13, kDlWebGpu = 15;

}  // namespace

std::vector<Backend> built_in_backends() {
  return {
      {.kind = "CPU", .open = cpu::open, .dlpack_types = {kDlCpu, kDlCudaHost}},
      {.kind = "DISK",
       .argument = Backend::Argument::kPath,
       .open = disk::open,
       .is_current = disk::is_current,
       .about = "any regular file, mapped read-only"},
      {.kind = "CUDA",
       .open = [](const std::string& ordinal) { return cuda::CudaDevice::open(std::stoi(ordinal)); },
       .dlpack_types = {kDlCuda, kDlCudaManaged}},
      {.kind = "METAL", .open = metal::open, .dlpack_types = {kDlMetal}},
      {.kind = "WEBGPU", .open = webgpu::open, .dlpack_types = {kDlWebGpu}},
      {.kind = "REMOTE", .open = remote::open, .is_current = remote::is_current},
  };
}

}  // namespace berth::internal
