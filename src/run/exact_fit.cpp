#include "run/exact_fit.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace berth::internal::replay {
namespace {

// Divisors of the rounded forms: strides of convolutions and pools, and their products. The rarer ones are tried only
// where the others explain nothing.
constexpr std::int32_t kDivisors[] = {2, 4, 8, 16, 32};
constexpr std::int32_t kRareDivisors[] = {64, 3, 5, 6, 10, 12, 160, 320};
// What convolutions without padding take off: at most so much for each unit of the divisor.
constexpr std::int32_t kShiftedDivisors[] = {1, 2, 4, 8};
constexpr std::int32_t kMostShifted = 12;
// Strides of sound, and their windows, which are multiples of 16.
constexpr std::int32_t kSoundDivisors[] = {64, 128, 160, 256, 320, 512};
constexpr std::int32_t kSoundStep = 16, kMostSoundShifted = 4;
// Samples from which such a function is looked for. There are many of them, and with fewer one fits by chance.
constexpr std::size_t kShiftedSamples = 4;
constexpr Wide kLargestSum = Wide{1} << 62;

bool multiply(Wide a, Wide b, Wide& product) noexcept {
  return !__builtin_mul_overflow(a, b, &product);
}

// a * b - c * d.
bool cross(Wide a, Wide b, Wide c, Wide d, Wide& result) noexcept {
  Wide left = 0, right = 0;
  return multiply(a, b, left) && multiply(c, d, right) && !__builtin_sub_overflow(left, right, &result);
}

std::optional<std::int64_t> value_of(const Monomial& monomial, std::span<const Form> forms,
                                     std::span<const std::int64_t> point) noexcept {
  std::int64_t product = 1;
  for (std::size_t v = 0; v < point.size(); ++v)
    for (unsigned i = 0; i < monomial.power[v]; ++i)
      if (__builtin_mul_overflow(product, forms[v](point[v]), &product)) return std::nullopt;
  return product;
}

std::vector<Form> rounded_forms(std::span<const std::int32_t> divisors) {
  std::vector<Form> forms;
  // Rounding up, down and to the nearest, in this order: a padded convolution rounds up.
  for (const std::int32_t divide : divisors) {
    forms.push_back({divide, divide - 1});
    forms.push_back({divide, 0});
    // Windows of sound, such as 400 or 512 samples at a stride of 160, are multiples of 16.
    const bool is_sound = divide >= 160;
    const std::int32_t step = is_sound ? 16 : std::max(1, divide / 8);
    for (std::int32_t add = is_sound ? step : 1; add + 1 < divide; add += step) forms.push_back({divide, add});
  }
  return forms;
}

using Forms = std::array<Form, kMaxVariables>;

// The forms that are tried together: every variable as it is, or divided in the same way as the others. For two
// variables also each divided in a way of its own. `usual` becomes the number of those that are always tried.
std::vector<Forms> form_sets(std::size_t variables, std::size_t& usual) {
  std::vector<Forms> sets(1);
  const auto add = [&](std::span<const std::int32_t> divisors) {
    for (const Form& form : rounded_forms(divisors))
      for (unsigned which = 1; which < 1u << variables; ++which) {
        Forms forms{};
        for (std::size_t v = 0; v < variables; ++v)
          if ((which >> v & 1) != 0) forms[v] = form;
        sets.push_back(forms);
      }
  };
  add(kDivisors);
  if (variables == 2) {
    for (const std::int32_t first : kDivisors)
      for (const std::int32_t second : kDivisors)
        for (const bool up : {true, false})
          if (first != second) sets.push_back({Form{first, up ? first - 1 : 0}, Form{second, up ? second - 1 : 0}});
  }
  usual = sets.size();
  add(kRareDivisors);
  return sets;
}

bool is_plain(const Forms& forms) noexcept {
  return std::all_of(forms.begin(), forms.end(), [](const Form& f) { return f.divide == 1; });
}
bool rounds_simply(const Forms& forms) noexcept {
  return std::all_of(forms.begin(), forms.end(), [](const Form& f) { return f.add == 0 || f.add + 1 == f.divide; });
}
unsigned degree_of(const Monomial& monomial) noexcept {
  return std::accumulate(monomial.power.begin(), monomial.power.end(), 0u);
}

// Monomials with powers up to 2 and at most `degree` factors, those with fewer factors first.
std::vector<Monomial> monomials_of(std::size_t variables, unsigned degree) {
  std::vector<Monomial> all(1);
  for (std::size_t v = 0; v < variables; ++v) {
    const std::size_t before = all.size();
    for (std::uint8_t power = 1; power <= 2; ++power)
      for (std::size_t i = 0; i < before; ++i) {
        Monomial next = all[i];
        next.power[v] = power;
        all.push_back(next);
      }
  }
  std::erase_if(all, [&](const Monomial& m) { return degree_of(m) > degree; });
  std::stable_sort(all.begin(), all.end(),
                   [&](const Monomial& a, const Monomial& b) { return degree_of(a) < degree_of(b); });
  return all;
}

// The determinant modulo 2^64 of the matrix of some columns, with the values as a further column, at as many points
// from `first` on. It is zero if the values are a combination of the columns, so anything else rules that out, at a
// fraction of the cost of an elimination.
std::uint64_t determinant(std::span<const std::span<const std::int64_t>> columns, std::span<const std::int64_t> values,
                          std::size_t first, std::uint32_t used, std::size_t column) noexcept {
  const std::size_t size = columns.size() + 1;
  std::uint64_t sum = 0;
  bool minus = false;
  for (std::size_t r = 0; r < size; ++r) {
    if ((used >> r & 1) != 0) continue;
    const auto value = static_cast<std::uint64_t>(column + 1 == size ? values[first + r] : columns[column][first + r]);
    if (column + 1 == size) return value;
    if (value != 0) {
      const std::uint64_t term = value * determinant(columns, values, first, used | 1u << r, column + 1);
      sum += minus ? std::uint64_t{0} - term : term;
    }
    minus = !minus;
  }
  return sum;
}

}  // namespace

