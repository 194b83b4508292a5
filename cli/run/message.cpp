#include "run/message.h"

#include <cstdint>
#include <string>

namespace berth::cli {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

std::string encode_message(const nlohmann::json& message) {
  std::string line;
  for (const std::uint8_t byte : nlohmann::json::to_cbor(message)) {
    line += kDigits[byte >> 4];
    line += kDigits[byte & 15];
  }
  return line;
}

nlohmann::json decode_message(std::string_view line) {
  const nlohmann::json none(nlohmann::json::value_t::discarded);
  if (line.size() % 2 != 0) return none;
  std::string bytes;  // of char: the reader needs std::char_traits, which a Mac has only for characters
  bytes.reserve(line.size() / 2);
  for (std::size_t i = 0; i < line.size(); i += 2) {
    const std::size_t high = kDigits.find(line[i]), low = kDigits.find(line[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return none;
    bytes.push_back(static_cast<char>(high << 4 | low));
  }
  return nlohmann::json::from_cbor(bytes, true, false);
}

}  // namespace berth::cli
