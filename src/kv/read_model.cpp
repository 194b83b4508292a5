// The shape of a model from the metadata and the tensor names of a GGUF file. Most facts are keys; how layers with a
// window alternate with others is often a default of the architecture that the file does not repeat.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <unordered_map>

#include "base/try.h"
#include "berth/kv/fit.h"
#include "kv/model_checks.h"

namespace berth::kv {
using namespace berth::internal;
using namespace berth::internal::fit;
namespace {

// Architectures whose windows llama.cpp honours, and what it assumes where the file says nothing. Of `period` layers
// one attends to everything: the last, or the first.
struct WindowRule {
  std::string_view architecture;
  std::uint64_t period;
  bool dense_first = false;
  std::uint64_t default_window = 0;  // 0: without the key there is no window
  bool fixed = false;                // the window is the default, whatever the key says
};
constexpr std::array kWindowRules{
    WindowRule{"gemma2", 2, false, 4096},
    WindowRule{"gemma3", 6},
    WindowRule{"gemma3n", 5},
    WindowRule{"gemma4", 6},
    WindowRule{"cohere2", 4},
    WindowRule{"cohere2moe", 4, true},
    WindowRule{"gpt-oss", 2},
    WindowRule{"olmo2", 4},
    WindowRule{"plamo3", 8},
    WindowRule{"smallthinker", 4, true, 4096, true},
    WindowRule{"llama4", 4, false, 8192, true},
    WindowRule{"exaone-moe", 4},
    WindowRule{"afmoe", 4},
    WindowRule{"mellum", 4},
};

// The tensors of one layer by the part of their name after "blk.N.".
using LayerTensors = std::unordered_map<std::string_view, const TensorInfo*>;

class GgufModel {
 public:
  explicit GgufModel(const WeightFile& file) : file_(file) {}

