#include "plan/placement/bounds.h"

#include <algorithm>

namespace berth::internal::planner {

std::vector<std::uint64_t> section_loads(const Model& model) {
  std::vector<std::uint64_t> loads(static_cast<std::size_t>(model.sections) + 1, 0);
  for (const Part& part : model.parts) {  // differences first; unsigned wrap-around cancels in the sum
    loads[static_cast<std::size_t>(part.first)] += part.height;
    loads[static_cast<std::size_t>(part.last)] -= part.height;
  }
  for (std::size_t s = 1; s < loads.size(); ++s) loads[s] += loads[s - 1];
  loads.pop_back();
  return loads;
}

std::uint64_t load_bound(const Model& model) {
  const auto sections = static_cast<std::size_t>(model.sections);
  std::vector<bool> unbound(model.parts.size(), false);
  for (const std::uint32_t part : model.unbound_parts) unbound[part] = true;
  std::uint64_t least = model.alignment;  // alignment that all items share
  std::uint64_t bound = 0;
  for (const Item& item : model.items) {
    least = std::min(least, item.alignment);
    bound = std::max(bound, item.height + (item.fixed == kNowhere ? 0 : item.fixed));
  }
  // Every item starts at a multiple of `least`, so all but the topmost of a section take whole multiples. Which one is
  // on top is not known: the one that is rounded up the most.
  std::vector<std::uint64_t> loads(sections + 1, 0);
  for (std::size_t p = 0; p < model.parts.size(); ++p) {
    if (unbound[p]) continue;
    const Part& part = model.parts[p];
    const std::uint64_t whole = (part.height + least - 1) / least * least;
    loads[static_cast<std::size_t>(part.first)] += whole;
    loads[static_cast<std::size_t>(part.last)] -= whole;
  }
  std::uint64_t worst = 0;
  if (least > 1) {
    for (const Part& part : model.parts) worst = std::max(worst, (least - part.height % least) % least);
  }
  if (worst > 0 && model.unbound_parts.empty()) {  // the plain load may be higher where little is rounded
    const std::vector<std::uint64_t> plain = section_loads(model);
    bound = std::max(bound, *std::max_element(plain.begin(), plain.end()));
  }
  std::uint64_t load = 0;
  for (std::size_t s = 0; s < sections; ++s) {
    load += loads[s];
    bound = std::max(bound, load > worst ? load - worst : 0);
  }
  return bound;
}

}  // namespace berth::internal::planner
