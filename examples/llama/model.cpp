#include "model.h"

#include <cmath>
#include <utility>

namespace llama {

void fail(berth::Code code, std::string text) {
  throw berth::BadResult(berth::Error::with_text(code, berth::Layer::kProgram, std::move(text)));
}

namespace {

using berth::Code;

// Larger sizes are lies; smaller ones cannot overflow when they are multiplied.
constexpr std::uint64_t kMostSize = std::uint64_t{1} << 24;

std::string shape_text(std::span<const std::size_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// Looks up keys and tensors, and compares them.
class Reader {
 public:
  explicit Reader(const berth::WeightFile& file) : file_(file) {
    const berth::MetadataValue* value = file_.find_metadata("general.architecture");
    if (value == nullptr) fail(Code::kNotFound, "the file has no key general.architecture: it is not a GGUF model");
    architecture = std::string(value->as_string().value());
  }

  std::string key(std::string_view name) const { return architecture + "." + std::string(name); }
  const berth::MetadataValue* find(std::string_view name) const { return file_.find_metadata(key(name)); }

  std::size_t size(std::string_view name) const {
    const berth::MetadataValue* value = find(name);
    if (value == nullptr) fail(Code::kNotFound, "the file lacks the key " + key(name));
    return checked(name, *value);
  }
  std::size_t size_or(std::string_view name, std::size_t otherwise) const {
    const berth::MetadataValue* value = find(name);
    return value == nullptr ? otherwise : checked(name, *value);
  }
  double real_or(std::string_view name, double otherwise) const {
    const berth::MetadataValue* value = find(name);
    const double number = value == nullptr ? otherwise : value->as_double().value();
    if (!(number > 0) || !std::isfinite(number))
      fail(Code::kInvalidData, key(name) + " is " + std::to_string(number) + " and must be positive");
    return number;
  }

  const berth::TensorInfo& tensor(const std::string& name, std::initializer_list<std::size_t> shape) const {
    const berth::TensorInfo* info = file_.find(name);
    if (info == nullptr) fail(Code::kNotFound, "the file lacks the tensor " + name);
    if (!std::equal(info->shape.begin(), info->shape.end(), shape.begin(), shape.end()))
      fail(Code::kInvalidData, name + " has the shape " + shape_text(info->shape) + ", and its keys say " +
                                   shape_text(std::span(shape.begin(), shape.size())));
    return *info;
  }
  Matrix matrix(const std::string& name, std::size_t rows, std::size_t columns) const {
    const berth::TensorInfo& info = tensor(name, {rows, columns});
    using berth::DType;
    if (info.dtype != DType::kF32 && info.dtype != DType::kF16 && info.dtype != DType::kQ8_0 &&
        info.dtype != DType::kQ4_0)
      fail(Code::kUnsupported, name + " is of type " + std::string(berth::to_string(info.dtype)) +
                                   "; this decoder computes with f32, f16, q8_0 and q4_0");
    Matrix result{.buffer = file_.tensor(info).value(), .rows = rows, .columns = columns};
    result.data = result.buffer.as_host_bytes().value().data();
    result.row_bytes = berth::byte_size(info.dtype, columns).value();
    return result;
  }
  std::span<const float> vector(const std::string& name, std::size_t elements) const {
    return file_.tensor(tensor(name, {elements})).value().as_slice<float>().value();
  }
  std::span<const float> vector_or_none(const std::string& name, std::size_t elements) const {
    return file_.find(name) == nullptr ? std::span<const float>() : vector(name, elements);
  }

  std::string architecture;

 private:
  std::size_t checked(std::string_view name, const berth::MetadataValue& value) const {
    const std::uint64_t number = value.as_uint().value();
    if (number == 0 || number > kMostSize)
      fail(Code::kInvalidData, key(name) + " is " + std::to_string(number) + " and must be from 1 to 2^24");
    return number;
  }

  const berth::WeightFile& file_;
};

void read_sizes(const Reader& reader, Model& model) {
  if (reader.architecture != "llama" && reader.architecture != "qwen2")
    fail(Code::kUnsupported,
         "the architecture is \"" + reader.architecture + "\"; this decoder computes llama and qwen2");
  for (const char* name : {"expert_count", "attention.sliding_window"})
    if (const auto* value = reader.find(name); value != nullptr && value->as_uint().value() > 0)
      fail(Code::kUnsupported, "the file has the key " + reader.key(name) + ", which this decoder does not compute");
  if (const auto* scaling = reader.find("rope.scaling.type"); scaling != nullptr && scaling->text() != "none")
    fail(Code::kUnsupported, "positions are scaled by " + reader.key("rope.scaling.type") + " \"" +
                                 std::string(scaling->text()) + "\"; this decoder computes \"none\"");
  model.embedding = reader.size("embedding_length");
  model.feed_forward = reader.size("feed_forward_length");
  model.heads = reader.size("attention.head_count");
  model.heads_kv = reader.size_or("attention.head_count_kv", model.heads);
  model.context = reader.size("context_length");
  if (model.heads % model.heads_kv != 0)
    fail(Code::kInvalidData, std::to_string(model.heads) + " heads cannot share " + std::to_string(model.heads_kv) +
                                 " heads of keys: the numbers must divide");
  if (reader.find("attention.key_length") == nullptr && model.embedding % model.heads != 0)
    fail(Code::kInvalidData, "an embedding of " + std::to_string(model.embedding) + " elements has no " +
                                 std::to_string(model.heads) + " heads of equal length");
  model.head_size = reader.size_or("attention.key_length", model.embedding / model.heads);
  if (reader.size_or("attention.value_length", model.head_size) != model.head_size)
    fail(Code::kUnsupported, "keys and values are of unequal length");
  for (const auto& [what, size] :
       {std::pair("embedding_length", model.embedding), std::pair("feed_forward_length", model.feed_forward),
        std::pair("attention.key_length", model.head_size)})
    if (size % kColumns != 0)
      fail(Code::kUnsupported,
           reader.key(what) + " is " + std::to_string(size) + ", not a multiple of " + std::to_string(kColumns));
  model.rotated = reader.size_or("rope.dimension_count", model.head_size);
  if (model.rotated > model.head_size || model.rotated % 2 != 0)
    fail(Code::kInvalidData, "positions rotate " + std::to_string(model.rotated) + " elements of a head of " +
                                 std::to_string(model.head_size));
  model.rotates_halves = reader.architecture == "qwen2";
  model.rotation_base = reader.real_or("rope.freq_base", 10000.0);
  model.norm_epsilon = static_cast<float>(reader.real_or("attention.layer_norm_rms_epsilon", 1e-5));
}

Layer read_layer(const Reader& reader, const Model& model, std::size_t index) {
  const std::string block = "blk." + std::to_string(index) + ".";
  const std::size_t embedding = model.embedding;
  const std::size_t queries = model.heads * model.head_size, keys = model.heads_kv * model.head_size;
  return {.attention_norm = reader.vector(block + "attn_norm.weight", embedding),
          .feed_forward_norm = reader.vector(block + "ffn_norm.weight", embedding),
          .query = reader.matrix(block + "attn_q.weight", queries, embedding),
          .key = reader.matrix(block + "attn_k.weight", keys, embedding),
          .value = reader.matrix(block + "attn_v.weight", keys, embedding),
          .output = reader.matrix(block + "attn_output.weight", embedding, queries),
          .query_bias = reader.vector_or_none(block + "attn_q.bias", queries),
          .key_bias = reader.vector_or_none(block + "attn_k.bias", keys),
          .value_bias = reader.vector_or_none(block + "attn_v.bias", keys),
          .gate = reader.matrix(block + "ffn_gate.weight", model.feed_forward, embedding),
          .up = reader.matrix(block + "ffn_up.weight", model.feed_forward, embedding),
          .down = reader.matrix(block + "ffn_down.weight", embedding, model.feed_forward)};
}

}  // namespace

Model open_model(const std::string& path) {
  Model model;
  model.file = berth::open_weights(path).value();
  if (model.file.format() != berth::WeightFormat::kGguf) fail(Code::kUnsupported, path + " is not a GGUF file");
  const Reader reader(model.file);
  read_sizes(reader, model);
  const berth::TensorInfo* table = model.file.find("token_embd.weight");
  if (table == nullptr || table->shape.size() != 2 || table->shape[0] > kMostSize || table->shape[0] == 0)
    fail(Code::kInvalidData, "the file has no table of tokens, token_embd.weight, with 1 to 2^24 rows");
  model.vocabulary = table->shape[0];
  model.tokens = reader.matrix("token_embd.weight", model.vocabulary, model.embedding);
  model.output_norm = reader.vector("output_norm.weight", model.embedding);
  // Without a matrix of its own the table computes the logits.
  const bool tied = model.file.find("output.weight") == nullptr;
  model.output = tied ? model.tokens : reader.matrix("output.weight", model.vocabulary, model.embedding);
  model.rotation_factors = reader.vector_or_none("rope_freqs.weight", model.rotated / 2);
  const std::size_t layers = reader.size("block_count");
  // A layer has nine tensors at least, so that a number beyond the file ends at the first one that is absent.
  for (std::size_t i = 0; i < layers; ++i) model.layers.push_back(read_layer(reader, model, i));
  if (model.file.find("blk." + std::to_string(layers) + ".attn_norm.weight") != nullptr)
    fail(Code::kInvalidData, reader.key("block_count") + " is " + std::to_string(layers) + ", and there are more");
  return model;
}

}  // namespace llama
