// Apple's metal-cpp, as included by the METAL device: C++ classes for Objective-C's Metal. The headers are found
// through BERTH_METAL_CPP_DIR. Only files of this folder include this one.
#pragma once

#include <Foundation/Foundation.hpp>
#include <Metal/Metal.hpp>