bool ExactFunction::monotone() const noexcept {
  // Forms rise with their variable and are not negative, and so are their products.
  for (std::size_t i = 0; i < monomials.size(); ++i)
    if (monomials[i] != Monomial{} && numerators[i] != 0 && (numerators[i] < 0) != (denominator < 0)) return false;
  return true;
}

std::optional<std::uint64_t> ExactFunction::operator()(std::span<const std::int64_t> point,
                                                       bool round_up) const noexcept {
  Wide sum = 0;
  for (std::size_t i = 0; i < monomials.size(); ++i) {
    const std::optional<std::int64_t> value = value_of(monomials[i], forms, point);
    Wide term = 0;
    if (!value || !multiply(numerators[i], *value, term) || __builtin_add_overflow(sum, term, &sum))
      return std::nullopt;
  }
  if (sum % denominator != 0 && !round_up) return std::nullopt;
  sum = sum / denominator + (sum % denominator > 0 ? 1 : 0);
  if (sum <= 0 || sum >= kLargestSum) return std::nullopt;
  return static_cast<std::uint64_t>(sum);
}

std::optional<Combination> combine(std::span<const std::span<const std::int64_t>> columns,
                                   std::span<const std::int64_t> values) {
  const std::size_t rows = values.size(), width = columns.size();
  if (width == 0 || width > kMaxColumns || rows < width || rows > FunctionFinder::kMaxPoints) return std::nullopt;
  std::array<std::array<Wide, kMaxColumns + 1>, FunctionFinder::kMaxPoints> m;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < width; ++c) m[r][c] = columns[c][r];
    m[r][width] = values[r];
  }
  // Elimination without fractions (Bareiss): every division is exact.
  Wide previous = 1;
  for (std::size_t c = 0; c < width; ++c) {
    std::size_t pivot = c;
    while (pivot < rows && m[pivot][c] == 0) ++pivot;
    if (pivot == rows) return std::nullopt;
    std::swap(m[c], m[pivot]);
    for (std::size_t r = c + 1; r < rows; ++r) {
      for (std::size_t k = c + 1; k <= width; ++k) {
        Wide next = 0;
        if (!cross(m[r][k], m[c][c], m[r][c], m[c][k], next)) return std::nullopt;
        m[r][k] = next / previous;
      }
      m[r][c] = 0;
    }
    previous = m[c][c];
  }
  for (std::size_t r = width; r < rows; ++r)
    if (m[r][width] != 0) return std::nullopt;
  // Back substitution over the common denominator, the last pivot: also exact, by Cramer's rule.
  Combination result;
  result.numerators.resize(width);
  result.denominator = m[width - 1][width - 1];
  for (std::size_t c = width; c-- > 0;) {
    Wide sum = 0;
    if (!multiply(m[c][width], result.denominator, sum)) return std::nullopt;
    for (std::size_t k = c + 1; k < width; ++k) {
      Wide term = 0;
      if (!multiply(m[c][k], result.numerators[k], term) || __builtin_sub_overflow(sum, term, &sum))
        return std::nullopt;
    }
    result.numerators[c] = sum / m[c][c];
  }
  if (result.denominator < 0) {
    result.denominator = -result.denominator;
    for (Wide& numerator : result.numerators) numerator = -numerator;
  }
  return result;
}

