// Some of a model's items as a model of their own: what shares no section with the rest can be planned alone, and what
// decides the size can be planned first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/placement/model.h"

namespace berth::internal::planner {

struct Portion {
  Model model;                       // over a plain space; without nodes
  std::vector<std::uint32_t> items;  // of the whole, behind each of the model's

  // The offsets of these items in a layout of the whole, and where the highest of them ends.
  Layout layout_of(const Layout& whole) const;
};

// A model of these items, in this order. O(n log n).
Portion portion_of(const Model& model, std::vector<std::uint32_t> items);

// The portions that share no section with each other, in order of time. O(n log n).
std::vector<Portion> split_in_time(const Model& model);

}  // namespace berth::internal::planner
