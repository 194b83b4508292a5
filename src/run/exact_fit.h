// Exact functions of a few integers, found from samples: the arithmetic under ShapeModel. A function is a sum of
// monomials with rational coefficients, where a monomial is a product of forms, and a form is a variable or a variable
// divided by a small number and rounded: (x + c) / s, where c is negative for convolutions without padding. All
// arithmetic is on integers and cannot overflow unnoticed: a function whose numbers become too large is no function
// that was found. Plain values; any thread may call.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace berth::internal::replay {

__extension__ typedef __int128 Wide;

// floor((x + add) / divide). A negative x is no dimension and gives 0, as what would be negative does.
struct Form {
  std::int32_t divide = 1;
  std::int32_t add = 0;

  std::int64_t operator()(std::int64_t x) const noexcept { return x < 0 || x < -add ? 0 : (x + add) / divide; }
  friend bool operator==(const Form&, const Form&) = default;
};

inline constexpr std::size_t kMaxVariables = 4;

// The product of powers of the forms of all variables.
struct Monomial {
  std::array<std::uint8_t, kMaxVariables> power{};
  friend bool operator==(const Monomial&, const Monomial&) = default;
};

struct ExactFunction {
  std::array<Form, kMaxVariables> forms{};
  std::vector<Monomial> monomials;
  std::vector<Wide> numerators;  // one for each monomial
  Wide denominator = 1;

  // The value at `point` (one number for each variable). Nothing if it is not a positive whole number below 2^62, which
  // the bytes of a request always are: the function is then not the one that was looked for.
  // With `round_up` it need not be whole.
  std::optional<std::uint64_t> operator()(std::span<const std::int64_t> point, bool round_up = false) const noexcept;
  // It can be seen that the function never falls when a variable rises.
  bool monotone() const noexcept;
};

// Finds functions from samples at given points. What does not depend on the values is computed once, so that many
// values at the same points are fitted quickly. For one thread at a time.
class FunctionFinder {
 public:
  static constexpr std::size_t kMaxPoints = 16;

  // Requires: at most kMaxPoints points, of the same size, at most kMaxVariables.
  explicit FunctionFinder(std::vector<std::vector<std::int64_t>> points);

  // All functions of the simplest kind that give values[i] at point i for every i, at most `limit` of them. Simplest
  // means fewest monomials; there must be at least one sample more than monomials, so that none fits by construction.
  // Empty if there is none, or if the search for one was given up. Requires: one positive value for each point.
  std::vector<ExactFunction> fit(std::span<const std::uint64_t> values, std::size_t limit);

  const std::vector<std::vector<std::int64_t>>& points() const noexcept { return points_; }

 private:
  struct Columns {
    bool made = false;
    std::vector<Monomial> monomials;
    std::vector<std::vector<std::int64_t>> values;  // one for each monomial, at every point
  };
  using Forms = std::array<Form, kMaxVariables>;
  struct Search;

  // Over all calls of fit(): some tens of milliseconds.
  static constexpr std::size_t kMaxTriedInAll = 100'000;

  const Columns& columns(std::size_t set);

  std::vector<std::vector<std::int64_t>> points_;
  std::size_t variables_;
  std::size_t usual_sets_ = 0;
  std::size_t tried_ = 0;
  std::vector<Forms> sets_;  // the first has no rounding
  std::vector<Monomial> monomials_;
  std::vector<Columns> columns_;  // one for each of sets_
};

// The coefficients (with one denominator) of the linear combination of `columns` that is `values`, row by row. Nothing
// if there is none, if it is not unique, or if the numbers become too large. Requires: at most kMaxColumns columns of
// at most FunctionFinder::kMaxPoints rows.
inline constexpr std::size_t kMaxColumns = 6;
struct Combination {
  std::vector<Wide> numerators;
  Wide denominator = 1;
};
std::optional<Combination> combine(std::span<const std::span<const std::int64_t>> columns,
                                   std::span<const std::int64_t> values);

}  // namespace berth::internal::replay