// One search for the functions of one list of values.
struct FunctionFinder::Search {
  static constexpr std::size_t kMaxTerms = 4;
  // Sets of monomials that are tried for one list of values before the search is given up.
  static constexpr std::size_t kMaxTried = 8'000;

  FunctionFinder& finder;
  std::vector<std::int64_t> values;
  std::size_t limit;
  std::size_t tried = 0;
  std::vector<ExactFunction> found = {};

  bool over() const noexcept {
    return found.size() >= limit || tried >= kMaxTried || finder.tried_ >= FunctionFinder::kMaxTriedInAll;
  }

  void run() {
    if (std::all_of(values.begin(), values.end(), [&](std::int64_t v) { return v == values[0]; })) {
      found.push_back({Forms{}, {Monomial{}}, {Wide{values[0]}}, 1});
      return;
    }
    try_sets(0, finder.usual_sets_);
    if (found.empty()) try_sets(finder.usual_sets_, finder.sets_.size());
  }

  void try_sets(std::size_t begin, std::size_t end) {
    // Products of two sums before three terms of any kind, of which there are many.
    for (const std::size_t terms : {1, 2, 4, 3}) {
      if (terms >= values.size() || !found.empty()) continue;
      for (std::size_t set = begin; set < end && !over(); ++set) {
        const Forms& forms = finder.sets_[set];
        // With more terms fewer forms, so that fitting stays a matter of milliseconds.
        if (!rounds_simply(forms) && (terms > 2 || (terms == 2 && finder.variables_ > 1))) continue;
        if (terms == 3 && !is_plain(forms) && !all_alike(forms)) continue;
        if (terms == 4 && !one_form(forms)) continue;
        // Where no rounding explains the samples, one that acted on them explains them by chance. One that never acted,
        // because they are all multiples, may be the truth.
        if (!found.empty() && is_plain(found.front().forms) && acted(forms)) continue;
        if (terms == 4)
          try_products(set);
        else
          try_subsets(set, terms);
      }
      if (terms == 1 && begin == 0 && found.empty()) try_shifted();
    }
  }

  // One term in which some variables lose a little, all of them in the same way, before they are divided.
  void try_shifted() {
    if (values.size() < kShiftedSamples) return;
    for (const std::int32_t divide : kShiftedDivisors)
      for (std::int32_t off = 1; off <= kMostShifted * divide; ++off) try_form({divide, -off});
    if (!found.empty()) return;
    for (const std::int32_t divide : kSoundDivisors)
      for (std::int32_t add = divide - kSoundStep; add >= -kMostSoundShifted * divide; add -= kSoundStep)
        try_form({divide, add});
  }

