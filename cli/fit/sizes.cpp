#include "fit/sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace berth::cli {
namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 62;

struct Unit {
  std::string_view name;
  std::uint64_t size;
};
constexpr std::array kByteUnits{
    Unit{"", 1},
    Unit{"B", 1},
    Unit{"KB", 1'000},
    Unit{"MB", 1'000'000},
    Unit{"GB", 1'000'000'000},
    Unit{"TB", 1'000'000'000'000},
    Unit{"KiB", std::uint64_t{1} << 10},
    Unit{"MiB", std::uint64_t{1} << 20},
    Unit{"GiB", std::uint64_t{1} << 30},
    Unit{"TiB", std::uint64_t{1} << 40},
};
constexpr std::array kCountUnits{
    Unit{"", 1},
    Unit{"k", 1024},
    Unit{"K", 1024},
    Unit{"M", 1024 * 1024},
};

// Digits, perhaps a point and up to nine more digits, and a unit. Nothing if it is not that, too large, or no whole
// number in the end.
template <std::size_t N>
std::optional<std::uint64_t> parse(std::string_view text, const std::array<Unit, N>& units) {
  std::uint64_t whole = 0, parts = 0, scale = 1;
  const char* const end = text.data() + text.size();
  auto [at, problem] = std::from_chars(text.data(), end, whole);
  if (problem != std::errc{}) return std::nullopt;
  if (at != end && *at == '.') {
    const char* const first = at + 1;
    const auto fraction = std::from_chars(first, end, parts);
    if (fraction.ec != std::errc{} || fraction.ptr - first > 9) return std::nullopt;
    for (const char* digit = first; digit != fraction.ptr; ++digit) scale *= 10;
    at = fraction.ptr;
  }
  const std::string_view name(at, static_cast<std::size_t>(end - at));
  const auto unit = std::find_if(units.begin(), units.end(), [&](const Unit& one) { return one.name == name; });
  if (unit == units.end() || (scale > 1 && unit->size == 1)) return std::nullopt;
  if (whole > kMost / unit->size) return std::nullopt;
  // parts < 10^9 and the largest unit is 2^40, so that the product fits only if taken in two steps.
  const std::uint64_t extra = unit->size / scale * parts + unit->size % scale * parts / scale;
  const std::uint64_t bytes = whole * unit->size + extra;
  if (bytes > kMost) return std::nullopt;
  return bytes;
}

Error refuse(std::string_view text, std::string_view forms) {
  return Error::with_text(Code::kInvalidArgument, Layer::kProgram, fmt::format("'{}' is not {}", text, forms));
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  if (const auto bytes = parse(text, kByteUnits)) return *bytes;
  return refuse(text, "a size such as 16GiB, 16GB, 512MiB or 1073741824");
}

Result<std::uint64_t> parse_count(std::string_view text) {
  if (const auto count = parse(text, kCountUnits); count && *count > 0) return *count;
  return refuse(text, "a number such as 32k (32768) or 4096");
}

}  // namespace berth::cli
