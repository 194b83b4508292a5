// Greedy placement of very many items, piece by piece of time, on all threads.
#include <algorithm>
#include <atomic>

#include "planner/bounds.h"
#include "planner/placer.h"

namespace berth::planner {
namespace {

constexpr std::size_t kPieces = 16;

// Sections at which to cut time: near equal shares, where the live load is least.
std::vector<std::int32_t> choose_cuts(const Model& model) {
  const std::vector<std::uint64_t> loads = section_loads(model);
  std::vector<std::int32_t> cuts;
  const std::size_t share = loads.size() / kPieces;
  for (std::size_t piece = 1; piece < kPieces && share >= 4; ++piece) {
    const auto from = loads.begin() + static_cast<std::ptrdiff_t>(piece * share - share / 4);
    const auto until = loads.begin() + static_cast<std::ptrdiff_t>(piece * share + share / 4);
    cuts.push_back(static_cast<std::int32_t>(std::min_element(from, until) - loads.begin()));
  }
  return cuts;
}

}  // namespace

Layout place_in_pieces(const Model& model, std::span<const std::uint32_t> order, Fit fit, Crew& crew,
                       const Interrupt* interrupt) {
  const std::vector<std::int32_t> cuts = choose_cuts(model);
  const auto piece_at = [&](std::int32_t section) {
    return static_cast<std::size_t>(std::upper_bound(cuts.begin(), cuts.end(), section) - cuts.begin());
  };
  Layout layout;
  layout.offsets.assign(model.items.size(), kNowhere);
  const auto place = [&](Placer& placer, const std::vector<std::uint32_t>& items) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (interrupt && (i & 255) == 255 && interrupt->requested()) return;
      layout.offsets[items[i]] = placer.find(items[i], fit);
      if (layout.offsets[items[i]] != kNowhere) placer.put(items[i], layout.offsets[items[i]]);
    }
  };
  std::vector<std::uint32_t> crossing;
  std::vector<std::vector<std::uint32_t>> inside(cuts.size() + 1);
  for (const std::uint32_t item : order) {
    const std::size_t first = piece_at(model.items[item].first), last = piece_at(model.items[item].last - 1);
    (first == last ? inside[first] : crossing).push_back(item);
  }
  {
    Placer placer(model);
    place(placer, crossing);
  }
  std::atomic<std::size_t> next{0};
  crew.run([&](unsigned) {
    for (std::size_t piece; (piece = next.fetch_add(1)) < inside.size();) {
      Placer placer(model);
      for (const std::uint32_t item : crossing) {
        const bool meets = piece_at(model.items[item].first) <= piece && piece <= piece_at(model.items[item].last - 1);
        if (meets && layout.offsets[item] != kNowhere) placer.put(item, layout.offsets[item]);
      }
      place(placer, inside[piece]);
    }
  });
  layout.top = top_of(model, layout.offsets);
  return layout;
}

}  // namespace berth::planner
