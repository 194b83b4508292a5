// Networks for ncnn, drawn from a seed: the text of a .param file and the bytes of a .bin file, so that tests and
// benches need no model file. The weights are scaled so that the output depends on the input, however deep the network
// is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace berth::testing {

struct NcnnNetwork {
  std::string name;
  std::string param, bin;  // what the two files contain
  int width, height;       // of the input, which has three channels and is called "in"; the output is "out"
  int multiple;            // the input's width and height must be multiples of this
};

class NcnnWriter {
 public:
  struct Blob {
    std::size_t id;
    int channels;
  };

  explicit NcnnWriter(std::uint32_t seed) : random_(seed) {}

  Blob input(int channels = 3) { return add("Input", {}, "", channels); }
  // With padding, so that the extents are those of the input divided by the stride. Followed by ReLU inside.
  Blob convolution(Blob in, int channels, int kernel = 3, int stride = 1, bool relu = true) {
    const int weights = channels * in.channels * kernel * kernel;
    draw(weights, in.channels * kernel * kernel);
    draw_biases(channels);
    return add(
        "Convolution", {in},
        numbers({{0, channels}, {1, kernel}, {3, stride}, {4, kernel / 2}, {5, 1}, {6, weights}, {9, relu ? 1 : 0}}),
        channels);
  }
  Blob depthwise(Blob in, int stride = 1) {
    draw(in.channels * 9, 9);
    draw_biases(in.channels);
    return add(
        "ConvolutionDepthWise", {in},
        numbers(
            {{0, in.channels}, {1, 3}, {3, stride}, {4, 1}, {5, 1}, {6, in.channels * 9}, {7, in.channels}, {9, 1}}),
        in.channels);
  }
  // Doubles both extents.
  Blob deconvolution(Blob in, int channels) {
    const int weights = channels * in.channels * 4;
    draw(weights, in.channels);
    draw_biases(channels);
    return add("Deconvolution", {in}, numbers({{0, channels}, {1, 2}, {3, 2}, {5, 1}, {6, weights}}), channels);
  }
  Blob half(Blob in) { return add("Pooling", {in}, numbers({{0, 0}, {1, 2}, {2, 2}}), in.channels); }
  Blob twice(Blob in) { return add("Interp", {in}, "0=1 1=2.0 2=2.0", in.channels); }
  Blob sum(Blob a, Blob b) { return add("BinaryOp", {a, b}, numbers({{0, 0}}), a.channels); }
  Blob concat(Blob a, Blob b) { return add("Concat", {a, b}, numbers({{0, 0}}), a.channels + b.channels); }
  Blob swish(Blob in) { return add("Swish", {in}, "", in.channels); }
  Blob classify(Blob in, int classes) {
    const Blob mean = add("Pooling", {in}, numbers({{0, 1}, {4, 1}}), in.channels);
    draw(classes * in.channels, in.channels);
    draw_biases(classes);
    return add("InnerProduct", {mean}, numbers({{0, classes}, {1, 1}, {2, classes * in.channels}}), classes);
  }

  // Blobs that several layers read need a Split, which has one output for each.
  std::string param(Blob out) const {
    std::vector<unsigned> uses(layers_.size(), 0), used(layers_.size(), 0);
    for (const Layer& layer : layers_)
      for (const std::size_t id : layer.inputs) ++uses[id];
    const auto name = [&](std::size_t id) { return id == 0 ? "in" : id == out.id ? "out" : "b" + std::to_string(id); };
    std::string text;
    std::size_t lines = 0, blobs = 0;
    for (std::size_t id = 0; id < layers_.size(); ++id) {
      const Layer& layer = layers_[id];
      text += layer.type + " l" + std::to_string(id) + ' ' + std::to_string(layer.inputs.size()) + " 1";
      for (const std::size_t from : layer.inputs)
        text += ' ' + name(from) + (uses[from] > 1 ? '_' + std::to_string(used[from]++) : "");
      text += ' ' + name(id) + ' ' + layer.numbers + '\n';
      ++lines;
      ++blobs;
      if (uses[id] < 2) continue;
      text += "Split s" + std::to_string(id) + " 1 " + std::to_string(uses[id]) + ' ' + name(id);
      for (unsigned use = 0; use < uses[id]; ++use) text += ' ' + name(id) + '_' + std::to_string(use);
      text += '\n';
      ++lines;
      blobs += uses[id];
    }
    return "7767517\n" + std::to_string(lines) + ' ' + std::to_string(blobs) + '\n' + text;
  }
  const std::string& bin() const noexcept { return bin_; }

 private:
  struct Layer {
    std::string type;
    std::vector<std::size_t> inputs;
    std::string numbers;
  };

