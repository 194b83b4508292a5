#include "kv/activations.h"

#include <algorithm>
#include <vector>

namespace berth::internal::fit {
namespace {

using Id = ComputeGraph::Id;
constexpr Id kWeights = ComputeGraph::kExternal;

class Builder {
 public:
  Builder(const kv::Model& model, const BatchShape& batch)
      : model_(model), batch_(batch), streams_(batch.sequences), each_(batch.tokens / batch.sequences) {}

  ComputeGraph build() {
    const std::uint64_t tokens = batch_.tokens;
    // All three ways to give a batch are in the graph: token numbers, vectors, and both mixed. The vectors are never
    // used, nor given back; nor is the mixture.
    const Shape vectors{model_.embedding, tokens, 1, 1};
    Id x = graph_.make(vectors, {graph_.input({tokens, 1, 1, 1})});
    graph_.expand(x);
    graph_.expand(graph_.input(vectors));
    const Id some = graph_.make(vectors, {graph_.input({tokens, 1, 1, 1})});
    const Id places = graph_.input({tokens, 1, 1, 1}, 8);
    graph_.expand(graph_.write_into(graph_.make(vectors, {graph_.input(vectors)}), {some, places}));
    positions_ = graph_.input({tokens, 1, 1, 1});
    make_inputs();
    for (std::size_t i = 0; i < model_.layers.size(); ++i)
      x = layer(model_.layers[i], x, i + 1 == model_.layers.size());
    x = norm(x);
    graph_.keep(x);
    x = graph_.make({model_.vocabulary, batch_.outputs, 1, 1}, {kWeights, x});
    graph_.keep(x);
    graph_.expand(x);
    return std::move(graph_);
  }

 private:
  // What attention needs of one kind of cache, written by the caller.
  struct CacheInputs {
    Id keys_at = 0, values_at = 0, mask = 0, key_rotation = 0, value_rotation = 0;
    std::uint64_t cells = 0;
  };

  CacheInputs cache_inputs(std::uint64_t cells) {
    std::uint64_t widest = 0;
    for (const kv::ModelLayer& layer : model_.layers)
      widest = std::max(widest, multiply(layer.heads_kv, layer.value_length));
    // Without flash attention values are stored by column, and each element has its place.
    const std::uint64_t places = batch_.flash_attention ? batch_.tokens : multiply(batch_.tokens, widest);
    return {.keys_at = graph_.input({batch_.tokens, 1, 1, 1}, 8),
            .values_at = graph_.input({places, 1, 1, 1}, 8),
            .mask = graph_.input({cells, each_, 1, streams_}, batch_.flash_attention ? 2 : 4),
            .key_rotation = graph_.input({batch_.key_rotation, batch_.key_rotation, 1, 1}),
            .value_rotation = graph_.input({batch_.value_rotation, batch_.value_rotation, 1, 1}),
            .cells = cells};
  }

  void make_inputs() {
    full_ = cache_inputs(batch_.cells);
    windowed_ = cache_inputs(batch_.window_cells);
    states_at_ = graph_.input({streams_, 1, 1, 1});
    outputs_at_ = graph_.input({batch_.outputs, 1, 1, 1});
  }

  Shape columns(Id x, std::uint64_t rows) const {
    return {rows, graph_.shape(x)[1], graph_.shape(x)[2], graph_.shape(x)[3]};
  }
  Id matmul(Id x, std::uint64_t rows) { return graph_.make(columns(x, rows), {kWeights, x}); }
  Id elementwise(Id x, Id other = kWeights) { return graph_.in_place(graph_.shape(x), {x, other}); }
  // RMS norm and its weights.
  Id norm(Id x) {
    const Id normal = model_.normal_rms ? elementwise(x) : graph_.make(graph_.shape(x), {x});
    return elementwise(normal);
  }
  Id rows(Id x, Id at) { return graph_.make({graph_.shape(x)[0], batch_.outputs, 1, 1}, {x, at}); }