  Result<Model> read() {
    model_.weight_bytes = file_.total_bytes();
    if (const TensorInfo* table = file_.find("token_embd.weight")) model_.embedding_bytes = table->bytes;
    model_.tied = file_.find("output.weight") == nullptr;
    const MetadataValue* architecture = file_.find_metadata("general.architecture");
    if (architecture == nullptr) {
      model_.missing.emplace_back("general.architecture");
      return std::move(model_);
    }
    BERTH_TRY_ASSIGN(const std::string_view name, architecture->as_string());
    model_.architecture = name;
    BERTH_TRY(collect_tensors());
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> layers, number("block_count"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> embedding, number("embedding_length"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> context, number("context_length"));
    model_.trained_context = context.value_or(0);
    if (!embedding) lack("embedding_length");
    if (!layers) lack("block_count");
    BERTH_TRY(read_vocabulary());
    if (!layers || !embedding) return std::move(model_);
    model_.embedding = *embedding;
    BERTH_TRY(check_layer_count(*layers, tensors_.size(), key("block_count")));
    BERTH_TRY(check_embedding());
    model_.layers.resize(*layers);
    tensors_.resize(*layers);
    BERTH_TRY(read_states());
    BERTH_TRY(read_attention());
    BERTH_TRY(read_windows());
    BERTH_TRY(read_feed_forward());
    // The facts about graphs that no key tells.
    model_.residual_first = name == "phi3";
    model_.rotary =
        name != "jamba" && name != "bloom" && name != "mpt" && file_.find("position_embd.weight") == nullptr;
    model_.soft_cap = name == "gemma2" || file_.find_metadata(key("attn_logit_softcapping")) != nullptr;
    model_.normal_rms = file_.find_metadata(key("attention.layer_norm_epsilon")) == nullptr;
    if (known_tensors_ == 0 && *layers > 0)
      model_.notes.emplace_back("the file has no tensors of layers: what they compute is taken from the keys alone");
    return std::move(model_);
  }

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", model_.architecture, name); }
  void lack(std::string_view name) { model_.missing.push_back(key(name)); }

  // A number of a key, or nothing if the key is absent. kInvalidData if it is not a number of 32 bits.
  Result<std::optional<std::uint64_t>> number(std::string_view name) const {
    const MetadataValue* value = file_.find_metadata(key(name));
    if (value == nullptr || value->type() == MetadataType::kArray) return std::optional<std::uint64_t>{};
    BERTH_TRY_ASSIGN(const std::uint64_t read, small_number(*value, key(name)));
    return std::optional(read);
  }
  static Result<std::uint64_t> small_number(const MetadataValue& value, const std::string& name) {
    if (value.type() == MetadataType::kBool) return std::uint64_t{*value.as_bool()};
    const auto read = value.as_uint();
    if (!read || *read > std::numeric_limits<std::uint32_t>::max())
      return Error::with_text(
          Code::kInvalidData, Layer::kFormat,
          fmt::format("{} is {}, and a number from 0 to 4294967295 is expected", name, value.to_string()));
    return *read;
  }
  // A number for each layer: the value of the key, or its elements. Empty if the key is absent.
  Result<std::vector<std::uint64_t>> numbers(std::string_view name) const {
    std::vector<std::uint64_t> result;
    const MetadataValue* value = file_.find_metadata(key(name));
    if (value == nullptr) return result;
    if (value->type() != MetadataType::kArray) {
      BERTH_TRY_ASSIGN(const std::uint64_t one, small_number(*value, key(name)));
      result.assign(model_.layers.size(), one);
      return result;
    }
    if (value->size() < model_.layers.size())
      return Error::with_text(Code::kInvalidData, Layer::kFormat,
                              fmt::format("{} has {} elements, and {} is {}", key(name), value->size(),
                                          key("block_count"), model_.layers.size()));
    for (const MetadataValue& element : value->elements()) {
      BERTH_TRY_ASSIGN(const std::uint64_t one, small_number(element, key(name)));
      result.push_back(one);
    }
    result.resize(model_.layers.size());
    return result;
  }

  // Sorts tensors "blk.N.name" by layer.
  Result<void> collect_tensors() {
    for (const TensorInfo& tensor : file_.tensors()) {
      if (!tensor.name.starts_with("blk.")) continue;
      const char *begin = tensor.name.data() + 4, *end = tensor.name.data() + tensor.name.size();
      std::uint32_t layer = 0;
      const auto [after, problem] = std::from_chars(begin, end, layer);
      if (problem != std::errc{} || after == end || *after != '.') continue;
      BERTH_TRY(check_layer_count(std::uint64_t{layer} + 1, 0, "the largest block of a tensor"));
      if (tensors_.size() <= layer) tensors_.resize(std::size_t{layer} + 1);
      tensors_[layer].emplace(std::string_view(after + 1, static_cast<std::size_t>(end - after - 1)), &tensor);
      ++known_tensors_;
    }
    return {};
  }
  const TensorInfo* tensor(std::size_t layer, std::string_view name) const {
    const auto found = tensors_[layer].find(name);
    return found == tensors_[layer].end() ? nullptr : found->second;
  }
  bool has(std::size_t layer, std::string_view name) const { return tensor(layer, name) != nullptr; }
  bool has_part(std::size_t layer, std::string_view part) const {
    return std::any_of(tensors_[layer].begin(), tensors_[layer].end(),
                       [&](const auto& entry) { return entry.first.starts_with(part); });
  }

  Result<void> read_vocabulary() {
    const TensorInfo* rows = file_.find("output.weight");
    if (rows == nullptr) rows = file_.find("token_embd.weight");
    if (rows != nullptr && rows->shape.size() == 2) {
      model_.vocabulary = rows->shape[0];
    } else if (const MetadataValue* tokens = file_.find_metadata("tokenizer.ggml.tokens");
               tokens != nullptr && tokens->type() == MetadataType::kArray) {
      model_.vocabulary = tokens->size();
    } else {
      BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> size, number("vocab_size"));
      if (!size) lack("vocab_size");
      model_.vocabulary = size.value_or(0);
    }
    return {};
  }
  Result<void> check_embedding() const {
    const TensorInfo* rows = file_.find("token_embd.weight");
    if (rows == nullptr || rows->shape.size() != 2 || rows->shape[1] == model_.embedding) return {};
    return Error::with_text(Code::kInvalidData, Layer::kFormat,
                            fmt::format("{} is {}, and token_embd.weight has rows of {}", key("embedding_length"),
                                        model_.embedding, rows->shape[1]));
  }

