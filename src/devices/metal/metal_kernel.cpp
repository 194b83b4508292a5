#include "devices/metal/metal_kernel.h"

#include <dispatch/dispatch.h>
#include <fmt/format.h>

#include <cstring>

#include "base/try.h"

namespace berth::internal::metal {
namespace {

constexpr std::size_t kMostBuffers = 31;
constexpr std::size_t kMostConstants = 4096;

bool is_metallib(std::span<const std::byte> code) noexcept {
  return code.size() >= 4 && std::memcmp(code.data(), "MTLB", 4) == 0;
}

MTL::Size size_of(const std::array<std::uint32_t, 3>& counts) noexcept {
  return MTL::Size::Make(counts[0], counts[1], counts[2]);
}

}  // namespace

Result<Owned<MTL::Library>> load_library(MTL::Device& device, std::span<const std::byte> code) {
  NS::Error* error = nullptr;
  Owned<MTL::Library> library;
  if (is_metallib(code)) {
    // The default destructor makes dispatch copy the bytes.
    const dispatch_data_t data =
        dispatch_data_create(code.data(), code.size(), nullptr, DISPATCH_DATA_DESTRUCTOR_DEFAULT);
    library = taken(device.newLibrary(data, &error));
    dispatch_release(data);
    if (!library) return driver_error(error, "newLibraryWithData", Code::kInvalidArgument);
    return library;
  }
  const std::string source(reinterpret_cast<const char*>(code.data()), code.size());
  const NS::String* const text = NS::String::string(source.c_str(), NS::UTF8StringEncoding);
  if (text == nullptr) return Error(Code::kInvalidArgument, Layer::kDevice, "the Metal source is not UTF-8");
  library = taken(device.newLibrary(text, nullptr, &error));
  if (!library) return driver_error(error, "newLibraryWithSource", Code::kInvalidArgument);
  return library;
}

Result<Owned<MTL::ComputePipelineState>> make_pipeline(MTL::Device& device, MTL::Library& library,
                                                       const std::string& entry) {
  const NS::String* const name = NS::String::string(entry.c_str(), NS::UTF8StringEncoding);
  const auto function = taken(name == nullptr ? nullptr : library.newFunction(name));
  if (!function)
    return Error::with_text(Code::kNotFound, Layer::kDevice,
                            fmt::format("the Metal library has no kernel \"{}\"", entry));
  NS::Error* error = nullptr;
  auto pipeline = taken(device.newComputePipelineState(function.get(), &error));
  if (!pipeline) return driver_error(error, "newComputePipelineState");
  return pipeline;
}

Result<Kernel> MetalKernelBody::load(std::shared_ptr<MetalDevice> device, const KernelSource& source) {
  if (source.code.empty())
    return Error(Code::kInvalidArgument, Layer::kDevice,
                 "METAL kernels come from Metal source or a metallib: set KernelSource::code and entry");
  const AutoreleaseScope scope;
  BERTH_TRY_ASSIGN(const auto library, load_library(device->native_device(), source.code));
  BERTH_TRY_ASSIGN(auto pipeline, make_pipeline(device->native_device(), *library, std::string(source.entry)));
  return Kernel(new MetalKernelBody(std::move(device), std::move(pipeline)));
}

Result<void> MetalKernelBody::check(std::span<const KernelArgument> arguments, const Grid& grid,
                                    std::span<const std::byte> constants) const {
  const std::size_t buffers = arguments.size() + (constants.empty() ? 0 : 1);
  if (buffers > kMostBuffers)
    return Error(Code::kInvalidArgument, Layer::kQueue, "{} buffers for a kernel, and Metal binds at most {}", buffers,
                 kMostBuffers);
  if (constants.size() > kMostConstants)
    return Error(Code::kInvalidArgument, Layer::kQueue,
                 "{} bytes of constants, and Metal takes at most {}: put them into a buffer", constants.size(),
                 kMostConstants);
  std::uint64_t threads = 1;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (grid.groups[axis] == 0 || grid.threads[axis] == 0)
      return Error(Code::kInvalidArgument, Layer::kQueue, "axis {} of the grid has {} groups of {} threads", axis,
                   grid.groups[axis], grid.threads[axis]);
    threads = grid.threads[axis] > most_threads_ ? most_threads_ + 1 : threads * grid.threads[axis];
  }
  if (threads > most_threads_)
    return Error(Code::kInvalidArgument, Layer::kQueue,
                 "groups of {} x {} x {} threads, and this kernel runs at most {} in a group", grid.threads[0],
                 grid.threads[1], grid.threads[2], most_threads_);
  return {};
}

void MetalKernelBody::launch(MTL::ComputeCommandEncoder& encoder, std::span<const KernelArgument> arguments,
                             const Grid& grid, std::span<const std::byte> constants) const {
  for (std::size_t i = 0; i < arguments.size(); ++i)
    encoder.setBuffer(buffer_of(arguments[i].window.block), arguments[i].window.offset, i);
  if (!constants.empty()) encoder.setBytes(constants.data(), constants.size(), arguments.size());
  encoder.dispatchThreadgroups(size_of(grid.groups), size_of(grid.threads));
}

}  // namespace berth::internal::metal
