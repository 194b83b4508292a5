// The arithmetic of the decoder, on plain memory of the host. Activations are f32. Two orders of elements occur, where
// `stride` is the number of tokens that a batch may have:
//
//   by token     x[token * width + element]     what a dot product reads
//   by element   y[element * stride + token]    what matrix products write: a range of rows is one range of bytes, so
//                                               threads that compute different rows write different windows
//
// A result depends on its own token only, not on the other tokens of the batch. Any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model.h"

namespace llama {

// A range of rows of a matrix, or of heads.
struct Range {
  std::size_t first = 0, last = 0;
};

// Where keys and values of one layer are in the pages of the cache: for each head, f16 keys of all tokens of the block,
// then their values.
struct LayerPages {
  std::byte* pages = nullptr;
  std::size_t page_bytes = 0, block_tokens = 0;
  std::size_t layer_offset = 0;  // bytes from the start of a page
  std::size_t head_size = 0;

  std::byte* keys(std::size_t page, std::size_t head) const noexcept {
    return pages + page * page_bytes + layer_offset + 2 * head * block_bytes();
  }
  std::byte* values(std::size_t page, std::size_t head) const noexcept { return keys(page, head) + block_bytes(); }
  std::size_t block_bytes() const noexcept { return block_tokens * head_size * 2; }
};

// The longest block that attend() can take.
inline constexpr std::size_t kMostBlockTokens = 64;

// One row of a matrix as floats.
void read_row(const Matrix& matrix, std::size_t row, float* result) noexcept;

// result[(row - rows.first) * stride + token] = matrix[row] . x[token] (+ bias[row]).
void multiply(const Matrix& matrix, Range rows, std::span<const float> bias, const float* x, std::size_t tokens,
              float* result, std::size_t stride) noexcept;

// The same for silu(gate . x) * (up . x).
void multiply_gated(const Matrix& gate, const Matrix& up, Range rows, const float* x, std::size_t tokens, float* result,
                    std::size_t stride) noexcept;

// One token: result = x / rms(x) * weights.
void normalise(std::span<const float> x, std::span<const float> weights, float epsilon, float* result) noexcept;

// The cosine and sine of each rotated pair of a head at a position.
void angles(const Model& model, std::int32_t position, float* result) noexcept;
// Rotates one head in place.
void rotate(const Model& model, const float* angles, float* head) noexcept;

// One element range of a token, from the order by element.
void gather(const float* by_element, std::size_t stride, std::size_t token, Range elements, float* result) noexcept;

// Rounds to f16.
void store(std::span<const float> values, std::byte* target) noexcept;

// One head of one token: softmax(query . keys / sqrt(head_size)) . values over the first `length` tokens of the
// sequence whose pages are `table`.
void attend(const LayerPages& layer, std::size_t head_kv, const std::int32_t* table, std::size_t length,
            const float* query, float* result) noexcept;

}  // namespace llama
