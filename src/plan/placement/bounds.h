// Lower bounds: sizes that no plan can be below.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/placement/model.h"

namespace berth::internal::planner {

// The live bytes of each section. O(n + sections).
std::vector<std::uint64_t> section_loads(const Model& model);

// The largest live load, counting what alignment wastes between neighbours and how high fixed items end. For a plain
// space. O(n + sections).
std::uint64_t load_bound(const Model& model);

}  // namespace berth::internal::planner
