#include "model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "berth/kv/fit.h"

namespace llama {

using berth::Code;

void fail(Code code, std::string text) {
  throw berth::BadResult(berth::Error::with_text(code, berth::Layer::kProgram, std::move(text)));
}

namespace {

// Larger sizes are lies; smaller ones cannot overflow when they are multiplied.
constexpr std::uint64_t kMostSize = std::uint64_t{1} << 24;

std::size_t checked(const std::string& what, std::uint64_t size) {
  if (size == 0 || size > kMostSize)
    fail(Code::kInvalidData, what + " is " + std::to_string(size) + " and must be from 1 to 2^24");
  return size;
}

// Finds keys and tensors, and refuses those that are not as the others say.
struct Reader {
  const berth::WeightFile& file;
  std::string prefix;  // of keys

  const berth::MetadataValue* find(const std::string& name) const { return file.find_metadata(prefix + name); }
  std::size_t size(const std::string& name) const {
    const berth::MetadataValue* value = find(name);
    if (value == nullptr) fail(Code::kNotFound, "the file lacks the key " + prefix + name);
    return checked(prefix + name, value->as_uint().value());
  }
  double real_or(const std::string& name, double otherwise) const {
    const berth::MetadataValue* value = find(name);
    const double number = value == nullptr ? otherwise : value->as_double().value();
    if (!(number > 0) || !std::isfinite(number))
      fail(Code::kInvalidData, prefix + name + " is " + std::to_string(number) + " and must be positive");
    return number;
  }

  const berth::TensorInfo& tensor(const std::string& name, std::initializer_list<std::size_t> shape) const {
    const berth::TensorInfo* info = file.find(name);
    if (info == nullptr) fail(Code::kNotFound, "the file lacks the tensor " + name);
    if (std::equal(info->shape.begin(), info->shape.end(), shape.begin(), shape.end())) return *info;
    std::string expected;
    for (const std::size_t size : shape) expected += " " + std::to_string(size);
    fail(Code::kInvalidData, name + " has another shape than the keys say, which is" + expected);
  }
  std::span<const float> vector(const std::string& name, std::size_t elements) const {
    return file.tensor(tensor(name, {elements})).value().as_slice<float>().value();
  }
  std::span<const float> vector_or_none(const std::string& name, std::size_t elements) const {
    return file.find(name) == nullptr ? std::span<const float>() : vector(name, elements);
  }
  Matrix matrix(const std::string& name, std::size_t rows, std::size_t columns) const {
    using berth::DType;
    const berth::TensorInfo& info = tensor(name + ".weight", {rows, columns});
    const std::initializer_list<DType> known = {DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_0};
    if (std::find(known.begin(), known.end(), info.dtype) == known.end())
      fail(Code::kUnsupported, name + " is of type " + std::string(berth::to_string(info.dtype)) +
                                   "; this decoder computes with f32, f16, q8_0 and q4_0");
    if (columns % kColumns != 0)
      fail(Code::kUnsupported, name + " has rows of " + std::to_string(columns) + " elements, not a multiple of 32");
    const berth::Buffer buffer = file.tensor(info).value();
    return {buffer, buffer.as_host_bytes().value().data(), rows, columns, vector_or_none(name + ".bias", rows)};
  }
};

Layer read_layer(const Reader& reader, const Model& model, std::size_t index) {
  const std::string block = "blk." + std::to_string(index) + ".";
  const std::size_t embedding = model.embedding;
  const std::size_t queries = model.heads * model.head_size, keys = model.heads_kv * model.head_size;
  return {.attention_norm = reader.vector(block + "attn_norm.weight", embedding),
          .feed_forward_norm = reader.vector(block + "ffn_norm.weight", embedding),
          .query = reader.matrix(block + "attn_q", queries, embedding),
          .key = reader.matrix(block + "attn_k", keys, embedding),
          .value = reader.matrix(block + "attn_v", keys, embedding),
          .output = reader.matrix(block + "attn_output", embedding, queries),
          .gate = reader.matrix(block + "ffn_gate", model.feed_forward, embedding),
          .up = reader.matrix(block + "ffn_up", model.feed_forward, embedding),
          .down = reader.matrix(block + "ffn_down", embedding, model.feed_forward)};
}

}  // namespace

Model open_model(const std::string& path) {
  Model model;
  model.file = berth::open_weights(path).value();
  // Berth knows what the keys of a model mean, and which of them contradict the tensors.
  const berth::kv::Model said = berth::kv::read_model(model.file).value();
  if (!said.missing.empty()) fail(Code::kNotFound, "the file lacks the key " + said.missing.front());
  if (said.architecture != "llama" && said.architecture != "qwen2")
    fail(Code::kUnsupported,
         "the architecture is \"" + said.architecture + "\"; this decoder computes llama and qwen2");
  const Reader reader{model.file, said.architecture + "."};
  for (const char* name : {"expert_count", "attention.sliding_window"})
    if (const auto* value = reader.find(name); value != nullptr && value->as_uint().value() > 0)
      fail(Code::kUnsupported,
           "the file has the key " + reader.prefix + name + ", which this decoder does not compute");
  if (const auto* scaling = reader.find("rope.scaling.type"); scaling != nullptr && scaling->text() != "none")
    fail(Code::kUnsupported, "positions are scaled by \"" + std::string(scaling->text()) + "\"");
  const berth::kv::ModelLayer& first = said.layers.front();
  model.embedding = checked("the embedding", said.embedding);
  model.vocabulary = checked("the vocabulary", said.vocabulary);
  model.heads = checked("the number of heads", first.heads);
  model.heads_kv = checked("the number of heads with keys", first.heads_kv);
  model.head_size = checked("the length of a key", first.key_length);
  model.feed_forward = reader.size("feed_forward_length");
  model.context = reader.size("context_length");
  if (first.value_length != first.key_length || model.head_size % kColumns != 0)
    fail(Code::kUnsupported, "keys are of " + std::to_string(first.key_length) + " elements and values of " +
                                 std::to_string(first.value_length) + "; they must be equal, and a multiple of 32");
  model.rotated =
      reader.find("rope.dimension_count") == nullptr ? model.head_size : reader.size("rope.dimension_count");
  if (model.rotated > model.head_size || model.rotated % 2 != 0)
    fail(Code::kInvalidData, "positions rotate " + std::to_string(model.rotated) + " elements of a head of " +
                                 std::to_string(model.head_size));
  model.rotates_halves = said.architecture == "qwen2";
  model.rotation_base = reader.real_or("rope.freq_base", 10000.0);
  model.rotation_factors = reader.vector_or_none("rope_freqs.weight", model.rotated / 2);
  model.norm_epsilon = static_cast<float>(reader.real_or("attention.layer_norm_rms_epsilon", 1e-5));

  model.tokens = reader.matrix("token_embd", model.vocabulary, model.embedding);
  model.output = said.tied ? model.tokens : reader.matrix("output", model.vocabulary, model.embedding);
  model.output_norm = reader.vector("output_norm.weight", model.embedding);
  for (std::size_t i = 0; i < said.layers.size(); ++i) model.layers.push_back(read_layer(reader, model, i));
  return model;
}

}  // namespace llama
