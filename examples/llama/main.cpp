// Runs prompts through a model and prints the most likely tokens, one line for each prompt; docs/run_a_decoder.md
// explains how it is built.
//
//   example_llama model.gguf "1 15 27" "1 15 30" --tokens 8
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "decoder.h"

namespace {

using namespace llama;

constexpr const char* kUsage =
    "usage: example_llama MODEL PROMPT...   a prompt is token ids with spaces between\n"
    "  --tokens N        new tokens for each prompt (16)\n"
    "  --sequences N     decoded at the same time, at most (8)\n"
    "  --batch N         tokens computed at once, at most (64)\n"
    "  --context N       tokens of a sequence, at most (as the model was trained)\n"
    "  --cache BYTES     memory for keys and values (for all sequences of the whole context)\n"
    "  --threads N       (one per core)";

std::size_t number(const std::string& text) {
  if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos)
    fail(berth::Code::kInvalidArgument, "\"" + text + "\" is not a number in range");
  return std::stoull(text);
}

std::vector<Token> ids_of(const std::string& prompt) {
  std::vector<Token> result;
  std::istringstream words(prompt);
  for (std::string word; words >> word;)  // what is too large for a token is in no vocabulary
    result.push_back(static_cast<Token>(std::min<std::size_t>(number(word), INT32_MAX)));
  return result;
}

void run(const std::vector<std::string>& words) {
  std::string path;
  std::vector<std::string> prompts;
  std::size_t tokens = 16, threads = std::max(1u, std::thread::hardware_concurrency());
  DecoderOptions options;
  const std::pair<const char*, std::size_t*> numbers[] = {
      {"--tokens", &tokens},           {"--sequences", &options.sequences}, {"--batch", &options.batch_tokens},
      {"--context", &options.context}, {"--cache", &options.cache_bytes},   {"--threads", &threads}};
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool option = words[i].starts_with("--");
    if (option && i + 1 == words.size()) fail(berth::Code::kInvalidArgument, words[i] + " needs a value");
    const auto* known =
        std::find_if(std::begin(numbers), std::end(numbers), [&](const auto& one) { return words[i] == one.first; });
    if (known != std::end(numbers)) {
      *known->second = number(words[++i]);
    } else if (option) {
      fail(berth::Code::kInvalidArgument, "unknown option " + words[i] + "\n" + kUsage);
    } else if (path.empty()) {
      path = words[i];
    } else {
      prompts.push_back(words[i]);
    }
  }
  if (path.empty() || prompts.empty()) fail(berth::Code::kInvalidArgument, kUsage);
  options.batch_tokens = std::max(options.batch_tokens, options.sequences);
  options.threads = static_cast<std::uint32_t>(std::min<std::size_t>(threads, UINT32_MAX));

  const Model model = open_model(path);
  Decoder decoder(model, options);
  for (const std::string& prompt : prompts) decoder.submit(ids_of(prompt), tokens);

  // Steps that read a piece of a prompt, and steps that only generate.
  using Clock = std::chrono::steady_clock;
  std::chrono::duration<double> reading{}, generating{};
  std::size_t held = 0, generated = 0, generated_alone = 0;
  const Step& plan = decoder.plan();
  for (auto before = Clock::now(); decoder.step(); before = Clock::now()) {
    const bool reads = plan.batch.tokens > plan.batch.outputs;
    (reads ? reading : generating) += Clock::now() - before;
    if (!reads) generated_alone += plan.batch.outputs;
    held = std::max(held, decoder.cache_bytes_in_use());
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    generated += decoder.generated(i).size();
    for (const Token token : decoder.generated(i)) std::printf("%d ", token);
    std::printf("\n");
  }
  const auto counters = decoder.cache().counters();
  std::fprintf(stderr,
               "weights      %12llu bytes, mapped\n"
               "activations  %12zu bytes, for %zu bytes of nodes in %zu steps\n"
               "cache        %12zu bytes held at most, of %zu\n"
               "prompts      %12llu tokens, of which %llu were in the cache; read in %.3f s\n"
               "generated    %12zu tokens; %zu of them in %.3f s, while no prompt was read: %.1f tokens/s\n",
               static_cast<unsigned long long>(model.file.total_bytes()), plan.arena_bytes(), plan.node_bytes(),
               plan.schedule().step_count(), held, decoder.cache().buffer().size(),
               static_cast<unsigned long long>(counters.prompt_tokens),
               static_cast<unsigned long long>(counters.cached_tokens), reading.count(), generated, generated_alone,
               generating.count(), static_cast<double>(generated_alone) / std::max(generating.count(), 1e-9));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv + 1, argv + argc});
    return 0;
  } catch (const berth::BadResult& bad) {
    std::fprintf(stderr, "example_llama: %s\n", bad.what());
    return 2;
  }
}
