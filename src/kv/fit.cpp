// The rules of llama.cpp, build 11549. `./run bench fit` compares:
// - Each sequence has cells for its context, rounded up to 256 tokens. Windowed layers have cells for the window and a
//   batch, rounded up to 256, and never more than the others.
// - A layer keeps heads_kv x key_length elements of a key and heads_kv x value_length elements of a value in each cell.
//   Without flash attention values are padded to the widest layer. A latent (MLA) keeps keys alone.
// - States are f32, one row for each sequence; each tensor is rounded up to 32 bytes.
// - A batch has at most as many tokens as all contexts together, rounded up to a multiple of the sequences. Logits are
//   computed for every token of a batch, and one row for each sequence is kept for the caller.
#include "berth/kv/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/try.h"
#include "kv/activations.h"
#include "kv/compute_graph.h"

namespace berth::kv {
using namespace berth::internal;
using namespace berth::internal::fit;
namespace {

constexpr std::uint64_t kCellUnit = 256;
constexpr std::uint64_t kMostContext = std::numeric_limits<std::uint32_t>::max() / kCellUnit * kCellUnit;
constexpr std::uint64_t kMostSequences = 65'536;
constexpr std::uint64_t kTensorUnit = 32;  // bytes

Error invalid(const char* what, std::uint64_t value, std::uint64_t most) {
  return Error::with_text(Code::kInvalidArgument, Layer::kFormat,
                          fmt::format("{} of {} was requested, and 1 to {} is possible", what, value, most));
}

Result<FitRequest> checked(const Model& model, FitRequest request) {
  if (request.context == 0) request.context = model.trained_context;
  if (request.context == 0)
    return Error::with_text(Code::kInvalidArgument, Layer::kFormat,
                            "no context was requested, and the model does not say its own; give one");
  if (request.context > kMostContext) return invalid("a context", request.context, kMostContext);
  if (request.sequences == 0 || request.sequences > kMostSequences)
    return invalid("a number of sequences", request.sequences, kMostSequences);
  if (request.batch == 0 || request.batch > kMostContext) return invalid("a batch", request.batch, kMostContext);
  return request;
}

// The bytes of `elements` elements of one cell.
Result<std::uint64_t> row_bytes(DType dtype, std::uint64_t elements, std::uint64_t head, const char* what) {
  const DTypeInfo& type = info(dtype);
  if (head % type.block_elements != 0)
    return Error::with_text(Code::kInvalidArgument, Layer::kFormat,
                            fmt::format("a cache type of {} packs {} elements, and heads have {} of {}", type.name,
                                        type.block_elements, what, head));
  return multiply(elements / type.block_elements, type.block_bytes);
}

struct Cells {
  std::uint64_t full = 0, window = 0;  // of one sequence
};

// The tokens of a batch; they bound the cells of windows too.
std::uint64_t batch_tokens(const FitRequest& request) {
  return std::min(multiply(request.context, request.sequences), request.batch);
}

Cells cells_of(const Model& model, const FitRequest& request) {
  const std::uint64_t full = pad(request.context, kCellUnit);
  if (request.full_window) return {full, full};
  return {full, pad(std::min(full, add(model.window, batch_tokens(request))), kCellUnit)};
}

FitGroup& group_of(std::vector<FitGroup>& groups, std::string name, GroupKind kind, std::uint64_t tokens) {
  const auto found = std::find_if(groups.begin(), groups.end(), [&](const FitGroup& one) { return one.name == name; });
  if (found != groups.end()) return *found;
  return groups.emplace_back(FitGroup{.name = std::move(name), .kind = kind, .tokens = tokens});
}

Result<void> add_cache(const Model& model, const FitRequest& request, Fit& result) {
  const Cells cells = cells_of(model, request);
  std::uint64_t widest = 0;
  for (const ModelLayer& layer : model.layers) widest = std::max(widest, multiply(layer.heads_kv, layer.value_length));
  for (const ModelLayer& layer : model.layers) {
    if (layer.heads_kv > 0 && layer.keeps_cache) {
      const bool latent = layer.value_length == 0;
      const std::uint64_t tokens = layer.window ? cells.window : cells.full;
      std::uint64_t values = multiply(layer.heads_kv, layer.value_length);
      if (!request.flash_attention && !latent) values = widest;
      BERTH_TRY_ASSIGN(const std::uint64_t key_bytes,
                       row_bytes(request.keys, multiply(layer.heads_kv, layer.key_length), layer.key_length, "keys"));
      BERTH_TRY_ASSIGN(const std::uint64_t value_bytes,
                       row_bytes(request.values, values, layer.value_length, "values"));
      FitGroup& group = group_of(result.groups,
                                 layer.window ? fmt::format("window of {}", model.window)
                                 : latent     ? "latent"
                                              : "full attention",
                                 layer.window ? GroupKind::kWindow : GroupKind::kFull, tokens);
      ++group.layers;
      for (const std::uint64_t bytes : {key_bytes, value_bytes})
        group.bytes = add(group.bytes, pad(multiply(bytes, tokens, request.sequences), kTensorUnit));
    }
    if (layer.convolution_state == 0 && layer.recurrent_state == 0) continue;
    FitGroup& group = group_of(result.groups, "state", GroupKind::kState, 0);
    ++group.layers;
    for (const std::uint64_t elements : {layer.convolution_state, layer.recurrent_state})
      group.bytes = add(group.bytes, pad(multiply(elements, 4, request.sequences), kTensorUnit));
  }
  for (const FitGroup& group : result.groups) result.cache = add(result.cache, group.bytes);
  return {};
}

// Heads of a quantised cache are rotated if they all have the same length, a multiple of 64. Returns that length, or 0.
std::uint64_t rotated_length(const Model& model, DType dtype, std::uint64_t ModelLayer::*length) {
  if (info(dtype).block_elements == 1) return 0;
  std::uint64_t common = 0;
  for (const ModelLayer& layer : model.layers) {
    if (layer.heads_kv == 0) continue;
    if (common != 0 && layer.*length != common) return 0;
    common = layer.*length;
  }
  return common % 64 == 0 ? common : 0;
}

void add_activations(const Model& model, const FitRequest& request, Fit& result) {
  const Cells cells = cells_of(model, request);
  const std::uint64_t tokens = batch_tokens(request);
  // Keys are rotated by the largest power of two that divides a head, values by 64 elements.
  const std::uint64_t keys = rotated_length(model, request.keys, &ModelLayer::key_length);
  const std::uint64_t values = rotated_length(model, request.values, &ModelLayer::value_length);
  const ComputeGraph graph = compute_graph(model, {.tokens = pad(tokens, request.sequences),
                                                   .outputs = tokens,
                                                   .sequences = request.sequences,
                                                   .cells = cells.full,
                                                   .window_cells = cells.window,
                                                   .flash_attention = request.flash_attention,
                                                   .key_rotation = keys & (~keys + 1),
                                                   .value_rotation = std::min<std::uint64_t>(values, 64)});
  result.activations = graph.reserved_bytes();
  // A bound on the sum of what is live at once holds for every placement, so that a search may rest on it.
  result.activations_at_least = std::min(result.activations, plan_lower_bound(graph.problem()).value_or(0));
}

// All parts, of which each and their sum may be as large as kMostBytes.
std::uint64_t sum(const Fit& fit, std::uint64_t activations) {
  return add(add(fit.weights, fit.cache), add(activations, fit.outputs));
}

// Requires: `request` is checked.
Result<Fit> measure(const Model& model, const FitRequest& request) {
  Fit result{.context = request.context, .sequences = request.sequences, .weights = model.weight_bytes};
  result.complete = model.missing.empty();
  BERTH_TRY(add_cache(model, request, result));
  if (model.embedding > 0 && model.vocabulary > 0 && !model.layers.empty()) {
    add_activations(model, request, result);
    result.outputs = multiply(model.vocabulary, request.sequences, 4);
  }
  return result;
}

// The largest number of units in [1, most] with which evaluate(units) fits; 0 if none does. What an engine reserves may
// fall when a size grows, because holes then fit what came later. So the bound, which never falls, gives the upper end,
// and the search goes down from there.
template <class Evaluate>
Result<std::uint64_t> largest(std::uint64_t most, std::uint64_t bytes, const Evaluate& evaluate) {
  const auto last_that = [&](std::uint64_t high, bool bound) -> Result<std::uint64_t> {
    for (std::uint64_t low = 0;;) {
      if (low == high) return low;
      const std::uint64_t middle = low + (high - low + 1) / 2;
      BERTH_TRY_ASSIGN(const Fit tried, evaluate(middle));
      if (sum(tried, bound ? tried.activations_at_least : tried.activations) <= bytes)
        low = middle;
      else
        high = middle - 1;
    }
  };
  BERTH_TRY_ASSIGN(std::uint64_t units, last_that(most, true));
  constexpr int kMostGuesses = 1024;
  for (int step = 0; units > 0 && step < kMostGuesses; ++step, --units) {
    BERTH_TRY_ASSIGN(const Fit tried, evaluate(units));
    if (sum(tried, tried.activations) <= bytes) return units;
  }
  return last_that(units, false);
}

std::optional<std::uint64_t> some(std::uint64_t value) {
  return value == 0 ? std::optional<std::uint64_t>{} : std::optional(value);
}

}  // namespace

Result<Fit> fit(const Model& model, const FitRequest& wanted) {
  BERTH_TRY_ASSIGN(const FitRequest request, checked(model, wanted));
  BERTH_TRY_ASSIGN(Fit result, measure(model, request));
  if (sum(result, result.activations) >= kMostBytes)
    return Error::with_text(Code::kInvalidArgument, Layer::kFormat,
                            "the model needs more than 4 EiB for this request; its metadata or the request is wrong");
  return result;
}

Result<std::optional<std::uint64_t>> largest_context(const Model& model, FitRequest request, std::uint64_t bytes) {
  if (request.context == 0) request.context = 1;
  BERTH_TRY_ASSIGN(request, checked(model, request));
  const auto with_context = [&](std::uint64_t context) {
    request.context = context;
    return measure(model, request);
  };
  BERTH_TRY_ASSIGN(const std::uint64_t units, largest(kMostContext / kCellUnit, bytes, [&](std::uint64_t count) {
                     return with_context(count * kCellUnit);
                   }));
  // All contexts of the next unit need the same cells. Short ones have smaller batches, which may still fit.
  const std::uint64_t whole = units * kCellUnit;
  if (whole == kMostContext || multiply(whole, request.sequences) >= request.batch) return some(whole);
  BERTH_TRY_ASSIGN(const std::uint64_t more,
                   largest(kCellUnit - 1, bytes, [&](std::uint64_t count) { return with_context(whole + count); }));
  return some(whole + more);
}

Result<std::optional<std::uint64_t>> largest_sequences(const Model& model, FitRequest request, std::uint64_t bytes) {
  BERTH_TRY_ASSIGN(request, checked(model, request));
  BERTH_TRY_ASSIGN(const std::uint64_t sequences, largest(kMostSequences, bytes, [&](std::uint64_t count) {
                     request.sequences = count;
                     return measure(model, request);
                   }));
  return some(sequences);
}

}  // namespace berth::kv
