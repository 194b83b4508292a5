// Two small networks in plain C++: a convolutional net with branches and a transformer block. Each is a list of
// operations on nodes; where the nodes live is somebody else's choice.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace networks {

using Floats = std::span<const float>;
using Kernel = std::function<void(std::span<const Floats> inputs, std::span<float> output)>;

struct Tensor {
  std::string name;
  std::size_t count = 0;            // floats
  std::optional<std::size_t> of{};  // a window of this tensor, from element `at`
  std::size_t at = 0;
  std::optional<std::size_t> over{};  // may be written over this one
  bool is_output = false;
};

struct Operation {
  std::string name;
  std::vector<std::size_t> inputs;
  std::size_t output;
  Kernel kernel;
};

struct Network {
  std::string name;
  std::vector<Tensor> tensors{};
  std::vector<Operation> operations{};
  std::size_t input = 0, output = 0;
  std::mt19937 random{42};

  std::size_t tensor(Tensor tensor) {
    tensors.push_back(std::move(tensor));
    return tensors.size() - 1;
  }
  // Appends an operation with a new output tensor, and gives that.
  std::size_t apply(std::string label, std::vector<std::size_t> inputs, std::size_t count, Kernel kernel) {
    const std::size_t out = tensor({.name = label, .count = count});
    operations.push_back({std::move(label), std::move(inputs), out, std::move(kernel)});
    return out;
  }
  std::shared_ptr<const std::vector<float>> weights(std::size_t count, std::size_t fan_in) {
    auto values = std::make_shared<std::vector<float>>(count);
    std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(fan_in)));
    for (float& value : *values) value = normal(random);
    return values;
  }
};

// rows x in times in x out.
inline Kernel linear(Network& net, std::size_t rows, std::size_t in, std::size_t out) {
  return [=, w = net.weights(in * out, in)](std::span<const Floats> x, std::span<float> y) {
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t o = 0; o < out; ++o) {
        float sum = 0;
        for (std::size_t i = 0; i < in; ++i) sum += x[0][r * in + i] * (*w)[o * in + i];
        y[r * out + o] = sum;
      }
  };
}

// Square kernels of odd size with zero padding, then ReLU. Channels first.
inline Kernel conv(Network& net, std::size_t side, std::size_t in, std::size_t out, std::size_t size) {
  return [=, w = net.weights(in * out * size * size, in * size * size)](std::span<const Floats> x, std::span<float> y) {
    const auto n = static_cast<std::ptrdiff_t>(side), k = static_cast<std::ptrdiff_t>(size);
    for (std::size_t o = 0; o < out; ++o)
      for (std::ptrdiff_t row = 0; row < n; ++row)
        for (std::ptrdiff_t col = 0; col < n; ++col) {
          float sum = 0;
          for (std::size_t i = 0; i < in; ++i)
            for (std::ptrdiff_t a = 0; a < k; ++a)
              for (std::ptrdiff_t b = 0; b < k; ++b) {
                const std::ptrdiff_t r = row + a - k / 2, c = col + b - k / 2;
                if (r < 0 || c < 0 || r >= n || c >= n) continue;
                sum += x[0][i * side * side + static_cast<std::size_t>(r * n + c)] *
                       (*w)[((o * in + i) * size + static_cast<std::size_t>(a)) * size + static_cast<std::size_t>(b)];
              }
          y[o * side * side + static_cast<std::size_t>(row * n + col)] = std::max(sum, 0.0f);
        }
  };
}

inline void add(std::span<const Floats> x, std::span<float> y) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[0][i] + x[1][i];
}

// Three stages; in each, three branches write their windows of one tensor, so a concatenation costs nothing.
inline Network convolutional() {
  Network net{.name = "convolutional net"};
  std::size_t side = 32, channels = 3;
  std::size_t x = net.input = net.tensor({.name = "image", .count = channels * side * side});
  for (int stage = 0; stage < 3; ++stage) {
    const std::string s = "stage " + std::to_string(stage) + " ";
    const std::size_t width = 8u << stage, pixels = side * side;
    const std::size_t joined = net.tensor({.name = s + "joined", .count = 3 * width * pixels});
    for (std::size_t branch = 0; branch < 3; ++branch) {
      const std::size_t size = 2 * branch + 1;
      const std::string b = s + std::to_string(size) + "x" + std::to_string(size);
      std::size_t from = x, depth = channels;
      if (size > 1) {
        depth = width / 2;
        from = net.apply(b + " reduce", {x}, depth * pixels, conv(net, side, channels, depth, 1));
      }
      const std::size_t window =
          net.tensor({.name = b, .count = width * pixels, .of = joined, .at = branch * width * pixels});
      net.operations.push_back({b, {from}, window, conv(net, side, depth, width, size)});
    }
    channels = 3 * width;
    x = net.apply(s + "pool", {joined}, channels * pixels / 4, [=](std::span<const Floats> in, std::span<float> y) {
      for (std::size_t c = 0; c < channels; ++c)
        for (std::size_t r = 0; r < side / 2; ++r)
          for (std::size_t k = 0; k < side / 2; ++k) {
            const float* top = in[0].data() + c * pixels + 2 * r * side + 2 * k;
            y[c * pixels / 4 + r * side / 2 + k] =
                std::max(std::max(top[0], top[1]), std::max(top[side], top[side + 1]));
          }
    });
    side /= 2;
  }
  net.output = net.apply("scores", {x}, 10, linear(net, 1, channels * side * side, 10));
  net.tensors[net.output].is_output = true;
  return net;
}

