#include "devices/webgpu/webgpu_wgsl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <utility>

namespace berth::internal::webgpu {
namespace {

constexpr std::uint32_t kNone = 0xffffffff;

// Replaces comments by blanks, so that positions stay those of the text.
std::string without_comments(std::string_view code) {
  std::string text(code);
  std::size_t at = 0;
  const auto blank = [&](std::size_t count) {
    for (; count > 0 && at < text.size(); --count, ++at)
      if (text[at] != '\n') text[at] = ' ';
  };
  while (at < text.size()) {
    if (text.compare(at, 2, "//") == 0) {
      while (at < text.size() && text[at] != '\n') blank(1);
    } else if (text.compare(at, 2, "/*") == 0) {
      int depth = 0;
      do {
        const int step = text.compare(at, 2, "/*") == 0 ? 1 : text.compare(at, 2, "*/") == 0 ? -1 : 0;
        depth += step;
        blank(step == 0 ? 1 : 2);
      } while (depth > 0 && at < text.size());
    } else {
      ++at;
    }
  }
  return text;
}

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  void skip_blanks() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool at_end() {
    skip_blanks();
    return at_ >= text_.size();
  }
  std::size_t position() const noexcept { return at_; }
  bool take(char c) {
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip_one() { ++at_; }
  std::string_view word() {
    skip_blanks();
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_'))
      ++at_;
    return text_.substr(begin, at_ - begin);
  }
  // "(7)" or "(7u,)"
  std::optional<std::uint32_t> number() {
    if (!take('(')) return std::nullopt;
    const std::string_view digits = word();
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end == digits.data()) return std::nullopt;
    take(',');
    return take(')') ? std::optional(value) : std::nullopt;
  }
  std::size_t line(std::size_t position) const {
    return 1 + static_cast<std::size_t>(
                   std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(position), '\n'));
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

Error refuse(std::size_t line, std::string_view what) {
  return Error::with_text(Code::kInvalidArgument, Layer::kDevice, fmt::format("WGSL line {}: {}", line, what));
}

}  // namespace

Result<std::vector<WgslBinding>> wgsl_bindings(std::string_view code) {
  const std::string text = without_comments(code);
  Scanner scan(text);
  std::vector<WgslBinding> found;
  std::uint32_t group = 0, binding = kNone;
  while (!scan.at_end()) {
    if (scan.take('@')) {
      const std::size_t line = scan.line(scan.position());
      const std::string_view name = scan.word();
      if (name != "group" && name != "binding") continue;
      const auto value = scan.number();
      if (!value) return refuse(line, fmt::format("@{} takes a plain number here", name));
      (name == "group" ? group : binding) = *value;
      continue;
    }
    const std::string_view word = scan.word();
    if (word.empty()) {
      scan.skip_one();
      continue;
    }
    if (word != "var" || binding == kNone) continue;
    const std::size_t line = scan.line(scan.position());
    if (group != 0) return refuse(line, fmt::format("a binding of group {}: Berth binds group 0 only", group));
    WgslBinding entry{.binding = std::exchange(binding, kNone)};
    if (!scan.take('<')) return refuse(line, "a binding that is not a buffer: Berth binds storage and uniform buffers");
    scan.skip_blanks();
    const std::size_t begin = scan.position();
    const std::string_view space = scan.word();
    entry.space_at = begin;
    if (space == "uniform") {
      entry.kind = WgslBinding::Kind::kUniform;
    } else if (space == "storage") {
      std::string_view access = "read";
      if (scan.take(',')) access = scan.word();
      entry.kind = access == "read" ? WgslBinding::Kind::kRead : WgslBinding::Kind::kReadWrite;
    } else {
      return refuse(line, fmt::format("a binding in address space \"{}\": Berth binds storage and uniform", space));
    }
    entry.space_length = scan.position() - begin;
    if (!scan.take('>')) return refuse(line, "var<...> is not closed where expected");
    found.push_back(entry);
  }
  std::sort(found.begin(), found.end(),
            [](const WgslBinding& a, const WgslBinding& b) { return a.binding < b.binding; });
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::size_t line = scan.line(found[i].space_at);
    if (found[i].binding != i)
      return refuse(line, fmt::format("binding {} where {} was expected: number the bindings from 0 without gaps",
                                      found[i].binding, i));
    if (found[i].kind == WgslBinding::Kind::kUniform && i + 1 != found.size())
      return refuse(line, "the uniform (a launch's constants) must be the last binding");
  }
  return found;
}

std::string wgsl_all_writable(std::string_view code, const std::vector<WgslBinding>& bindings) {
  std::string text(code);
  std::vector<WgslBinding> backwards(bindings);
  std::sort(backwards.begin(), backwards.end(),
            [](const WgslBinding& a, const WgslBinding& b) { return a.space_at > b.space_at; });
  for (const WgslBinding& binding : backwards)
    if (binding.kind == WgslBinding::Kind::kRead)
      text.replace(binding.space_at, binding.space_length, "storage, read_write");
  return text;
}

}  // namespace berth::internal::webgpu
