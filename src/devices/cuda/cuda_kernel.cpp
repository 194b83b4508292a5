#include "devices/cuda/cuda_kernel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/try.h"
#include "devices/cuda/cuda_capture.h"

namespace berth::internal::cuda {
namespace {

constexpr std::size_t kMostAligned = 16;  // of any parameter

}  // namespace

Result<Kernel> CudaKernelBody::load(std::shared_ptr<CudaDevice> device, const KernelSource& source) {
  if (source.code.empty())
    return Error(Code::kInvalidArgument, Layer::kDevice,
                 "CUDA kernels come from PTX or a cubin: set KernelSource::code and entry");
  BERTH_TRY(check_no_capture("loading a kernel", Layer::kDevice));
  const Driver& driver = device->driver();
  const ContextScope scope(*device);
  BERTH_TRY(scope.check());
  // The driver reads PTX up to a zero byte, which the caller's text may lack.
  std::string image(reinterpret_cast<const char*>(source.code.data()), source.code.size());
  Module module = nullptr;
  if (const Status status = driver.cuModuleLoadData(&module, image.c_str()); status != kSuccess)
    return driver.error(status, "cuModuleLoadData");
  std::shared_ptr<CudaKernelBody> body(new CudaKernelBody(std::move(device), module));
  const std::string entry(source.entry);
  const Status found = driver.cuModuleGetFunction(&body->function_, module, entry.c_str());
  if (found == kErrorNotFound)
    return Error::with_text(Code::kNotFound, Layer::kDevice,
                            fmt::format("the module has no kernel \"{}\"; kernels keep their names when they are "
                                        "declared extern \"C\"",
                                        entry));
  if (found != kSuccess) return driver.error(found, "cuModuleGetFunction");
  if (driver.cuFuncGetParamInfo != nullptr) {
    Parameter parameter{};
    Status status = kSuccess;
    while ((status = driver.cuFuncGetParamInfo(body->function_, body->parameters_.size(), &parameter.offset,
                                               &parameter.bytes)) == kSuccess)
      body->parameters_.push_back(parameter);
    // The driver returns "invalid value" after the last parameter.
    if (status != kErrorInvalidValue) return driver.error(status, "cuFuncGetParamInfo");
    body->parameters_known_ = true;
  }
  return Kernel(std::move(body));
}

CudaKernelBody::~CudaKernelBody() {
  const ContextScope scope(*device_, 2);
  const UnsafeCalls unsafe(device_->driver());
  device_->record(device_->driver().cuModuleUnload(module_), "cuModuleUnload");
}

Result<void> CudaKernelBody::launch(Stream stream, std::span<const KernelArgument> arguments, const Grid& grid,
                                    std::span<const std::byte> constants) const {
  constexpr std::size_t kMost = 64;
  std::array<Address, kMost> addresses;
  std::array<void*, kMost> parameters;
  const std::size_t windows = arguments.size();
  const std::size_t count = parameters_known_ ? parameters_.size() : windows + (constants.empty() ? 0 : 1);
  if (count > kMost)
    return Error(Code::kInvalidArgument, Layer::kQueue, "a kernel with {} parameters exceeds the limit of {}", count,
                 kMost);
  if (windows > count)
    return Error(Code::kInvalidArgument, Layer::kQueue, "{} windows for a kernel with {} parameters", windows, count);
  for (std::size_t i = 0; i < windows; ++i) {
    if (parameters_known_ && parameters_[i].bytes != sizeof(Address))
      return Error(
          Code::kInvalidArgument, Layer::kQueue,
          "window {} is passed for a parameter of {} bytes, which is not a pointer; windows come before constants", i,
          parameters_[i].bytes);
    addresses[i] = arguments[i].window.block.handle + arguments[i].window.offset;
    parameters[i] = &addresses[i];
  }
  auto* const bytes = const_cast<std::byte*>(constants.data());  // the driver only reads it
  if (!parameters_known_) {
    if (!constants.empty()) parameters[windows] = bytes;
  } else {
    const std::size_t base = windows < count ? parameters_[windows].offset : 0;
    std::size_t needed = 0;
    std::size_t alignment = 1;
    for (std::size_t i = windows; i < count; ++i) {
      needed = parameters_[i].offset + parameters_[i].bytes - base;
      alignment = std::max(alignment, std::min(parameters_[i].bytes & (~parameters_[i].bytes + 1), kMostAligned));
    }
    // A C struct may have padding behind its last member.
    const std::size_t padded = (needed + alignment - 1) / alignment * alignment;
    if (constants.size() != needed && constants.size() != padded)
      return Error(Code::kInvalidArgument, Layer::kQueue,
                   "{} bytes of constants for a kernel that takes {} after {} windows", constants.size(), needed,
                   windows);
    for (std::size_t i = windows; i < count; ++i) parameters[i] = bytes + (parameters_[i].offset - base);
  }
  const Driver& driver = device_->driver();
  const Status status =
      driver.cuLaunchKernel(function_, grid.groups[0], grid.groups[1], grid.groups[2], grid.threads[0], grid.threads[1],
                            grid.threads[2], 0, stream, parameters.data(), nullptr);
  if (status != kSuccess) return driver.error(status, "cuLaunchKernel", Layer::kQueue);
  return {};
}

}  // namespace berth::internal::cuda
