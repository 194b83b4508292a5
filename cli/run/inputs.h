// Inputs for a model that is run without being told any: right types, sensible shapes, seeded values, the same in
// every process.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "berth/base/result.h"
#include "engines/onnxruntime_session.h"

namespace berth::cli {

struct InputRequest {
  std::map<std::string, std::int64_t> dims;  // symbolic dimension, or "input.index" for a nameless one
  std::map<std::string, std::string> files;  // input -> .npy
  std::uint64_t seed = 0;
};

// One tensor for each of `specs`. InvalidArgument: a file of another type or shape, or an input that cannot be made
// up (strings); the sentence names it.
Result<std::vector<ort::Tensor>> make_inputs(const std::vector<ort::TensorSpec>& specs, const InputRequest& request);

// "x 1x3x736x736, sr scalar"
std::string describe_inputs(const std::vector<ort::Tensor>& inputs);

}  // namespace berth::cli