  Blob add(std::string type, const std::vector<Blob>& inputs, std::string text, int channels) {
    Layer layer{std::move(type), {}, std::move(text)};
    for (const Blob& blob : inputs) layer.inputs.push_back(blob.id);
    layers_.push_back(std::move(layer));
    return {layers_.size() - 1, channels};
  }

  static std::string numbers(std::vector<std::pair<int, int>> values) {
    std::string text;
    for (const auto& [key, value] : values) text += std::to_string(key) + '=' + std::to_string(value) + ' ';
    return text;
  }

  // Four zero bytes say that the weights that follow are float32.
  void draw(int count, int inputs) {
    bin_.append(4, '\0');
    draw_values(count, std::sqrt(6.0f / static_cast<float>(inputs)));
  }
  void draw_biases(int count) { draw_values(count, 0.1f); }
  void draw_values(int count, float scale) {
    for (int i = 0; i < count; ++i) {
      const float value = (static_cast<float>(random_() % 20001) / 10000.0f - 1.0f) * scale;
      char bytes[sizeof value];
      std::memcpy(bytes, &value, sizeof value);
      bin_.append(bytes, sizeof value);
    }
  }

  std::mt19937 random_;
  std::vector<Layer> layers_;
  std::string bin_;
};

// One network of each family. `scale` is about its size: 1 for tests, 4 for benches.
inline std::vector<NcnnNetwork> draw_ncnn_networks(std::uint32_t seed, int scale) {
  using Blob = NcnnWriter::Blob;
  std::mt19937 random(seed);
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  std::vector<NcnnNetwork> networks;
  const auto draw = [&](const char* family, int multiple, const std::function<Blob(NcnnWriter&, Blob)>& build) {
    NcnnWriter writer(static_cast<std::uint32_t>(random()));
    const Blob out = build(writer, writer.input());
    networks.push_back({family, writer.param(out), writer.bin(), multiple * between(2, 3) * scale,
                        multiple * between(2, 3) * scale, multiple});
  };
  draw("chain", 8, [&](NcnnWriter& net, Blob x) {
    for (int i = between(4, 6); i > 0; --i) x = net.convolution(x, 8 * between(1, 2 + scale), 1 + 2 * between(0, 1));
    return net.classify(x, 10);
  });
  draw("residual", 8, [&](NcnnWriter& net, Blob x) {
    x = net.convolution(x, 8 * scale);
    for (int stage = 0; stage < 3; ++stage) {
      for (int i = between(1, 2); i > 0; --i)
        x = net.sum(x, net.convolution(net.convolution(x, x.channels), x.channels, 3, 1, false));
      x = net.convolution(x, 2 * x.channels, 3, 2);
    }
    return net.classify(x, 10);
  });
  draw("mobile", 8, [&](NcnnWriter& net, Blob x) {
    x = net.convolution(x, 8 * scale, 3, 2);
    for (int i = between(4, 8); i > 0; --i) {
      Blob wide = net.depthwise(net.convolution(x, 4 * x.channels, 1), i == 3 ? 2 : 1);
      wide = net.convolution(wide, i == 3 ? 2 * x.channels : x.channels, 1, 1, false);
      x = i == 3 ? wide : net.sum(x, wide);
    }
    return net.classify(net.swish(x), 10);
  });
  draw("u-net", 8, [&](NcnnWriter& net, Blob x) {
    x = net.convolution(x, 8 * scale);
    std::vector<Blob> skips;
    for (int level = 0; level < 3; ++level) {
      skips.push_back(x = net.convolution(x, x.channels));
      x = net.convolution(net.half(x), 2 * x.channels);
    }
    for (; !skips.empty(); skips.pop_back())
      x = net.convolution(net.concat(net.deconvolution(x, skips.back().channels), skips.back()), skips.back().channels);
    return net.convolution(x, 3, 1, 1, false);
  });
  draw("dense", 8, [&](NcnnWriter& net, Blob x) {
    x = net.convolution(x, 8 * scale);
    for (int i = between(3, 6); i > 0; --i) x = net.concat(x, net.convolution(x, 8 * scale));
    return net.classify(net.half(x), 10);
  });
  draw("pyramid", 8, [&](NcnnWriter& net, Blob x) {
    std::vector<Blob> levels;
    for (int level = 0; level < 3; ++level) levels.push_back(x = net.convolution(x, 8 * scale << level, 3, 2));
    Blob top = net.convolution(levels.back(), 8 * scale, 1);
    for (int level = 1; level >= 0; --level)
      top = net.sum(net.twice(top), net.convolution(levels[static_cast<std::size_t>(level)], 8 * scale, 1));
    return net.convolution(top, between(2, 6), 3, 1, false);
  });
  return networks;
}

}  // namespace berth::testing
