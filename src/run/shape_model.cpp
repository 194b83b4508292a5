#include "run/shape_model.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <utility>

namespace berth::internal::replay {
namespace {

constexpr std::size_t kMaxKinds = 4;
constexpr std::size_t kMaxOrders = 4;
// Functions that explain a row of values are kept up to this number, to see whether they agree.
constexpr std::size_t kMaxFunctions = 48;

// 1, each variable, and their product.
std::vector<std::uint64_t> plain_quantities(std::span<const std::int64_t> point) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 61;
  std::vector<std::uint64_t> all{1};
  std::int64_t product = 1;
  for (const std::int64_t extent : point) {
    const std::int64_t positive = std::clamp<std::int64_t>(extent, 1, kLargest);
    all.push_back(static_cast<std::uint64_t>(positive));
    if (__builtin_mul_overflow(product, positive, &product)) product = kLargest;
    product = std::min(product, kLargest);
  }
  all.push_back(static_cast<std::uint64_t>(product));
  return all;
}

}  // namespace

std::uint64_t ShapeModel::natural_alignment(std::uint64_t bytes) const noexcept {
  return std::min(alignment_, std::bit_floor(bytes));
}

bool ShapeModel::same_events(const Kind& kind, const ReplayTrace& trace) noexcept {
  if (kind.requests.size() != trace.requests.size() || kind.releases != trace.releases) return false;
  for (std::size_t i = 0; i < trace.requests.size(); ++i)
    if (kind.requests[i].released_at != trace.requests[i].released_at) return false;
  return true;
}

std::size_t ShapeModel::recordings() const noexcept {
  std::size_t sum = 0;
  for (const Kind& kind : kinds_) sum += kind.samples.size();
  return sum;
}

std::uint32_t ShapeModel::add(Dimensions dimensions, const ReplayTrace& trace) {
  auto kind = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& k) { return same_events(k, trace); });
  if (kind == kinds_.end()) {
    Kind fresh;
    fresh.releases = trace.releases;
    fresh.requests.resize(trace.requests.size());
    for (std::size_t i = 0; i < trace.requests.size(); ++i)
      fresh.requests[i].released_at = trace.requests[i].released_at;
    if (kinds_.size() < kMaxKinds) {
      kinds_.push_back(std::move(fresh));
      kind = std::prev(kinds_.end());
    } else {
      // The kind with the fewest recordings makes room. Its number gets another meaning; what still refers to it can
      // only mark a request as kept that need not be, or lay out with an order that is not its own.
      kind = std::min_element(kinds_.begin(), kinds_.end(),
                              [](const Kind& a, const Kind& b) { return a.samples.size() < b.samples.size(); });
      *kind = std::move(fresh);
    }
  }
  const auto number = static_cast<std::uint32_t>(kind - kinds_.begin());
  Sample sample{{dimensions.begin(), dimensions.end()}, {}};
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const ReplayRequest& request = trace.requests[i];
    sample.bytes.push_back(request.bytes);
    kind->requests[i].kept = kind->requests[i].kept || request.kept;
    if (request.alignment > natural_alignment(request.bytes))
      kind->requests[i].alignment = std::max(kind->requests[i].alignment, request.alignment);
  }
  // A second run of one shape replaces the first.
  if (std::erase_if(kind->samples, [&](const Sample& s) { return s.dimensions == sample.dimensions; }) == 0)
    make_room(*kind);
  if (max_recordings_ > 0) kind->samples.push_back(std::move(sample));
  kind->fitted = false;
  return number;
}

bool ShapeModel::find_variables(Kind& kind) {
  kind.variables.clear();
  kind.relations.clear();
  const std::size_t rows = kind.samples.size();
  const std::size_t dimensions = kind.samples[0].dimensions.size();
  std::vector<std::vector<std::int64_t>> columns{std::vector<std::int64_t>(rows, 1)};  // 1 and the variables
  for (const Sample& sample : kind.samples)
    if (sample.dimensions.size() != dimensions) return false;
  for (std::uint32_t d = 0; d < dimensions; ++d) {
    std::vector<std::int64_t> column;
    column.reserve(kind.samples.size());
    for (const Sample& sample : kind.samples) column.push_back(sample.dimensions[d]);
    std::vector<std::span<const std::int64_t>> known(columns.begin(), columns.end());
    if (std::optional<Combination> combination = combine(known, column)) {
      kind.relations.push_back({d, std::move(*combination)});
    } else {
      if (kind.variables.size() == kMaxVariables) return false;
      kind.variables.push_back(d);
      columns.push_back(std::move(column));
    }
  }
  return true;
}

