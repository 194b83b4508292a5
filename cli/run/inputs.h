// Generated inputs for a model: correct types, sensible shapes, seeded values, equal in every process.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "berth/base/result.h"
#include "engines/onnxruntime_session.h"

namespace berth::cli {

// kInvalidArgument with this text: what the user asked for cannot be.
Error refuse(std::string text);

struct InputRequest {
  std::map<std::string, std::int64_t> dims;  // symbolic dimension, or "input.index" for a nameless one
  std::map<std::string, std::string> files;  // input -> .npy
  std::uint64_t seed = 0;
};

// Sets the sizes of one shape of a mix: those of the symbolic dimensions of the first input that has any, the last ones
// if there are fewer sizes than dimensions, or all dimensions of that input. Other inputs with a dimension of the same
// name take the size too. kInvalidArgument if there are too many sizes, or one differs from a dimension that is fixed.
Result<void> set_shape(const std::vector<internal::ort::TensorSpec>& specs, const std::vector<std::int64_t>& shape,
                       InputRequest& request);

// One tensor per spec. kInvalidArgument, with its name, for a file of another type or shape, or an input that cannot be
// generated (strings, or larger than the memory of the machine).
Result<std::vector<internal::ort::Tensor>> make_inputs(const std::vector<internal::ort::TensorSpec>& specs,
                                                       const InputRequest& request);

// "x 1x3x736x736, sr scalar"
std::string describe_inputs(const std::vector<internal::ort::Tensor>& inputs);

}  // namespace berth::cli
