#include "vocabulary.h"

#include <algorithm>
#include <charconv>

#include "model.h"

namespace llama {

using berth::Code;
using berth::kv::Token;

namespace {

// A piece as it is written in the file: "▁" and "Ġ" are a space, "Ċ" a new line, "<0x0A>" one byte.
std::string bytes_of(std::string_view written) {
  unsigned byte = 0;
  if (written.size() == 6 && written.starts_with("<0x") &&
      std::from_chars(written.data() + 3, written.data() + 5, byte, 16).ptr == written.data() + 5)
    return std::string(1, static_cast<char>(byte));
  std::string result(written);
  for (const auto& [mark, meaning] : {std::pair("▁", " "), std::pair("Ġ", " "), std::pair("Ċ", "\n")})
    for (std::size_t at = 0; (at = result.find(mark, at)) != std::string::npos; ++at)
      result.replace(at, std::string_view(mark).size(), meaning);
  return result;
}

}  // namespace

Vocabulary::Vocabulary(const berth::WeightFile& file) {
  const berth::MetadataValue* list = file.find_metadata("tokenizer.ggml.tokens");
  if (list == nullptr) fail(Code::kNotFound, "the file has no tokenizer.ggml.tokens: give prompts as numbers");
  for (const berth::MetadataValue& piece : list->elements()) pieces_.push_back(bytes_of(piece.text()));
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    tokens_.emplace(pieces_[i], static_cast<Token>(i));
    longest_ = std::max(longest_, pieces_[i].size());
  }
}

std::vector<Token> Vocabulary::encode(std::string_view text) const {
  std::vector<Token> result;
  while (!text.empty()) {
    std::size_t length = std::min(longest_, text.size());
    while (length > 0 && !tokens_.contains(text.substr(0, length))) --length;
    if (length == 0) fail(Code::kInvalidArgument, "no token begins with \"" + std::string(text.substr(0, 8)) + "\"");
    result.push_back(tokens_.at(text.substr(0, length)));
    text.remove_prefix(length);
  }
  return result;
}

std::string Vocabulary::decode(std::span<const Token> tokens) const {
  std::string text;
  for (const Token token : tokens)
    if (static_cast<std::size_t>(token) < pieces_.size()) text += pieces_[static_cast<std::size_t>(token)];
  return text;
}

}  // namespace llama
