// metal-cpp keeps its classes and selectors in variables, which exactly one file must define.
#define NS_PRIVATE_IMPLEMENTATION
#define MTL_PRIVATE_IMPLEMENTATION
#include "devices/metal/metal_cpp.h"
