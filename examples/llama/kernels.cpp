#include "kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "berth/tensor/f16.h"

namespace llama {
namespace {

// Half a block of columns. Compilers turn operations on it into vector instructions of the machine.
constexpr std::size_t kLanes = kColumns / 2;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
using Words = std::uint32_t __attribute__((vector_size(kLanes * sizeof(float))));
using Halves = std::uint16_t __attribute__((vector_size(kLanes * sizeof(std::uint16_t))));
using Integers = std::int32_t __attribute__((vector_size(kLanes * sizeof(std::int32_t))));
using Shorts = std::int16_t __attribute__((vector_size(kLanes * sizeof(std::int16_t))));
using Bytes = std::int8_t __attribute__((vector_size(kLanes)));

template <class T>
void load(const void* from, T& to) noexcept {
  std::memcpy(&to, from, sizeof to);
}

// f16 to f32: shifts the exponent and the fraction into place and corrects the exponent by a multiplication, which is
// also right for subnormal numbers. Infinity and NaN come out as 2^16 and more, and get the largest exponent.
void widen(const Halves& halves, Lanes& floats) noexcept {
  const Words bits = __builtin_convertvector(halves, Words);
  const Words magnitude = (bits & 0x7fffu) << 13;
  Lanes value;
  load(&magnitude, value);
  value *= 0x1p112f;
  const auto special = value >= 65536.0f;
  Words mask, result;
  load(&special, mask);
  load(&value, result);
  result |= (mask & 0x7f800000u) | (bits & 0x8000u) << 16;
  load(&result, floats);
}

// Integers to f32 times a scale, in steps that each double the size: compilers have instructions for these.
void scaled(const Shorts& shorts, float scale, Lanes& floats) noexcept {
  floats = __builtin_convertvector(__builtin_convertvector(shorts, Integers), Lanes) * scale;
}

float scale_of(const std::byte* block) noexcept {
  std::uint16_t bits;
  std::memcpy(&bits, block, sizeof bits);
  const auto magnitude = std::bit_cast<float>((bits & 0x7fffu) << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | (bits & 0x8000u) << 16);
}

// The element types: how many bytes a block of 32 elements has, and what the elements are.
struct F32 {
  static constexpr std::size_t kBytes = 128;
  static void read(const std::byte* block, Lanes& low, Lanes& high) noexcept {
    load(block, low);
    load(block + 64, high);
  }
};
struct F16 {
  static constexpr std::size_t kBytes = 64;
  static void read(const std::byte* block, Lanes& low, Lanes& high) noexcept {
    Halves halves;
    load(block, halves);
    widen(halves, low);
    load(block + 32, halves);
    widen(halves, high);
  }
};
struct Q8_0 {  // a scale, 32 signed bytes
  static constexpr std::size_t kBytes = 34;
  static void read(const std::byte* block, Lanes& low, Lanes& high) noexcept {
    const float scale = scale_of(block);
    Bytes bytes;
    load(block + 2, bytes);
    scaled(__builtin_convertvector(bytes, Shorts), scale, low);
    load(block + 18, bytes);
    scaled(__builtin_convertvector(bytes, Shorts), scale, high);
  }
};
struct Q4_0 {  // a scale, 16 bytes: the lower halves, then the upper halves, each minus 8
  static constexpr std::size_t kBytes = 18;
  static void read(const std::byte* block, Lanes& low, Lanes& high) noexcept {
    const float scale = scale_of(block);
    Bytes bytes;
    load(block + 2, bytes);
    const Shorts shorts = __builtin_convertvector(bytes, Shorts);
    scaled((shorts & 15) - 8, scale, low);
    scaled(((shorts >> 4) & 15) - 8, scale, high);
  }
};

// Calls function(Type{}) with the element type of a matrix.
template <class Function>
void with_type(berth::DType dtype, const Function& function) {
  switch (dtype) {
    case berth::DType::kF16: return function(F16{});
    case berth::DType::kQ8_0: return function(Q8_0{});
    case berth::DType::kQ4_0: return function(Q4_0{});
    default: return function(F32{});
  }
}

// One row times Count vectors. The order of the sums does not depend on Count.
template <class Type, std::size_t Count>
void dot(const std::byte* row, std::size_t columns, const float* x, std::size_t x_stride, float* results) noexcept {
  Lanes low_sums[Count] = {}, high_sums[Count] = {};
  for (std::size_t column = 0; column < columns; column += kColumns, row += Type::kBytes) {
    Lanes low, high;
    Type::read(row, low, high);
    for (std::size_t i = 0; i < Count; ++i) {
      Lanes x_low, x_high;
      load(x + i * x_stride + column, x_low);
      load(x + i * x_stride + column + kLanes, x_high);
      low_sums[i] += low * x_low;
      high_sums[i] += high * x_high;
    }
  }
  for (std::size_t i = 0; i < Count; ++i) {
    const Lanes lanes = low_sums[i] + high_sums[i];
    std::array<float, kLanes> sums;
    std::memcpy(sums.data(), &lanes, sizeof lanes);
    for (std::size_t half = kLanes / 2; half > 0; half /= 2)
      for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    results[i] = sums[0];
  }
}

template <class Type>
void convert(const std::byte* row, std::size_t columns, float* result) noexcept {
  for (std::size_t column = 0; column < columns; column += kColumns, row += Type::kBytes) {
    Lanes low, high;
    Type::read(row, low, high);
    std::memcpy(result + column, &low, sizeof low);
    std::memcpy(result + column + kLanes, &high, sizeof high);
  }
}

// One row times all tokens; several at a time, so that the row is read less often.
template <class Type>
void dot_all(const std::byte* row, std::size_t columns, const float* x, std::size_t tokens, float* results) noexcept {
  constexpr std::size_t kTogether = 4;
  std::size_t token = 0;
  for (; token + kTogether <= tokens; token += kTogether)
    dot<Type, kTogether>(row, columns, x + token * columns, columns, results + token);
  for (; token < tokens; ++token) dot<Type, 1>(row, columns, x + token * columns, columns, results + token);
}

// For many tokens the row is converted once. The products are the same.
template <class Type>
void row_times_tokens(const std::byte* row, std::size_t columns, const float* x, std::size_t tokens,
                      float* results) noexcept {
  std::array<float, 16384> floats;
  if (tokens <= 4 || columns > floats.size()) return dot_all<Type>(row, columns, x, tokens, results);
  convert<Type>(row, columns, floats.data());
  dot_all<F32>(reinterpret_cast<const std::byte*>(floats.data()), columns, x, tokens, results);
}

}  // namespace

void read_row(const Matrix& matrix, std::size_t row, float* result) noexcept {
  with_type(matrix.buffer.dtype(),
            [&]<class Type>(Type) { convert<Type>(matrix.data + row * matrix.row_bytes, matrix.columns, result); });
}

void multiply(const Matrix& matrix, Range rows, std::span<const float> bias, const float* x, std::size_t tokens,
              float* result, std::size_t stride) noexcept {
  with_type(matrix.buffer.dtype(), [&]<class Type>(Type) {
    for (std::size_t row = rows.first; row < rows.last; ++row, result += stride) {
      row_times_tokens<Type>(matrix.data + row * matrix.row_bytes, matrix.columns, x, tokens, result);
      if (!bias.empty())
        for (std::size_t token = 0; token < tokens; ++token) result[token] += bias[row];
    }
  });
}

void multiply_gated(const Matrix& gate, const Matrix& up, Range rows, const float* x, std::size_t tokens, float* result,
                    std::size_t stride) noexcept {
  std::array<float, 16> gates;
  for (std::size_t row = rows.first; row < rows.last; ++row, result += stride) {
    for (std::size_t token = 0; token < tokens; token += gates.size()) {
      const std::size_t count = std::min(gates.size(), tokens - token);
      const float* first = x + token * gate.columns;
      multiply(gate, {row, row + 1}, {}, first, count, gates.data(), 0);
      multiply(up, {row, row + 1}, {}, first, count, result + token, 0);
      for (std::size_t i = 0; i < count; ++i) result[token + i] *= gates[i] / (1 + std::exp(-gates[i]));
    }
  }
}

void normalise(std::span<const float> x, std::span<const float> weights, float epsilon, float* result) noexcept {
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  const auto scale = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon));
  for (std::size_t i = 0; i < x.size(); ++i) result[i] = x[i] * scale * weights[i];
}

