#include "base/utf8.h"

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace berth::internal {
namespace {

// The length of the well-formed sequence at the start of `text`; 0 if there is none.
std::size_t sequence_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const unsigned low = lead == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : 0xBF;
    return continues(1, low, high) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const unsigned low = lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xF4 ? 0x8F : 0xBF;
    return continues(1, low, high) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

// Whether a terminal takes this well-formed sequence for a command, or for one to change the order of what it shows: C0
// and C1 control characters, and the marks of bidirectional text.
bool is_command(std::string_view sequence) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(sequence[i]); };
  if (sequence.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7F;
  // U+0080 to U+009F, U+061C.
  if (sequence.size() == 2) return (byte(0) == 0xC2 && byte(1) < 0xA0) || (byte(0) == 0xD8 && byte(1) == 0x9C);
  if (sequence.size() != 3 || byte(0) != 0xE2) return false;
  // U+200E and U+200F, U+2028 to U+202E, U+2066 to U+2069.
  return (byte(1) == 0x80 && (byte(2) == 0x8E || byte(2) == 0x8F || (byte(2) >= 0xA8 && byte(2) <= 0xAE))) ||
         (byte(1) == 0x81 && byte(2) >= 0xA6 && byte(2) <= 0xA9);
}

// Appends the first sequence of `text` to `shown`, escaped if it is a command or malformed, and removes it from `text`.
void show_sequence(std::string& shown, std::string_view& text) {
  const std::size_t length = sequence_length(text);
  const std::size_t taken = length == 0 ? 1 : length;
  if (length != 0 && !is_command(text.substr(0, length))) {
    shown += text.substr(0, length);
  } else {
    for (const char c : text.substr(0, taken)) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      shown += escaped;
    }
  }
  text.remove_prefix(taken);
}

}  // namespace

std::size_t first_invalid_utf8(std::string_view text) noexcept {
  std::size_t at = 0;
  while (at < text.size()) {
    // Names are nearly always ASCII: eight bytes at a time.
    while (at + 8 <= text.size()) {
      std::uint64_t word;
      std::memcpy(&word, text.data() + at, 8);
      if ((word & 0x8080808080808080u) != 0) break;
      at += 8;
    }
    if (at == text.size()) break;
    const std::size_t length = sequence_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return text.size();
}

std::string quoted(std::string_view text, std::size_t limit) {
  const bool cut = text.size() > limit;
  if (cut) text = text.substr(0, limit);
  std::string shown = "\"";
  while (!text.empty()) {
    if (text[0] == '"' || text[0] == '\\') shown += '\\';
    show_sequence(shown, text);
  }
  shown += cut ? "...\"" : "\"";
  return shown;
}

std::string printable(std::string_view text, bool keep_lines) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    if (keep_lines && text[0] == '\n') {
      shown += '\n';
      text.remove_prefix(1);
    } else {
      show_sequence(shown, text);
    }
  }
  return shown;
}

}  // namespace berth::internal
