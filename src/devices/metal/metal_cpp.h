// Apple's metal-cpp, as the METAL device includes it: Objective-C's Metal behind C++ classes. The headers are not ours
// and are found through BERTH_METAL_CPP_DIR. Only files of this folder include this one.
#pragma once

#include <Foundation/Foundation.hpp>
#include <Metal/Metal.hpp>