  Id layer(const kv::ModelLayer& layer, Id x, bool last) {
    Id residual = x;
    const bool mixes = layer.heads_kv > 0 || layer.recurrent_state > 0 || layer.convolution_state > 0;
    if (mixes) {
      const Id normal = layer.pre_norm ? norm(x) : x;
      Id mixed = mix(layer, normal);
      if (last) {
        mixed = rows(mixed, outputs_at_);
        residual = rows(residual, outputs_at_);
      }
      if (layer.post_norm) mixed = norm(mixed);
      x = elementwise(mixed, residual);
      residual = x;
    } else if (last) {
      x = residual = rows(x, outputs_at_);
    }
    if (layer.feed_forward == 0 && layer.experts == 0) return x;
    const Id normal = layer.pre_norm ? norm(x) : x;
    Id result =
        layer.experts > 0 ? mixture(layer, normal) : dense(normal, layer.feed_forward, layer.gated, layer.gate_inside);
    if (layer.post_norm) result = norm(result);
    return model_.residual_first ? elementwise(residual, result) : elementwise(result, residual);
  }

  Id dense(Id x, std::uint64_t width, bool gated, bool gate_inside) {
    const std::uint64_t out = graph_.shape(x)[0];
    if (gate_inside) return matmul(graph_.make(columns(x, width), {matmul(x, multiply(width, 2))}), out);
    const Id up = matmul(x, width);
    if (!gated) return matmul(elementwise(up), out);
    return matmul(graph_.make(columns(x, width), {matmul(x, width), up}), out);
  }

  // Experts: the best `used` of them for each token, weighted and added.
  Id mixture(const kv::ModelLayer& layer, Id x) {
    const std::uint64_t tokens = graph_.shape(x)[1], used = layer.experts_used;
    const Id odds = elementwise(matmul(x, layer.experts));
    const Id judged = layer.experts_biased ? elementwise(odds) : odds;
    const Id sorted = graph_.make({layer.experts, tokens, 1, 1}, {judged});
    const Id chosen = graph_.view(sorted, {used, tokens, 1, 1});
    Id weights = graph_.make({1, used, tokens, 1}, {graph_.view(odds, {1, layer.experts, tokens, 1}), chosen});
    if (layer.experts_normalised) {
      const Id flat = graph_.view(weights, {used, tokens, 1, 1});
      const Id sum = elementwise(graph_.make({1, tokens, 1, 1}, {flat}));
      weights = graph_.view(elementwise(flat, sum), {1, used, tokens, 1});
    }
    graph_.expand(weights);
    const Id column = graph_.view(x, {graph_.shape(x)[0], 1, tokens, 1});
    const Shape wide{layer.expert_feed_forward, used, tokens, 1};
    const Id up = graph_.make(wide, {column, chosen});
    const Id inner =
        layer.experts_gated ? graph_.make(wide, {graph_.make(wide, {column, chosen}), up}) : elementwise(up);
    Id experts = graph_.make({graph_.shape(x)[0], used, tokens, 1}, {inner, chosen});
    experts = elementwise(experts, weights);
    graph_.expand(experts);
    std::vector<Id> parts;
    for (std::uint64_t i = 0; i < used; ++i) {
      parts.push_back(graph_.view(experts, {graph_.shape(x)[0], tokens, 1, 1}));
      graph_.expand(parts.back());
    }
    Id result = parts[0];
    for (std::uint64_t i = 1; i < used; ++i) {
      result = elementwise(result, parts[i]);
      graph_.expand(result);
    }
    if (used == 1) result = graph_.make(graph_.shape(result), {result});
    if (layer.shared_feed_forward == 0) return result;
    Id shared = dense(x, layer.shared_feed_forward, true, false);
    if (layer.shared_gate) {
      const Id gate = matmul(x, 1);
      shared = elementwise(shared, elementwise(elementwise(gate), gate));
    }
    return elementwise(result, shared);
  }