// Layer norm, attention with four heads that run side by side, and a perceptron, each added to what came in.
inline Network transformer() {
  Network net{.name = "transformer block"};
  constexpr std::size_t rows = 48, width = 64, heads = 4, depth = width / heads;
  const auto norm = [](std::span<const Floats> x, std::span<float> y) {
    for (std::size_t r = 0; r < rows; ++r) {
      const Floats row = x[0].subspan(r * width, width);
      float mean = 0, square = 0;
      for (const float v : row) mean += v / width;
      for (const float v : row) square += (v - mean) * (v - mean) / width;
      for (std::size_t i = 0; i < width; ++i) y[r * width + i] = (row[i] - mean) / std::sqrt(square + 1e-5f);
    }
  };
  const std::size_t x = net.input = net.tensor({.name = "tokens", .count = rows * width});
  const std::size_t normed = net.apply("norm 1", {x}, rows * width, norm);
  const std::size_t mixed = net.tensor({.name = "heads", .count = rows * width});
  for (std::size_t head = 0; head < heads; ++head) {
    const std::string h = "head " + std::to_string(head);
    std::vector<std::size_t> qkv;
    for (const char* part : {" q", " k", " v"})
      qkv.push_back(net.apply(h + part, {normed}, rows * depth, linear(net, rows, width, depth)));
    const std::size_t scores =
        net.apply(h + " scores", {qkv[0], qkv[1]}, rows * rows, [](std::span<const Floats> in, std::span<float> y) {
          for (std::size_t a = 0; a < rows; ++a)
            for (std::size_t b = 0; b < rows; ++b) {
              float sum = 0;
              for (std::size_t i = 0; i < depth; ++i) sum += in[0][a * depth + i] * in[1][b * depth + i];
              y[a * rows + b] = sum / std::sqrt(static_cast<float>(depth));
            }
        });
    const std::size_t soft =
        net.apply(h + " softmax", {scores}, rows * rows, [](std::span<const Floats> in, std::span<float> y) {
          for (std::size_t a = 0; a < rows; ++a) {
            const Floats row = in[0].subspan(a * rows, rows);
            const float most = *std::max_element(row.begin(), row.end());
            float sum = 0;
            for (std::size_t b = 0; b < rows; ++b) sum += y[a * rows + b] = std::exp(row[b] - most);
            for (std::size_t b = 0; b < rows; ++b) y[a * rows + b] /= sum;
          }
        });
    net.tensors[soft].over = scores;  // row by row, each read before it is written
    const std::size_t window = net.tensor({.name = h, .count = rows * depth, .of = mixed, .at = head * rows * depth});
    net.operations.push_back({h, {soft, qkv[2]}, window, [](std::span<const Floats> in, std::span<float> y) {
                                for (std::size_t a = 0; a < rows; ++a)
                                  for (std::size_t i = 0; i < depth; ++i) {
                                    float sum = 0;
                                    for (std::size_t b = 0; b < rows; ++b)
                                      sum += in[0][a * rows + b] * in[1][b * depth + i];
                                    y[a * depth + i] = sum;
                                  }
                              }});
  }
  // Heads lie one after the other; the projection reads them so.
  const std::size_t projected =
      net.apply("project", {mixed}, rows * width,
                [w = net.weights(width * width, width)](std::span<const Floats> in, std::span<float> y) {
                  for (std::size_t r = 0; r < rows; ++r)
                    for (std::size_t o = 0; o < width; ++o) {
                      float sum = 0;
                      for (std::size_t i = 0; i < width; ++i)
                        sum += in[0][i / depth * rows * depth + r * depth + i % depth] * (*w)[o * width + i];
                      y[r * width + o] = sum;
                    }
                });
  const std::size_t attended = net.apply("add 1", {x, projected}, rows * width, add);
  net.tensors[attended].over = projected;
  const std::size_t again = net.apply("norm 2", {attended}, rows * width, norm);
  const std::size_t wide = net.apply("expand", {again}, rows * 4 * width, linear(net, rows, width, 4 * width));
  const std::size_t bent =
      net.apply("gelu", {wide}, rows * 4 * width, [](std::span<const Floats> in, std::span<float> y) {
        for (std::size_t i = 0; i < y.size(); ++i) y[i] = in[0][i] * 0.5f * (1.0f + std::erf(in[0][i] * 0.70710678f));
      });
  net.tensors[bent].over = wide;
  const std::size_t narrow = net.apply("shrink", {bent}, rows * width, linear(net, rows, 4 * width, width));
  net.output = net.apply("add 2", {attended, narrow}, rows * width, add);
  net.tensors[net.output].is_output = true;
  return net;
}

inline std::vector<float> make_input(const Network& net) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> input(net.tensors[net.input].count);
  for (float& value : input) value = normal(random);
  return input;
}

// One vector for each tensor, one operation after the other: what every other way must agree with.
inline std::vector<float> run_with_separate_buffers(const Network& net, Floats input) {
  std::vector<std::vector<float>> own(net.tensors.size());
  const auto memory = [&](std::size_t tensor) {
    const Tensor& t = net.tensors[tensor];
    std::vector<float>& floats = own[t.of.value_or(tensor)];
    if (floats.empty()) floats.resize(net.tensors[t.of.value_or(tensor)].count);
    return std::span(floats).subspan(t.at, t.count);
  };
  std::copy(input.begin(), input.end(), memory(net.input).begin());
  for (const Operation& operation : net.operations) {
    std::vector<Floats> inputs;
    for (const std::size_t tensor : operation.inputs) inputs.push_back(memory(tensor));
    operation.kernel(inputs, memory(operation.output));
  }
  return own[net.output];
}

}  // namespace networks
