// The weights and sizes of a model, read from a GGUF file. The file is mapped: a matrix is a pointer into it, nothing
// is copied, and pages that are not used are not read. Files of the architectures "llama" and "qwen2" can be opened.
//
// Functions of this example throw berth::BadResult: for errors of Berth through Result::value(), and for their own with
// fail(). A file that contradicts itself is refused with kInvalidData before anything is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "berth/base/result.h"
#include "berth/tensor/buffer.h"
#include "berth/weights/weights.h"

namespace llama {

[[noreturn]] void fail(berth::Code code, std::string text);

// Matrices are computed in blocks of this many columns.
inline constexpr std::size_t kColumns = 32;

// `rows` rows of `columns` elements, as they are in the file: f32, f16, q8_0 or q4_0.
struct Matrix {
  berth::Buffer buffer{};  // keeps the file mapped
  const std::byte* data = nullptr;
  std::size_t rows = 0, columns = 0;
  std::span<const float> bias{};  // added to each product; empty: none
};

struct Layer {
  std::span<const float> attention_norm{}, feed_forward_norm{};
  Matrix query{}, key{}, value{}, output{};
  Matrix gate{}, up{}, down{};
};

struct Model {
  berth::WeightFile file{};
  std::size_t embedding = 0, feed_forward = 0, vocabulary = 0;
  std::size_t heads = 0, heads_kv = 0, head_size = 0;
  std::size_t context = 0;  // tokens that it was trained for
  float norm_epsilon = 0;
  // Positions: pairs of elements are rotated, neighbours (llama) or the two halves of a head (qwen2).
  std::size_t rotated = 0;  // elements of a head
  double rotation_base = 0;
  std::span<const float> rotation_factors{};  // one for each pair; empty: all 1
  bool rotates_halves = false;

  Matrix tokens{}, output{};
  std::span<const float> output_norm{};
  std::vector<Layer> layers{};
};

// kNotFound: a key or tensor is absent. kInvalidData: sizes that contradict each other or the tensors. kUnsupported:
// another architecture or element type. Errors of berth::open_weights() and berth::kv::read_model().
Model open_model(const std::string& path);

}  // namespace llama
