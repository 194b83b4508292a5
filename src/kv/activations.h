// The tensors that a run of a batch computes, as llama.cpp orders them. Any thread may call.
#pragma once

#include <cstdint>

#include "berth/kv/fit.h"
#include "kv/compute_graph.h"

namespace berth::internal::fit {

struct BatchShape {
  std::uint64_t tokens = 0;   // a multiple of the sequences
  std::uint64_t outputs = 0;  // tokens whose logits are computed
  std::uint64_t sequences = 1;
  std::uint64_t cells = 0;         // of the cache of one sequence
  std::uint64_t window_cells = 0;  // of windowed layers
  bool flash_attention = true;
  // Elements of queries, keys and values that are rotated together before they are quantised; 0: none are.
  std::uint64_t key_rotation = 0, value_rotation = 0;
};

// O(layers).
ComputeGraph compute_graph(const kv::Model& model, const BatchShape& batch);

}  // namespace berth::internal::fit
