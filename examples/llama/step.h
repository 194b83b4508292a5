// One step of decoding as a schedule: the operations of all layers on a batch of tokens. It is built once, for the
// largest batch. Each operation names the nodes that it reads and writes; the schedule orders them by these hazards and
// runs the others side by side. When each node lives follows from the schedule, and the planner places all of them in
// one arena. Run by one thread at a time.
//
//   embed ─ x ─ norm ─┬─ q ─┬─ rotate, store ─ attend ─ output ─ add to x, norm ─┬─ gate ─┬─ silu ─ down ─┐
//             │       ├─ k ─┤                                                    └─ up ───┘               │
//             │       └─ v ─┘                                                                             │
//             └──────────────────────────── next layer ─ add to x, norm ──────────────────────────────────┘
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "berth/kv/cache.h"
#include "berth/run/arena.h"
#include "berth/run/schedule.h"
#include "kernels.h"
#include "model.h"

namespace llama {

// Of a decoder, and of its steps.
struct DecoderOptions {
  std::size_t sequences = 8;      // open at the same time, at most
  std::size_t batch_tokens = 64;  // at least `sequences`
  std::size_t context = 0;        // tokens of a sequence at most; 0: as the model was trained
  std::size_t cache_bytes = 0;    // 0: for `sequences` of `context` tokens
  std::uint32_t threads = 1;
  std::optional<berth::kv::Token> stop{};  // ends a sequence
  bool check_overlaps = false;             // for tests: berth::RunOptions::check_overlaps
};

// What a run computes. The lists have room for the largest batch.
struct Batch {
  std::size_t tokens = 0, outputs = 0;    // in use
  std::vector<std::int32_t> token{};      // ids
  std::vector<std::int32_t> position{};   // in the sequence
  std::vector<std::int32_t> row{};        // of the table: which sequence it belongs to
  std::vector<std::int64_t> slot{};       // where its keys and values go, as the cache says
  std::vector<std::int32_t> table{};      // pages of the sequences, Step::row_pages() each
  std::vector<std::int32_t> output{};     // the tokens of the batch whose successor is wanted
  std::vector<std::int32_t> successor{};  // after run(): the most likely token, one for each output
};

// The cache that a step writes: one group with the keys and values of all layers in f16.
berth::kv::Group cache_group(const Model& model);

class Step {
 public:
  // Requires: the model and the cache outlive the step.
  Step(const Model& model, const berth::kv::Cache& cache, const DecoderOptions& options);

  Batch batch{};
  // Allocates nothing with one thread; with several, what berth::Schedule::run() says.
  void run() { schedule_->run({.workers = options_.threads, .check_overlaps = options_.check_overlaps}).value(); }

  // Pages of the longest sequence.
  std::size_t row_pages() const noexcept {
    return (options_.context + cache_.block_tokens() - 1) / cache_.block_tokens();
  }
  std::size_t arena_bytes() const noexcept { return arena_->total_size(); }
  // What the same nodes would take with memory of their own.
  std::size_t node_bytes() const noexcept { return node_bytes_; }
  const berth::Schedule& schedule() const noexcept { return *schedule_; }

 private:
  using Node = berth::Node;
  using Operands = std::vector<berth::Operand>;

  void build();
  Node build_attention(const Layer& layer, const LayerPages& pages, Node normed, Node angle);
  Node build_feed_forward(const Layer& layer, Node normed);
  // x += added, and the norm of the sum.
  Node add_and_normalise(Node x, Node added, std::span<const float> weights);
  // matrix . x, for as many vectors as *count says.
  Node multiply(const char* label, const Matrix& matrix, Node x, const std::size_t* count);
  // Memory for `width` elements of each of at most `tokens` tokens.
  Node activations(const char* label, std::size_t width, std::size_t tokens);
  void add(const char* label, Operands reads, Operands writes, std::function<void(const berth::StepRun&)> function);
  // The same for each thread, with a range of [0, whole) each; together they write `result`.
  void add_in_parts(const char* label, const Operands& reads, Node result, std::size_t whole,
                    const std::function<void(const berth::StepRun&, Range)>& function);

  const Model& model_;
  const berth::kv::Cache& cache_;
  const DecoderOptions options_;
  std::size_t node_bytes_ = 0;
  berth::ScheduleBuilder builder_;
  std::unique_ptr<berth::Arena> arena_;
  std::unique_ptr<berth::Schedule> schedule_;
};

}  // namespace llama
