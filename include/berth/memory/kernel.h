// Kernels. A kernel is a native object that Berth passes to a queue: a host callable, a CUfunction, a Metal pipeline
// state or a WGSL pipeline. Berth has no kernel language. Arguments are windows, in order, followed by one block of
// constants. A Kernel is a shared handle; any thread may copy and launch it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "berth/base/result.h"
#include "berth/memory/block.h"

namespace berth {

// Work groups along x, y and z, and threads per group on devices that let the caller choose.
struct Grid {
  std::array<std::uint32_t, 3> groups{1, 1, 1};
  std::array<std::uint32_t, 3> threads{1, 1, 1};
};

enum class Access : std::uint8_t { kRead, kWrite, kReadWrite };

struct KernelArgument {
  Window window{};
  Access access = Access::kReadWrite;
};

// The arguments of a host kernel.
struct HostCall {
  std::span<const std::span<std::byte>> windows{};
  Grid grid{};
  std::span<const std::byte> constants{};
};
using HostKernel = std::function<void(const HostCall&)>;

// The source of a kernel. CPU uses `host`. The other devices use `code` (WGSL text; PTX or cubin; Metal source or
// metallib) and `entry`.
struct KernelSource {
  HostKernel host{};
  std::span<const std::byte> code{};
  std::string_view entry = "main";
};

// The native object, owned by the device that made it.
class KernelBody {
 public:
  virtual ~KernelBody() = default;
};
using Kernel = std::shared_ptr<const KernelBody>;

}  // namespace berth
