#include "step.h"

#include <utility>

#include "berth/memory/registry.h"
#include "berth/plan/plan.h"

namespace llama {

using berth::Operand;
using berth::StepRun;

namespace {

template <class T>
T* data(const StepRun& run, berth::Node node) {
  return static_cast<T*>(run.node(node).as_raw_ptr());
}

}  // namespace

berth::kv::Group cache_group(const Model& model) {
  return {.name = berth::Name("keys and values"),
          .bytes_per_token = model.layers.size() * model.heads_kv * model.head_size * 2 * sizeof(std::uint16_t)};
}

Step::Step(const Model& model, const berth::kv::Cache& cache, const StepSizes& sizes)
    : model_(model), cache_(cache), sizes_(sizes) {
  tokens_ = {sizes.tokens, &batch.tokens};
  outputs_ = {sizes.sequences, &batch.outputs};
  token_ = table("tokens", sizes.tokens * 4);
  position_ = table("positions", sizes.tokens * 4);
  row_ = table("rows", sizes.tokens * 4);
  slot_ = table("slots", sizes.tokens * 8);
  table_ = table("block table", sizes.sequences * sizes.pages * 4);
  output_ = table("outputs", sizes.sequences * 4);
  successor_ = table("successors", sizes.sequences * 4);
  build();

  // The schedule says when each node lives, the planner where, and the arena is the memory.
  const berth::Schedule steps = builder_.build().value();
  const berth::MemoryPlan plan = berth::plan({.lifetimes = berth::lifetimes_from_schedule(steps)}).value();
  arena_ = std::make_unique<berth::Arena>(
      berth::Arena::from_plan(berth::device("CPU").value(), plan,
                              {.f16_shadow = berth::Shadow::kOff, .zero = true, .label = "activations"})
          .value());
  schedule_ = std::make_unique<berth::Schedule>(steps.bind(*arena_).value());

  batch.token = host<std::int32_t>(token_, sizes.tokens);
  batch.position = host<std::int32_t>(position_, sizes.tokens);
  batch.row = host<std::int32_t>(row_, sizes.tokens);
  batch.slot = host<std::int64_t>(slot_, sizes.tokens);
  batch.table = host<std::int32_t>(table_, sizes.sequences * sizes.pages);
  batch.output = host<std::int32_t>(output_, sizes.sequences);
  batch.successor = host<std::int32_t>(successor_, sizes.sequences);
}

void Step::run() {
  schedule_->run({.workers = sizes_.threads, .check_overlaps = sizes_.check_overlaps}).value();
}

void Step::build() {
  const std::size_t width = model_.embedding;
  const Node angle = activations("angles", model_.rotated);
  add("angles", {position_}, {angle}, [=, this](const StepRun& run) {
    for (std::size_t i = 0; i < batch.tokens; ++i)
      angles(model_, data<std::int32_t>(run, position_)[i], data<float>(run, angle) + i * model_.rotated);
  });

  const Node x = activations("x", width);
  Node normed = activations("normed", width);
  add("embed", {token_, model_.tokens.buffer}, {x, normed}, [=, this](const StepRun& run) {
    for (std::size_t i = 0; i < batch.tokens; ++i) {
      float* const row = data<float>(run, x) + i * width;
      read_row(model_.tokens, static_cast<std::size_t>(data<std::int32_t>(run, token_)[i]), row);
      normalise({row, width}, model_.layers.front().attention_norm, model_.norm_epsilon,
                data<float>(run, normed) + i * width);
    }
  });

  for (std::size_t i = 0; i < model_.layers.size(); ++i) {
    const Layer& layer = model_.layers[i];
    const std::string name = "layer " + std::to_string(i) + " ";
    const Node attended = build_attention(i, normed, angle);
    normed = activations(name + "normed", width);
    add_norm(name + "add attention", attended, x, layer.feed_forward_norm, normed);

    const Node gated = activations(name + "gated", model_.feed_forward);
    in_parts(model_.feed_forward, [&](Range rows) {
      const std::size_t row_bytes = sizes_.tokens * sizeof(float);
      const Node part = window(gated, rows.first * row_bytes, (rows.last - rows.first) * row_bytes);
      add(name + "gate, up", {normed, layer.gate.buffer, layer.up.buffer}, {part},
          [=, this, &layer](const StepRun& run) {
            multiply_gated(layer.gate, layer.up, rows, data<float>(run, normed), batch.tokens, data<float>(run, part),
                           sizes_.tokens);
          });
    });
    const Node turned = activations(name + "turned", model_.feed_forward);
    add(name + "turn", {gated}, {turned}, [=, this](const StepRun& run) {
      for (std::size_t token = 0; token < batch.tokens; ++token)
        gather(data<float>(run, gated), sizes_.tokens, token, {0, model_.feed_forward},
               data<float>(run, turned) + token * model_.feed_forward);
    });
    const Node down = multiply(name + "down", layer.down, {}, turned, tokens_);
    const bool last = i + 1 == model_.layers.size();
    normed = activations("normed", width);
    add_norm(name + "add", down, x, last ? model_.output_norm : model_.layers[i + 1].attention_norm, normed);
  }

  // Logits of the tokens whose successor is wanted.
  const Node chosen = activations("chosen", width);
  add("choose", {output_, normed}, {chosen}, [=, this](const StepRun& run) {
    for (std::size_t i = 0; i < batch.outputs; ++i)
      std::copy_n(data<float>(run, normed) + static_cast<std::size_t>(data<std::int32_t>(run, output_)[i]) * width,
                  width, data<float>(run, chosen) + i * width);
  });
  const Node logits = multiply("logits", model_.output, {}, chosen, outputs_);
  const Node best = activations("best", 1);
  add("most likely", {logits}, {successor_, best}, [=, this](const StepRun& run) {
    const float* row = data<float>(run, logits);
    float* const most = data<float>(run, best);
    auto* const successor = data<std::int32_t>(run, successor_);
    for (std::size_t token = 0; token < model_.vocabulary; ++token, row += sizes_.sequences)
      for (std::size_t i = 0; i < batch.outputs; ++i)
        if (token == 0 || row[i] > most[i]) most[i] = row[i], successor[i] = static_cast<std::int32_t>(token);
  });
}

// Returns what the attention of a layer adds to x, by element.
Step::Node Step::build_attention(std::size_t index, Node normed, Node angle) {
  const Layer& layer = model_.layers[index];
  const std::string name = "layer " + std::to_string(index) + " ";
  const std::size_t size = model_.head_size, stride = sizes_.tokens, width = model_.heads * size;
  const std::size_t shared = model_.heads / model_.heads_kv;  // heads that use the same keys
  const LayerPages pages = pages_of(index);
  const Node q = multiply(name + "q", layer.query, layer.query_bias, normed, tokens_);
  const Node k = multiply(name + "k", layer.key, layer.key_bias, normed, tokens_);
  const Node v = multiply(name + "v", layer.value, layer.value_bias, normed, tokens_);

  const Node query = activations(name + "query", width);  // by head, then by token
  add(name + "rotate", {q, angle}, {query}, [=, this](const StepRun& run) {
    for (std::size_t head = 0; head < model_.heads; ++head)
      for (std::size_t token = 0; token < batch.tokens; ++token) {
        float* const one = data<float>(run, query) + (head * stride + token) * size;
        gather(data<float>(run, q), stride, token, {head * size, (head + 1) * size}, one);
        rotate(model_, data<float>(run, angle) + token * model_.rotated, one);
      }
  });
  const Node scratch = activations(name + "one head", 1 + size / stride);
  add(name + "store", {k, v, angle, slot_}, {cache_.buffer(), scratch}, [=, this](const StepRun& run) {
    float* const one = data<float>(run, scratch);
    for (std::size_t token = 0; token < batch.tokens; ++token) {
      const auto slot = static_cast<std::size_t>(data<std::int64_t>(run, slot_)[token]);
      const std::size_t page = slot / pages.block_tokens, at = slot % pages.block_tokens * size * 2;
      for (std::size_t head = 0; head < model_.heads_kv; ++head) {
        const Range elements{head * size, (head + 1) * size};
        gather(data<float>(run, k), stride, token, elements, one);
        rotate(model_, data<float>(run, angle) + token * model_.rotated, one);
        store({one, size}, pages.keys(page, head) + at);
        gather(data<float>(run, v), stride, token, elements, one);
        store({one, size}, pages.values(page, head) + at);
      }
    }
  });

  const Node mixed = activations(name + "mixed", width);  // by head, then by token
  in_parts(model_.heads_kv, [&](Range heads) {
    const std::size_t head_bytes = shared * stride * size * sizeof(float);
    const Node part = window(mixed, heads.first * head_bytes, (heads.last - heads.first) * head_bytes);
    add(name + "attend", {query, position_, row_, table_, cache_.buffer()}, {part}, [=, this](const StepRun& run) {
      for (std::size_t head = heads.first * shared; head < heads.last * shared; ++head)
        for (std::size_t token = 0; token < batch.tokens; ++token) {
          const auto row = static_cast<std::size_t>(data<std::int32_t>(run, row_)[token]);
          const auto length = static_cast<std::size_t>(data<std::int32_t>(run, position_)[token]) + 1;
          const std::size_t at = (head * stride + token) * size;
          attend(pages, head / shared, data<std::int32_t>(run, table_) + row * sizes_.pages, length,
                 data<float>(run, query) + at, data<float>(run, part) + at - heads.first * shared * stride * size);
        }
    });
  });
  const Node merged = activations(name + "merged", width);
  add(name + "merge", {mixed}, {merged}, [=, this](const StepRun& run) {
    for (std::size_t head = 0; head < model_.heads; ++head)
      for (std::size_t token = 0; token < batch.tokens; ++token)
        std::copy_n(data<float>(run, mixed) + (head * stride + token) * size, size,
                    data<float>(run, merged) + token * width + head * size);
  });
  return multiply(name + "output", layer.output, {}, merged, tokens_);
}

// x += added, and the norm of the sum.
void Step::add_norm(std::string label, Node added, Node x, std::span<const float> weights, Node result) {
  add(std::move(label), {added, x}, {x, result}, [=, this](const StepRun& run) {
    const std::size_t width = model_.embedding;
    for (std::size_t token = 0; token < batch.tokens; ++token) {
      float* const row = data<float>(run, x) + token * width;
      for (std::size_t i = 0; i < width; ++i) row[i] += data<float>(run, added)[i * sizes_.tokens + token];
      normalise({row, width}, weights, model_.norm_epsilon, data<float>(run, result) + token * width);
    }
  });
}

Step::Node Step::multiply(const std::string& label, const Matrix& matrix, std::span<const float> bias, Node x,
                          Vectors vectors) {
  const std::size_t row_bytes = vectors.stride * sizeof(float);
  node_bytes_ += matrix.rows * row_bytes;
  const Node result = builder_.add_node({.bytes = matrix.rows * row_bytes, .alignment = 64, .label = label});
  in_parts(matrix.rows, [&](Range rows) {
    const Node part = window(result, rows.first * row_bytes, (rows.last - rows.first) * row_bytes);
    add(label, {x, matrix.buffer}, {part}, [=, &matrix](const StepRun& run) {
      llama::multiply(matrix, rows, bias, data<float>(run, x), *vectors.count, data<float>(run, part), vectors.stride);
    });
  });
  return result;
}

Step::Node Step::activations(std::string label, std::size_t elements) {
  const std::size_t bytes = elements * std::max(sizes_.tokens, sizes_.sequences) * sizeof(float);
  node_bytes_ += bytes;
  return builder_.add_node({.bytes = bytes, .alignment = 64, .label = std::move(label)});
}

Step::Node Step::table(std::string label, std::size_t bytes) {
  node_bytes_ += bytes;
  return builder_.add_node({.bytes = bytes, .alignment = 64, .pinned = true, .label = std::move(label)});
}

Step::Node Step::window(Node whole, std::size_t first_byte, std::size_t bytes) {
  return builder_.add_node({.bytes = bytes, .alias = {{.node = whole.id, .offset = first_byte}}});
}

void Step::add(std::string label, std::vector<Operand> reads, std::vector<Operand> writes, Function function) {
  builder_.add_step({.label = std::move(label),
                     .reads = std::move(reads),
                     .writes = std::move(writes),
                     .run = [function = std::move(function)](const StepRun& run) -> berth::Result<void> {
                       function(run);
                       return {};
                     }});
}

// Calls function with ranges that together are [0, whole), one for each thread.
template <class Function2>
void Step::in_parts(std::size_t whole, const Function2& function) const {
  const std::size_t parts = std::min<std::size_t>(whole, sizes_.threads);
  for (std::size_t i = 0; i < parts; ++i) function(Range{whole * i / parts, whole * (i + 1) / parts});
}

template <class T>
std::span<T> Step::host(Node node, std::size_t elements) const {
  return {static_cast<T*>(arena_->buffer(node.id).value().as_raw_ptr()), elements};
}

LayerPages Step::pages_of(std::size_t layer) const {
  LayerPages pages{.pages = static_cast<std::byte*>(cache_.buffer().as_raw_ptr()),
                   .page_bytes = cache_.page_bytes(0),
                   .block_tokens = cache_.block_tokens(),
                   .head_size = model_.head_size};
  pages.layer_offset = layer * 2 * model_.heads_kv * pages.block_bytes();
  return pages;
}

}  // namespace llama