void angles(const Model& model, std::int32_t position, float* result) noexcept {
  for (std::size_t pair = 0; pair < model.rotated / 2; ++pair) {
    const double part = 2 * static_cast<double>(pair) / static_cast<double>(model.rotated);
    double angle = position * std::pow(model.rotation_base, -part);
    if (!model.rotation_factors.empty()) angle /= model.rotation_factors[pair];
    result[2 * pair] = static_cast<float>(std::cos(angle));
    result[2 * pair + 1] = static_cast<float>(std::sin(angle));
  }
}

void rotate(const Model& model, const float* angles, float* head) noexcept {
  const std::size_t pairs = model.rotated / 2;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    float& a = model.rotates_halves ? head[pair] : head[2 * pair];
    float& b = model.rotates_halves ? head[pair + pairs] : head[2 * pair + 1];
    const float cosine = angles[2 * pair], sine = angles[2 * pair + 1], old = a;
    a = old * cosine - b * sine;
    b = old * sine + b * cosine;
  }
}

void gather(const float* by_element, std::size_t stride, std::size_t token, Range elements, float* result) noexcept {
  for (std::size_t i = elements.first; i < elements.last; ++i) *result++ = by_element[i * stride + token];
}

void store(std::span<const float> values, std::byte* target) noexcept {
  for (const float value : values) {
    const berth::F16 half = berth::to_f16(value);
    std::memcpy(target, &half, sizeof half);
    target += sizeof half;
  }
}

