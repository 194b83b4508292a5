// Decodes many prompts together: continuous batching on a paged cache. Each call of step() computes one batch: the next
// token of every open sequence, and a piece of one prompt. A sequence that is done leaves at once, and the next prompt
// takes its place. Prompts are computed one after the other, so that each finds the prefix that it shares with those
// before it in the cache. Used by one thread.
//
//   batch   | a | b | c | d d d d d d |     a, b, c are decoding; d is a piece of a prompt
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "berth/kv/cache.h"
#include "model.h"
#include "step.h"

namespace llama {

using berth::kv::Token;

class Decoder {
 public:
  // kInvalidArgument: options out of range. kOutOfMemory. Requires: the model outlives the decoder.
  Decoder(const Model& model, const DecoderOptions& options);

  // Adds a prompt, and returns its number. kInvalidArgument: an empty prompt, a token outside the vocabulary, no new
  // tokens, or more tokens than the context has room for. Room for the new tokens is reserved here.
  std::size_t submit(std::vector<Token> prompt, std::size_t new_tokens);

  // Computes one batch. False if every prompt is done. kOutOfMemory if a prompt does not fit into an empty cache.
  // Allocates nothing, except in berth::kv::Cache::open() and, with several threads, berth::Schedule::run().
  bool step();

  std::span<const Token> generated(std::size_t number) const {
    return std::span(requests_[number].tokens).subspan(requests_[number].prompt);
  }
  // Bytes of pages that open sequences use or have set aside.
  std::size_t cache_bytes_in_use() const;
  const berth::kv::Cache& cache() const noexcept { return *cache_; }
  const Step& plan() const noexcept { return *step_; }

 private:
  struct Request {
    std::vector<Token> tokens{};             // of the prompt, then generated
    std::size_t prompt = 0, new_tokens = 0;  // how many
    std::size_t computed = 0;                // tokens whose keys and values are in the cache
  };
  void admit();
  void add_to_batch(std::size_t row);
  void take_results();

  const Model& model_;
  DecoderOptions options_;
  std::unique_ptr<berth::kv::Cache> cache_;
  std::unique_ptr<Step> step_;
  std::vector<Request> requests_;
  std::size_t next_ = 0;  // request to be admitted
  // The open sequences: their requests, and their ids in the cache. One whose prompt is being computed is the last.
  std::vector<std::size_t> rows_;
  std::vector<berth::kv::SequenceId> ids_;
};

}  // namespace llama
