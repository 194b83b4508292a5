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
  pages_ = (options_.context + kBlockTokens - 1) / kBlockTokens;
  const berth::kv::Group group = cache_group(model);
  if (options_.cache_bytes == 0)
    options_.cache_bytes = options_.sequences * pages_ * kBlockTokens * group.bytes_per_token;
  cache_ =
      berth::kv::Cache::make(
          berth::device("CPU").value(),
          {.groups = {group}, .block_tokens = kBlockTokens, .budget = options_.cache_bytes, .label = "key-value cache"})
          .value();
  step_ = std::make_unique<Step>(model, *cache_,
                                 StepSizes{.tokens = options_.batch_tokens,
                                           .sequences = options_.sequences,
                                           .pages = pages_,
                                           .threads = options_.threads,
                                           .check_overlaps = options_.check_overlaps});
  sequences_.reserve(options_.sequences);
  ids_.reserve(options_.sequences);
  decoding_.reserve(options_.sequences);
  last_.reserve(options_.sequences);
  slots_.resize(options_.sequences);
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
  Request& request = requests_.emplace_back();
  request.prompt = std::move(prompt);
  request.new_tokens = new_tokens;
  request.generated.reserve(new_tokens);
  return requests_.size() - 1;
}

bool Decoder::step() {
  admit();
  if (sequences_.empty()) return false;
  step_->batch.tokens = step_->batch.outputs = 0;
  add_next_tokens();
  for (std::size_t row = 0; row < sequences_.size(); ++row)
    if (in_prompt(sequences_[row])) add_prompt_piece(row);
  cache_->write_block_table(0, ids_, pages_, step_->batch.table).value();
  step_->run();
  take_results();
  return true;
}

// Opens the next prompt if there is room, and no other prompt is being computed.
void Decoder::admit() {
  if (next_ == requests_.size() || sequences_.size() == options_.sequences) return;
  if (std::any_of(sequences_.begin(), sequences_.end(), [&](const Sequence& one) { return in_prompt(one); })) return;
  const Request& request = requests_[next_];
  // The last new token is never written to the cache.
  const auto opened = cache_->open(request.prompt, {.max_new_tokens = request.new_tokens - 1});
  if (!opened && opened.error().code() == Code::kOutOfMemory && !sequences_.empty()) return;  // a close makes room
  ids_.push_back(opened.value().id);
  sequences_.push_back({.request = next_++, .computed = opened->cached_tokens});
}

// The last token of every sequence that is past its prompt.
void Decoder::add_next_tokens() {
  decoding_.clear();
  last_.clear();
  for (std::size_t row = 0; row < sequences_.size(); ++row)
    if (!in_prompt(sequences_[row])) {
      decoding_.push_back(ids_[row]);
      last_.push_back(requests_[sequences_[row].request].generated.back());
    }
  cache_->append(decoding_, last_, std::span(slots_).first(last_.size())).value();
  std::size_t index = 0;
  for (std::size_t row = 0; row < sequences_.size(); ++row)
    if (!in_prompt(sequences_[row])) {
      add_to_batch(row, last_[index], sequences_[row].computed++, slots_[index]);
      ++index;
    }
}

// As much of a prompt as the batch has room for. Its pages are there since it was opened.
void Decoder::add_prompt_piece(std::size_t row) {
  Sequence& sequence = sequences_[row];
  const std::vector<Token>& prompt = requests_[sequence.request].prompt;
  Step::Batch& batch = step_->batch;
  const std::size_t first = batch.tokens;
  const std::size_t count = std::min(options_.batch_tokens - first, prompt.size() - sequence.computed);
  cache_->write_slots(0, ids_[row], sequence.computed, batch.slot.subspan(first, count)).value();
  for (std::size_t i = 0; i < count; ++i, ++sequence.computed)
    add_to_batch(row, prompt[sequence.computed], sequence.computed, batch.slot[first + i]);
}

void Decoder::add_to_batch(std::size_t row, Token token, std::size_t position, std::int64_t slot) {
  Step::Batch& batch = step_->batch;
  const std::size_t at = batch.tokens++;
  batch.token[at] = token;
  batch.position[at] = static_cast<std::int32_t>(position);
  batch.row[at] = static_cast<std::int32_t>(row);
  batch.slot[at] = slot;
  // The last token of a prompt has a successor, and every token after it.
  if (position + 1 >= requests_[sequences_[row].request].prompt.size())
    batch.output[batch.outputs++] = static_cast<std::int32_t>(at);
}

// Keeps the new tokens. Sequences that are done are closed; their blocks stay in the cache until the room is needed.
void Decoder::take_results() {
  const Step::Batch& batch = step_->batch;
  for (std::size_t i = 0; i < batch.outputs; ++i) {
    const auto row = static_cast<std::size_t>(batch.row[static_cast<std::size_t>(batch.output[i])]);
    Request& request = requests_[sequences_[row].request];
    if (request.generated.empty()) cache_->commit(ids_[row]).value();  // others may share the prompt from now on
    request.generated.push_back(batch.successor[i]);
  }
  for (std::size_t row = sequences_.size(); row-- > 0;) {
    const Request& request = requests_[sequences_[row].request];
    if (request.generated.empty()) continue;
    if (request.generated.size() < request.new_tokens && request.generated.back() != options_.stop) continue;
    cache_->close(ids_[row]).value();
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(row));
    ids_.erase(ids_.begin() + static_cast<std::ptrdiff_t>(row));
  }
}

std::size_t Decoder::cache_bytes_in_use() const {
  const auto group = cache_->counters().groups[0];
  return (group.pages_in_use + group.pages_set_aside) * group.page_bytes;
}

}  // namespace llama
