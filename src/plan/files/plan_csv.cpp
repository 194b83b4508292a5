// Planning problems as CSV. Quoted fields ("a ""b""") are supported, a byte order mark and carriage returns are
// skipped, and blank lines are ignored.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <charconv>
#include <limits>
#include <unordered_map>

#include "base/input_file.h"
#include "base/try.h"
#include "berth/plan/plan_files.h"

namespace berth {
namespace {

constexpr std::array<std::string_view, 10> kColumnNames = {"id",     "lower", "upper", "size",  "alignment",
                                                           "offset", "gaps",  "hint",  "label", "bank"};
constexpr std::size_t kRequiredColumns = 4;
constexpr std::uint32_t kMostBanks = 1024;

struct Field {
  std::string_view text;   // without quotes and surrounding blanks
  std::size_t column = 1;  // of its first character
  bool doubled = false;    // contains "" for "
};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// A piece of the file for an error message: short, and without control characters.
std::string shown(std::string_view text) {
  if (text.empty()) return "nothing";
  std::string out = "\"";
  for (const char c : text.substr(0, 40)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F)
      out += '?';
    else
      out += c;
  }
  return out + (text.size() > 40 ? "...\"" : "\"");
}

std::string unescaped(const Field& field) {
  std::string out(field.text);
  if (!field.doubled) return out;
  for (std::size_t at = out.find("\"\""); at != std::string::npos; at = out.find("\"\"", at + 1)) out.erase(at, 1);
  return out;
}

class Reader {
 public:
  Reader(std::string_view text, std::string_view file) : text_(text), file_(file) {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
  }

  Result<PlanTable> read() {
    do {
      if (at_ >= text_.size()) return error(1, "expected a header such as id,lower,upper,size, found an empty file");
      BERTH_TRY(next_row());
    } while (row_is_blank());
    BERTH_TRY(read_header());
    while (at_ < text_.size()) {
      BERTH_TRY(next_row());
      if (row_is_blank()) continue;
      BERTH_TRY(read_row());
    }
    if (last_bank_ > 0) {
      for (std::uint32_t bank = 0; bank <= last_bank_; ++bank)
        table_.problem.banks.push_back({.name = "bank " + std::to_string(bank), .capacity = 0});
    }
    return std::move(table_);
  }

 private:
  Error error(std::size_t column, const std::string& text) const {
    return Error::with_text(Code::kInvalidData, Layer::kFormat,
                            fmt::format("{}:{}:{}: {}", file_, std::max<std::size_t>(line_, 1), column, text));
  }
  Error unexpected(const Field& field, const std::string& expected) const {
    return error(field.column, fmt::format("expected {}, found {}", expected, shown(field.text)));
  }

  bool row_is_blank() const { return fields_.size() == 1 && fields_[0].text.empty(); }

  // Splits one line into fields_. A quoted field may contain commas, but no line break.
  Result<void> next_row() {
    ++line_;
    fields_.clear();
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    std::string_view line = text_.substr(at_, end - at_);
    at_ = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    for (std::size_t start = 0;;) {
      std::size_t first = start;
      while (first < line.size() && (line[first] == ' ' || line[first] == '\t')) ++first;
      if (first < line.size() && line[first] == '"') {
        Field field{{}, first + 1, false};
        std::size_t close = first + 1;
        while (true) {
          close = line.find('"', close);
          if (close == std::string_view::npos) return error(first + 1, "expected a closing quote before the line ends");
          if (close + 1 >= line.size() || line[close + 1] != '"') break;
          field.doubled = true;
          close += 2;
        }
        field.text = line.substr(first + 1, close - first - 1);
        std::size_t after = close + 1;
        while (after < line.size() && (line[after] == ' ' || line[after] == '\t')) ++after;
        fields_.push_back(field);
        if (after >= line.size()) return {};
        if (line[after] != ',')
          return error(after + 1,
                       fmt::format("expected a comma after the closing quote, found {}", shown(line.substr(after, 1))));
        start = after + 1;
      } else {
        const std::size_t comma = std::min(line.find(',', start), line.size());
        const std::string_view raw = trimmed(line.substr(start, comma - start));
        fields_.push_back({raw, raw.empty() ? start + 1 : first + 1, false});
        if (comma >= line.size()) return {};
        start = comma + 1;
      }
    }
  }

