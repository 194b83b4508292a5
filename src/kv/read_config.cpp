// The shape of a model from the config.json beside its safetensors. The names are those of the transformers library.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/try.h"
#include "berth/kv/fit.h"
#include "kv/model_checks.h"

namespace berth::kv {
using namespace berth::internal;
using namespace berth::internal::fit;
namespace {

using Json = nlohmann::json;

class ConfigModel {
 public:
  ConfigModel(const WeightFile& file, const Json& config) : file_(file), config_(config) {}

  Result<Model> read() {
    model_.weight_bytes = file_.total_bytes();
    for (const TensorInfo& tensor : file_.tensors())
      if (tensor.name.ends_with("embed_tokens.weight")) model_.embedding_bytes = tensor.bytes;
    model_.tied = file_.find("lm_head.weight") == nullptr;
    if (const auto type = config_.find("model_type"); type != config_.end() && type->is_string())
      model_.architecture = type->get<std::string>();
    else
      model_.missing.emplace_back("model_type");
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> layers, number({"num_hidden_layers", "n_layer", "num_layers"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> embedding, number({"hidden_size", "n_embd", "d_model"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> vocabulary, number({"vocab_size"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> context, number({"max_position_embeddings", "n_positions"}));
    model_.trained_context = context.value_or(0);
    model_.vocabulary = vocabulary.value_or(0);
    model_.embedding = embedding.value_or(0);
    if (!layers) model_.missing.emplace_back("num_hidden_layers");
    if (!embedding) model_.missing.emplace_back("hidden_size");
    if (!vocabulary) model_.missing.emplace_back("vocab_size");
    if (!layers || !embedding) return std::move(model_);
    BERTH_TRY(check_layer_count(*layers, 0, "num_hidden_layers"));
    model_.layers.resize(*layers);
    BERTH_TRY(read_states());
    BERTH_TRY(read_attention());
    BERTH_TRY(read_windows());
    BERTH_TRY(read_feed_forward());
    return std::move(model_);
  }

 private:
  // The number under the first of these names that the file has.
  Result<std::optional<std::uint64_t>> number(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      const auto found = config_.find(name);
      if (found == config_.end() || found->is_null()) continue;
      if (!found->is_number_integer() || *found < 0 || *found > std::numeric_limits<std::uint32_t>::max())
        return Error::with_text(Code::kInvalidData, Layer::kFormat,
                                fmt::format("config.json: {} is {}, and a number from 0 to 4294967295 is expected",
                                            name, found->dump(-1, ' ', true, Json::error_handler_t::replace)));
      return std::optional(found->get<std::uint64_t>());
    }
    return std::optional<std::uint64_t>{};
  }
  bool flag(const char* name, bool otherwise) const {
    const auto found = config_.find(name);
    return found != config_.end() && found->is_boolean() ? found->get<bool>() : otherwise;
  }
  // What layer_types says of a layer; empty if it says nothing.
  std::string_view type_of(std::size_t layer) const {
    const auto found = config_.find("layer_types");
    if (found == config_.end() || !found->is_array() || layer >= found->size() || !(*found)[layer].is_string())
      return {};
    return (*found)[layer].get_ref<const std::string&>();
  }

  Result<void> read_states() {
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> state, number({"state_size", "mamba_d_state"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> kernel, number({"conv_kernel", "mamba_d_conv"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> inner, number({"intermediate_size", "d_inner"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> rank, number({"time_step_rank", "mamba_dt_rank"}));
    if (!state && !kernel) return {};
    if (model_.architecture != "mamba" && model_.architecture != "falcon_mamba") {
      model_.missing.emplace_back("layers of " + model_.architecture + " that keep a state");
      return {};
    }
    if (!state) model_.missing.emplace_back("state_size");
    if (!kernel) model_.missing.emplace_back("conv_kernel");
    if (!inner) model_.missing.emplace_back("intermediate_size");
    if (!state || !kernel || !inner) return {};
    if (*state == 0 || *kernel == 0 || *inner == 0)
      return Error(
          Code::kInvalidData, Layer::kFormat,
          "config.json: state_size, conv_kernel and intermediate_size are {}, {} and {}, and none of them can be 0",
          *state, *kernel, *inner);
    model_.state = *state;
    model_.kernel = *kernel;
    model_.inner = *inner;
    model_.step_rank = rank.value_or((model_.embedding + 15) / 16);
    for (ModelLayer& layer : model_.layers) {
      layer.convolution_state = multiply(*kernel - 1, *inner);
      layer.recurrent_state = multiply(*state, *inner);
    }
    return {};
  }

  Result<void> read_attention() {
    if (model_.state > 0) return {};
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> heads, number({"num_attention_heads", "n_head"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> heads_kv, number({"num_key_value_heads", "n_head_kv"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> length, number({"head_dim"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> latent, number({"kv_lora_rank"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> rotary, number({"qk_rope_head_dim"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> unpacked, number({"v_head_dim"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> plain, number({"qk_nope_head_dim"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> query_rank, number({"q_lora_rank"}));
    if (!heads) {
      model_.missing.emplace_back("num_attention_heads");
      return {};
    }
    const bool normed = model_.architecture.starts_with("qwen3") || model_.architecture.starts_with("gemma3");
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      ModelLayer& layer = model_.layers[i];
      if (type_of(i) == "linear_attention") {
        model_.missing.emplace_back("states of layers with linear_attention");
        continue;
      }
      layer.heads = *heads;
      layer.heads_kv = heads_kv.value_or(*heads);
      layer.key_length = length.value_or(*heads == 0 ? 0 : model_.embedding / *heads);
      layer.value_length = layer.output_length = layer.key_length;
      if (latent) {
        layer.heads_kv = 1;
        layer.key_length = add(*latent, rotary.value_or(0));
        layer.value_length = 0;
        layer.output_length = unpacked.value_or(layer.key_length);
        layer.latent = *latent;
        layer.unpacked_key = add(plain.value_or(layer.output_length), rotary.value_or(0));
        layer.query_rank = query_rank.value_or(0);
      }
      if (layer.heads_kv == 0)
        return Error(Code::kInvalidData, Layer::kFormat,
                     "config.json: num_key_value_heads is 0 with {} heads, and keys need a head", *heads);
      BERTH_TRY(check_heads(layer, i));
      layer.query_norm = normed;
      layer.post_norm = model_.architecture.starts_with("gemma2") || model_.architecture.starts_with("gemma3");
      layer.fused_qkv = model_.architecture == "phi3";
    }
    return {};
  }

  Result<void> read_windows() {
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> window, number({"sliding_window"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> period,
                     number({"sliding_window_pattern", "_sliding_window_pattern"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> dense, number({"max_window_layers"}));
    if (window.value_or(0) == 0 || !flag("use_sliding_window", true)) return {};
    const std::string_view name = model_.architecture;
    model_.window = *window;
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      ModelLayer& layer = model_.layers[i];
      if (layer.heads_kv == 0) continue;
      if (const std::string_view type = type_of(i); !type.empty())
        layer.window = type == "sliding_attention" || type == "chunked_attention";
      else if (period.value_or(0) > 0)
        layer.window = (i + 1) % *period != 0;
      else if (name == "gemma2")
        layer.window = i % 2 == 0;
      else if (name.starts_with("gemma3"))
        layer.window = (i + 1) % 6 != 0;
      else if (name.starts_with("qwen"))
        layer.window = flag("use_sliding_window", false) && i >= dense.value_or(0);
      else
        layer.window = true;  // Mistral and those that follow it
    }
    return {};
  }

  Result<void> read_feed_forward() {
    if (model_.state > 0) return {};
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> width, number({"intermediate_size", "n_inner", "ffn_dim"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> experts,
                     number({"num_local_experts", "num_experts", "n_routed_experts"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> used, number({"num_experts_per_tok", "experts_per_token"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> expert_width, number({"moe_intermediate_size"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> shared, number({"shared_expert_intermediate_size"}));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> dense, number({"first_k_dense_replace"}));
    if (!width && !expert_width) model_.missing.emplace_back("intermediate_size");
    const bool mixed = experts.value_or(0) > 1;
    if (mixed && !used) model_.missing.emplace_back("num_experts_per_tok");
    if (mixed && (used.value_or(1) == 0 || used.value_or(1) > *experts))
      return Error(Code::kInvalidData, Layer::kFormat,
                   "config.json: {} of {} experts are used for a token, and 1 to all of them are possible", *used,
                   *experts);
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      ModelLayer& layer = model_.layers[i];
      if (mixed && i >= dense.value_or(0)) {
        layer.experts = *experts;
        layer.experts_used = used.value_or(1);
        layer.expert_feed_forward = expert_width.value_or(width.value_or(0));
        layer.shared_feed_forward = shared.value_or(0);
        layer.shared_gate = shared.value_or(0) > 0;
      } else {
        layer.feed_forward = width.value_or(0);
        layer.gated = model_.architecture != "phi3" && model_.architecture != "gpt2";
        layer.gate_inside = model_.architecture == "phi3";
      }
    }
    model_.residual_first = model_.architecture == "phi3";
    model_.soft_cap = model_.architecture == "gemma2";
    return {};
  }

  const WeightFile& file_;
  const Json& config_;
  Model model_{};
};

}  // namespace

Result<Model> read_model(const WeightFile& file, std::string_view config_json) {
  const Json config = Json::parse(config_json, nullptr, false);
  if (config.is_discarded() || !config.is_object())
    return Error(Code::kInvalidData, Layer::kFormat, "config.json is not a JSON object of {} bytes",
                 config_json.size());
  // Models that see or hear have the language model in a part of its own.
  const auto part = config.find("text_config");
  const bool nested = part != config.end() && part->is_object() && part->contains("num_hidden_layers");
  BERTH_TRY_ASSIGN(Model model, ConfigModel(file, nested ? *part : config).read());
  std::sort(model.missing.begin(), model.missing.end());
  model.missing.erase(std::unique(model.missing.begin(), model.missing.end()), model.missing.end());
  return model;
}

}  // namespace berth::kv