void ShapeModel::fit(Kind& kind) {
  kind.fitted = true;
  kind.fits.clear();
  kind.functions.clear();
  kind.pieces.clear();
  if (kind.samples.size() < 2 || !find_variables(kind)) return;
  std::vector<std::vector<std::int64_t>> points;
  for (const Sample& sample : kind.samples) {
    std::vector<std::int64_t> point;
    point.reserve(kind.variables.size());
    for (const std::uint32_t variable : kind.variables) point.push_back(sample.dimensions[variable]);
    points.push_back(std::move(point));
  }
  FunctionFinder finder(std::move(points));
  // Rows that are multiples of one another are fitted once, in the largest unit that divides them all.
  std::map<std::vector<std::uint64_t>, std::uint32_t> known;
  std::vector<std::vector<std::uint64_t>> rows;
  std::vector<std::uint64_t> units;
  for (std::size_t i = 0; i < kind.requests.size(); ++i) {
    std::vector<std::uint64_t> row;
    std::uint64_t times = 0;
    for (const Sample& sample : kind.samples) {
      row.push_back(sample.bytes[i]);
      times = std::gcd(times, sample.bytes[i]);
    }
    times = std::max<std::uint64_t>(times, 1);
    for (std::uint64_t& bytes : row) bytes /= times;
    const auto [at, fresh] = known.try_emplace(row, static_cast<std::uint32_t>(rows.size()));
    if (fresh) {
      rows.push_back(std::move(row));
      units.push_back(0);
    }
    units[at->second] = std::gcd(units[at->second], times);
    kind.fits.push_back({at->second, times});
  }
  for (Fitted& fitted : kind.fits) fitted.times /= units[fitted.function];
  for (std::size_t f = 0; f < rows.size(); ++f) {
    for (std::uint64_t& bytes : rows[f]) bytes *= units[f];
    kind.functions.push_back(finder.fit(rows[f], kMaxFunctions));
  }
  kind.monotone = std::all_of(kind.functions.begin(), kind.functions.end(), [](const auto& found) {
    return !found.empty() && std::all_of(found.begin(), found.end(), [](const auto& f) { return f.monotone(); });
  });
  find_pieces(kind, finder.points(), std::move(rows));
}

void ShapeModel::find_pieces(Kind& kind, const std::vector<std::vector<std::int64_t>>& points,
                             std::vector<std::vector<std::uint64_t>> rows) {
  kind.pieces.assign(rows.size(), std::nullopt);
  kind.quantities.clear();
  unlearned_ = false;
  if (std::none_of(kind.functions.begin(), kind.functions.end(), [](const auto& found) { return found.empty(); }))
    return;
  // A quantity must have a value at every sample.
  const auto add = [&](Quantity quantity) {
    kind.quantities.push_back(quantity);
    if (std::any_of(points.begin(), points.end(), [&](const auto& p) { return known_at(kind, p).back() == 0; }))
      kind.quantities.pop_back();
  };
  for (std::uint32_t f = 0; f < rows.size(); ++f) {
    if (kind.functions[f].empty()) continue;
    for (std::uint32_t v = 0; v < kind.variables.size() && kind.variables.size() > 1; ++v) add({f, v});
    add({f});
  }
  std::vector<std::vector<std::uint64_t>> known;
  for (const auto& point : points) {
    const std::vector<std::uint64_t> column = known_at(kind, point);
    known.resize(column.size());
    for (std::size_t q = 0; q < column.size(); ++q) known[q].push_back(column[q]);
  }
  bool all_explained = true;
  for (std::size_t f = 0; f < rows.size(); ++f) {
    if (!kind.functions[f].empty()) continue;
    kind.pieces[f].emplace(known, std::move(rows[f]));
    all_explained = all_explained && kind.pieces[f]->explain();
  }
  unlearned_ = !all_explained && kind.samples.size() >= max_recordings_;
}

void ShapeModel::make_room(Kind& kind) const {
  if (kind.samples.size() < max_recordings_ || kind.samples.empty()) return;
  // Where a border is known to be must not be forgotten.
  std::size_t oldest = 0;
  const auto needed = [&](std::size_t sample) {
    return std::any_of(kind.pieces.begin(), kind.pieces.end(),
                       [&](const std::optional<Pieces>& pieces) { return pieces && pieces->shows_a_border(sample); });
  };
  if (kind.fitted)
    while (oldest < kind.samples.size() && needed(oldest)) ++oldest;
  if (oldest == kind.samples.size()) oldest = 0;
  kind.samples.erase(kind.samples.begin() + static_cast<std::ptrdiff_t>(oldest));
}

bool ShapeModel::in_reach(const Kind& kind, Dimensions dimensions) noexcept {
  for (const Relation& relation : kind.relations) {
    Wide sum = relation.combination.numerators[0], right = 0;
    for (std::size_t v = 0; v < kind.variables.size(); ++v) {
      if (v + 1 >= relation.combination.numerators.size()) break;  // found before this variable was
      Wide term = 0;
      if (__builtin_mul_overflow(relation.combination.numerators[v + 1], Wide{dimensions[kind.variables[v]]}, &term) ||
          __builtin_add_overflow(sum, term, &sum))
        return false;
    }
    if (__builtin_mul_overflow(relation.combination.denominator, Wide{dimensions[relation.dimension]}, &right))
      return false;
    if (sum != right) return false;
  }
  return true;
}

