// Kernels are native objects that Berth only carries to a queue: a host callable, a CUfunction, a Metal
// pipeline state, a WGSL pipeline. Berth has no kernel language of its own. Arguments are windows in order,
// then one block of constants. A Kernel is a shared handle; any thread may copy and launch it.
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

// Work groups along x, y, z, and threads in each group where the device lets the caller choose.
struct Grid {
  std::array<std::uint32_t, 3> groups{1, 1, 1};
  std::array<std::uint32_t, 3> threads{1, 1, 1};
};

enum class Access : std::uint8_t { kRead, kWrite, kReadWrite };

struct KernelArgument {
  Window window{};
  Access access = Access::kReadWrite;
};

// What a host kernel sees.
struct HostCall {
  std::span<const std::span<std::byte>> windows{};
  Grid grid{};
  std::span<const std::byte> constants{};
};
using HostKernel = std::function<void(const HostCall&)>;

// How to make a kernel. Each device reads the field that is its own: CPU `host`, the others `code` (WGSL
// text; PTX or cubin; Metal source or metallib) and `entry`.
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
