// The arithmetic of the decoder, on plain memory of the host. Activations are f32, and the elements of a token are
// together: x[token * width + element]. A result depends on its own token only, not on the other tokens of the batch.
// Any thread may call.
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
  std::byte* first = nullptr;  // of this layer in page 0
  std::size_t page_bytes = 0, block_tokens = 0, head_size = 0;

  // The key of a token of a page. Its value is head_bytes() further.
  std::byte* key(std::size_t page, std::size_t token, std::size_t head) const noexcept {
    return first + page * page_bytes + 2 * head * head_bytes() + token * head_size * 2;
  }
  std::size_t head_bytes() const noexcept { return block_tokens * head_size * 2; }
};

// One row of a matrix as floats.
void read_row(const Matrix& matrix, std::size_t row, float* result) noexcept;

// result[token * matrix.rows + row] = matrix[row] . x[token] + bias[row].
void multiply(const Matrix& matrix, Range rows, const float* x, std::size_t tokens, float* result) noexcept;

// One token: result = x / rms(x) * weights.
void normalise(std::span<const float> x, std::span<const float> weights, float epsilon, float* result) noexcept;

// The cosine and sine of each rotated pair of a head at a position.
void angles(const Model& model, std::int32_t position, float* result) noexcept;
// Rotates one head in place.
void rotate(const Model& model, const float* angles, float* head) noexcept;

// Rounds to f16.
void store(std::span<const float> values, std::byte* target) noexcept;

// One head of one token: softmax(query . keys / sqrt(head_size)) . values over the first `length` tokens of the
// sequence whose pages are `table`.
void attend(const LayerPages& layer, std::size_t head_kv, const std::int32_t* table, std::size_t length,
            const float* query, float* result) noexcept;

}  // namespace llama