  Id heads(Id x, std::uint64_t length, std::uint64_t count) {
    return graph_.view(x, {length, count, batch_.tokens, 1});
  }

  Id mix(const kv::ModelLayer& layer, Id x) {
    if (layer.heads_kv == 0) return keep_state(layer, x);
    return layer.value_length == 0 && layer.latent > 0 ? latent_attention(layer, x) : attention(layer, x);
  }

  // One latent for each token serves as key and value of all heads. Queries are brought to its form, and results back.
  Id latent_attention(const kv::ModelLayer& layer, Id x) {
    const CacheInputs& cache = layer.window ? windowed_ : full_;
    const std::uint64_t tokens = batch_.tokens, count = layer.heads;
    const std::uint64_t turning = layer.key_length - layer.latent;
    const Id packed = layer.query_rank > 0 ? norm(matmul(x, layer.query_rank)) : x;
    const Id all = heads(matmul(packed, multiply(count, layer.unpacked_key)), layer.unpacked_key, count);
    const Id both = matmul(x, layer.key_length);
    const Id key_turned = elementwise(heads(both, turning, 1), positions_);
    const Id latent = heads(norm(graph_.view(both, {layer.latent, tokens, 1, 1})), layer.latent, 1);
    const Id query_turned = elementwise(heads(all, turning, count), positions_);
    const Id still = graph_.view(all, {layer.unpacked_key - std::min(turning, layer.unpacked_key), tokens, count, 1});
    const Id absorbed = heads(graph_.make({layer.latent, tokens, count, 1}, {still}), layer.latent, count);
    const Id query = graph_.make({layer.key_length, count, tokens, 1}, {absorbed, query_turned});
    const Id key = graph_.make({layer.key_length, 1, tokens, 1}, {latent, key_turned});
    graph_.expand(query);
    graph_.expand(latent);
    graph_.expand(key);
    graph_.expand(graph_.write({heads(key, layer.key_length, 1), cache.keys_at}));
    const Id turned = graph_.view(query, {layer.key_length, each_, count, streams_});
    const Shape by_head{layer.latent, each_, count, streams_};
    Id mixed = 0;
    if (batch_.flash_attention) {
      mixed = graph_.view(graph_.make({layer.latent, count, each_, streams_}, {turned, cache.mask}), by_head);
    } else {
      const Id values = graph_.make({cache.cells, layer.latent, 1, streams_}, {}, 2);  // turned around, as f16
      const Id scores = elementwise(graph_.make({cache.cells, each_, count, streams_}, {turned}), cache.mask);
      mixed = graph_.make(by_head, {values, scores});
    }
    const Id unpacked = graph_.make({layer.output_length, each_, count, streams_}, {mixed});
    const Id order = graph_.view(unpacked, {layer.output_length, count, each_, streams_});
    const Id result = graph_.make({multiply(layer.output_length, count), tokens, 1, 1}, {order});
    graph_.expand(result);
    return matmul(result, model_.embedding);
  }

