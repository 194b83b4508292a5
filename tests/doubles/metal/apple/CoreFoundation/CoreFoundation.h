// Declarations that metal-cpp needs of <CoreFoundation/CoreFoundation.h>, for systems without Apple's headers.
#pragma once

#include <TargetConditionals.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

typedef double CFTimeInterval;
typedef const struct __CFString* CFStringRef;
typedef const void* CFTypeRef;
extern "C" CFStringRef __CFStringMakeConstantString(const char* text);
