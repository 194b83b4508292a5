// Runs prompts through a model and prints what it says, one line for each prompt; docs/run_a_decoder.md explains how it
// is built.
//
//   example_llama model.gguf "1 15 27" "1 15 30"          prompts as token ids
//   example_llama model.gguf --text "Once upon a time"    as text, with the vocabulary of the file
#include <chrono>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "decoder.h"
#include "vocabulary.h"

namespace {

using namespace llama;

constexpr const char* kUsage =
    "usage: example_llama MODEL [PROMPT...]   a prompt is token ids with spaces between, or text with --text\n"
    "  --prompts FILE    one prompt a line\n"
    "  --text            prompts and results are text; ends at the model's end token\n"
    "  --tokens N        new tokens for each prompt (16)\n"
    "  --sequences N     decoded at the same time, at most (8)\n"
    "  --batch N         tokens computed at once, at most (64)\n"
    "  --context N       tokens of a sequence, at most (as the model was trained)\n"
    "  --cache BYTES     memory for keys and values (for all sequences of the whole context)\n"
    "  --threads N       (one per core)\n";

struct Arguments {
  std::string model;
  std::vector<std::string> prompts;
  bool text = false;
  std::size_t tokens = 16;
  DecoderOptions decoder{.threads = std::max(1u, std::thread::hardware_concurrency())};
};

std::size_t number(const std::string& text, std::uint64_t most = std::numeric_limits<std::int64_t>::max()) {
  std::size_t used = 0;
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos && text.size() < 19;
  const std::uint64_t value = digits ? std::stoull(text, &used) : 0;
  if (!digits || value > most) fail(berth::Code::kInvalidArgument, "\"" + text + "\" is not a number in range");
  return value;
}

Arguments parse(const std::vector<std::string>& words) {
  Arguments result;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 == words.size()) fail(berth::Code::kInvalidArgument, word + " needs a value");
      return words[++i];
    };
    if (word == "--text") {
      result.text = true;
    } else if (word == "--prompts") {
      std::ifstream file(value());
      if (!file) fail(berth::Code::kNotFound, "cannot read " + words[i]);
      for (std::string line; std::getline(file, line);) result.prompts.push_back(line);
    } else if (word == "--tokens") {
      result.tokens = number(value());
    } else if (word == "--sequences") {
      result.decoder.sequences = number(value());
    } else if (word == "--batch") {
      result.decoder.batch_tokens = number(value());
    } else if (word == "--context") {
      result.decoder.context = number(value());
    } else if (word == "--cache") {
      result.decoder.cache_bytes = number(value());
    } else if (word == "--threads") {
      result.decoder.threads = static_cast<std::uint32_t>(number(value(), 256));
    } else if (word.starts_with("--")) {
      fail(berth::Code::kInvalidArgument, "unknown option " + word + "\n" + kUsage);
    } else if (result.model.empty()) {
      result.model = word;
    } else {
      result.prompts.push_back(word);
    }
  }
  if (result.model.empty() || result.prompts.empty()) fail(berth::Code::kInvalidArgument, kUsage);
  return result;
}

std::vector<Token> ids_of(const std::string& prompt) {
  std::vector<Token> result;
  std::istringstream words(prompt);
  for (std::string word; words >> word;)
    result.push_back(static_cast<Token>(number(word, std::numeric_limits<Token>::max())));
  return result;
}

void run(Arguments arguments) {
  const Model model = open_model(arguments.model);
  std::unique_ptr<Vocabulary> vocabulary;
  if (arguments.text) {
    vocabulary = std::make_unique<Vocabulary>(model.file);
    if (const auto* stop = model.file.find_metadata("tokenizer.ggml.eos_token_id"); stop != nullptr)
      arguments.decoder.stop = static_cast<Token>(stop->as_uint().value());
  }
  arguments.decoder.batch_tokens = std::max(arguments.decoder.batch_tokens, arguments.decoder.sequences);
  Decoder decoder(model, arguments.decoder);
  for (const std::string& prompt : arguments.prompts)
    decoder.submit(vocabulary ? vocabulary->encode(prompt) : ids_of(prompt), arguments.tokens);

  // Steps that read a piece of a prompt, and steps that only generate.
  using Clock = std::chrono::steady_clock;
  Clock::duration reading{}, generating{};
  std::size_t held = 0, generated = 0, generated_alone = 0;
  const Step::Batch& batch = decoder.plan().batch;
  for (auto before = Clock::now(); decoder.step(); before = Clock::now()) {
    const bool reads = batch.tokens > batch.outputs;
    (reads ? reading : generating) += Clock::now() - before;
    if (!reads) generated_alone += batch.outputs;
    held = std::max(held, decoder.cache_bytes_in_use());
  }
  const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };

  for (std::size_t i = 0; i < arguments.prompts.size(); ++i) {
    generated += decoder.generated(i).size();
    if (vocabulary)
      std::printf("%s", vocabulary->decode(decoder.generated(i)).c_str());
    else
      for (const Token token : decoder.generated(i)) std::printf("%d ", token);
    std::printf("\n");
  }
  const auto counters = decoder.cache().counters();
  const Step& plan = decoder.plan();
  std::fprintf(stderr,
               "weights      %12llu bytes, mapped\n"
               "activations  %12zu bytes, for %zu bytes of nodes in %zu steps\n"
               "cache        %12zu bytes held at most, of %zu\n"
               "prompts      %12llu tokens, of which %llu were in the cache; read in %.3f s\n"
               "generated    %12zu tokens; %zu of them in %.3f s, while no prompt was read: %.1f tokens/s\n",
               static_cast<unsigned long long>(model.file.total_bytes()), plan.arena_bytes(), plan.node_bytes(),
               plan.schedule().step_count(), held, decoder.cache().buffer().size(),
               static_cast<unsigned long long>(counters.prompt_tokens),
               static_cast<unsigned long long>(counters.cached_tokens), seconds(reading), generated, generated_alone,
               seconds(generating), static_cast<double>(generated_alone) / std::max(seconds(generating), 1e-9));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse({argv + 1, argv + argc}));
    return 0;
  } catch (const berth::BadResult& bad) {
    std::fprintf(stderr, "example_llama: %s\n", bad.what());
    return 2;
  }
}
