#include "remote/shard_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/input_file.h"
#include "base/try.h"
#include "base/utf8.h"
#include "berth/remote/sharding.h"

namespace berth {
namespace {

constexpr std::uint64_t kMostText = std::uint64_t{16} << 20;

Error wrong(std::size_t line, const std::string& what) {
  return Error::with_text(Code::kInvalidData, Layer::kFormat, fmt::format("line {} of the rules: {}", line, what));
}

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

// Takes one word off the front of `text`; empty at its end and before a comment.
std::string_view next_word(std::string_view& text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  if (text == "#" || text.starts_with("# ") || text.starts_with("#\t") || text.starts_with("#\r")) text = {};
  const std::size_t end = static_cast<std::size_t>(std::ranges::find_if(text, is_blank) - text.begin());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}

std::optional<ShardKind> kind_of(std::string_view word) {
  for (const ShardKind kind : {ShardKind::kReplicated, ShardKind::kRow, ShardKind::kColumn, ShardKind::kExpert})
    if (to_string(kind) == word) return kind;
  return std::nullopt;
}

}  // namespace

std::string_view to_string(ShardKind kind) noexcept {
  switch (kind) {
    case ShardKind::kReplicated: return "replicated";
    case ShardKind::kRow: return "row";
    case ShardKind::kColumn: return "column";
    case ShardKind::kExpert: return "expert";
  }
  return "unknown";
}

Result<std::vector<ShardRule>> parse_shard_rules(std::string_view text) {
  std::vector<ShardRule> rules;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view rest = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string_view pattern = next_word(rest);
    if (pattern.empty()) continue;
    const std::string_view kind_word = next_word(rest);
    const std::optional<ShardKind> kind = kind_of(kind_word);
    if (!kind)
      return wrong(line,
                   fmt::format("{} after the pattern {}; write replicated, row, column or expert",
                               kind_word.empty() ? "nothing" : internal::quoted(kind_word), internal::quoted(pattern)));
    ShardRule rule{.pattern = std::string(pattern), .kind = *kind};
    if (const std::string_view word = next_word(rest); !word.empty()) {
      const std::string_view number = next_word(rest);
      const auto [stop, failure] = std::from_chars(number.data(), number.data() + number.size(), rule.unit);
      if (word != "unit" || failure != std::errc() || stop != number.data() + number.size() || rule.unit == 0)
        return wrong(line,
                     fmt::format("{} is not understood; a rule may end with \"unit NUMBER\", the number at least 1",
                                 internal::quoted(fmt::format("{}{}{}", word, number.empty() ? "" : " ", number))));
      if (const std::string_view more = next_word(rest); !more.empty())
        return wrong(line, fmt::format("{} is too much; a comment begins with \"# \"", internal::quoted(more)));
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

Result<std::vector<ShardRule>> read_shard_rules(const std::string& path) {
  BERTH_TRY_ASSIGN(const std::string text, internal::read_whole_file(path, kMostText));
  auto rules = parse_shard_rules(text);
  if (!rules)
    return Error::with_text(rules.error().code(), Layer::kFormat, fmt::format("{}: {}", path, rules.error().message()));
  return rules;
}

std::string to_string(std::span<const ShardRule> rules) {
  std::string text;
  for (const ShardRule& rule : rules) {
    text += fmt::format("{} {}", rule.pattern, to_string(rule.kind));
    if (rule.unit != 1) text += fmt::format(" unit {}", rule.unit);
    text += '\n';
  }
  return text;
}

namespace internal {

bool fits(std::string_view pattern, std::string_view name, std::optional<std::uint64_t>& number) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t p = 0, n = 0;
  // Where to go back to: behind the last '*', and one more character of the name for it.
  std::optional<std::size_t> star;
  std::size_t taken = 0;
  std::optional<std::uint64_t> found;
  while (n < name.size() || p < pattern.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      taken = n;
      continue;
    }
    // A '#' takes all digits of a number, and never begins inside one.
    if (p < pattern.size() && pattern[p] == '#' && n < name.size() && is_digit(name[n]) &&
        (n == 0 || !is_digit(name[n - 1]))) {
      std::size_t end = n;
      while (end < name.size() && is_digit(name[end])) ++end;
      std::uint64_t value = 0;
      if (std::from_chars(name.data() + n, name.data() + end, value).ec == std::errc()) {
        found = value;
        n = end;
        ++p;
        continue;
      }
    }
    if (p < pattern.size() && n < name.size() && pattern[p] != '#' && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
      continue;
    }
    if (!star || taken >= name.size()) return false;
    p = *star;
    n = ++taken;
  }
  if (found) number = found;
  return true;
}

}  // namespace internal
}  // namespace berth
