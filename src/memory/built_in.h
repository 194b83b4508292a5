// The built-in backends. Defined in devices/built_in.cpp: this is the only symbol that the memory layer uses from a
// layer above it.
#pragma once

#include <vector>

#include "berth/memory/registry.h"

namespace berth::internal {

std::vector<Backend> built_in_backends();

}  // namespace berth::internal
