#include "kernels.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "berth/tensor/f16.h"
#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
#endif

namespace llama {
namespace {

// Eight numbers. Compilers turn operations on them into vector instructions; four of them are a block of columns.
constexpr std::size_t kLanes = 8;
constexpr std::size_t kParts = kColumns / kLanes;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
using Bytes = std::int8_t __attribute__((vector_size(16)));

template <class T>
inline T load(const void* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Compilers do not find the instructions that widen numbers by themselves.
#if defined(__AVX2__) && defined(__F16C__)
inline float half(const std::byte* from) noexcept {
  return _cvtsh_ss(load<std::uint16_t>(from));
}
inline Lanes halves(const std::byte* from) noexcept {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Lanes integers(const void* from) noexcept {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from))));
}
#else
inline float half(const std::byte* from) noexcept {
  return berth::to_f32(load<berth::F16>(from));
}
inline Lanes halves(const std::byte* from) noexcept {
  Lanes result;
  for (std::size_t i = 0; i < kLanes; ++i) result[i] = half(from + 2 * i);
  return result;
}
inline Lanes integers(const void* from) noexcept {
  Lanes result;
  for (std::size_t i = 0; i < kLanes; ++i) result[i] = static_cast<const std::int8_t*>(from)[i];
  return result;
}
#endif

// The element types: the bytes of a block of 32 elements, and how it is read. Returns a scale for all of its elements.
struct F32 {
  static constexpr std::size_t kBytes = 128;
  static float read(const std::byte* block, Lanes* lanes) noexcept {
    for (std::size_t i = 0; i < kParts; ++i) lanes[i] = load<Lanes>(block + i * sizeof(Lanes));
    return 1;
  }
};
struct F16 {
  static constexpr std::size_t kBytes = 64;
  static float read(const std::byte* block, Lanes* lanes) noexcept {
    for (std::size_t i = 0; i < kParts; ++i) lanes[i] = halves(block + i * 2 * kLanes);
    return 1;
  }
};
struct Q8_0 {  // a scale, 32 signed bytes
  static constexpr std::size_t kBytes = 34;
  static float read(const std::byte* block, Lanes* lanes) noexcept {
    for (std::size_t i = 0; i < kParts; ++i) lanes[i] = integers(block + 2 + i * kLanes);
    return half(block);
  }
};
struct Q4_0 {  // a scale, 16 bytes: the lower halves, then the upper halves, each minus 8
  static constexpr std::size_t kBytes = 18;
  static float read(const std::byte* block, Lanes* lanes) noexcept {
    const Bytes pairs = load<Bytes>(block + 2);
    const Bytes numbers[2] = {(pairs & 15) - 8, ((pairs >> 4) & 15) - 8};
    for (std::size_t i = 0; i < kParts; ++i)
      lanes[i] = integers(reinterpret_cast<const std::byte*>(numbers) + i * kLanes);
    return half(block);
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

// One row times Count vectors x[i * columns]; results[i * stride]. The order of the sums does not depend on Count.
template <class Type, std::size_t Count>
void dot(const std::byte* row, std::size_t columns, const float* x, float* results, std::size_t stride) noexcept {
  Lanes sums[Count] = {};
  for (std::size_t column = 0; column < columns; column += kColumns, row += Type::kBytes) {
    Lanes weights[kParts];
    const float scale = Type::read(row, weights);
    for (std::size_t i = 0; i < Count; ++i) {
      const float* const one = x + i * columns + column;
      Lanes sum = weights[0] * load<Lanes>(one);
      for (std::size_t part = 1; part < kParts; ++part) sum += weights[part] * load<Lanes>(one + part * kLanes);
      sums[i] += sum * scale;
    }
  }
  for (std::size_t i = 0; i < Count; ++i) {
    Lanes sum = sums[i];
    for (std::size_t half = kLanes / 2; half > 0; half /= 2)
      for (std::size_t lane = 0; lane < half; ++lane) sum[lane] += sum[lane + half];
    results[i * stride] = sum[0];
  }
}

}  // namespace

void read_row(const Matrix& matrix, std::size_t row, float* result) noexcept {
  with_type(matrix.buffer.dtype(), [&]<class Type>(Type) {
    const std::byte* block = matrix.data + row * (matrix.columns / kColumns) * Type::kBytes;
    for (std::size_t column = 0; column < matrix.columns; column += kColumns, block += Type::kBytes) {
      Lanes lanes[kParts];
      const float scale = Type::read(block, lanes);
      for (Lanes& part : lanes) part *= scale;
      std::memcpy(result + column, lanes, sizeof lanes);
    }
  });
}

void multiply(const Matrix& matrix, Range rows, const float* x, std::size_t tokens, float* result) noexcept {
  constexpr std::size_t kTogether = 8;  // so that a row is read less often
  const std::size_t columns = matrix.columns, stride = matrix.rows;
  with_type(matrix.buffer.dtype(), [&]<class Type>(Type) {
    for (std::size_t row = rows.first; row < rows.last; ++row) {
      const std::byte* const data = matrix.data + row * (columns / kColumns) * Type::kBytes;
      std::size_t token = 0;
      for (; token + kTogether <= tokens; token += kTogether)
        dot<Type, kTogether>(data, columns, x + token * columns, result + token * stride + row, stride);
      for (; token < tokens; ++token)
        dot<Type, 1>(data, columns, x + token * columns, result + token * stride + row, 0);
      if (!matrix.bias.empty())
        for (token = 0; token < tokens; ++token) result[token * stride + row] += matrix.bias[row];
    }
  });
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

void store(std::span<const float> values, std::byte* target) noexcept {
  berth::to_f16(values, {reinterpret_cast<berth::F16*>(target), values.size()});
}

void attend(const LayerPages& layer, std::size_t head_kv, const std::int32_t* table, std::size_t length,
            const float* query, float* result) noexcept {
  const std::size_t size = layer.head_size;
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  // The sums so far are relative to the largest score so far.
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
  std::memset(result, 0, size * sizeof(float));
  for (std::size_t token = 0; token < length; ++token) {
    const auto page = static_cast<std::size_t>(table[token / layer.block_tokens]);
    const std::byte* const key = layer.key(page, token % layer.block_tokens, head_kv);
    const std::byte* value = key + layer.head_bytes();
    float score;
    dot<F16, 1>(key, size, query, &score, 0);
    score *= scale;
    if (score > largest) {
      const float correction = std::exp(largest - score);
      sum *= correction;
      for (std::size_t i = 0; i < size; ++i) result[i] *= correction;
      largest = score;
    }
    const float weight = std::exp(score - largest);
    sum += weight;
    for (std::size_t i = 0; i < size; i += kLanes, value += 2 * kLanes) {
      const Lanes mixed = load<Lanes>(result + i) + halves(value) * weight;
      std::memcpy(result + i, &mixed, sizeof mixed);
    }
  }
  for (std::size_t i = 0; i < size; ++i) result[i] /= sum;
}

}  // namespace llama
