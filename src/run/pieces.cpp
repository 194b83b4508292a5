#include "run/pieces.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "run/exact_fit.h"

namespace berth::internal::replay {
namespace {

// Quantities that are kept for one piece; they nearly always agree.
constexpr std::size_t kMaxMultiples = 4;
// Orders that are kept.
constexpr std::size_t kMaxDivisions = 8;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;

}  // namespace

Pieces::Pieces(std::span<const std::vector<std::uint64_t>> known, std::vector<std::uint64_t> values)
    : values_(std::move(values)), samples_(values_.size()), known_(known.begin(), known.end()) {
  for (const std::uint64_t value : values_) unit_ = std::gcd(unit_, value);
  std::set<std::vector<std::uint32_t>> seen;
  std::vector<std::vector<std::uint32_t>> orders;
  // The bytes of other requests come last and are tried first: they know how an engine rounds.
  for (auto key = static_cast<std::uint32_t>(known.size()); key-- > 0;) {
    std::vector<std::uint32_t> order(samples_);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return known[key][a] < known[key][b]; });
    // A quantity that is the same everywhere orders nothing.
    if (samples_ > 1 && known[key][order.front()] == known[key][order.back()]) continue;
    if (!seen.insert(order).second) continue;
    Division division = divide(order, key);
    const std::size_t fewest = divisions_.empty() ? samples_ + 1 : divisions_[0].pieces.size();
    if (division.pieces.size() > fewest) continue;
    if (division.pieces.size() < fewest) {
      divisions_.clear();
      orders.clear();
    }
    if (divisions_.size() == kMaxDivisions) continue;
    divisions_.push_back(std::move(division));
    orders.push_back(std::move(order));
  }
  explain_ = !divisions_.empty() && 3 * divisions_[0].pieces.size() <= samples_;
  if (explain_) return;
  // Pieces of a sample or two are there by chance. Each sample is then one of its own, and its neighbours bound what is
  // between them.
  for (std::size_t i = 0; i < divisions_.size(); ++i) divisions_[i] = one_by_one(orders[i], divisions_[i].key);
}

Pieces::Division Pieces::one_by_one(std::span<const std::uint32_t> order, std::uint32_t key) const {
  Division division{key, {}};
  for (const std::uint32_t s : order) division.pieces.push_back({s, s, known_[key][s], known_[key][s], {0, key}});
  return division;
}

Pieces::Division Pieces::divide(std::span<const std::uint32_t> order, std::uint32_t key) const {
  Division division{key, {}};
  for (std::size_t begin = 0; begin < order.size();) {
    const std::uint32_t first = order[begin];
    std::vector<std::uint32_t> multiples(known_.size());
    std::iota(multiples.begin(), multiples.end(), 0u);
    std::size_t end = begin + 1;
    for (; end < order.size(); ++end) {
      const std::uint32_t s = order[end];
      std::vector<std::uint32_t> still;
      for (const std::uint32_t m : multiples)
        if (Wide{values_[s]} * known_[m][first] == Wide{values_[first]} * known_[m][s]) still.push_back(m);
      if (still.empty()) break;
      multiples = std::move(still);
    }
    // One sample is a multiple of everything. It may be a part of a constant, or of what the order follows.
    if (end == begin + 1) multiples = {0, key};
    if (multiples.size() > kMaxMultiples) multiples.resize(kMaxMultiples);
    const std::uint32_t last = order[end - 1];
    division.pieces.push_back({first, last, known_[key][first], known_[key][last], std::move(multiples)});
    begin = end;
  }
  return division;
}

bool Pieces::bound(const Piece& piece, std::span<const std::uint64_t> known, Bounds& bounds) const {
  bool some = false;
  for (const std::uint32_t m : piece.multiples) {
    if (known[m] == 0) continue;
    some = true;
    const Wide product = Wide{values_[piece.first]} * known[m];
    const Wide base = known_[m][piece.first];
    // What comes in steps is a multiple of the step.
    const Wide unit = piece.single() ? unit_ : 1;
    const Wide up = (product + base * unit - 1) / (base * unit) * unit;
    if (up <= 0 || up >= kMostBytes) return false;
    const auto most = static_cast<std::uint64_t>(up);
    const auto least = std::max<std::uint64_t>(static_cast<std::uint64_t>(product / (base * unit) * unit), 1);
    bounds.certain = bounds.certain && (bounds.most == 0 || bounds.most == most);
    bounds.least = bounds.most == 0 ? least : std::min(bounds.least, least);
    bounds.most = std::max(bounds.most, most);
  }
  return some;
}

bool Pieces::bound(const Division& division, std::span<const std::uint64_t> known, Bounds& bounds) const {
  const std::vector<Piece>& pieces = division.pieces;
  const std::uint64_t at = known[division.key];
  if (at == 0) return false;
  // The first piece that does not end before this point, and the one before it unless the point is inside.
  const auto next = std::find_if(pieces.begin(), pieces.end(), [&](const Piece& piece) { return at <= piece.high; });
  if (next != pieces.end()) {
    if (!bound(*next, known, bounds)) return false;
    bounds.certain = bounds.certain && (!next->single() || at == next->low);
    if (at >= next->low) return true;
    // What is constant from some point on need not be before it.
    const Wide scaled = Wide{values_[next->first]} * at / next->low;
    bounds.certain = bounds.certain && scaled >= bounds.least;
    bounds.least = std::min(bounds.least, std::max<std::uint64_t>(static_cast<std::uint64_t>(scaled), 1));
  }
  if (next != pieces.begin()) {
    const Piece& before = *std::prev(next);
    if (!bound(before, known, bounds)) return false;
    bounds.certain = bounds.certain && !before.single();
    // Two pieces that agree here may still hide a third between them.
    if (next != pieces.end()) bounds.certain = false;
  }
  return true;
}

std::optional<Pieces::Bounds> Pieces::operator()(std::span<const std::uint64_t> known) const {
  Bounds bounds{.certain = true};
  bool some = false;
  for (const Division& division : divisions_) some = bound(division, known, bounds) || some;
  if (!some || bounds.most == 0) return std::nullopt;
  return bounds;
}

bool Pieces::shows_a_border(std::size_t sample) const noexcept {
  if (!explain_) return false;
  const std::vector<Piece>& pieces = divisions_[0].pieces;
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](const Piece& piece) { return piece.first == sample || piece.last == sample; });
}

}  // namespace berth::internal::replay
