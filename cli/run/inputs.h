// Generated inputs for a model: correct types, sensible shapes, seeded values, equal in every process.
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

// One tensor per spec. kInvalidArgument, with its name, for a file of another type or shape, or an input that cannot be
// generated (strings).
Result<std::vector<internal::ort::Tensor>> make_inputs(const std::vector<internal::ort::TensorSpec>& specs,
                                                       const InputRequest& request);

// "x 1x3x736x736, sr scalar"
std::string describe_inputs(const std::vector<internal::ort::Tensor>& inputs);

}  // namespace berth::cli