  void try_form(const Form& form) {
    for (unsigned which = 1; which < 1u << finder.variables_; ++which) {
      Forms forms{};
      for (std::size_t v = 0; v < finder.variables_; ++v)
        if ((which >> v & 1) != 0) forms[v] = form;
      for (const Monomial& monomial : finder.monomials_)
        if (found.size() < limit && uses_once(monomial, which)) try_ratio(forms, monomial);
    }
  }

  bool uses_once(const Monomial& monomial, unsigned which) const noexcept {
    for (std::size_t v = 0; v < finder.variables_; ++v)
      if ((which >> v & 1) != 0 && monomial.power[v] != 1) return false;
    return true;
  }

  void try_ratio(const Forms& forms, const Monomial& monomial) {
    const std::optional<std::int64_t> first = value_of(monomial, forms, finder.points_[0]);
    if (!first || *first <= 0) return;
    for (std::size_t i = 1; i < values.size(); ++i) {
      const std::optional<std::int64_t> value = value_of(monomial, forms, finder.points_[i]);
      if (!value || Wide{values[i]} * *first != Wide{values[0]} * *value) return;
    }
    const std::int64_t divisor = std::gcd(values[0], *first);
    found.push_back({forms, {monomial}, {Wide{values[0] / divisor}}, *first / divisor});
  }

  bool all_alike(const Forms& forms) const noexcept {
    return std::all_of(forms.begin(), forms.begin() + static_cast<std::ptrdiff_t>(finder.variables_),
                       [&](const Form& form) { return form == forms[0]; });
  }

  // Every variable is as it is, or rounded like the others.
  static bool one_form(const Forms& forms) noexcept {
    const Form* rounded = nullptr;
    for (const Form& form : forms) {
      if (form.divide == 1) continue;
      if (rounded != nullptr && form != *rounded) return false;
      rounded = &form;
    }
    return true;
  }

  bool acted(const Forms& forms) const noexcept {
    for (const auto& point : finder.points_)
      for (std::size_t v = 0; v < point.size(); ++v)
        if (point[v] % forms[v].divide != 0) return true;
    return false;
  }

  // A rounded form of a variable that no monomial uses would give the same function again.
  bool uses_its_forms(const Forms& forms, const Columns& columns, std::span<const std::size_t> chosen) const {
    for (std::size_t v = 0; v < finder.variables_; ++v)
      if (forms[v].divide != 1 &&
          std::none_of(chosen.begin(), chosen.end(), [&](std::size_t c) { return columns.monomials[c].power[v] != 0; }))
        return false;
    return true;
  }

  // All sets of `terms` monomials; of more than one term, only of monomials with at most three factors.
  void try_subsets(std::size_t set, std::size_t terms) {
    const Columns& columns = finder.columns(set);
    std::size_t usable = columns.monomials.size();
    if (terms > 1)
      while (usable > 0 && degree_of(columns.monomials[usable - 1]) > 3) --usable;
    if (usable < terms) return;
    std::array<std::size_t, kMaxTerms> chosen{0, 1, 2, 3};
    while (!over()) {
      try_set(set, columns, std::span(chosen).first(terms));
      // The next subset in lexicographic order.
      std::size_t i = terms;
      while (i > 0 && chosen[i - 1] == usable - terms + i - 1) --i;
      if (i == 0) return;
      ++chosen[i - 1];
      for (; i < terms; ++i) chosen[i] = chosen[i - 1] + 1;
    }
  }