  Result<void> read_header() {
    std::array<bool, kColumnNames.size()> seen{};
    for (const Field& field : fields_) {
      std::size_t which = 0;
      while (which < kColumnNames.size() && kColumnNames[which] != field.text) ++which;
      if (which == kColumnNames.size())
        return unexpected(field,
                          "one of the columns id, lower, upper, size, alignment, offset, gaps, hint, label, bank");
      if (seen[which]) return error(field.column, fmt::format("the column {} is there twice", field.text));
      seen[which] = true;
      table_.columns.push_back(static_cast<PlanColumn>(which));
    }
    for (std::size_t i = 0; i < kRequiredColumns; ++i)
      if (!seen[i])
        return error(1, fmt::format("expected a column {} in the header; id, lower, upper and size must all be there",
                                    kColumnNames[i]));
    return {};
  }

  template <class Number>
  Result<Number> number(const Field& field, std::string_view what) const {
    Number value{};
    const char* const end = field.text.data() + field.text.size();
    const auto [stop, failure] = std::from_chars(field.text.data(), end, value);
    if (failure == std::errc::result_out_of_range)
      return unexpected(field, fmt::format("{} up to {}", what, std::numeric_limits<Number>::max()));
    if (failure != std::errc{} || stop != end) return unexpected(field, std::string(what));
    return value;
  }

  Result<std::vector<LevelRange>> gaps(const Field& field, const Lifetime& life) const {
    std::vector<LevelRange> out;
    const char* at = field.text.data();
    const char* const end = at + field.text.size();
    std::int64_t free_from = life.first;
    while (at != end) {
      const Field rest{{at, static_cast<std::size_t>(end - at)},
                       field.column + static_cast<std::size_t>(at - field.text.data()),
                       false};
      LevelRange gap;
      const auto [dash, bad_first] = std::from_chars(at, end, gap.first);
      if (bad_first != std::errc{} || dash == end || *dash != '-') return unexpected(rest, "gaps such as \"3-5 7-8\"");
      const auto [stop, bad_last] = std::from_chars(dash + 1, end, gap.last);
      if (bad_last != std::errc{} || (stop != end && *stop != ' ')) return unexpected(rest, "gaps such as \"3-5 7-8\"");
      if (gap.first < free_from || gap.first >= gap.last || gap.last > life.last)
        return unexpected(
            rest, fmt::format("gaps in ascending order, disjoint, inside the life [{}, {})", life.first, life.last));
      free_from = gap.last;
      out.push_back(gap);
      at = stop;
      while (at != end && *at == ' ') ++at;
    }
    return out;
  }

  Result<void> read_row() {
    if (fields_.size() != table_.columns.size())
      return error(fields_.size() < table_.columns.size() ? 1 : fields_[table_.columns.size()].column,
                   fmt::format("expected {} fields as in the header, found {}", table_.columns.size(), fields_.size()));
    Lifetime life;
    const Field* lower = nullptr;
    const Field* upper = nullptr;
    const Field* gap_field = nullptr;
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      const Field& field = fields_[i];
      switch (table_.columns[i]) {
        case PlanColumn::kId: {
          if (field.text.empty()) return unexpected(field, "an id");
          const auto [first, fresh] = lines_.try_emplace(field.text, line_);
          if (!fresh)
            return error(field.column, fmt::format("expected an id of its own, found {} again, which line {} has",
                                                   shown(field.text), first->second));
          table_.ids.push_back(unescaped(field));
          break;
        }
        case PlanColumn::kLower: {
          BERTH_TRY_ASSIGN(life.first, number<std::int64_t>(field, "a whole number for lower"));
          lower = &field;
          break;
        }
        case PlanColumn::kUpper: {
          BERTH_TRY_ASSIGN(life.last, number<std::int64_t>(field, "a whole number for upper"));
          upper = &field;
          break;
        }
        case PlanColumn::kSize: {
          BERTH_TRY_ASSIGN(life.bytes, number<std::uint64_t>(field, "a whole number of bytes for size"));
          break;
        }
        case PlanColumn::kAlignment: {
          if (field.text.empty()) break;
          BERTH_TRY_ASSIGN(life.alignment, number<std::uint64_t>(field, "a power of two for alignment"));
          if (!std::has_single_bit(life.alignment)) return unexpected(field, "a power of two for alignment");
          break;
        }
        case PlanColumn::kOffset: {
          if (field.text.empty()) break;
          BERTH_TRY_ASSIGN(life.offset, number<std::uint64_t>(field, "a whole number of bytes for offset, or nothing"));
          break;
        }
        case PlanColumn::kGaps: gap_field = &field; break;
        case PlanColumn::kHint: {
          if (field.text.empty()) break;
          BERTH_TRY_ASSIGN(life.hint, number<std::uint64_t>(field, "a whole number of bytes for hint, or nothing"));
          break;
        }
        case PlanColumn::kLabel: life.label = unescaped(field); break;
        case PlanColumn::kBank: {
          if (field.text.empty()) break;
          BERTH_TRY_ASSIGN(life.bank, number<std::uint32_t>(field, "the number of a bank, from 0"));
          if (*life.bank >= kMostBanks) return unexpected(field, fmt::format("a bank below {}", kMostBanks));
          last_bank_ = std::max(last_bank_, *life.bank);
          break;
        }
      }
    }
    if (life.last <= life.first)
      return unexpected(*upper, fmt::format("upper to be more than lower, which is {}", shown(lower->text)));
    if (gap_field != nullptr && !gap_field->text.empty()) {
      BERTH_TRY_ASSIGN(life.gaps, gaps(*gap_field, life));
    }
    table_.problem.lifetimes.push_back(std::move(life));
    return {};
  }

