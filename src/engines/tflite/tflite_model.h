// What the planner needs of a TensorFlow Lite model: tensors, operators and where the file keeps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "berth/base/result.h"

namespace berth::internal::tflite {

// Field numbers of the tables, as the schema of TensorFlow Lite gives them.
inline constexpr unsigned kModelOperatorCodes = 1, kModelSubgraphs = 2, kModelBuffers = 4, kModelMetadata = 6;
inline constexpr unsigned kModelFields = 8;  // all of four bytes: a version, then distances
inline constexpr unsigned kBufferData = 0, kBufferOffset = 1;
inline constexpr unsigned kMetadataName = 0, kMetadataBuffer = 1;
inline constexpr char kPlanName[] = "OfflineMemoryAllocation";

struct Tensor {
  std::string name;
  std::optional<std::uint64_t> bytes;  // nothing if the file does not tell
  bool in_arena = false;               // not a constant and not a variable

  friend bool operator==(const Tensor&, const Tensor&) = default;
};

struct Operator {
  std::vector<std::uint32_t> inputs;  // without those left out
  std::vector<std::uint32_t> outputs;
  std::vector<std::uint32_t> calls;  // the subgraphs that it runs, in this order
  bool has_state = false;            // must keep its order among its kind

  friend bool operator==(const Operator&, const Operator&) = default;
};

struct Subgraph {
  std::vector<Tensor> tensors;
  std::vector<Operator> operators;
  std::vector<std::uint32_t> inputs, outputs;
  std::uint64_t order_at = 0;  // position of the list of operators: a distance each
  std::vector<std::uint64_t> operator_tables;
};

struct Model {
  std::vector<Subgraph> subgraphs;  // at least one; the first is the main one
  std::uint64_t root = 0;           // position of the root table
  std::vector<std::uint64_t> buffer_tables;
  std::vector<std::uint64_t> metadata_tables;  // without a plan
  bool has_plan = false;

  std::size_t tensor_count() const noexcept {
    std::size_t count = 0;
    for (const Subgraph& each : subgraphs) count += each.tensors.size();
    return count;
  }
};

// Fails as plan_tflite() does. O(file).
Result<Model> read_model(std::span<const std::byte> file);

// The model with this plan: an offset for each tensor of each subgraph, -1 for those that the runtime places, and the
// operators of the main subgraph in this order. The parts that are new stand before everything else in the file,
// because distances only lead forward. kUnsupported: an operator stands before the list of operators, so that another
// order cannot be written.
Result<std::vector<std::byte>> write_model(std::span<const std::byte> file, const Model& model,
                                           std::span<const std::int32_t> offsets, std::span<const std::uint32_t> order);

}  // namespace berth::internal::tflite