  // (p + a)(q + b), alone or times a third variable: what convolutions without padding need.
  void try_products(std::size_t set) {
    const Columns& columns = finder.columns(set);
    const auto index = [&](const Monomial& monomial) {
      return static_cast<std::size_t>(std::find(columns.monomials.begin(), columns.monomials.end(), monomial) -
                                      columns.monomials.begin());
    };
    for (std::size_t p = 0; p < finder.variables_; ++p)
      for (std::size_t q = p + 1; q < finder.variables_; ++q)
        for (std::size_t times = 0; times <= finder.variables_ && !over(); ++times) {
          if (times == p || times == q) continue;
          std::array<std::size_t, 4> chosen{};
          for (unsigned i = 0; i < 4; ++i) {
            Monomial monomial;
            monomial.power[p] = i & 1;
            monomial.power[q] = i >> 1;
            if (times < finder.variables_) monomial.power[times] = 1;
            chosen[i] = index(monomial);
          }
          if (std::all_of(chosen.begin(), chosen.end(), [&](std::size_t c) { return c < columns.monomials.size(); }))
            try_set(set, columns, chosen);
        }
  }

  void try_set(std::size_t set, const Columns& columns, std::span<const std::size_t> chosen) {
    ++tried;
    ++finder.tried_;
    const Forms& forms = finder.sets_[set];
    if (!uses_its_forms(forms, columns, chosen)) return;
    Combination combination;
    if (chosen.size() == 1) {
      // One term is a constant ratio, which needs no elimination.
      const std::vector<std::int64_t>& column = columns.values[chosen[0]];
      if (column[0] <= 0) return;
      for (std::size_t i = 1; i < values.size(); ++i)
        if (Wide{values[i]} * column[0] != Wide{values[0]} * column[i]) return;
      const std::int64_t divisor = std::gcd(values[0], column[0]);
      combination = {{Wide{values[0] / divisor}}, column[0] / divisor};
    } else {
      std::array<std::span<const std::int64_t>, kMaxTerms> used;
      for (std::size_t i = 0; i < chosen.size(); ++i) used[i] = columns.values[chosen[i]];
      const auto these = std::span(used).first(chosen.size());
      // There is one more value than terms, at least.
      if (determinant(these, values, 0, 0, 0) != 0 ||
          determinant(these, values, values.size() - chosen.size() - 1, 0, 0) != 0)
        return;
      std::optional<Combination> exact = combine(these, values);
      if (!exact) return;
      // A term that is not needed: the function was found with fewer terms.
      if (std::any_of(exact->numerators.begin(), exact->numerators.end(), [](Wide n) { return n == 0; })) return;
      combination = std::move(*exact);
    }
    ExactFunction function{forms, {}, std::move(combination.numerators), combination.denominator};
    for (const std::size_t c : chosen) function.monomials.push_back(columns.monomials[c]);
    found.push_back(std::move(function));
  }
};

FunctionFinder::FunctionFinder(std::vector<std::vector<std::int64_t>> points)
    : points_(std::move(points)),
      variables_(points_.empty() ? 0 : points_[0].size()),
      sets_(form_sets(variables_, usual_sets_)),
      monomials_(monomials_of(variables_, 4)),
      columns_(sets_.size()) {}

const FunctionFinder::Columns& FunctionFinder::columns(std::size_t set) {
  Columns& columns = columns_[set];
  if (columns.made) return columns;
  columns.made = true;
  for (const Monomial& monomial : monomials_) {
    std::vector<std::int64_t> column;
    for (const auto& point : points_) {
      const std::optional<std::int64_t> value = value_of(monomial, sets_[set], point);
      if (!value) break;
      column.push_back(*value);
    }
    if (column.size() != points_.size()) continue;
    columns.values.push_back(std::move(column));
    columns.monomials.push_back(monomial);
  }
  return columns;
}

std::vector<ExactFunction> FunctionFinder::fit(std::span<const std::uint64_t> values, std::size_t limit) {
  if (points_.size() < 2 || points_.size() > kMaxPoints || values.size() != points_.size()) return {};
  Search search{.finder = *this, .values = {}, .limit = limit};
  for (const std::uint64_t value : values) {
    if (value >> 62 != 0) return {};
    search.values.push_back(static_cast<std::int64_t>(value));
  }
  search.run();
  return std::move(search.found);
}

}  // namespace berth::internal::replay
