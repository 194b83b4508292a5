// A pipeline is a host function under a kernel's name.
#pragma once

#include "metal.h"

namespace metal_double {

inline constexpr std::size_t kMostThreads = 1024;

struct Pipeline : Body {
  Held device;
  std::string name;
  void (*run)(const MetalDoubleLaunch* launch) = nullptr;
};

}  // namespace metal_double
