// What must hold for a model, whatever file describes it. Any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "berth/base/result.h"
#include "berth/kv/fit.h"
#include "kv/compute_graph.h"

namespace berth::internal::fit {

// More layers than any model has.
inline constexpr std::uint64_t kMostLayers = 4096;

// kInvalidData if `layers`, which `source` says, is 0 or beyond kMostLayers, or is not the number of layers that have
// tensors. `with_tensors` is 0 if that is not known.
Result<void> check_layer_count(std::uint64_t layers, std::uint64_t with_tensors, std::string_view source);

// kInvalidData if the heads of a layer with keys contradict each other.
Result<void> check_heads(const kv::ModelLayer& layer, std::size_t index);

}  // namespace berth::internal::fit