std::optional<Pieces::Bounds> ShapeModel::bounds(const std::vector<ExactFunction>& functions,
                                                 std::span<const std::int64_t> point) {
  std::optional<Pieces::Bounds> result;
  // Where none gives a whole number, none is the one; they are still near it.
  for (const bool round_up : {false, true}) {
    for (const ExactFunction& function : functions) {
      const std::optional<std::uint64_t> bytes = function(point, round_up);
      if (!bytes) continue;
      if (!result) result = {.least = *bytes, .most = *bytes, .certain = !round_up};
      result->certain = result->certain && result->most == *bytes;
      result->least = std::min(result->least, *bytes);
      result->most = std::max(result->most, *bytes);
    }
    if (result) break;
  }
  return result;
}

std::vector<Pieces::Bounds> ShapeModel::all_bounds(const Kind& kind, std::span<const std::int64_t> point) {
  std::vector<Pieces::Bounds> all(kind.functions.size());
  std::vector<std::uint64_t> known;
  for (std::size_t f = 0; f < all.size(); ++f) {
    if (kind.pieces[f] && known.empty()) known = known_at(kind, point);
    const std::optional<Pieces::Bounds> found =
        kind.pieces[f] ? (*kind.pieces[f])(known) : bounds(kind.functions[f], point);
    if (!found) return {};
    all[f] = *found;
  }
  return all;
}

std::vector<std::uint64_t> ShapeModel::known_at(const Kind& kind, std::span<const std::int64_t> point) {
  std::vector<std::uint64_t> known = plain_quantities(point);
  for (const Quantity& quantity : kind.quantities) {
    std::vector<std::int64_t> at(point.begin(), point.end());
    if (quantity.without) at[*quantity.without] = 1;
    const std::optional<Pieces::Bounds> found = bounds(kind.functions[quantity.function], at);
    known.push_back(found ? found->most : 0);
  }
  return known;
}

std::optional<ShapeModel::Prediction> ShapeModel::predict(Dimensions dimensions) {
  const bool early = ++asked_ <= kSureAfter;
  const auto kind = std::max_element(kinds_.begin(), kinds_.end(),
                                     [](const Kind& a, const Kind& b) { return a.samples.size() < b.samples.size(); });
  if (kind == kinds_.end() || kind->samples.size() < 2) return std::nullopt;
  if (!kind->fitted) fit(*kind);
  if (kind->fits.empty() || kind->samples[0].dimensions.size() != dimensions.size() || !in_reach(*kind, dimensions))
    return std::nullopt;
  std::vector<std::int64_t> point;
  for (const std::uint32_t variable : kind->variables) point.push_back(dimensions[variable]);
  const std::vector<Pieces::Bounds> rows = all_bounds(*kind, point);
  if (rows.empty()) return std::nullopt;
  Prediction prediction;
  prediction.certain = std::all_of(rows.begin(), rows.end(), [](const Pieces::Bounds& b) { return b.certain; });
  if (early && !prediction.certain) return std::nullopt;
  prediction.monotone = kind->monotone;
  prediction.kind = static_cast<std::uint32_t>(kind - kinds_.begin());
  prediction.trace.releases = kind->releases;
  prediction.trace.requests = kind->requests;
  for (std::size_t i = 0; i < kind->requests.size(); ++i) {
    // The most, because too large is a little memory, and too small is a deviation.
    ReplayRequest& request = prediction.trace.requests[i];
    const auto& [function, times] = kind->fits[i];
    if (__builtin_mul_overflow(rows[function].most, times, &request.bytes) || request.bytes >> 48 != 0)
      return std::nullopt;
    request.alignment = std::max(request.alignment, natural_alignment(request.bytes));
    prediction.least.push_back(rows[function].least * times);
  }
  return prediction;
}

bool ShapeModel::mark_kept(std::uint32_t kind, std::uint32_t request) {
  if (kind >= kinds_.size() || request >= kinds_[kind].requests.size()) return false;
  return !std::exchange(kinds_[kind].requests[request].kept, true);
}

void ShapeModel::add_order(std::uint32_t kind, std::vector<std::uint32_t> order) {
  if (kind >= kinds_.size() || order.empty()) return;
  std::vector<std::vector<std::uint32_t>>& orders = kinds_[kind].orders;
  if (std::find(orders.begin(), orders.end(), order) != orders.end()) return;
  if (orders.size() == kMaxOrders) orders.erase(orders.begin());
  orders.push_back(std::move(order));
}

std::span<const std::vector<std::uint32_t>> ShapeModel::orders(std::uint32_t kind) const {
  if (kind >= kinds_.size()) return {};
  return kinds_[kind].orders;
}

}  // namespace berth::internal::replay