  Id attention(const kv::ModelLayer& layer, Id x) {
    const CacheInputs& cache = layer.window ? windowed_ : full_;
    const std::uint64_t tokens = batch_.tokens,
                        value_length = layer.value_length > 0 ? layer.value_length : layer.key_length;
    Id query = 0, key = 0, value = 0;
    if (layer.fused_qkv) {
      const std::uint64_t kept = multiply(layer.heads_kv, add(layer.key_length, layer.value_length));
      const Id all = matmul(x, add(multiply(layer.heads, layer.key_length), kept));
      query = heads(all, layer.key_length, layer.heads);
      key = heads(all, layer.key_length, layer.heads_kv);
      value = heads(all, value_length, layer.heads_kv);
    } else {
      query = matmul(x, multiply(layer.heads, layer.key_length));
      key = matmul(x, multiply(layer.heads_kv, layer.key_length));
      if (layer.wide_norm) {
        query = norm(query);
        key = norm(key);
      }
      query = heads(query, layer.key_length, layer.heads);
      key = heads(key, layer.key_length, layer.heads_kv);
      value = heads(matmul(x, multiply(layer.heads_kv, value_length)), value_length, layer.heads_kv);
    }
    if (layer.query_norm && !layer.wide_norm) {
      query = norm(query);
      key = norm(key);
    }
    if (model_.rotary) {
      query = elementwise(query, positions_);
      key = elementwise(key, positions_);
    }
    if (batch_.key_rotation > 0) {
      query = rotate(query, cache.key_rotation);
      key = rotate(key, cache.key_rotation);
    }
    if (batch_.value_rotation > 0) value = rotate(value, cache.value_rotation);
    graph_.expand(query);
    graph_.expand(value);
    graph_.expand(key);
    graph_.expand(graph_.write({heads(key, multiply(layer.key_length, layer.heads_kv), 1), cache.keys_at}));
    if (layer.value_length > 0)
      graph_.expand(graph_.write({heads(value, multiply(value_length, layer.heads_kv), 1), cache.values_at}));
    const Id turned = graph_.view(query, {layer.key_length, each_, layer.heads, streams_});
    Id result = 0;
    if (batch_.flash_attention) {
      result = graph_.make({value_length, layer.heads, each_, streams_}, {turned, cache.mask});
    } else {
      Id scores = graph_.make({cache.cells, each_, layer.heads, streams_}, {turned});
      if (model_.soft_cap)
        for (int i = 0; i < 3; ++i) scores = elementwise(scores);
      scores = elementwise(scores, cache.mask);
      const Id mixed = graph_.make({value_length, each_, layer.heads, streams_}, {scores});
      result = graph_.make({multiply(value_length, layer.heads), tokens, 1, 1},
                           {graph_.view(mixed, {value_length, layer.heads, each_, streams_})});
    }
    result = graph_.view(result, {multiply(value_length, layer.heads), tokens, 1, 1});
    graph_.expand(result);
    if (batch_.value_rotation > 0) result = rotate(result, cache.value_rotation);
    return matmul(result, model_.embedding);
  }

  // Multiplies groups of elements by a small matrix.
  Id rotate(Id x, Id matrix) {
    const Shape shape = graph_.shape(x);
    const std::uint64_t rows = graph_.shape(matrix)[0];
    const std::uint64_t elements = multiply(multiply(shape[0], shape[1], shape[2]), shape[3]);
    const Shape flat{rows, elements / rows, 1, 1};
    return graph_.view(graph_.make(flat, {matrix, graph_.view(x, flat)}), shape);
  }

  Id keep_state(const kv::ModelLayer& layer, Id x) {
    if (model_.inner == 0 || model_.kernel == 0) return matmul(x, model_.embedding);  // not known in detail
    return layer.grouped_state ? grouped_state_space(layer, x) : state_space(layer, x);
  }

  // The last columns of the sequences so far, and those of the batch behind them.
  Id convolve(const kv::ModelLayer& layer, Id before, Id columns_in, std::uint64_t width) {
    const Id window = graph_.make({add(model_.kernel, each_) - 1, width, streams_, 1}, {before, columns_in});
    graph_.expand(graph_.write({graph_.view(window, {layer.convolution_state, streams_, 1, 1})}));
    return elementwise(elementwise(graph_.make({width, each_, streams_, 1}, {window})));
  }

  Id scan(Id signal, Id step, Id input_gate, Id output_gate, Id from) {
    const std::uint64_t states = multiply(model_.state, model_.inner, streams_);
    const Id scanned = graph_.make({add(multiply(model_.inner, batch_.tokens), states), 1, 1, 1},
                                   {signal, step, input_gate, output_gate, from});
    graph_.expand(scanned);
    graph_.expand(graph_.write({graph_.view(scanned, {states, 1, 1, 1})}));
    return scanned;
  }

