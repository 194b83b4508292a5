// Writes small GGUF models with random weights for tests of examples/llama, also such whose metadata lies.
#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "berth/memory/registry.h"
#include "berth/tensor/buffer.h"
#include "berth/weights/save.h"

namespace berth::test {

struct RandomModel {
  std::uint32_t seed = 1;
  std::string architecture = "llama";
  // Of what the tensors have. `keys` says what the metadata says.
  std::size_t layers = 2, embedding = 64, heads = 2, heads_kv = 1, feed_forward = 64, vocabulary = 300;
  std::map<std::string, std::uint64_t> keys{
      {"block_count", 2},          {"embedding_length", 64},       {"attention.head_count", 2},
      {"context_length", 4096},    {"attention.head_count_kv", 1}, {"feed_forward_length", 64},
      {"rope.dimension_count", 32}};
  std::map<std::string, double> reals{{"rope.freq_base", 10000.0}, {"attention.layer_norm_rms_epsilon", 1e-5}};
  std::map<std::string, std::string> texts{};
  std::vector<std::string> without{};    // tensors that are left out
  std::map<std::string, DType> types{};  // of tensors that are not f32, with bytes of zero

  void write(const std::string& path) const {
    std::deque<std::string> names;
    std::vector<NamedBuffer> tensors;
    std::mt19937 random(seed);
    const DevicePtr cpu = device("CPU").value();
    const auto add = [&](const std::string& name, const Shape& shape, float middle, float spread) {
      const auto type = types.find(name);
      const DType dtype = type == types.end() ? f32 : type->second;
      const Buffer buffer = Buffer::allocate(cpu, dtype, shape, {.zero = true}).value();
      std::normal_distribution<float> normal(middle, spread);
      if (dtype == f32)
        for (float& value : buffer.as_slice_mut<float>().value()) value = normal(random);
      if (std::find(without.begin(), without.end(), name) == without.end())
        tensors.push_back({names.emplace_back(name), buffer});
    };
    const auto matrix = [&](const std::string& name, std::size_t rows, std::size_t columns) {
      add(name, {rows, columns}, 0, 1 / std::sqrt(static_cast<float>(columns)));
    };
    const std::size_t size = embedding / heads;
    matrix("token_embd.weight", vocabulary, embedding);
    matrix("output.weight", vocabulary, embedding);
    add("output_norm.weight", {embedding}, 1, 0.2f);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::string block = "blk." + std::to_string(layer) + ".";
      add(block + "attn_norm.weight", {embedding}, 1, 0.2f);
      add(block + "ffn_norm.weight", {embedding}, 1, 0.2f);
      matrix(block + "attn_q.weight", heads * size, embedding);
      matrix(block + "attn_k.weight", heads_kv * size, embedding);
      matrix(block + "attn_v.weight", heads_kv * size, embedding);
      matrix(block + "attn_output.weight", embedding, heads * size);
      matrix(block + "ffn_gate.weight", feed_forward, embedding);
      matrix(block + "ffn_up.weight", feed_forward, embedding);
      matrix(block + "ffn_down.weight", embedding, feed_forward);
    }
    Metadata metadata;
    metadata.add("general.architecture", architecture).value();
    for (const auto& [key, number] : keys) metadata.add(architecture + "." + key, number).value();
    for (const auto& [key, number] : reals) metadata.add(architecture + "." + key, number).value();
    for (const auto& [key, text] : texts) metadata.add(key, text).value();
    save_gguf(path, tensors, metadata, {.flush = false}).value();
  }
};

}  // namespace berth::test
