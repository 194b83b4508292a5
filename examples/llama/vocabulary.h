// Text and tokens, by the vocabulary in the GGUF file. Encoding takes the longest piece that matches at each place.
// That reads every text, but is not always what the tokenizer of the model would choose: use it to try things.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "berth/kv/cache.h"
#include "berth/weights/weights.h"

namespace llama {

class Vocabulary {
 public:
  // kNotFound if the file has no vocabulary.
  explicit Vocabulary(const berth::WeightFile& file);

  // kInvalidArgument for text that no piece begins with.
  std::vector<berth::kv::Token> encode(std::string_view text) const;
  std::string decode(std::span<const berth::kv::Token> tokens) const;

 private:
  std::vector<std::string> pieces_;  // the bytes of each token
  std::unordered_map<std::string_view, berth::kv::Token> tokens_;
  std::size_t longest_ = 0;
};

}  // namespace llama
