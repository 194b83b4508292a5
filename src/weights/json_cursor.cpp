#include "weights/json_cursor.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "base/try.h"
#include "base/utf8.h"

namespace berth::internal::formats {
namespace {

constexpr std::uint64_t kOnes = 0x0101010101010101u;
constexpr std::uint64_t kHighs = 0x8080808080808080u;

// High bits set in the bytes of `word` that end a plain run: quote, backslash, control or non-ASCII.
std::uint64_t special_bytes(std::uint64_t word) noexcept {
  const std::uint64_t quote = word ^ (kOnes * '"');
  const std::uint64_t slash = word ^ (kOnes * '\\');
  // (x - 0x01..) & ~x marks zero bytes; (word - 0x20..) & ~word marks bytes below 0x20. Borrows can only mark
  // bytes after a true one, and only the first is used.
  return (((quote - kOnes) & ~quote) | ((slash - kOnes) & ~slash) | ((word - kOnes * 0x20) & ~word) | word) & kHighs;
}

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Four hexadecimal digits; -1 when they are not. The padding ends a short one.
int hex4(const char* at) noexcept {
  int value = 0;
  for (int i = 0; i < 4; ++i) {
    const int digit = hex_digit(at[i]);
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

char* append_utf8(char* out, unsigned point) noexcept {
  const auto put = [&](unsigned byte) { *out++ = static_cast<char>(byte); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xC0 | point >> 6);
    put(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    put(0xE0 | point >> 12);
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  } else {
    put(0xF0 | point >> 18);
    put(0x80 | (point >> 12 & 0x3F));
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  }
  return out;
}

}  // namespace

Error JsonCursor::error_at(const char* at, std::string_view message) const {
  const std::uint64_t offset = place_ + static_cast<std::uint64_t>(at - begin_);
  return Error::with_text(Code::kInvalidData, Layer::kFormat,
                          at >= end_ ? fmt::format("{} at byte {}: {} (the JSON ends here)", format_, offset, message)
                                     : fmt::format("{} at byte {}: {}", format_, offset, message));
}

Result<void> JsonCursor::expect(char wanted, const char* where) {
  if (take(wanted)) return {};
  return error_at(at_, fmt::format("expected '{}' {}", wanted, where));
}

Result<std::string_view> JsonCursor::string() {
  skip_space();
  if (*at_ != '"') return error("expected a string in double quotes");
  const char* const first = ++at_;
  bool ascii = true;
  for (;;) {
    std::uint64_t word;
    std::memcpy(&word, at_, 8);
    const std::uint64_t special = special_bytes(word);
    if (special == 0) {
      at_ += 8;
      continue;
    }
    at_ += std::countr_zero(special) / 8;
    const unsigned char c = static_cast<unsigned char>(*at_);
    if (c == '"') break;
    if (c == '\\') return unescape(first);
    if (c < 0x20) return error(at_ >= end_ ? "a string does not end" : "a control character inside a string");
    ascii = false;
    while (static_cast<unsigned char>(*at_) >= 0x80) ++at_;
  }
  const std::string_view text(first, static_cast<std::size_t>(at_ - first));
  if (!ascii) {
    if (const std::size_t bad = first_invalid_utf8(text); bad != text.size())
      return error_at(first + bad, "a string is not UTF-8");
  }
  ++at_;
  return text;
}

// `first` is the string's first character; at_ is at its first backslash.
Result<std::string_view> JsonCursor::unescape(const char* first) {
  const char* closing = at_;
  while (*closing != '"') {
    if (static_cast<unsigned char>(*closing) < 0x20)
      return error_at(closing, closing >= end_ ? "a string does not end" : "a control character inside a string");
    closing += *closing == '\\' && closing[1] != '\0' ? 2 : 1;
  }
  if (const std::string_view raw(first, static_cast<std::size_t>(closing - first)); true) {
    if (const std::size_t bad = first_invalid_utf8(raw); bad != raw.size())
      return error_at(first + bad, "a string is not UTF-8");
  }
  // An unescaped string is never longer than its escaped form.
  const std::span<char> room = keep_.own_name(static_cast<std::size_t>(closing - first));
  char* out = room.data();
  for (const char* in = first; in != closing;) {
    if (*in != '\\') {
      *out++ = *in++;
      continue;
    }
    const char kind = in[1];
    const char* const escape = in;
    in += 2;
    switch (kind) {
      case '"':
      case '\\':
      case '/': *out++ = kind; break;
      case 'b': *out++ = '\b'; break;
      case 'f': *out++ = '\f'; break;
      case 'n': *out++ = '\n'; break;
      case 'r': *out++ = '\r'; break;
      case 't': *out++ = '\t'; break;
      case 'u': {
        const int unit = hex4(in);
        if (unit < 0) return error_at(escape, "\\u needs four hexadecimal digits");
        in += 4;
        unsigned point = static_cast<unsigned>(unit);
        if (point >= 0xD800 && point <= 0xDFFF) {
          const int low = point < 0xDC00 && in[0] == '\\' && in[1] == 'u' ? hex4(in + 2) : -1;
          if (low < 0xDC00 || low > 0xDFFF) return error_at(escape, "half of a surrogate pair is not a character");
          point = 0x10000 + ((point - 0xD800) << 10) + (static_cast<unsigned>(low) - 0xDC00);
          in += 6;
        }
        out = append_utf8(out, point);
        break;
      }
      default: return error_at(escape, "an unknown escape in a string");
    }
  }
  at_ = closing + 1;
  return std::string_view(room.data(), static_cast<std::size_t>(out - room.data()));
}

Result<std::uint64_t> JsonCursor::integer() {
  skip_space();
  const char* const first = at_;
  if (*at_ < '0' || *at_ > '9') return error("expected a non-negative integer");
  std::uint64_t value = 0;
  while (*at_ >= '0' && *at_ <= '9') {
    if (__builtin_mul_overflow(value, std::uint64_t{10}, &value) ||
        __builtin_add_overflow(value, static_cast<std::uint64_t>(*at_ - '0'), &value))
      return error_at(first, "an integer does not fit 64 bits");
    ++at_;
  }
  if (*first == '0' && at_ - first > 1) return error_at(first, "an integer begins with 0");
  if (*at_ == '.' || *at_ == 'e' || *at_ == 'E') return error_at(first, "expected an integer, not a fraction");
  return value;
}

bool JsonCursor::take_short_integer(std::uint64_t& value) noexcept {
  const char* at = at_;
  std::uint64_t read = 0;
  while (*at >= '0' && *at <= '9' && at - at_ < 18) read = read * 10 + static_cast<std::uint64_t>(*at++ - '0');
  const bool usual = at != at_ && (*at_ != '0' || at - at_ == 1);
  if (!usual) return false;
  at_ = at;
  value = read;
  return true;
}

Result<void> JsonCursor::skip_number() {
  const char* const first = at_;
  const auto digits = [&] {
    const char* const from = at_;
    while (*at_ >= '0' && *at_ <= '9') ++at_;
    return at_ != from;
  };
  if (*at_ == '-') ++at_;
  const char* const whole = at_;
  bool good = digits() && !(*whole == '0' && at_ - whole > 1);
  if (good && *at_ == '.') {
    ++at_;
    good = digits();
  }
  if (good && (*at_ == 'e' || *at_ == 'E')) {
    ++at_;
    if (*at_ == '+' || *at_ == '-') ++at_;
    good = digits();
  }
  if (!good) return error_at(first, "expected a JSON value");
  return {};
}

Result<void> JsonCursor::skip_scalar() {
  if (*at_ == '"') {
    BERTH_TRY(string());
    return {};
  }
  for (const std::string_view word : {"true", "false", "null"}) {
    if (static_cast<std::size_t>(end_ - at_) >= word.size() && std::string_view(at_, word.size()) == word) {
      at_ += word.size();
      return {};
    }
  }
  return skip_number();
}

Result<void> JsonCursor::skip_value() {
  std::uint64_t objects = 0;  // bit d: level d is an object
  static_assert(kMaxDepth <= 64);
  int depth = 0;
  for (;;) {
    // Here a value is expected, or the end of a container that was just opened.
    skip_space();
    if (*at_ == '{' || *at_ == '[') {
      if (depth == kMaxDepth) return error("the JSON is nested more than 64 deep");
      const bool object = *at_++ == '{';
      const std::uint64_t bit = std::uint64_t{1} << depth++;
      objects = object ? objects | bit : objects & ~bit;
      if (!take(object ? '}' : ']')) {
        if (object) {
          BERTH_TRY(string());
          BERTH_TRY(expect(':', "after a key"));
        }
        continue;
      }
      --depth;
    } else {
      BERTH_TRY(skip_scalar());
    }
    // A value has ended: close what ends with it, then go to the next.
    for (;;) {
      if (depth == 0) return {};
      const bool object = (objects >> (depth - 1) & 1) != 0;
      if (take(',')) {
        if (object) {
          BERTH_TRY(string());
          BERTH_TRY(expect(':', "after a key"));
        }
        break;
      }
      BERTH_TRY(expect(object ? '}' : ']', "or ',' after a value"));
      --depth;
    }
  }
}

Result<void> JsonCursor::finish() {
  skip_space();
  if (at_ != end_) return error("expected nothing after the outermost '}'");
  return {};
}

}  // namespace berth::internal::formats