void attend(const LayerPages& layer, std::size_t head_kv, const std::int32_t* table, std::size_t length,
            const float* query, float* result) noexcept {
  const std::size_t size = layer.head_size;
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  // The sums so far are relative to the largest score so far; they are corrected where a block has a larger one.
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
  std::fill(result, result + size, 0.0f);
  for (std::size_t first = 0; first < length; first += layer.block_tokens) {
    const auto page = static_cast<std::size_t>(table[first / layer.block_tokens]);
    const std::size_t count = std::min(layer.block_tokens, length - first);
    std::array<float, kMostBlockTokens> scores;
    float block_largest = largest;
    for (std::size_t i = 0; i < count; ++i) {
      dot<F16, 1>(layer.keys(page, head_kv) + i * size * 2, size, query, 0, &scores[i]);
      scores[i] *= scale;
      block_largest = std::max(block_largest, scores[i]);
    }
    const float correction = std::exp(largest - block_largest);
    largest = block_largest;
    sum *= correction;
    for (std::size_t i = 0; i < count; ++i) sum += scores[i] = std::exp(scores[i] - largest);
    for (std::size_t column = 0; column < size; column += kColumns) {
      Lanes low_sums, high_sums;
      load(result + column, low_sums);
      load(result + column + kLanes, high_sums);
      low_sums *= correction;
      high_sums *= correction;
      for (std::size_t i = 0; i < count; ++i) {
        Lanes low, high;
        F16::read(layer.values(page, head_kv) + (i * size + column) * 2, low, high);
        low_sums += low * scores[i];
        high_sums += high * scores[i];
      }
      std::memcpy(result + column, &low_sums, sizeof low_sums);
      std::memcpy(result + column + kLanes, &high_sums, sizeof high_sums);
    }
  }
  for (std::size_t i = 0; i < size; ++i) result[i] /= sum;
}

}  // namespace llama