  // A state-space layer: a short convolution, then a scan.
  Id state_space(const kv::ModelLayer& layer, Id x) {
    const std::uint64_t inner = model_.inner, state = model_.state;
    const Shape wide{inner, each_, streams_, 1}, narrow{model_.step_rank, each_, streams_, 1};
    const Shape gate_shape{state, 1, each_, streams_};
    const Id from = graph_.view(states_at_, {streams_, 1, 1, 1});
    const Id before = graph_.make({layer.convolution_state, streams_, 1, 1}, {from});
    graph_.expand(before);
    const Id sequences = graph_.view(x, {graph_.shape(x)[0], each_, streams_, 1});
    const Id both = matmul(sequences, multiply(inner, 2));
    const Id columns_in = graph_.view(graph_.view(both, wide), {each_, inner, streams_, 1});
    const Id signal = convolve(layer, before, columns_in, inner);
    const Id mixed = matmul(signal, add(model_.step_rank, multiply(state, 2)));
    Id step = graph_.view(mixed, narrow), input_gate = graph_.view(mixed, gate_shape),
       output_gate = graph_.view(mixed, gate_shape);
    if (layer.state_norm) {
      step = norm(step);
      input_gate = norm(input_gate);
      output_gate = norm(output_gate);
    } else {
      step = graph_.make(narrow, {step});
    }
    step = elementwise(matmul(step, inner));
    const Id scanned = scan(graph_.view(signal, {1, inner, each_, streams_}), step, input_gate, output_gate, from);
    const Id sum = graph_.in_place(wide, {graph_.view(scanned, wide), elementwise(signal)});
    const Id gate = graph_.make(wide, {graph_.view(both, wide)});
    const Id result = matmul(graph_.make(wide, {gate, sum}), model_.embedding);
    return graph_.view(result, {model_.embedding, batch_.tokens, 1, 1});
  }

  // The second form: one projection gives the gate, the signal, what controls the state, and a step for each head.
  Id grouped_state_space(const kv::ModelLayer& layer, Id x) {
    const std::uint64_t inner = model_.inner, count = std::max<std::uint64_t>(model_.step_rank, 1);
    const std::uint64_t groups = std::max<std::uint64_t>(model_.state_groups, 1);
    const std::uint64_t signal_width = add(inner, multiply(2, groups, model_.state));
    const Shape by_head{inner / count, count, each_, streams_};
    const Shape step_shape{count, each_, streams_, 1}, control{model_.state, groups, each_, streams_};
    const Id from = graph_.view(states_at_, {streams_, 1, 1, 1});
    const Id before = graph_.make({layer.convolution_state, streams_, 1, 1}, {from});
    graph_.expand(before);
    const Id all = matmul(x, add(add(inner, signal_width), count));
    const Id columns_in = graph_.view(all, {each_, signal_width, streams_, 1});
    const Id signal = convolve(layer, before, columns_in, signal_width);
    const Id step = elementwise(graph_.make(step_shape, {graph_.view(all, step_shape)}));
    const Id heads_in = graph_.view(signal, by_head);
    const Id scanned = scan(heads_in, step, graph_.view(signal, control), graph_.view(signal, control), from);
    const Id direct = graph_.in_place(by_head, {heads_in});
    const Id sum = graph_.in_place(by_head, {graph_.view(scanned, by_head), direct});
    Id result = graph_.make(by_head, {graph_.make(by_head, {graph_.view(all, by_head)}), sum});
    result = norm(graph_.view(result, {inner / groups, groups, each_, streams_}));
    return matmul(graph_.view(result, {inner, batch_.tokens, 1, 1}), model_.embedding);
  }

  const kv::Model& model_;
  const BatchShape& batch_;
  std::uint64_t streams_, each_;  // sequences, and tokens of each
  ComputeGraph graph_;
  CacheInputs full_{}, windowed_{};
  Id positions_ = 0, states_at_ = 0, outputs_at_ = 0;
};

}  // namespace

ComputeGraph compute_graph(const kv::Model& model, const BatchShape& batch) {
  return Builder(model, batch).build();
}

}  // namespace berth::internal::fit
