#include "berth/kv/fit.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "berth/memory/registry.h"
#include "berth/weights/save.h"
#include "support/support.h"

namespace berth::kv {
namespace {

using test::fails_with;

// A GGUF file with numbers under "ARCHITECTURE.key", and tensors of f16 without meaning.
struct GgufFile {
  std::string architecture = "llama";
  std::map<std::string, std::uint32_t> numbers{};
  std::map<std::string, std::vector<std::uint32_t>> lists{};
  std::map<std::string, std::vector<std::size_t>> tensors{};

  Result<Model> read() const {
    const test::TemporaryFolder folder;
    Metadata metadata;
    metadata.add("general.architecture", architecture).value();
    for (const auto& [key, number] : numbers) metadata.add(architecture + "." + key, number).value();
    for (const auto& [key, list] : lists)
      metadata.add(architecture + "." + key, std::span<const std::uint32_t>(list)).value();
    const auto cpu = device("CPU").value();
    std::vector<NamedBuffer> buffers;
    for (const auto& [name, shape] : tensors)
      buffers.push_back({name, Buffer::allocate(cpu, f16, Shape(std::span<const std::size_t>(shape))).value()});
    save_gguf((folder.path() / "m.gguf").string(), buffers, metadata).value();
    const auto file = open_weights((folder.path() / "m.gguf").string()).value();
    return read_model(file);
  }
};

// 4 layers of 8 heads, 2 of them with keys and values of 64 elements.
GgufFile llama(std::size_t layers = 4) {
  GgufFile file;
  file.numbers = {{"block_count", static_cast<std::uint32_t>(layers)},
                  {"embedding_length", 512},
                  {"context_length", 8192},
                  {"attention.head_count", 8},
                  {"attention.head_count_kv", 2}};
  file.tensors = {{"token_embd.weight", {1000, 512}}, {"output_norm.weight", {512}}};
  for (std::size_t i = 0; i < layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    file.tensors[block + "attn_norm.weight"] = {512};
    file.tensors[block + "attn_q.weight"] = {512, 512};
    file.tensors[block + "attn_k.weight"] = {128, 512};
    file.tensors[block + "attn_v.weight"] = {128, 512};
    file.tensors[block + "attn_output.weight"] = {512, 512};
    file.tensors[block + "ffn_norm.weight"] = {512};
    file.tensors[block + "ffn_gate.weight"] = {1024, 512};
    file.tensors[block + "ffn_up.weight"] = {1024, 512};
    file.tensors[block + "ffn_down.weight"] = {512, 1024};
  }
  return file;
}

GgufFile mamba() {
  GgufFile file;
  file.architecture = "mamba";
  file.numbers = {{"block_count", 2},      {"embedding_length", 64}, {"context_length", 1024}, {"ssm.conv_kernel", 4},
                  {"ssm.inner_size", 128}, {"ssm.state_size", 16},   {"ssm.time_step_rank", 4}};
  file.tensors = {{"token_embd.weight", {100, 64}}};
  for (const char* block : {"blk.0.", "blk.1."}) file.tensors[std::string(block) + "ssm_in.weight"] = {256, 64};
  return file;
}

TEST(Fit, CountsKeysAndValuesOfEveryLayer) {
  const auto model = llama().read().value();
  const auto one = fit(model, {.context = 4096}).value();
  // 4 layers x keys and values x 2 heads of 64 elements of 2 bytes x 4096 tokens
  EXPECT_EQ(one.cache, 4u * 2 * 2 * 64 * 2 * 4096);
  EXPECT_EQ(one.weights, model.weight_bytes);
  EXPECT_EQ(one.groups.size(), 1u);
  EXPECT_EQ(one.groups[0].layers, 4u);
  EXPECT_EQ(fit(model, {.context = 4096, .sequences = 3}).value().cache, 3 * one.cache);
  EXPECT_EQ(fit(model, {.context = 3900}).value().cache, one.cache);  // cells are rounded up to 256
  EXPECT_EQ(fit(model, {}).value().context, 8192u);
}

TEST(Fit, CountsCacheTypes) {
  const auto model = llama().read().value();
  const std::uint64_t elements = 4u * 2 * 2 * 64 * 1024;
  EXPECT_EQ(fit(model, {.context = 1024, .keys = DType::kQ8_0, .values = DType::kQ8_0}).value().cache,
            elements / 32 * 34);
  EXPECT_EQ(fit(model, {.context = 1024, .keys = DType::kQ8_0, .values = DType::kQ4_0}).value().cache,
            elements / 64 * (34 + 18));
}

TEST(Fit, RefusesACacheTypeThatCannotHoldTheHeads) {
  auto file = llama(1);
  file.numbers["attention.key_length"] = 40;
  file.numbers["attention.value_length"] = 40;
  file.tensors["blk.0.attn_k.weight"] = {80, 512};
  const auto model = file.read().value();
  EXPECT_TRUE(fit(model, {.context = 1024}).has_value());
  EXPECT_TRUE(fails_with(fit(model, {.context = 1024, .keys = DType::kQ8_0}), Code::kInvalidArgument));
}

TEST(Fit, KeepsOnlyTheWindowOfWindowedLayers) {
  auto file = llama(6);
  file.architecture = "gemma3";
  file.numbers["attention.sliding_window"] = 512;
  const auto model = file.read().value();
  const auto result = fit(model, {.context = 8192}).value();
  ASSERT_EQ(result.groups.size(), 2u);
  EXPECT_EQ(result.groups[0].kind, GroupKind::kWindow);
  EXPECT_EQ(result.groups[0].layers, 5u);
  EXPECT_EQ(result.groups[0].tokens, 1024u);  // the window and one batch
  EXPECT_EQ(result.groups[1].layers, 1u);
  EXPECT_EQ(result.groups[1].tokens, 8192u);
  EXPECT_EQ(result.cache, (5u * 1024 + 8192) * 2 * 128 * 2);
  EXPECT_EQ(fit(model, {.context = 8192, .full_window = true}).value().cache, 6u * 8192 * 2 * 128 * 2);
}

TEST(Fit, TakesThePatternOfWindowsFromTheFile) {
  auto file = llama(4);
  file.architecture = "gemma3";
  file.numbers["attention.sliding_window"] = 256;
  file.lists["attention.sliding_window_pattern"] = {1, 0, 0, 1};
  const auto model = file.read().value();
  EXPECT_TRUE(model.layers[0].window);
  EXPECT_FALSE(model.layers[1].window);
  EXPECT_FALSE(model.layers[2].window);
  EXPECT_TRUE(model.layers[3].window);
}

TEST(Fit, SaysThatAWindowWithoutAPatternIsNotUsed) {
  auto file = llama();
  file.numbers["attention.sliding_window"] = 256;
  const auto model = file.read().value();
  EXPECT_FALSE(model.layers[0].window);
  ASSERT_EQ(model.notes.size(), 1u);
  EXPECT_NE(model.notes[0].find("llama.attention.sliding_window = 256"), std::string::npos);
}

TEST(Fit, KeepsOneLatentForKeysAndValues) {
  auto file = llama();
  for (auto it = file.tensors.begin(); it != file.tensors.end();)
    it = it->first.find("attn_k") != std::string::npos ? file.tensors.erase(it) : std::next(it);
  file.architecture = "deepseek2";
  file.numbers["attention.head_count_kv"] = 1;
  file.numbers["attention.key_length"] = 576;
  file.numbers["attention.value_length"] = 512;
  file.numbers["attention.key_length_mla"] = 192;
  file.numbers["attention.value_length_mla"] = 128;
  const auto result = fit(file.read().value(), {.context = 1024}).value();
  EXPECT_EQ(result.cache, 4u * 576 * 2 * 1024);
  EXPECT_EQ(result.groups[0].name, "latent");
}

TEST(Fit, HasHeadsOfEachLayer) {
  auto file = llama();
  file.numbers.erase("attention.head_count_kv");
  file.lists["attention.head_count_kv"] = {2, 4, 2, 8};
  for (const auto& [block, rows] : {std::pair{"blk.1.", 256u}, std::pair{"blk.3.", 512u}}) {
    file.tensors[std::string(block) + "attn_k.weight"] = {rows, 512};
    file.tensors[std::string(block) + "attn_v.weight"] = {rows, 512};
  }
  const auto model = file.read().value();
  EXPECT_EQ(fit(model, {.context = 256}).value().cache, 16u * 64 * 2 * 2 * 256);
  // Without flash attention the values of all layers are as wide as the widest.
  EXPECT_EQ(fit(model, {.context = 256, .flash_attention = false}).value().cache, (16u + 4 * 8) * 64 * 2 * 256);
}

TEST(Fit, KeepsAStateOfConstantSize) {
  const auto model = mamba().read().value();
  const auto result = fit(model, {.context = 1024, .sequences = 3}).value();
  EXPECT_EQ(result.cache, 2u * 3 * 4 * (3 * 128 + 16 * 128));
  EXPECT_EQ(result.groups[0].kind, GroupKind::kState);
  EXPECT_EQ(fit(model, {.context = 100'000, .sequences = 3}).value().cache, result.cache);
}

TEST(Fit, GivesStatesToTheLayersThatHaveTensorsOfThem) {
  auto file = mamba();
  file.architecture = "jamba";
  file.numbers["attention.head_count"] = 4;
  file.numbers["block_count"] = 3;
  file.lists["attention.head_count_kv"] = {0, 2, 0};
  file.tensors["blk.1.attn_k.weight"] = {32, 64};
  file.tensors["blk.2.ssm_in.weight"] = {256, 64};
  file.tensors.erase("blk.1.ssm_in.weight");
  const auto mixed = file.read().value();
  ASSERT_EQ(mixed.layers.size(), 3u);
  EXPECT_EQ(mixed.layers[0].recurrent_state, 16u * 128);
  EXPECT_EQ(mixed.layers[1].recurrent_state, 0u);
  EXPECT_EQ(mixed.layers[1].convolution_state, 0u);
  EXPECT_EQ(mixed.layers[1].heads_kv, 2u);
  EXPECT_EQ(mixed.layers[2].heads_kv, 0u);
  EXPECT_FALSE(mixed.rotary) << "Jamba's attention has no positions";
  EXPECT_TRUE(llama().read().value().rotary);

  // Without tensors the heads tell.
  file.tensors.clear();
  const auto by_key = file.read().value();
  EXPECT_EQ(by_key.layers[0].recurrent_state, 16u * 128);
  EXPECT_EQ(by_key.layers[1].recurrent_state, 0u);
  EXPECT_EQ(by_key.layers[1].heads_kv, 2u);
}

TEST(Fit, RotatesHeadsOfAQuantisedCacheIfTheyAreEquallyLong) {
  auto model = llama(2).read().value();
  const auto activations = [&](DType dtype) {
    return fit(model, {.context = 1024, .keys = dtype, .values = dtype}).value().activations;
  };
  EXPECT_GT(activations(DType::kQ8_0), activations(DType::kF16)) << "the rotations are kept beside the activations";
  for (std::uint64_t ModelLayer::*length :
       {&ModelLayer::key_length, &ModelLayer::value_length, &ModelLayer::output_length})
    model.layers[1].*length = 128;
  EXPECT_EQ(activations(DType::kQ8_0), activations(DType::kF16)) << "two lengths: nothing is rotated";
}

TEST(Fit, KeepsScoresWithoutFlashAttention) {
  const auto model = llama().read().value();
  const auto flash = fit(model, {.context = 8192}).value();
  const auto whole = fit(model, {.context = 8192, .flash_attention = false}).value();
  EXPECT_GE(whole.activations, flash.activations + 8u * 8192 * 512 * 4 - 8192u * 512 * 4);
}

TEST(Fit, SaysWhichKeysAreMissingAndWhatIsCertain) {
  auto file = llama();
  file.numbers.erase("block_count");
  file.numbers.erase("attention.head_count");
  const auto model = file.read().value();
  EXPECT_EQ(model.missing, std::vector<std::string>{"llama.block_count"});
  const auto result = fit(model, {.context = 1024}).value();
  EXPECT_FALSE(result.complete);
  EXPECT_GT(result.weights, 0u);
  file.numbers["block_count"] = 4;
  EXPECT_EQ(file.read().value().missing, std::vector<std::string>{"llama.attention.head_count"});
}

TEST(Fit, RefusesMetadataThatLies) {
  const auto with = [](const std::string& key, std::uint32_t number) {
    auto file = llama();
    file.numbers[key] = number;
    return file.read();
  };
  EXPECT_TRUE(fails_with(with("attention.head_count", 0), Code::kInvalidData));
  EXPECT_TRUE(fails_with(with("attention.head_count", 7), Code::kInvalidData));
  EXPECT_TRUE(fails_with(with("attention.head_count_kv", 3), Code::kInvalidData));
  EXPECT_TRUE(fails_with(with("attention.head_count_kv", 0xffff'ffff), Code::kInvalidData));
  EXPECT_TRUE(fails_with(with("attention.key_length", 0), Code::kInvalidData));
  EXPECT_TRUE(fails_with(with("attention.key_length", 65), Code::kInvalidData));
  EXPECT_TRUE(fails_with(with("block_count", 0), Code::kInvalidData));
  EXPECT_TRUE(fails_with(with("block_count", 3), Code::kInvalidData));
  EXPECT_TRUE(fails_with(with("block_count", 0xffff'ffff), Code::kInvalidData));
  EXPECT_TRUE(fails_with(with("embedding_length", 513), Code::kInvalidData));

  // Tensors that agree with the lie.
  auto file = llama(1);
  file.numbers["attention.head_count_kv"] = 3;
  file.tensors["blk.0.attn_k.weight"] = {192, 512};
  EXPECT_TRUE(fails_with(file.read(), Code::kInvalidData));
}

TEST(Fit, RefusesSizesThatOverflow) {
  GgufFile file;
  file.numbers = {{"block_count", 4096},
                  {"embedding_length", 0xffff'ffff},
                  {"attention.head_count", 0xffff'ffff},
                  {"attention.key_length", 0xffff'ffff},
                  {"attention.value_length", 0xffff'ffff},
                  {"vocab_size", 0xffff'ffff}};
  const auto model = file.read().value();
  EXPECT_TRUE(fails_with(fit(model, {.context = 0xffff'ff00, .sequences = 65'536}), Code::kInvalidArgument));
  EXPECT_EQ(largest_context(model, {}, std::uint64_t{1} << 61).value(), std::nullopt);
}

TEST(Fit, RefusesRequestsOutOfRange) {
  const auto model = llama().read().value();
  EXPECT_TRUE(fails_with(fit(model, {.context = std::uint64_t{1} << 40}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(fit(model, {.sequences = 0}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(fit(model, {.sequences = std::uint64_t{1} << 63}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(fit(model, {.batch = 0}), Code::kInvalidArgument));
  auto file = llama();
  file.numbers.erase("context_length");
  EXPECT_TRUE(fails_with(fit(file.read().value(), {}), Code::kInvalidArgument));
}

TEST(Fit, HasNothingThatFitsIntoNothing) {
  const auto model = llama().read().value();
  EXPECT_EQ(largest_context(model, {}, 0).value(), std::nullopt);
  EXPECT_EQ(largest_sequences(model, {}, 0).value(), std::nullopt);
  EXPECT_EQ(largest_context(model, {}, model.weight_bytes).value(), std::nullopt);
}

TEST(Fit, ReadsAConfigurationBesideSafetensors) {
  const test::TemporaryFolder folder;
  const auto weight = Buffer::allocate(device("CPU").value(), bf16, {100, 64}).value();
  save_safetensors((folder.path() / "model.safetensors").string(), std::vector<NamedBuffer>{{"w", weight}}).value();
  const auto file = open_weights((folder.path() / "model.safetensors").string()).value();
  const auto model = read_model(file, R"({"model_type": "gemma2", "num_hidden_layers": 4, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 100, "intermediate_size": 128,
    "max_position_embeddings": 4096, "sliding_window": 512})")
                         .value();
  EXPECT_TRUE(model.missing.empty());
  EXPECT_EQ(model.weight_bytes, 100u * 64 * 2);
  const auto result = fit(model, {.context = 4096}).value();
  EXPECT_EQ(result.cache, (2u * 1024 + 2 * 4096) * 2 * 2 * 32 * 2);

  EXPECT_EQ(read_model(file, R"({"model_type": "x", "hidden_size": 8, "vocab_size": 9})").value().missing,
            std::vector<std::string>{"num_hidden_layers"});
  EXPECT_TRUE(fails_with(read_model(file), Code::kUnsupported));
  EXPECT_TRUE(fails_with(read_model(file, "not JSON"), Code::kInvalidData));
  EXPECT_TRUE(fails_with(read_model(file, "[]"), Code::kInvalidData));
  EXPECT_TRUE(fails_with(read_model(file, R"({"num_hidden_layers": -1})"), Code::kInvalidData));
  EXPECT_TRUE(fails_with(read_model(file, R"({"num_hidden_layers": 1e300})"), Code::kInvalidData));
  EXPECT_TRUE(
      fails_with(read_model(file, R"({"num_hidden_layers": 4294967295, "hidden_size": 4})"), Code::kInvalidData));
}

TEST(Fit, SaysWhichPartsOfAStateAConfigurationLacks) {
  const test::TemporaryFolder folder;
  const auto weight = Buffer::allocate(device("CPU").value(), bf16, {100, 64}).value();
  save_safetensors((folder.path() / "model.safetensors").string(), std::vector<NamedBuffer>{{"w", weight}}).value();
  const auto file = open_weights((folder.path() / "model.safetensors").string()).value();
  const auto read = [&](const std::string& more) {
    return read_model(
        file, R"({"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100)" + more + "}");
  };
  const auto whole = read(R"(, "state_size": 16, "conv_kernel": 4, "intermediate_size": 128)").value();
  EXPECT_TRUE(whole.missing.empty());
  EXPECT_EQ(whole.layers[1].recurrent_state, 16u * 128);
  EXPECT_EQ(whole.layers[1].convolution_state, 3u * 128);
  const auto missing = [&](const std::string& more) { return read(more).value().missing; };
  const auto lacks = [](const std::vector<std::string>& all, const std::string& name) {
    return std::find(all.begin(), all.end(), name) != all.end();
  };
  EXPECT_TRUE(lacks(missing(R"(, "conv_kernel": 4, "intermediate_size": 128)"), "state_size"));
  EXPECT_TRUE(lacks(missing(R"(, "state_size": 16, "intermediate_size": 128)"), "conv_kernel"));
  EXPECT_TRUE(lacks(missing(R"(, "state_size": 16, "conv_kernel": 4)"), "intermediate_size"));
  EXPECT_EQ(read(R"(, "state_size": 16, "conv_kernel": 4)").value().state, 0u);
  EXPECT_TRUE(
      fails_with(read(R"(, "state_size": 16, "conv_kernel": 0, "intermediate_size": 128)"), Code::kInvalidData));
}

// A model and a request that follow from a seed.
struct Drawn {
  Model model{};
  FitRequest request{};

  explicit Drawn(std::uint32_t seed) {
    std::mt19937 chance(seed);
    const auto from = [&](std::uint64_t low, std::uint64_t high) {
      return std::uniform_int_distribution<std::uint64_t>(low, high)(chance);
    };
    model.weight_bytes = from(0, 1 << 30);
    model.embedding = 32 * from(1, 64);
    model.vocabulary = from(1, 200'000);
    model.window = from(1, 3000);
    model.kernel = 4;
    model.inner = 2 * model.embedding;
    model.state = 16;
    model.step_rank = 8;
    const int kind = static_cast<int>(from(0, 3));
    model.layers.resize(from(1, 6));
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      ModelLayer& layer = model.layers[i];
      if (kind == 0 || (kind == 1 && i % 2 == 0)) {
        layer.convolution_state = 3 * model.inner;
        layer.recurrent_state = model.state * model.inner;
        continue;
      }
      layer.heads_kv = from(1, 4);
      layer.heads = layer.heads_kv * from(1, 4);
      layer.key_length = layer.value_length = layer.output_length = 32 * from(1, 4);
      layer.window = kind == 2 && i % 2 == 0;
      layer.feed_forward = from(1, 4096);
      layer.gated = from(0, 1) == 1;
    }
    request.context = from(1, 40'000);
    request.sequences = from(1, 20);
    request.batch = from(1, 1024);
    request.flash_attention = from(0, 3) > 0;
    if (from(0, 2) == 0) request.keys = request.values = DType::kQ8_0;
  }
};

RC_GTEST_PROP(FitProperty, GrowsWithContextAndSequences, ()) {
  const Drawn drawn(*rc::gen::arbitrary<std::uint32_t>());
  const auto at_least = [](const Fit& one) { return one.total() - one.activations + one.activations_at_least; };
  const Fit one = fit(drawn.model, drawn.request).value();
  for (const bool context : {true, false}) {
    FitRequest larger = drawn.request;
    (context ? larger.context : larger.sequences) += *rc::gen::inRange<std::uint64_t>(1, 1000);
    const Fit two = fit(drawn.model, larger).value();
    RC_ASSERT(two.cache >= one.cache);
    RC_ASSERT(at_least(two) >= at_least(one));
  }
  RC_ASSERT(one.activations >= one.activations_at_least);
}

RC_GTEST_PROP(FitProperty, FindsTheLastThatFits, ()) {
  const Drawn drawn(*rc::gen::arbitrary<std::uint32_t>());
  const std::uint64_t spare = *rc::gen::inRange<std::uint64_t>(0, std::uint64_t{4} << 30);
  const std::uint64_t budget = drawn.model.weight_bytes + spare;
  const auto fits = [&](std::uint64_t context, std::uint64_t sequences) {
    FitRequest request = drawn.request;
    request.context = context;
    request.sequences = sequences;
    const auto result = fit(drawn.model, request);
    return result && result->total() <= budget;
  };
  const auto context = largest_context(drawn.model, drawn.request, budget).value();
  if (context) RC_ASSERT(fits(*context, drawn.request.sequences));
  if (context.value_or(0) < 0xffff'ff00) RC_ASSERT(!fits(context.value_or(0) + 1, drawn.request.sequences));
  const auto sequences = largest_sequences(drawn.model, drawn.request, budget).value();
  if (sequences) RC_ASSERT(fits(drawn.request.context, *sequences));
  if (sequences.value_or(0) < 65'536) RC_ASSERT(!fits(drawn.request.context, sequences.value_or(0) + 1));
}

}  // namespace
}  // namespace berth::kv
