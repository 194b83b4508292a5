// One step of decoding as a schedule: the operations of all layers on a batch of tokens. It is built once, for the
// largest batch. Each operation names the nodes that it reads and writes; the schedule orders them by these hazards and
// runs the others side by side. When each node lives follows from the schedule, and the planner places all of them in
// one arena. Run by one thread at a time.
//
//   tokens ─ embed ─ x ─ norm ─┬─ q ─ rotate ──┬─ attend (heads) ─ merge ─ output (rows) ─ add to x, norm ─┐
//                              ├─ k ─┬─ store ─┘ (through the cache)                                       │
//                              └─ v ─┘                    next layer ─ add to x, norm ─ down ─ gate, up ───┘
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "berth/kv/cache.h"
#include "berth/run/arena.h"
#include "berth/run/schedule.h"
#include "kernels.h"
#include "model.h"

namespace llama {

struct StepSizes {
  std::size_t tokens = 64;    // of a batch at most
  std::size_t sequences = 8;  // at most
  std::size_t pages = 1;      // of a sequence at most
  std::uint32_t threads = 1;
  bool check_overlaps = false;  // for tests: berth::RunOptions::check_overlaps
};

// The cache that a step writes: one group with the keys and values of all layers in f16.
berth::kv::Group cache_group(const Model& model);

class Step {
 public:
  // Requires: the model and the cache outlive the step.
  Step(const Model& model, const berth::kv::Cache& cache, const StepSizes& sizes);

  // What the next run computes. The memory is the arena's and keeps its contents.
  struct Batch {
    std::size_t tokens = 0, outputs = 0;        // in use
    std::span<std::int32_t> token{};            // ids
    std::span<std::int32_t> position{};         // in the sequence
    std::span<std::int32_t> row{};              // of the table: which sequence it belongs to
    std::span<std::int64_t> slot{};             // where its keys and values go, as the cache says
    std::span<std::int32_t> table{};            // pages of the sequences, StepSizes::pages each
    std::span<std::int32_t> output{};           // the tokens of the batch whose successor is wanted
    std::span<const std::int32_t> successor{};  // after run(): the most likely token, one for each output
  };
  Batch batch{};

  // Allocates nothing with one thread; with several, what berth::Schedule::run() says.
  void run();

  std::size_t arena_bytes() const noexcept { return arena_->total_size(); }
  // What the same nodes would take with memory of their own.
  std::size_t node_bytes() const noexcept { return node_bytes_; }
  const berth::Schedule& schedule() const noexcept { return *schedule_; }

 private:
  using Node = berth::Node;
  using Function = std::function<void(const berth::StepRun&)>;
  // Vectors of a batch: how many there are room for, and how many there are.
  struct Vectors {
    std::size_t stride;
    const std::size_t* count;
  };

  void build();
  Node build_attention(std::size_t layer, Node normed, Node angles);
  void add_norm(std::string label, Node added, Node x, std::span<const float> weights, Node result);
  // Memory for elements of each token, a table that the host fills, and a window of another node.
  Node activations(std::string label, std::size_t elements);
  Node table(std::string label, std::size_t bytes);
  Node window(Node whole, std::size_t first_byte, std::size_t bytes);
  // matrix . x in parts, by element.
  Node multiply(const std::string& label, const Matrix& matrix, std::span<const float> bias, Node x, Vectors vectors);
  void add(std::string label, std::vector<berth::Operand> reads, std::vector<berth::Operand> writes, Function function);
  template <class Function2>
  void in_parts(std::size_t whole, const Function2& function) const;
  template <class T>
  std::span<T> host(Node node, std::size_t elements) const;
  LayerPages pages_of(std::size_t layer) const;

  const Model& model_;
  const berth::kv::Cache& cache_;
  StepSizes sizes_;
  std::size_t node_bytes_ = 0;
  Vectors tokens_{}, outputs_{};
  Node token_{}, position_{}, row_{}, slot_{}, table_{}, output_{}, successor_{};
  berth::ScheduleBuilder builder_;
  std::unique_ptr<berth::Arena> arena_;
  std::unique_ptr<berth::Schedule> schedule_;
};

}  // namespace llama
