// Whether a language model fits into memory: its weights, its key-value cache and its activations, computed from the
// metadata of a weight file without reading the weights. Cache and activations follow the rules of llama.cpp, so that
// the sizes are those that it reports when it loads the model; src/kv/fit.cpp states the rules. Plain values and
// functions; any thread may call.
//
//   auto file = berth::open_weights("model.gguf").value();
//   auto model = berth::kv::read_model(file).value();
//   auto fit = berth::kv::fit(model, {.context = 32768, .sequences = 4}).value();
//   bool yes = fit.total() <= budget;
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "berth/base/result.h"
#include "berth/kv/cache.h"
#include "berth/tensor/dtype.h"
#include "berth/weights/weights.h"

namespace berth::kv {

// What one layer keeps and computes.
struct ModelLayer {
  // Attention. Without keys (heads_kv 0) the layer has none.
  std::uint64_t heads = 0;
  std::uint64_t heads_kv = 0;
  std::uint64_t key_length = 0;     // of one head
  std::uint64_t value_length = 0;   // of one head; 0: keys and values are one latent (MLA)
  std::uint64_t output_length = 0;  // of one head of the result; value_length unless a latent is unpacked
  std::uint64_t latent = 0;         // of a latent: elements that are unpacked, without those for positions
  std::uint64_t unpacked_key = 0;   // elements of one head of a query
  std::uint64_t query_rank = 0;     // queries are unpacked from this many elements; 0: they are not
  bool window = false;              // attends to the last Model::window tokens only
  bool keeps_cache = true;          // false: it uses the cache of an earlier layer
  // Feed forward. Widths are in elements; 0: there is none.
  std::uint64_t feed_forward = 0;
  bool gated = false;        // a second matrix of the same width beside it
  bool gate_inside = false;  // one matrix of twice the width
  std::uint64_t experts = 0;
  std::uint64_t experts_used = 0;
  std::uint64_t expert_feed_forward = 0;
  bool experts_gated = true;
  bool experts_biased = false;            // the choice of experts has a bias
  bool experts_normalised = true;         // the weights of the experts of a token add up to 1
  std::uint64_t shared_feed_forward = 0;  // of experts that every token uses
  bool shared_gate = false;               // a weight for each token on the shared experts
  // State of constant size, in elements of four bytes for each sequence.
  std::uint64_t convolution_state = 0;
  std::uint64_t recurrent_state = 0;
  // Particulars that change what is computed.
  bool fused_qkv = false;
  bool query_norm = false;     // queries and keys are normalised: each head, or
  bool wide_norm = false;      // all heads together
  bool pre_norm = true;        // before attention and feed forward
  bool post_norm = false;      // after them
  bool grouped_state = false;  // the second form of state-space layers: one projection, heads
  bool state_norm = false;     // what controls the state is normalised
};

struct Model {
  std::string architecture{};
  std::uint64_t weight_bytes = 0;
  std::uint64_t embedding_bytes = 0;  // of these, the table of tokens
  bool tied = false;                  // the table also computes the logits
  std::uint64_t embedding = 0;        // elements of a token
  std::uint64_t vocabulary = 0;       // tokens
  std::uint64_t trained_context = 0;  // tokens; 0: not known
  std::uint64_t window = 0;           // tokens
  // Of state-space layers.
  std::uint64_t inner = 0, state = 0, kernel = 0, step_rank = 0, state_groups = 0;
  bool soft_cap = false;        // attention scores pass through three more operations
  bool normal_rms = true;       // RMS norms; otherwise layer norms
  bool residual_first = false;  // the last sum of a layer takes over the residual
  bool rotary = true;           // queries and keys are rotated by their position
  std::vector<ModelLayer> layers{};
  // Keys that the file lacks, without which something below is not known. Empty: everything is known.
  std::vector<std::string> missing{};
  // What the figures do not take from the file, in sentences.
  std::vector<std::string> notes{};
};

// Reads the metadata of a GGUF file, or config.json text for safetensors. A key that is absent is listed in `missing`
// and is not an error. kInvalidData for values that contradict each other or the tensors, with both values: no heads in
// a layer with keys, another number of layers than there are tensors of, an embedding with rows of another length.
// kUnsupported for other formats. O(tensors + metadata).
Result<Model> read_model(const WeightFile& file);
Result<Model> read_model(const WeightFile& file, std::string_view config_json);

struct FitRequest {
  std::uint64_t context = 0;    // tokens of each sequence; 0: the trained context
  std::uint64_t sequences = 1;  // at the same time
  DType keys = DType::kF16;
  DType values = DType::kF16;
  std::uint64_t batch = 512;    // tokens that are computed at once
  bool flash_attention = true;  // scores are never kept whole
  bool full_window = false;     // windowed layers keep every token
};

// The cache of the layers that keep it in the same way.
struct FitGroup {
  std::string name{};
  GroupKind kind = GroupKind::kFull;
  std::uint64_t layers = 0;
  std::uint64_t tokens = 0;  // that each sequence has room for; 0 for states
  std::uint64_t bytes = 0;   // of all sequences
};

struct Fit {
  std::uint64_t context = 0;  // of each sequence, as requested
  std::uint64_t sequences = 0;
  std::uint64_t weights = 0;
  std::vector<FitGroup> groups{};
  std::uint64_t cache = 0;
  std::uint64_t activations = 0;           // as the engine places them
  std::uint64_t activations_at_least = 0;  // no placement in this order needs less
  std::uint64_t outputs = 0;               // logits of the last token of each sequence
  std::uint64_t total() const noexcept { return weights + cache + activations + outputs; }
  // False if the model lacks keys: `cache` or `activations` is then a part of the truth.
  bool complete = true;
};

// The memory for a request. kInvalidArgument: a context, number of sequences or batch of 0 or beyond 2^32; a cache type
// that cannot hold the heads of the model; sizes that overflow. O(layers).
Result<Fit> fit(const Model& model, const FitRequest& request);

// The largest context with which the other parts of the request fit into `bytes`; nothing if no context fits. At most
// 2^32 - 256, which is returned for models whose cache does not grow. Fails like fit(). O(layers log context).
Result<std::optional<std::uint64_t>> largest_context(const Model& model, FitRequest request, std::uint64_t bytes);
// The largest number of sequences, at most 65,536.
Result<std::optional<std::uint64_t>> largest_sequences(const Model& model, FitRequest request, std::uint64_t bytes);

}  // namespace berth::kv
