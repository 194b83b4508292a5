// Clusters, sharding plans and sharded loads.
#pragma once

#include "bindings.h"

namespace berth::python {

void bind_sharding(nb::module_& module);

}  // namespace berth::python