  Result<void> read_attention() {
    BERTH_TRY_ASSIGN(const std::vector<std::uint64_t> heads, numbers("attention.head_count"));
    BERTH_TRY_ASSIGN(std::vector<std::uint64_t> heads_kv, numbers("attention.head_count_kv"));
    const bool any_state = std::any_of(model_.layers.begin(), model_.layers.end(), has_state);
    const bool every_state = std::all_of(model_.layers.begin(), model_.layers.end(), has_state);
    if (heads.empty()) {
      if (!every_state) lack("attention.head_count");
      return {};
    }
    if (heads_kv.empty()) heads_kv = heads;
    const auto first = std::find_if(heads.begin(), heads.end(), [](std::uint64_t count) { return count > 0; });
    const std::uint64_t usual = first == heads.end() ? 0 : model_.embedding / *first;
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> key_length, number("attention.key_length"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> value_length, number("attention.value_length"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> latent, number("attention.key_length_mla"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> unpacked, number("attention.value_length_mla"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> latent_rank, number("attention.kv_lora_rank"));
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      ModelLayer& layer = model_.layers[i];
      if (!attends(i, any_state, heads_kv[i])) continue;
      layer.heads = heads[i];
      layer.heads_kv = heads_kv[i];
      layer.key_length = key_length.value_or(usual);
      layer.value_length = value_length.value_or(usual);
      layer.output_length = layer.value_length;
      if (latent.value_or(0) > 0 && unpacked.value_or(0) > 0) {
        layer.value_length = 0;
        layer.output_length = *unpacked;
        layer.unpacked_key = *latent;
        layer.latent = std::min(latent_rank.value_or(layer.key_length), layer.key_length);
        if (const TensorInfo* packed = tensor(i, "attn_q_a.weight"); packed != nullptr && packed->shape.size() == 2)
          layer.query_rank = packed->shape[0];
      }
      BERTH_TRY(check_heads(layer, i));
      layer.fused_qkv = has(i, "attn_qkv.weight");
      const TensorInfo* query_norm = tensor(i, "attn_q_norm.weight");
      layer.query_norm = query_norm != nullptr && has(i, "attn_k_norm.weight");
      layer.wide_norm = layer.query_norm && query_norm->shape.back() != layer.key_length;
      layer.post_norm = has(i, "post_attention_norm.weight") && has(i, "post_ffw_norm.weight");
      layer.pre_norm = tensors_[i].empty() || has(i, "attn_norm.weight");
      BERTH_TRY(check_keys(layer, i));
    }
    return leave_out_layers();
  }
  static bool has_state(const ModelLayer& layer) { return layer.convolution_state > 0 || layer.recurrent_state > 0; }
  // Whether a layer has keys and values of its own. Tensors tell; without them a model with states says so by no heads.
  bool attends(std::size_t layer, bool any_state, std::uint64_t heads_kv) const {
    if (heads_kv == 0) return false;
    if (!any_state || tensors_[layer].empty()) return !has_state(model_.layers[layer]);
    if (has_part(layer, "attn_k") || has(layer, "attn_kv_a_mqa.weight")) return true;
    return has(layer, "attn_qkv.weight") && !has_state(model_.layers[layer]);
  }
  // The rows of the key matrix are what the cache keeps of a token.
  Result<void> check_keys(const ModelLayer& layer, std::size_t i) const {
    const TensorInfo* keys = tensor(i, "attn_k.weight");
    if (keys == nullptr || keys->shape.size() != 2 || layer.value_length == 0) return {};
    const std::uint64_t kept = multiply(layer.heads_kv, key_length_of(layer, i));
    if (keys->shape[0] == kept) return {};
    return Error::with_text(
        Code::kInvalidData, Layer::kFormat,
        fmt::format("blk.{}.attn_k.weight has {} rows, and the metadata says {} heads of {}: one of them is wrong", i,
                    keys->shape[0], layer.heads_kv, layer.key_length));
  }
  // A windowed layer may have heads of another length, which are read later.
  std::uint64_t key_length_of(const ModelLayer& layer, std::size_t i) const {
    const TensorInfo* keys = tensor(i, "attn_k.weight");
    const bool other = file_.find_metadata(key("attention.key_length_swa")) != nullptr && layer.heads_kv > 0;
    return other ? keys->shape[0] / layer.heads_kv : layer.key_length;
  }
  // Layers that draft further tokens have no cache here, nor have those that use the cache of an earlier layer.
  Result<void> leave_out_layers() {
    const std::size_t count = model_.layers.size();
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> drafting, number("nextn_predict_layers"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> sharing, number("attention.shared_kv_layers"));
    for (std::size_t i = count - std::min<std::uint64_t>(count, drafting.value_or(0)); i < count; ++i)
      model_.layers[i] = {};
    std::size_t kept = count - std::min<std::uint64_t>(count, sharing.value_or(0));
    if (model_.architecture == "gemma3n" && !sharing) kept = std::min<std::size_t>(count, 20);
    for (std::size_t i = kept; i < count; ++i) model_.layers[i].keeps_cache = false;
    return {};
  }

  Result<void> read_windows() {
    const auto rule = std::find_if(kWindowRules.begin(), kWindowRules.end(),
                                   [&](const WindowRule& one) { return one.architecture == model_.architecture; });
    const bool ruled = rule != kWindowRules.end();
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> said, number("attention.sliding_window"));
    const bool has_pattern = file_.find_metadata(key("attention.sliding_window_pattern")) != nullptr;
    std::uint64_t window = said.value_or(ruled ? rule->default_window : 0);
    if (ruled && rule->fixed && window > 0) window = rule->default_window;
    if (window == 0) return {};
    if (!ruled && !has_pattern) {
      model_.notes.push_back(fmt::format("{} = {} is not used: without {} every layer keeps all tokens",
                                         key("attention.sliding_window"), window,
                                         key("attention.sliding_window_pattern")));
      return {};
    }
    model_.window = window;
    const MetadataValue* pattern = file_.find_metadata(key("attention.sliding_window_pattern"));
    std::vector<std::uint64_t> windowed;
    if (pattern != nullptr && pattern->type() == MetadataType::kArray) {
      BERTH_TRY_ASSIGN(windowed, numbers("attention.sliding_window_pattern"));
    } else {
      BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> period_said, number("attention.sliding_window_pattern"));
      const std::uint64_t period = period_said.value_or(ruled ? rule->period : 0);
      const bool dense_first = ruled && rule->dense_first;
      for (std::size_t i = 0; i < model_.layers.size(); ++i)
        windowed.push_back(period == 0 || (dense_first ? i % period != 0 : i % period + 1 < period));
    }
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> key_length, number("attention.key_length_swa"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> value_length, number("attention.value_length_swa"));
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      ModelLayer& layer = model_.layers[i];
      layer.window = windowed[i] != 0 && layer.heads_kv > 0;
      if (!layer.window) continue;
      layer.key_length = key_length.value_or(layer.key_length);
      layer.value_length = value_length.value_or(layer.value_length);
      layer.output_length = layer.value_length;
    }
    return {};
  }

