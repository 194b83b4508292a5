#include "plan/graph/improve_order.h"

#include <algorithm>
#include <numeric>

namespace berth::internal::graphs {
namespace {

using Order = std::vector<std::uint32_t>;

constexpr std::uint64_t kFirstAttempt = 200'000;
constexpr std::size_t kWindows[] = {24, 48, 96, 192, 384};
constexpr std::uint64_t kWindowWork = 60'000;

std::uint64_t most_of(std::span<const std::uint64_t> needs) {
  return needs.empty() ? 0 : *std::max_element(needs.begin(), needs.end());
}

// One part of the graph, ordered by itself.
struct Part {
  std::size_t begin = 0;
  StepGraph graph;
  Order order;  // of the part's own steps
  std::uint64_t peak = 0;
  std::uint64_t bound = 0;
};

class PartSearch {
 public:
  PartSearch(Part& part, SearchBudget& budget) : part_(part), budget_(budget) {}

  // Lowers the part's peak until it is at most `enough`, proven, or the budget is used up.
  void run(std::uint64_t enough) {
    windows(enough);
    std::uint64_t attempt = std::max<std::uint64_t>(kFirstAttempt, 40 * part_.graph.steps);
    for (; open(enough); attempt *= 4) {
      // From below: what is impossible raises the bound, and what is found is proven.
      while (open(enough) && try_limit(std::max(enough, part_.bound), attempt) == SearchEnd::kImpossible) {
      }
      // Between the two: halfway to the peak, again and again.
      std::uint64_t low = std::max(enough, part_.bound);
      while (open(enough) && low + 1 < part_.peak) {
        const std::uint64_t distance = part_.peak - low;
        const std::uint64_t limit = distance > part_.peak / 1000 ? part_.peak - (distance + 1) / 2 : part_.peak - 1;
        if (try_limit(limit, attempt) != SearchEnd::kFound) low = limit;
      }
      windows(enough);
    }
  }

 private:
  bool open(std::uint64_t enough) const {
    return part_.peak > std::max(enough, part_.bound) && budget_.work > 0 && !(budget_.stop && budget_.stop());
  }

  SearchEnd try_limit(std::uint64_t limit, std::uint64_t most) {
    SearchResult found = find_order(part_.graph, limit, most, budget_);
    if (found.end == SearchEnd::kFound) {
      part_.order = std::move(found.order);
      part_.peak = peak_of(part_.graph, part_.order);
    } else if (found.end == SearchEnd::kImpossible) {
      part_.bound = std::max(part_.bound, std::min(found.next, part_.peak));
    }
    return found.end;
  }

  // Searches stretches of the order around its peak: a lower one of a stretch leaves everything else as it was.
  void windows(std::uint64_t enough) {
    for (bool improved = true; improved && open(enough);) {
      improved = false;
      const std::vector<std::uint64_t> needs = needs_of(part_.graph, part_.order);
      const auto at = static_cast<std::size_t>(std::max_element(needs.begin(), needs.end()) - needs.begin());
      for (const std::size_t width : kWindows) {
        for (const std::size_t before : {width / 2, width / 4, width - width / 4}) {
          if (improved || !open(enough)) break;
          const std::size_t begin = at - std::min(at, before);
          const std::size_t end = std::min(needs.size(), begin + width);
          improved = improve_window(begin, end, needs[at]);
        }
        if (improved || width >= needs.size()) break;
      }
    }
  }

  bool improve_window(std::size_t begin, std::size_t end, std::uint64_t present) {
    if (present == 0) return false;
    const StepGraph window = part_of(part_.graph, part_.order, begin, end);
    const SearchResult found = find_order(window, present - 1, kWindowWork, budget_);
    if (found.end != SearchEnd::kFound) return false;
    const Order old(part_.order.begin() + static_cast<std::ptrdiff_t>(begin),
                    part_.order.begin() + static_cast<std::ptrdiff_t>(end));
    for (std::size_t i = 0; i < found.order.size(); ++i) part_.order[begin + i] = old[found.order[i]];
    part_.peak = peak_of(part_.graph, part_.order);
    return true;
  }

  Part& part_;
  SearchBudget& budget_;
};

}  // namespace

ImprovedOrder improve_order(const StepGraph& graph, std::span<const Order> known, SearchBudget& budget) {
  ImprovedOrder out;
  out.order = known.front();
  out.bound = order_bound(graph);
  const std::vector<std::size_t> cuts = cuts_of(graph, out.order);
  std::vector<std::vector<std::uint64_t>> needs;
  for (const Order& order : known) needs.push_back(needs_of(graph, order));
  std::vector<Part> parts;
  for (std::size_t i = 0, begin = 0; i < cuts.size(); begin = cuts[i++]) {
    const std::size_t size = cuts[i] - begin;
    const auto part_peak = [&](std::size_t k) { return most_of(std::span(needs[k]).subspan(begin, size)); };
    std::size_t best = 0;
    for (std::size_t k = 1; k < known.size(); ++k)
      if (part_peak(k) < part_peak(best)) best = k;
    std::copy_n(known[best].begin() + static_cast<std::ptrdiff_t>(begin), size,
                out.order.begin() + static_cast<std::ptrdiff_t>(begin));
    Part part;
    part.begin = begin;
    part.peak = part_peak(best);
    part.order.resize(size);
    parts.push_back(std::move(part));
  }
  // The highest part first: below the bound of another, nothing is gained.
  std::vector<std::size_t> by_peak(parts.size());
  std::iota(by_peak.begin(), by_peak.end(), std::size_t{0});
  std::stable_sort(by_peak.begin(), by_peak.end(),
                   [&](std::size_t a, std::size_t b) { return parts[a].peak > parts[b].peak; });
  for (const std::size_t index : by_peak) {
    Part& part = parts[index];
    if (part.peak <= out.bound) break;
    const std::size_t size = part.order.size();
    part.graph = part_of(graph, out.order, part.begin, part.begin + size);
    std::iota(part.order.begin(), part.order.end(), 0u);
    part.peak = peak_of(part.graph, part.order);
    part.bound = order_bound(part.graph);
    PartSearch(part, budget).run(out.bound);
    const Order old(out.order.begin() + static_cast<std::ptrdiff_t>(part.begin),
                    out.order.begin() + static_cast<std::ptrdiff_t>(part.begin + size));
    for (std::size_t i = 0; i < size; ++i) out.order[part.begin + i] = old[part.order[i]];
    out.bound = std::max(out.bound, part.bound);
    part.graph = {};
  }
  out.peak = peak_of(graph, out.order);
  out.bound = std::min(out.bound, out.peak);
  return out;
}

}  // namespace berth::internal::graphs
