#include "decoder.h"

#include <algorithm>
#include <string>
#include <utility>

#include "berth/memory/registry.h"

namespace llama {

using berth::Code;

namespace {

constexpr std::uint32_t kBlockTokens = 16;
constexpr std::size_t kMostTokens = std::size_t{1} << 20;

}  // namespace

Decoder::Decoder(const Model& model, const DecoderOptions& options) : model_(model), options_(options) {
  if (options_.context == 0) options_.context = model.context;
  if (options_.sequences == 0 || options_.batch_tokens < options_.sequences || options_.batch_tokens > kMostTokens ||
      options_.context > kMostTokens * 16 || options_.threads == 0 || options_.threads > 256)
    fail(Code::kInvalidArgument,
         "a decoder needs 1 to 256 threads, at least one sequence, and batches of at least one token for each");
  const berth::kv::Group group = cache_group(model);
  if (options_.cache_bytes == 0)
    options_.cache_bytes = options_.sequences * (options_.context + kBlockTokens) * group.bytes_per_token;
  cache_ =
      berth::kv::Cache::make(
          berth::device("CPU").value(),
          {.groups = {group}, .block_tokens = kBlockTokens, .budget = options_.cache_bytes, .label = "key-value cache"})
          .value();
  step_ = std::make_unique<Step>(model, *cache_, options_);
  rows_.reserve(options_.sequences);
  ids_.reserve(options_.sequences);
}

std::size_t Decoder::submit(std::vector<Token> prompt, std::size_t new_tokens) {
  if (prompt.empty() || new_tokens == 0)
    fail(Code::kInvalidArgument, "a prompt needs one token at least, and one new token");
  if (new_tokens > options_.context || prompt.size() > options_.context - new_tokens)
    fail(Code::kInvalidArgument, "a prompt of " + std::to_string(prompt.size()) + " tokens and " +
                                     std::to_string(new_tokens) + " new ones exceed the context of " +
                                     std::to_string(options_.context));
  for (const Token token : prompt)
    if (token < 0 || static_cast<std::size_t>(token) >= model_.vocabulary)
      fail(Code::kInvalidArgument, "token " + std::to_string(token) + " is not in the vocabulary of " +
                                       std::to_string(model_.vocabulary) + " tokens");
  prompt.reserve(prompt.size() + new_tokens);
  requests_.push_back({.tokens = std::move(prompt), .new_tokens = new_tokens});
  requests_.back().prompt = requests_.back().tokens.size();
  return requests_.size() - 1;
}

bool Decoder::step() {
  admit();
  if (rows_.empty()) return false;
  step_->batch.tokens = step_->batch.outputs = 0;
  for (std::size_t row = 0; row < rows_.size(); ++row) add_to_batch(row);
  cache_->write_block_table(0, ids_, step_->row_pages(), step_->batch.table).value();
  step_->run();
  take_results();
  return true;
}

// Opens the next prompt if there is room, and no other prompt is being computed.
void Decoder::admit() {
  if (next_ == requests_.size() || rows_.size() == options_.sequences) return;
  if (!rows_.empty() && requests_[rows_.back()].computed < requests_[rows_.back()].prompt) return;
  Request& request = requests_[next_];
  // The last new token is never written to the cache.
  const auto opened = cache_->open(request.tokens, {.max_new_tokens = request.new_tokens - 1});
  if (!opened && opened.error().code() == Code::kOutOfMemory && !rows_.empty()) return;  // a close makes room
  ids_.push_back(opened.value().id);
  rows_.push_back(next_++);
  request.computed = opened->cached_tokens;
}

// The next token of a sequence, or as much of its prompt as the batch has room for.
void Decoder::add_to_batch(std::size_t row) {
  Request& request = requests_[rows_[row]];
  Batch& batch = step_->batch;
  const std::size_t left = request.tokens.size() - request.computed;
  const std::size_t count = std::min(left, options_.batch_tokens - batch.tokens);
  const std::span<std::int64_t> slots = std::span(batch.slot).subspan(batch.tokens, count);
  if (request.computed < request.prompt)  // its pages are there since it was opened
    cache_->write_slots(0, ids_[row], request.computed, slots).value();
  else
    cache_->extend(ids_[row], std::span(request.tokens).last(count), slots).value();
  if (count == left) batch.output[batch.outputs++] = static_cast<std::int32_t>(batch.tokens + count - 1);
  for (std::size_t i = 0; i < count; ++i, ++batch.tokens, ++request.computed) {
    batch.token[batch.tokens] = request.tokens[request.computed];
    batch.position[batch.tokens] = static_cast<std::int32_t>(request.computed);
    batch.row[batch.tokens] = static_cast<std::int32_t>(row);
  }
}

// Keeps the new tokens. Sequences that are done are closed; their blocks stay in the cache until the room is needed.
void Decoder::take_results() {
  const Batch& batch = step_->batch;
  for (std::size_t i = batch.outputs; i-- > 0;) {
    const auto row = static_cast<std::size_t>(batch.row[static_cast<std::size_t>(batch.output[i])]);
    Request& request = requests_[rows_[row]];
    cache_->commit(ids_[row]).value();  // others may share what is computed from now on
    request.tokens.push_back(batch.successor[i]);
    if (request.tokens.size() < request.prompt + request.new_tokens && batch.successor[i] != options_.stop) continue;
    cache_->close(ids_[row]).value();
    rows_.erase(rows_.begin() + static_cast<std::ptrdiff_t>(row));
    ids_.erase(ids_.begin() + static_cast<std::ptrdiff_t>(row));
  }
}

std::size_t Decoder::cache_bytes_in_use() const {
  const auto group = cache_->counters().groups[0];
  return (group.pages_in_use + group.pages_set_aside) * group.page_bytes;
}

}  // namespace llama
