// A forward reader of JSON for headers of weight files: no tree, no copies, exact positions in errors. The text must be
// followed by TensorTable::kPadding zero bytes, which end every scan without a bounds check. Values that are not
// requested are skipped without recursion, down to kMaxDepth. For use by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "berth/base/result.h"
#include "weights/tensor_table.h"

namespace berth::internal::formats {

class JsonCursor {
 public:
  static constexpr int kMaxDepth = 64;

  // `place` is the offset of the text in its file, `format` names the format in messages, and `keep` owns unescaped
  // strings.
  JsonCursor(std::string_view text, std::uint64_t place, std::string_view format, TensorTable& keep) noexcept
      : begin_(text.data()),
        at_(text.data()),
        end_(text.data() + text.size()),
        place_(place),
        format_(format),
        keep_(keep) {}

  // True if the next token is `wanted`; consumes it then.
  bool take(char wanted) noexcept {
    skip_space();
    if (*at_ != wanted) return false;
    ++at_;
    return true;
  }
  Result<void> expect(char wanted, const char* where);
  // A string, unescaped, UTF-8. Most have no escapes and are views of the text.
  Result<std::string_view> string();
  // A non-negative integer of at most 64 bits: no sign, fraction, exponent or leading zero.
  Result<std::uint64_t> integer();
  // Any value, well-formed. Checks strings as string() does.
  Result<void> skip_value();
  // Requires that only white space is left.
  Result<void> finish();

  // For forms that are known letter for letter. Each consumes what it takes, skips no white space, and leaves the
  // cursor where it was when something else comes next, which need not be an error: return_to() and the calls above
  // tell. Requires of `text`: at most TensorTable::kPadding characters.
  bool take_exactly(std::string_view text) noexcept {
    if (std::memcmp(at_, text.data(), text.size()) != 0) return false;
    at_ += text.size();
    return true;
  }
  // An integer of at most 18 digits, so that it cannot overflow.
  bool take_short_integer(std::uint64_t& value) noexcept;
  void return_to(const char* position) noexcept { at_ = position; }

  Error error(const char* message) const { return error_at(at_, message); }
  Error error_at(const char* at, std::string_view message) const;
  const char* position() const noexcept { return at_; }

 private:
  void skip_space() noexcept {
    while (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t') ++at_;
  }
  Result<std::string_view> unescape(const char* first);
  Result<void> skip_scalar();
  Result<void> skip_number();

  const char* begin_;
  const char* at_;
  const char* end_;
  std::uint64_t place_;
  std::string_view format_;
  TensorTable& keep_;
};

}  // namespace berth::internal::formats