  // States of constant size: state-space models, short convolutions, RWKV.
  Result<void> read_states() {
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> kernel, number("ssm.conv_kernel"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> inner, number("ssm.inner_size"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> state, number("ssm.state_size"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> groups, number("ssm.group_count"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> rank, number("ssm.time_step_rank"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> short_kernel, number("shortconv.l_cache"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> head_size, number("wkv.head_size"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> shifts, number("token_shift_count"));
    std::uint64_t convolution = 0, recurrent = 0;
    if (head_size.value_or(0) > 0) {
      convolution = multiply(shifts.value_or(2), model_.embedding);
      recurrent = multiply(model_.embedding, *head_size);
    } else if (short_kernel.value_or(0) > 0) {
      convolution = multiply(model_.embedding, *short_kernel - 1);
    } else if (kernel || inner || state) {
      if (!kernel) lack("ssm.conv_kernel");
      if (!inner) lack("ssm.inner_size");
      if (!state) lack("ssm.state_size");
      if (!kernel || !inner || !state) return {};
      if (*kernel == 0 || *inner == 0 || *state == 0)
        return Error::with_text(
            Code::kInvalidData, Layer::kFormat,
            fmt::format("{}, {} and {} are {}, {} and {}, and none of them can be 0", key("ssm.conv_kernel"),
                        key("ssm.inner_size"), key("ssm.state_size"), *kernel, *inner, *state));
      model_.kernel = *kernel;
      model_.inner = *inner;
      model_.state = *state;
      model_.state_groups = groups.value_or(0);
      model_.step_rank = rank.value_or(0);
      convolution = multiply(*kernel - 1, add(*inner, multiply(2, model_.state_groups, *state)));
      recurrent = multiply(*state, *inner);
    } else {
      return {};
    }
    BERTH_TRY_ASSIGN(const std::vector<std::uint64_t> heads_kv, numbers("attention.head_count_kv"));
    const bool mixed = std::any_of(heads_kv.begin(), heads_kv.end(), [](std::uint64_t count) { return count > 0; });
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      const bool by_tensor = has_part(i, "ssm_") || has_part(i, "shortconv.") || has_part(i, "time_mix_");
      const bool by_key = !mixed || heads_kv[i] == 0;
      if (tensors_[i].empty() ? !by_key : !by_tensor) continue;
      model_.layers[i].grouped_state = !tensors_[i].empty() && !has(i, "ssm_x.weight");
      model_.layers[i].state_norm = has(i, "ssm_dt_norm.weight") && has(i, "ssm_b_norm.weight");
      model_.layers[i].convolution_state = convolution;
      model_.layers[i].recurrent_state = recurrent;
    }
    return {};
  }

  Result<void> read_feed_forward() {
    BERTH_TRY_ASSIGN(const std::vector<std::uint64_t> widths, numbers("feed_forward_length"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> used, number("expert_used_count"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> experts, number("expert_count"));
    BERTH_TRY_ASSIGN(const std::optional<std::uint64_t> normalised, number("expert_weights_norm"));
    const bool usually = model_.architecture != "qwen2moe" && model_.architecture != "olmoe";
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      ModelLayer& layer = model_.layers[i];
      const TensorInfo *up = tensor(i, "ffn_up.weight"), *down = tensor(i, "ffn_down.weight");
      if (tensors_[i].empty() && !widths.empty() && layer.heads_kv > 0) {
        layer.feed_forward = widths[i];
        layer.gated = true;
      }
      if (up != nullptr && down != nullptr && up->shape.size() == 2 && down->shape.size() == 2) {
        layer.feed_forward = down->shape[1];
        layer.gated = has(i, "ffn_gate.weight");
        layer.gate_inside = !layer.gated && up->shape[0] / 2 == down->shape[1] && up->shape[0] % 2 == 0;
      }
      const TensorInfo* all = tensor(i, "ffn_down_exps.weight");
      if (all == nullptr || all->shape.size() != 3) continue;
      layer.experts = all->shape[0];
      layer.expert_feed_forward = all->shape[2];
      layer.experts_gated = has(i, "ffn_gate_exps.weight");
      layer.experts_biased = has(i, "exp_probs_b.bias");
      layer.experts_normalised = normalised ? *normalised != 0 : usually;
      if (!used) lack("expert_used_count");
      layer.experts_used = used.value_or(1);
      if (layer.experts_used == 0 || layer.experts_used > layer.experts ||
          experts.value_or(layer.experts) != layer.experts)
        return Error::with_text(
            Code::kInvalidData, Layer::kFormat,
            fmt::format("{} is {} and {} is {}, and blk.{}.ffn_down_exps.weight has {} experts", key("expert_count"),
                        experts.value_or(0), key("expert_used_count"), layer.experts_used, i, layer.experts));
      if (const TensorInfo* shared = tensor(i, "ffn_down_shexp.weight"); shared != nullptr && shared->shape.size() == 2)
        layer.shared_feed_forward = shared->shape[1];
      layer.shared_gate = has(i, "ffn_gate_inp_shexp.weight");
    }
    return {};
  }

  const WeightFile& file_;
  Model model_{};
  std::vector<LayerTensors> tensors_;
  std::size_t known_tensors_ = 0;
};

}  // namespace

Result<Model> read_model(const WeightFile& file) {
  if (file.format() != WeightFormat::kGguf)
    return Error::with_text(Code::kUnsupported, Layer::kFormat,
                            fmt::format("a {} file does not say what model it is; give the text of its config.json",
                                        to_string(file.format())));
  BERTH_TRY_ASSIGN(Model model, GgufModel(file).read());
  std::sort(model.missing.begin(), model.missing.end());
  model.missing.erase(std::unique(model.missing.begin(), model.missing.end()), model.missing.end());
  return model;
}

}  // namespace berth::kv