  std::string_view text_;
  std::string_view file_;
  std::size_t at_ = 0;
  std::size_t line_ = 0;
  std::vector<Field> fields_;
  std::unordered_map<std::string_view, std::size_t> lines_;  // of ids
  std::uint32_t last_bank_ = 0;
  PlanTable table_;
};

void append_text(std::string& out, std::string_view text) {
  const bool plain = text.find_first_of(",\"") == std::string_view::npos && trimmed(text) == text;
  if (plain) {
    out += text;
    return;
  }
  out += '"';
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  out += '"';
}

template <class Number>
void append_number(std::string& out, Number value) {
  std::array<char, 24> digits;
  const auto [end, failure] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  out.append(digits.data(), end);
}

std::string format_table(const PlanTable& table, const MemoryPlan* plan) {
  std::vector<PlanColumn> columns = table.columns;
  const bool adds_offset =
      plan != nullptr && std::find(columns.begin(), columns.end(), PlanColumn::kOffset) == columns.end();
  if (adds_offset) columns.push_back(PlanColumn::kOffset);
  const bool adds_block = plan != nullptr && plan->blocks.size() > 1;
  std::string out;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (i > 0) out += ',';
    out += to_string(columns[i]);
  }
  out += adds_block ? ",block\n" : "\n";
  for (std::size_t node = 0; node < table.problem.lifetimes.size(); ++node) {
    const Lifetime& life = table.problem.lifetimes[node];
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (i > 0) out += ',';
      switch (columns[i]) {
        case PlanColumn::kId: append_text(out, table.ids[node]); break;
        case PlanColumn::kLower: append_number(out, life.first); break;
        case PlanColumn::kUpper: append_number(out, life.last); break;
        case PlanColumn::kSize: append_number(out, life.bytes); break;
        case PlanColumn::kAlignment: append_number(out, life.alignment); break;
        case PlanColumn::kOffset:
          if (plan == nullptr) {
            if (life.offset) append_number(out, *life.offset);
          } else if (plan->has(node)) {
            append_number(out, plan->slots[node].offset);
          }
          break;
        case PlanColumn::kGaps:
          for (std::size_t g = 0; g < life.gaps.size(); ++g) {
            if (g > 0) out += ' ';
            append_number(out, life.gaps[g].first);
            out += '-';
            append_number(out, life.gaps[g].last);
          }
          break;
        case PlanColumn::kHint:
          if (life.hint) append_number(out, *life.hint);
          break;
        case PlanColumn::kLabel: append_text(out, life.label); break;
        case PlanColumn::kBank:
          if (life.bank) append_number(out, *life.bank);
          break;
      }
    }
    if (adds_block) {
      out += ',';
      if (plan->has(node)) append_number(out, plan->slots[node].block);
    }
    out += '\n';
  }
  return out;
}

}  // namespace

std::string_view to_string(PlanColumn column) noexcept {
  return kColumnNames[static_cast<std::size_t>(column)];
}

Result<PlanTable> parse_plan_csv(std::string_view text, std::string_view file) {
  return Reader(text, file).read();
}

Result<PlanTable> read_plan_csv(const std::string& path) {
  const Result<std::string> text = internal::read_whole_file(path);
  if (!text) {
    // The header promises kIo for a file that is not there.
    const Code code = text.error().code() == Code::kNotFound ? Code::kIo : text.error().code();
    return Error::with_text(code, Layer::kFormat, text.error().message());
  }
  return parse_plan_csv(*text, path);
}

std::string format_plan_csv(const PlanTable& table) {
  return format_table(table, nullptr);
}

std::string format_plan_csv(const PlanTable& table, const MemoryPlan& plan) {
  return format_table(table, &plan);
}

}  // namespace berth
