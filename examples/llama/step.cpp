#include "step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "berth/memory/registry.h"
#include "berth/plan/plan.h"

namespace llama {

using berth::StepRun;

namespace {

float* floats(const StepRun& run, berth::Node node) {
  return static_cast<float*>(run.node(node).as_raw_ptr());
}

}  // namespace

berth::kv::Group cache_group(const Model& model) {
  return {.name = berth::Name("keys and values"),
          .bytes_per_token = model.layers.size() * model.heads_kv * model.head_size * 2 * sizeof(std::uint16_t)};
}

Step::Step(const Model& model, const berth::kv::Cache& cache, const DecoderOptions& options)
    : model_(model), cache_(cache), options_(options) {
  for (auto* list : {&batch.token, &batch.position, &batch.row}) list->resize(options.batch_tokens);
  for (auto* list : {&batch.output, &batch.successor}) list->resize(options.sequences);
  batch.slot.resize(options.batch_tokens);
  batch.table.resize(options.sequences * row_pages());
  build();
  // The schedule says when each node lives, the planner where, and the arena is the memory.
  const berth::Schedule steps = builder_.build().value();
  const berth::MemoryPlan plan = berth::plan({.lifetimes = berth::lifetimes_from_schedule(steps)}).value();
  arena_ = std::make_unique<berth::Arena>(
      berth::Arena::from_plan(berth::device("CPU").value(), plan,
                              {.f16_shadow = berth::Shadow::kOff, .zero = true, .label = "activations"})
          .value());
  schedule_ = std::make_unique<berth::Schedule>(steps.bind(*arena_).value());
}

void Step::build() {
  const std::size_t width = model_.embedding;
  const Node x = activations("x", width, options_.batch_tokens),
             angle = activations("angles", model_.rotated, options_.batch_tokens);
  Node normed = activations("normed", width, options_.batch_tokens);
  add("embed", {model_.tokens.buffer}, {x, normed, angle}, [=, this](const StepRun& run) {
    for (std::size_t i = 0; i < batch.tokens; ++i) {
      float* const row = floats(run, x) + i * width;
      read_row(model_.tokens, static_cast<std::size_t>(batch.token[i]), row);
      normalise({row, width}, model_.layers.front().attention_norm, model_.norm_epsilon,
                floats(run, normed) + i * width);
      angles(model_, batch.position[i], floats(run, angle) + i * model_.rotated);
    }
  });

  LayerPages pages{.first = static_cast<std::byte*>(cache_.buffer().as_raw_ptr()),
                   .page_bytes = cache_.page_bytes(0),
                   .block_tokens = cache_.block_tokens(),
                   .head_size = model_.head_size};
  for (std::size_t i = 0; i < model_.layers.size(); ++i) {
    const Layer& layer = model_.layers[i];
    const Node attended = build_attention(layer, pages, normed, angle);
    normed = add_and_normalise(x, attended, layer.feed_forward_norm);
    const bool last = i + 1 == model_.layers.size();
    normed = add_and_normalise(x, build_feed_forward(layer, normed),
                               last ? model_.output_norm : model_.layers[i + 1].attention_norm);
    pages.first += 2 * model_.heads_kv * pages.head_bytes();
  }

  // Logits of the tokens whose successor is wanted.
  const Node chosen = activations("chosen", width, options_.sequences);
  add("choose", {normed}, {chosen}, [=, this](const StepRun& run) {
    for (std::size_t i = 0; i < batch.outputs; ++i)
      std::copy_n(floats(run, normed) + static_cast<std::size_t>(batch.output[i]) * width, width,
                  floats(run, chosen) + i * width);
  });
  const Node logits = multiply("logits", model_.output, chosen, &batch.outputs);
  add("most likely", {logits}, {}, [=, this](const StepRun& run) {
    for (std::size_t i = 0; i < batch.outputs; ++i) {
      const float* const first = floats(run, logits) + i * model_.vocabulary;
      batch.successor[i] = static_cast<std::int32_t>(std::max_element(first, first + model_.vocabulary) - first);
    }
  });
}

// Returns what the attention of a layer adds to x.
Step::Node Step::build_attention(const Layer& layer, const LayerPages& pages, Node normed, Node angle) {
  const std::size_t size = model_.head_size, width = model_.heads * size, width_kv = model_.heads_kv * size;
  const Node q = multiply("q", layer.query, normed, &batch.tokens);
  const Node k = multiply("k", layer.key, normed, &batch.tokens);
  const Node v = multiply("v", layer.value, normed, &batch.tokens);
  add("rotate, store", {q, k, v, angle}, {q, k, cache_.buffer()}, [=, this](const StepRun& run) {
    for (std::size_t token = 0; token < batch.tokens; ++token) {
      const float* const turn = floats(run, angle) + token * model_.rotated;
      for (std::size_t head = 0; head < model_.heads; ++head)
        rotate(model_, turn, floats(run, q) + token * width + head * size);
      const auto slot = static_cast<std::size_t>(batch.slot[token]);
      for (std::size_t head = 0; head < model_.heads_kv; ++head) {
        float* const one = floats(run, k) + token * width_kv + head * size;
        rotate(model_, turn, one);
        std::byte* const key = pages.key(slot / pages.block_tokens, slot % pages.block_tokens, head);
        store({one, size}, key);
        store({floats(run, v) + token * width_kv + head * size, size}, key + pages.head_bytes());
      }
    }
  });
  const Node mixed = activations("mixed", width, options_.batch_tokens);
  add_in_parts("attend", {q, cache_.buffer()}, mixed, model_.heads, [=, this](const StepRun& run, Range heads) {
    for (std::size_t token = 0; token < batch.tokens; ++token) {
      const std::int32_t* table = batch.table.data() + static_cast<std::size_t>(batch.row[token]) * row_pages();
      for (std::size_t head = heads.first; head < heads.last; ++head)
        attend(pages, head * model_.heads_kv / model_.heads, table, static_cast<std::size_t>(batch.position[token]) + 1,
               floats(run, q) + token * width + head * size, floats(run, mixed) + token * width + head * size);
    }
  });
  return multiply("output", layer.output, mixed, &batch.tokens);
}

// Returns what the feed-forward part of a layer adds to x.
Step::Node Step::build_feed_forward(const Layer& layer, Node normed) {
  const Node gate = multiply("gate", layer.gate, normed, &batch.tokens);
  const Node up = multiply("up", layer.up, normed, &batch.tokens);
  const std::size_t width = model_.feed_forward;
  add_in_parts("silu", {gate, up}, gate, width, [=, this](const StepRun& run, Range columns) {
    for (std::size_t token = 0; token < batch.tokens; ++token)
      for (std::size_t i = token * width + columns.first; i < token * width + columns.last; ++i)
        floats(run, gate)[i] *= floats(run, up)[i] / (1 + std::exp(-floats(run, gate)[i]));
  });
  return multiply("down", layer.down, gate, &batch.tokens);
}

Step::Node Step::add_and_normalise(Node x, Node added, std::span<const float> weights) {
  const std::size_t width = model_.embedding;
  const Node result = activations("normed", width, options_.batch_tokens);
  add("add, norm", {added, x}, {x, result}, [=, this](const StepRun& run) {
    for (std::size_t token = 0; token < batch.tokens; ++token) {
      float* const row = floats(run, x) + token * width;
      for (std::size_t i = 0; i < width; ++i) row[i] += floats(run, added)[token * width + i];
      normalise({row, width}, weights, model_.norm_epsilon, floats(run, result) + token * width);
    }
  });
  return result;
}

Step::Node Step::multiply(const char* label, const Matrix& matrix, Node x, const std::size_t* count) {
  const Node result =
      activations(label, matrix.rows, count == &batch.outputs ? options_.sequences : options_.batch_tokens);
  add_in_parts(label, {x, matrix.buffer}, result, matrix.rows, [=, &matrix](const StepRun& run, Range rows) {
    llama::multiply(matrix, rows, floats(run, x), *count, floats(run, result));
  });
  return result;
}

Step::Node Step::activations(const char* label, std::size_t width, std::size_t tokens) {
  const std::size_t bytes = width * tokens * sizeof(float);
  node_bytes_ += bytes;
  return builder_.add_node({.bytes = bytes, .alignment = 64, .label = label});
}

void Step::add(const char* label, Operands reads, Operands writes, std::function<void(const StepRun&)> function) {
  builder_.add_step({.label = label,
                     .reads = std::move(reads),
                     .writes = std::move(writes),
                     .run = [function = std::move(function)](const StepRun& run) -> berth::Result<void> {
                       function(run);
                       return {};
                     }});
}

void Step::add_in_parts(const char* label, const Operands& reads, Node result, std::size_t whole,
                        const std::function<void(const StepRun&, Range)>& function) {
  // Each part writes some elements of every token, so its bytes are no range. An empty step takes the whole result
  // first: whoever used these bytes before is done then. After it each part holds a share, which sets it apart from the
  // others; whoever reads the result waits for all of them. The empty step waits for what the parts read too, so that
  // the result does not live longer than they need it.
  const std::size_t parts = std::min<std::size_t>(whole, options_.threads);
  if (parts > 1) add(label, reads, {result}, [](const StepRun&) {});
  for (std::size_t i = 0; i < parts; ++i) {
    const Range range{whole * i / parts, whole * (i + 1) / parts};
    const std::size_t share = (range.last - range.first) * sizeof(float);
    const Node held = parts == 1
                          ? result
                          : builder_.add_node({.bytes = share,
                                               .alias = {{.node = result.id, .offset = range.first * sizeof(float)}}});
    add(label, reads, {held}, [=](const StepRun& run) { function(run, range); });
  }
}

}  // namespace llama
