// The decoder of examples/llama: what it allocates, what it shares, and what it refuses. reference_test.py compares its
// tokens with NumPy.
#include "decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "llama/random_model.h"
#include "support/count_allocations.h"
#include "support/seed.h"
#include "support/support.h"

namespace llama {
namespace {

using berth::Code;
using berth::test::allocations;
using berth::test::RandomModel;

Model make_model(const berth::test::TemporaryFolder& folder, const RandomModel& what = {}) {
  const std::string path = (folder.path() / "model.gguf").string();
  what.write(path);
  return open_model(path);
}

std::vector<Token> random_prompt(std::mt19937& random, std::size_t tokens, std::size_t vocabulary) {
  std::vector<Token> prompt(tokens);
  for (Token& token : prompt) token = static_cast<Token>(random() % vocabulary);
  return prompt;
}

std::vector<std::vector<Token>> decode(const Model& model, const DecoderOptions& options,
                                       const std::vector<std::vector<Token>>& prompts, std::size_t tokens) {
  Decoder decoder(model, options);
  for (const auto& prompt : prompts) decoder.submit(prompt, tokens);
  while (decoder.step()) continue;
  EXPECT_TRUE(decoder.cache().check());
  std::vector<std::vector<Token>> results;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    results.emplace_back(decoder.generated(i).begin(), decoder.generated(i).end());
  return results;
}

// The code of the error that `function` throws.
Code thrown_by(const std::function<void()>& function) {
  try {
    function();
  } catch (const berth::BadResult& bad) {
    EXPECT_FALSE(std::string(bad.what()).empty());
    return bad.error().code();
  }
  ADD_FAILURE() << "nothing was refused";
  return Code::kCancelled;
}

TEST(Llama, AllocatesNothingAfterItsStart) {
  const berth::test::TemporaryFolder folder;
  const Model model = make_model(folder);
  for (const std::uint32_t threads : {1u, 2u}) {
    Decoder decoder(model, {.sequences = 4, .batch_tokens = 16, .context = 256, .threads = threads});
    std::mt19937 random(7);
    // The longest first: the cache keeps a list for each sequence, which has the room of the longest so far.
    for (std::size_t i = 0; i < 12; ++i) decoder.submit(random_prompt(random, 100 - 7 * i, model.vocabulary), 40);
    std::size_t most_of_a_step = 0, all = 0, steps = 0, counted = 0;
    for (bool more = true; more; ++steps) {
      const std::size_t before = allocations.load();
      more = decoder.step();
      const std::size_t made = allocations.load() - before;
      all += made;
      if (decoder.cache().counters().opened < 4) continue;  // the first round fills what is kept
      ++counted;
      if (counted > 1) most_of_a_step = std::max(most_of_a_step, made);
    }
    EXPECT_GT(counted, 100u);
    // Each further worker may cost a task.
    EXPECT_LE(most_of_a_step, threads == 1 ? 0u : 4u) << all << " in " << steps << " steps";
    EXPECT_TRUE(decoder.cache().check());
  }
}

TEST(Llama, SequencesThatShareAPrefixHoldATenthOfTheirContexts) {
  const berth::test::TemporaryFolder folder;
  RandomModel what;
  what.layers = what.keys["block_count"] = 1;
  const Model model = make_model(folder, what);
  constexpr std::size_t kSequences = 64, kPrefix = 900, kContext = 4096, kTokens = 90;
  std::mt19937 random(berth::test::seed());
  const std::vector<Token> prefix = random_prompt(random, kPrefix, model.vocabulary);
  std::vector<std::vector<Token>> prompts(kSequences, prefix);
  for (auto& prompt : prompts)
    for (const Token token : random_prompt(random, 1 + random() % 40, model.vocabulary)) prompt.push_back(token);

  const DecoderOptions together{.sequences = kSequences, .batch_tokens = 128, .context = kContext};
  Decoder decoder(model, together);
  for (const auto& prompt : prompts) decoder.submit(prompt, kTokens);
  std::size_t held = 0, open = 0;
  while (decoder.step()) {
    open = std::max<std::size_t>(open, decoder.cache().counters().sequences);
    held = std::max(held, decoder.cache_bytes_in_use());
  }
  EXPECT_EQ(open, kSequences) << "all are open at the same time";
  const std::size_t reserved = kSequences * kContext * cache_group(model).bytes_per_token;
  EXPECT_LE(held, reserved / 10) << "of " << reserved;
  EXPECT_GT(held, 0u);

  DecoderOptions one = together;
  one.sequences = 1;
  for (std::size_t i = 0; i < kSequences; ++i) {
    const auto result = decode(model, one, {prompts[i]}, kTokens)[0];
    const auto shared = decoder.generated(i);
    EXPECT_TRUE(std::equal(result.begin(), result.end(), shared.begin(), shared.end())) << "sequence " << i;
  }
}

TEST(Llama, TokensDoNotDependOnBatchesThreadsOrRoom) {
  const berth::test::TemporaryFolder folder;
  RandomModel what;
  what.seed = berth::test::seed();
  const Model model = make_model(folder, what);
  std::mt19937 random(berth::test::seed());
  std::vector<std::vector<Token>> prompts;
  for (std::size_t i = 0; i < 9; ++i) prompts.push_back(random_prompt(random, 1 + random() % 70, model.vocabulary));
  prompts.push_back(prompts[3]);
  const auto expected = decode(model, {.sequences = 1, .batch_tokens = 1, .context = 128}, prompts, 20);
  for (int i = 0; i < 6; ++i) {
    const std::size_t sequences = 1 + random() % 10;
    const std::size_t page = 16 * cache_group(model).bytes_per_token;
    EXPECT_EQ(decode(model,
                     {.sequences = sequences,
                      .batch_tokens = sequences + random() % 40,
                      .context = 128,
                      .cache_bytes = (6 + random() % 40) * page,
                      .threads = 1 + static_cast<std::uint32_t>(random() % 3),
                      .check_overlaps = true},
                     prompts, 20),
              expected);
  }
}

TEST(Llama, StopsAtTheStopToken) {
  const berth::test::TemporaryFolder folder;
  const Model model = make_model(folder);
  const auto all = decode(model, {.sequences = 1}, {{1, 2, 3}}, 10)[0];
  const auto until = decode(model, {.sequences = 1, .stop = all[4]}, {{1, 2, 3}}, 10)[0];
  const auto first = std::find(all.begin(), all.end(), all[4]);
  EXPECT_EQ(until, std::vector<Token>(all.begin(), first + 1));
}

TEST(Llama, RefusesPromptsThatCannotBeComputed) {
  const berth::test::TemporaryFolder folder;
  const Model model = make_model(folder);
  Decoder decoder(model, {.sequences = 2, .context = 64});
  EXPECT_EQ(thrown_by([&] { decoder.submit({}, 1); }), Code::kInvalidArgument);
  EXPECT_EQ(thrown_by([&] { decoder.submit({1}, 0); }), Code::kInvalidArgument);
  EXPECT_EQ(thrown_by([&] { decoder.submit({-1}, 1); }), Code::kInvalidArgument);
  EXPECT_EQ(thrown_by([&] { decoder.submit({300}, 1); }), Code::kInvalidArgument);
  EXPECT_EQ(thrown_by([&] { decoder.submit({1}, 64); }), Code::kInvalidArgument);
  EXPECT_EQ(thrown_by([&] { decoder.submit({1}, SIZE_MAX); }), Code::kInvalidArgument);
  EXPECT_EQ(thrown_by([&] { decoder.submit(std::vector<Token>(64, 1), 1); }), Code::kInvalidArgument);
  EXPECT_FALSE(decoder.step());
  EXPECT_EQ(decoder.submit({299}, 63), 0u);
  EXPECT_TRUE(decoder.step());
}

TEST(Llama, RefusesOptionsThatCannotWork) {
  const berth::test::TemporaryFolder folder;
  const Model model = make_model(folder);
  EXPECT_EQ(thrown_by([&] { Decoder(model, {.sequences = 0}); }), Code::kInvalidArgument);
  EXPECT_EQ(thrown_by([&] { Decoder(model, {.sequences = 3, .batch_tokens = 2}); }), Code::kInvalidArgument);
  EXPECT_EQ(thrown_by([&] { Decoder(model, {.threads = 0}); }), Code::kInvalidArgument);
  EXPECT_EQ(thrown_by([&] { Decoder(model, {.context = SIZE_MAX}); }), Code::kInvalidArgument);
  EXPECT_EQ(thrown_by([&] { Decoder(model, {.cache_bytes = 1}); }), Code::kOutOfMemory);
  // A prompt that is larger than the whole cache is refused when its turn comes, and not before.
  Decoder decoder(model, {.context = 512, .cache_bytes = 20 * 16 * cache_group(model).bytes_per_token});
  decoder.submit({1, 2, 3}, 3);
  decoder.submit(std::vector<Token>(400, 1), 1);
  EXPECT_EQ(thrown_by([&] {
              while (decoder.step()) continue;
            }),
            Code::kOutOfMemory);
  EXPECT_EQ(decoder.generated(0).size(), 3u);
}

TEST(Llama, RefusesMetadataThatLies) {
  const berth::test::TemporaryFolder folder;
  const auto refused = [&](const std::function<void(RandomModel&)>& lie) {
    RandomModel what;
    lie(what);
    return thrown_by([&] { make_model(folder, what); });
  };
  make_model(folder);
  const std::uint64_t huge = std::uint64_t{1} << 32;
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::uint64_t>>{{"attention.head_count", 0},
                                                                                     {"attention.head_count", 3},
                                                                                     {"attention.head_count", huge},
                                                                                     {"attention.head_count_kv", 0},
                                                                                     {"attention.head_count_kv", 4},
                                                                                     {"attention.head_count_kv", 2},
                                                                                     {"block_count", 0},
                                                                                     {"block_count", 1},
                                                                                     {"block_count", 3},
                                                                                     {"block_count", huge},
                                                                                     {"embedding_length", 0},
                                                                                     {"embedding_length", 128},
                                                                                     {"embedding_length", huge * huge},
                                                                                     {"feed_forward_length", 32},
                                                                                     {"feed_forward_length", ~0ull},
                                                                                     {"context_length", 0},
                                                                                     {"context_length", huge},
                                                                                     {"attention.key_length", 64},
                                                                                     {"rope.dimension_count", 33},
                                                                                     {"rope.dimension_count", 64}})
    EXPECT_EQ(refused([&, key = key, value = value](RandomModel& what) { what.keys[key] = value; }), Code::kInvalidData)
        << key << " " << value;
  for (const char* key : {"block_count", "embedding_length", "feed_forward_length", "context_length"})
    EXPECT_EQ(refused([&](RandomModel& what) { what.keys.erase(key); }), Code::kNotFound) << key;
  for (const double value : {0.0, -1.0, std::nan(""), HUGE_VAL})
    EXPECT_EQ(refused([&](RandomModel& what) { what.reals["rope.freq_base"] = value; }), Code::kInvalidData);
  EXPECT_EQ(refused([&](RandomModel& what) {
              what.keys.erase("block_count");
              what.texts["llama.block_count"] = "2";
            }),
            Code::kInvalidData);
  for (const char* tensor : {"token_embd.weight", "output_norm.weight", "blk.1.attn_v.weight", "blk.0.ffn_norm.weight"})
    EXPECT_NE(refused([&](RandomModel& what) { what.without = {tensor}; }), Code::kCancelled) << tensor;
}

TEST(Llama, RefusesWhatItDoesNotCompute) {
  const berth::test::TemporaryFolder folder;
  const auto refused = [&](const std::function<void(RandomModel&)>& change) {
    RandomModel what;
    change(what);
    return thrown_by([&] { make_model(folder, what); });
  };
  EXPECT_EQ(refused([](RandomModel& what) { what.architecture = "mamba"; }), Code::kUnsupported);
  EXPECT_EQ(refused([](RandomModel& what) { what.keys["expert_count"] = 8; }), Code::kUnsupported);
  EXPECT_EQ(refused([](RandomModel& what) { what.keys["attention.value_length"] = 64; }), Code::kUnsupported);
  EXPECT_EQ(refused([](RandomModel& what) { what.texts["llama.rope.scaling.type"] = "yarn"; }), Code::kUnsupported);
  EXPECT_EQ(refused([](RandomModel& what) { what.types["blk.1.ffn_up.weight"] = berth::DType::kQ8_1; }),
            Code::kUnsupported);
  EXPECT_EQ(refused([](RandomModel& what) { what.types["blk.1.ffn_norm.weight"] = berth::f16; }), Code::kTypeMismatch);
  EXPECT_EQ(refused([](RandomModel& what) { what.feed_forward = what.keys["feed_forward_length"] = 48; }),
            Code::kUnsupported);
  EXPECT_EQ(thrown_by([&] { open_model((folder.path() / "nowhere").string()); }), Code::kNotFound);
}

}  // namespace
}  // namespace llama
