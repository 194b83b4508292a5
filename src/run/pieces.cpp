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
constexpr std::uint64_t kLargest = std::uint64_t{1} << 62;

}  // namespace

Pieces::Pieces(std::span<const std::vector<std::uint64_t>> known, std::vector<std::uint64_t> values)
    : values_(std::move(values)), samples_(values_.size()), known_(known.begin(), known.end()) {
  for (const std::uint64_t value : values_) unit_ = std::gcd(unit_, value);
  std::set<std::vector<std::uint32_t>> seen;
  std::vector<std::uint32_t> best;
  // The bytes of other requests come last and are tried first: they know how an engine rounds.
  for (auto key = static_cast<std::uint32_t>(known.size()); key-- > 0;) {
    std::vector<std::uint32_t> order(samples_);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return known[key][a] < known[key][b]; });
    // A quantity that is the same everywhere orders nothing.
    if (samples_ > 1 && known[key][order.front()] == known[key][order.back()]) continue;
    if (!seen.insert(order).second) continue;
    std::vector<Piece> pieces = divide(order, key);
    if (!pieces_.empty() && pieces.size() >= pieces_.size()) continue;
    pieces_ = std::move(pieces);
    best = std::move(order);
    key_ = key;
  }
  explain_ = 3 * pieces_.size() <= samples_;
  if (explain_) return;
  // Pieces of a sample or two are there by chance. Each sample is then one of its own, and its neighbours bound what is
  // between them.
  pieces_.clear();
  for (const std::uint32_t s : best) pieces_.push_back({s, s, known[key_][s], known[key_][s], {0, key_}});
}

std::vector<Pieces::Piece> Pieces::divide(std::span<const std::uint32_t> order, std::uint32_t key) const {
  const std::vector<std::vector<std::uint64_t>>& known = known_;
  std::vector<Piece> pieces;
  for (std::size_t begin = 0; begin < order.size();) {
    const std::uint32_t first = order[begin];
    std::vector<std::uint32_t> multiples(known.size());
    std::iota(multiples.begin(), multiples.end(), 0u);
    std::size_t end = begin + 1;
    for (; end < order.size(); ++end) {
      const std::uint32_t s = order[end];
      std::vector<std::uint32_t> still;
      for (const std::uint32_t m : multiples)
        if (Wide{values_[s]} * known[m][first] == Wide{values_[first]} * known[m][s]) still.push_back(m);
      if (still.empty()) break;
      multiples = std::move(still);
    }
    // One sample is a multiple of everything. It may be a part of a constant, or of what the order follows.
    if (end == begin + 1) multiples = {0, key};
    if (multiples.size() > kMaxMultiples) multiples.resize(kMaxMultiples);
    const std::uint32_t last = order[end - 1];
    pieces.push_back({first, last, known[key][first], known[key][last], std::move(multiples)});
    begin = end;
  }
  return pieces;
}

bool Pieces::bound(const Piece& piece, std::span<const std::uint64_t> known, Bounds& bounds) const {
  for (const std::uint32_t m : piece.multiples) {
    const Wide product = Wide{values_[piece.first]} * known[m];
    const Wide base = known_[m][piece.first];
    // What comes in steps is a multiple of the step.
    const Wide unit = piece.single() ? unit_ : 1;
    const Wide up = (product + base * unit - 1) / (base * unit) * unit;
    if (up <= 0 || up >= kLargest) return false;
    const auto most = static_cast<std::uint64_t>(up);
    const auto least = std::max<std::uint64_t>(static_cast<std::uint64_t>(product / (base * unit) * unit), 1);
    bounds.certain = bounds.certain && (bounds.most == 0 || bounds.most == most);
    bounds.least = bounds.most == 0 ? least : std::min(bounds.least, least);
    bounds.most = std::max(bounds.most, most);
  }
  return true;
}

std::optional<Pieces::Bounds> Pieces::operator()(std::span<const std::uint64_t> known) const {
  if (pieces_.empty()) return std::nullopt;
  const std::uint64_t at = known[key_];
  // The first piece that does not end before this point, and the one before it unless the point is inside.
  const auto next = std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& piece) { return at <= piece.high; });
  Bounds bounds{.certain = true};
  if (next != pieces_.end()) {
    if (!bound(*next, known, bounds)) return std::nullopt;
    bounds.certain = bounds.certain && (!next->single() || at == next->low);
    if (at >= next->low) return bounds;
    // What is constant from some point on need not be before it.
    const Wide scaled = Wide{values_[next->first]} * at / next->low;
    bounds.certain = bounds.certain && scaled >= bounds.least;
    bounds.least = std::min(bounds.least, std::max<std::uint64_t>(static_cast<std::uint64_t>(scaled), 1));
  }
  if (next != pieces_.begin()) {
    const Piece& before = *std::prev(next);
    if (!bound(before, known, bounds)) return std::nullopt;
    bounds.certain = bounds.certain && !before.single();
    // Two pieces that agree here may still hide a third between them.
    if (next != pieces_.end()) bounds.certain = false;
  }
  return bounds;
}

bool Pieces::shows_a_border(std::size_t sample) const noexcept {
  return explain_ && std::any_of(pieces_.begin(), pieces_.end(),
                                 [&](const Piece& piece) { return piece.first == sample || piece.last == sample; });
}

}  // namespace berth::internal::replay
