// The lines that `berth run` and its workers exchange. A line is the hexadecimal form of CBOR, because paths and the
// names in a model need not be UTF-8, which JSON would demand. Any thread may call.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace berth::cli {

// One line, without its end. O(bytes).
std::string encode_message(const nlohmann::json& message);

// The message of a line; is_discarded() if it is none. O(bytes).
nlohmann::json decode_message(std::string_view line);

}  // namespace berth::cli
