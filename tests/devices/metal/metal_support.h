// What the METAL tests stand on: the double with Berth's own kernels registered, and a device that must be gone, with
// everything it made, when a test is over.
#pragma once

#include <cstring>
#include <vector>

#include "berth/berth.h"
#include "devices/metal/metal_device.h"
#include "devices/metal/metal_kernels.h"
#include "devices/metal/metal_shaders.h"
#include "doubles/metal/metal_testing.h"

namespace berth::metal_test {

using Bytes = std::vector<std::byte>;

// The host's versions of the kernels that the device compiles, and of the one that the tests launch.
inline void register_kernels() {
  static const MetalDoubleKernel copy{"berth_copy_bytes", [](const MetalDoubleLaunch* launch) {
                                        internal::metal::CopyConstants of{};
                                        std::memcpy(&of, launch->arguments[2].data, sizeof of);
                                        std::memcpy(static_cast<std::byte*>(launch->arguments[1].data) + of.to,
                                                    static_cast<std::byte*>(launch->arguments[0].data) + of.from,
                                                    of.bytes);
                                      }};
  static const MetalDoubleKernel fill{"berth_fill_bytes", [](const MetalDoubleLaunch* launch) {
                                        internal::metal::FillConstants of{};
                                        std::memcpy(&of, launch->arguments[1].data, sizeof of);
                                        std::memset(static_cast<std::byte*>(launch->arguments[0].data) + of.at,
                                                    static_cast<int>(of.value), of.bytes);
                                      }};
  static const MetalDoubleKernel add{"add_constant", [](const MetalDoubleLaunch* launch) {
                                       std::uint32_t constant = 0;
                                       std::memcpy(&constant, launch->arguments[2].data, sizeof constant);
                                       const auto* from = static_cast<const std::uint32_t*>(launch->arguments[0].data);
                                       auto* to = static_cast<std::uint32_t*>(launch->arguments[1].data);
                                       for (std::size_t i = 0; i < launch->threads[0]; ++i) to[i] = from[i] + constant;
                                     }};
  for (const MetalDoubleKernel* kernel : {&copy, &fill, &add}) metal_double().register_kernel(kernel);
}

class MetalTest : public MetalDoubleTest {
 protected:
  explicit MetalTest(const MetalDoubleOptions& options = {}) : MetalDoubleTest(options) { register_kernels(); }
};

// Sets a variable of the environment for a scope.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
};

}  // namespace berth::metal_test
