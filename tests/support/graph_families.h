// Graphs of the kinds that papers on execution orders measure: cells found by architecture search, randomly wired
// networks, classic networks, transformers, and training steps made from them. Structure follows the published
// formulas; widths, resolutions, depths and wiring are drawn from a seed. Steps are listed in the order in which a
// framework emits them. Pure functions; any thread may call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "berth/plan/plan_graph.h"

namespace berth::bench {

// Adds steps, one value each.
class NetBuilder {
 public:
  using Value = std::uint32_t;

  explicit NetBuilder(std::uint64_t seed) : random_(seed) { graph_.alignment = 64; }

  Value input(std::uint64_t elements) { return add_value(elements); }

  Value step(std::vector<Value> reads, std::uint64_t elements, std::uint64_t scratch_elements = 0) {
    const Value out = add_value(elements);
    GraphStep it;
    it.reads = std::move(reads);
    it.writes = {out};
    it.scratch = bytes_of(scratch_elements);
    graph_.steps.push_back(std::move(it));
    return out;
  }

  // The output has the size of the first input and may take over its bytes.
  Value in_place(std::vector<Value> reads) {
    const Value from = reads[0];
    const Value out = step(std::move(reads), elements_[from]);
    graph_.steps.back().in_place = {{out, from}};
    return out;
  }

  std::uint64_t elements(Value value) const { return elements_[value]; }
  GraphStep& last() { return graph_.steps.back(); }
  MemoryGraph& graph() { return graph_; }

  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + random_() % (high - low + 1); }
  std::mt19937_64& random() { return random_; }

  MemoryGraph take() { return std::move(graph_); }

 private:
  static std::uint64_t bytes_of(std::uint64_t elements) { return (elements * 4 + 63) / 64 * 64; }
  Value add_value(std::uint64_t elements) {
    graph_.values.push_back({.bytes = bytes_of(elements)});
    elements_.push_back(elements);
    return static_cast<Value>(graph_.values.size() - 1);
  }

  MemoryGraph graph_;
  std::vector<std::uint64_t> elements_;
  std::mt19937_64 random_;
};

// Three stages of a small-world graph (Watts and Strogatz) of 32 nodes, edges directed by index; a node sums its
// inputs, then runs a separable convolution.
inline MemoryGraph randwire_graph(std::uint64_t seed) {
  NetBuilder net(seed);
  std::uint64_t side = net.between(7, 14) * 4, channels = net.between(4, 10) * 8;
  NetBuilder::Value x = net.step({net.input(side * side * 12)}, side * side * channels);
  for (int stage = 0; stage < 3; ++stage, side = (side + 1) / 2, channels *= 2) {
    const std::size_t count = net.between(12, 32), neighbours = 4;
    std::vector<std::set<std::size_t>> inputs(count);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 1; k <= neighbours / 2; ++k) {
        std::size_t other = (i + k) % count;
        if (net.between(0, 99) < 75) other = net.between(0, count - 1);
        if (other != i) inputs[std::max(i, other)].insert(std::min(i, other));
      }
    }
    const std::uint64_t half = (side + 1) / 2, size = half * half * channels;
    std::vector<NetBuilder::Value> out(count);
    std::vector<bool> read(count, false);
    for (std::size_t i = 0; i < count; ++i) {
      NetBuilder::Value y = x;
      if (!inputs[i].empty()) {
        std::vector<NetBuilder::Value> terms;
        for (const std::size_t from : inputs[i]) {
          terms.push_back(out[from]);
          read[from] = true;
        }
        y = terms.size() > 1 ? net.step(terms, size) : terms[0];
      }
      y = net.step({y}, size);       // depthwise
      out[i] = net.step({y}, size);  // pointwise
    }
    std::vector<NetBuilder::Value> ends;
    for (std::size_t i = 0; i < count; ++i)
      if (!read[i]) ends.push_back(out[i]);
    x = net.step(ends, size);
  }
  net.step({x}, 1000);
  return net.take();
}

// Two cells before, one before: five blocks that each sum two operations on earlier values; what no block reads is
// concatenated. `drawn`: the wiring comes from the seed, as in a search space; otherwise that of NASNet-A.
inline MemoryGraph nasnet_graph(std::uint64_t seed, bool drawn = false) {
  NetBuilder net(seed);
  std::uint64_t side = net.between(4, 8) * 8, channels = net.between(2, 6) * 8;
  const auto separable = [&](NetBuilder::Value x, std::uint64_t size) {
    for (int i = 0; i < 2; ++i) {
      x = net.step({x}, net.elements(x));  // activation and depthwise
      x = net.step({x}, size);             // pointwise
    }
    return x;
  };
  NetBuilder::Value before = net.step({net.input(side * side * 3)}, side * side * channels), x = before;
  const std::uint64_t cells = net.between(2, 4);
  for (int stack = 0; stack < 3; ++stack) {
    for (std::uint64_t cell = 0; cell < cells; ++cell) {
      const bool reduces = stack > 0 && cell == 0;
      if (reduces) {
        side /= 2;
        channels *= 2;
      }
      const std::uint64_t size = side * side * channels;
      std::vector<NetBuilder::Value> states = {net.step({before}, size), net.step({x}, size)};
      std::set<std::size_t> unread;
      const std::pair<int, int> wiring[] = {{0, 1}, {0, 1}, {0, 1}, {0, 2}, {2, 3}};
      for (int block = 0; block < 5; ++block) {
        auto [a, b] = wiring[block];
        if (drawn) {
          a = static_cast<int>(net.between(0, states.size() - 1));
          b = static_cast<int>(net.between(0, states.size() - 1));
        }
        const NetBuilder::Value left = separable(states[static_cast<std::size_t>(a)], size);
        const NetBuilder::Value right = block % 2 == 0 ? separable(states[static_cast<std::size_t>(b)], size)
                                                       : net.step({states[static_cast<std::size_t>(b)]}, size);
        unread.erase(static_cast<std::size_t>(a));
        unread.erase(static_cast<std::size_t>(b));
        unread.insert(states.size());
        states.push_back(net.in_place({left, right}));
      }
      std::vector<NetBuilder::Value> ends;
      for (const std::size_t state : unread) ends.push_back(states[state]);
      before = x;
      x = net.step(ends, size * ends.size());
    }
  }
  net.step({x}, 1000);
  return net.take();
}

// Four intermediate nodes, each the sum of two operations on two earlier ones; the cell concatenates the four.
inline MemoryGraph darts_graph(std::uint64_t seed) {
  NetBuilder net(seed);
  std::uint64_t side = net.between(3, 7) * 8, channels = net.between(2, 6) * 8;
  NetBuilder::Value before = net.step({net.input(side * side * 3)}, side * side * channels), x = before;
  const std::uint64_t cells = net.between(3, 6);
  for (std::uint64_t cell = 0; cell < cells; ++cell) {
    if (cell == cells / 3 || cell == 2 * cells / 3) {
      side = (side + 1) / 2;
      channels *= 2;
    }
    const std::uint64_t size = side * side * channels;
    std::vector<NetBuilder::Value> states = {net.step({before}, size), net.step({x}, size)};
    for (int node = 0; node < 4; ++node) {
      std::vector<NetBuilder::Value> terms;
      for (int edge = 0; edge < 2; ++edge) {
        NetBuilder::Value y = states[net.between(0, states.size() - 1)];
        switch (net.between(0, 3)) {
          case 0: break;                           // skip
          case 1: y = net.step({y}, size); break;  // pooling
          default:                                 // separable or dilated convolution
            for (std::uint64_t i = net.between(1, 2); i > 0; --i) {
              y = net.step({y}, size);
              y = net.step({y}, size);
            }
        }
        terms.push_back(y);
      }
      states.push_back(net.step(terms, size));
    }
    before = x;
    x = net.step({states.end() - 4, states.end()}, 4 * size);
  }
  net.step({x}, 1000);
  return net.take();
}

inline MemoryGraph resnet_graph(std::uint64_t seed) {
  NetBuilder net(seed);
  std::uint64_t side = net.between(5, 10) * 8, channels = net.between(2, 8) * 8;
  NetBuilder::Value x = net.step({net.input(side * side * 12)}, side * side * channels);
  for (int stage = 0; stage < 4; ++stage) {
    const std::uint64_t blocks = net.between(2, 5);
    for (std::uint64_t block = 0; block < blocks; ++block) {
      if (stage > 0 && block == 0) {
        side = (side + 1) / 2;
        channels *= 2;
      }
      const std::uint64_t area = side * side;
      // As frameworks emit it: the branch, then the shortcut.
      NetBuilder::Value y = net.step({x}, area * channels, area * channels / 2);
      y = net.in_place({y});
      y = net.step({y}, area * channels, area * channels * 2);
      y = net.in_place({y});
      y = net.step({y}, area * channels * 4);
      const NetBuilder::Value shortcut = block == 0 ? net.step({x}, area * channels * 4) : x;
      x = net.in_place({net.in_place({y, shortcut})});
    }
  }
  net.step({x}, 1000);
  return net.take();
}

inline MemoryGraph densenet_graph(std::uint64_t seed) {
  NetBuilder net(seed);
  std::uint64_t side = net.between(4, 8) * 8;
  const std::uint64_t growth = net.between(2, 6) * 8;
  std::uint64_t channels = 2 * growth;
  NetBuilder::Value x = net.step({net.input(side * side * 12)}, side * side * channels);
  for (int block = 0; block < 4; ++block) {
    std::vector<NetBuilder::Value> all = {x};
    const std::uint64_t layers = net.between(4, 14);
    for (std::uint64_t layer = 0; layer < layers; ++layer) {
      const std::uint64_t area = side * side;
      NetBuilder::Value y = net.step(all, area * channels);  // concatenation
      y = net.in_place({y});
      y = net.step({y}, area * 4 * growth);
      all.push_back(net.step({y}, area * growth));
      channels += growth;
    }
    x = net.step(all, side * side * channels);
    channels /= 2;
    x = net.step({x}, side * side * channels);
    side = (side + 1) / 2;
    x = net.step({x}, side * side * channels);
  }
  net.step({x}, 1000);
  return net.take();
}

inline MemoryGraph unet_graph(std::uint64_t seed) {
  NetBuilder net(seed);
  std::uint64_t side = net.between(6, 12) * 16, channels = net.between(2, 8) * 8;
  NetBuilder::Value x = net.input(side * side * 3);
  const auto twice = [&](NetBuilder::Value y) {
    for (int i = 0; i < 2; ++i) y = net.in_place({net.step({y}, side * side * channels, side * side * channels / 4)});
    return y;
  };
  std::vector<NetBuilder::Value> skips;
  const std::uint64_t depth = net.between(3, 4);
  for (std::uint64_t level = 0; level < depth; ++level, side /= 2, channels *= 2) {
    x = twice(x);
    skips.push_back(x);
    // Some variants shrink what they keep for the way up; as emitted, that comes where it is used.
    x = net.step({x}, side * side * channels / 4);
  }
  x = twice(x);
  while (!skips.empty()) {
    side *= 2;
    channels /= 2;
    const NetBuilder::Value up = net.step({x}, side * side * channels);
    const NetBuilder::Value skip = net.step({skips.back()}, side * side * channels / 4);
    skips.pop_back();
    x = twice(net.step({up, skip}, side * side * (channels + channels / 4)));
  }
  net.step({x}, side * side * 2);
  return net.take();
}

inline MemoryGraph transformer_graph(std::uint64_t seed) {
  NetBuilder net(seed);
  const std::uint64_t tokens = net.between(2, 16) * 32, width = net.between(4, 12) * 64, heads = net.between(2, 8);
  NetBuilder::Value x = net.step({net.input(tokens * 2)}, tokens * width);
  const std::uint64_t layers = net.between(2, 6);
  for (std::uint64_t layer = 0; layer < layers; ++layer) {
    const NetBuilder::Value norm = net.step({x}, tokens * width);
    std::vector<NetBuilder::Value> q, k, v, out;
    for (std::uint64_t head = 0; head < heads; ++head) {
      for (auto* list : {&q, &k, &v}) list->push_back(net.step({norm}, tokens * width / heads));
    }
    for (std::uint64_t head = 0; head < heads; ++head) {
      NetBuilder::Value scores = net.step({q[head], k[head]}, tokens * tokens);
      scores = net.in_place({scores});
      out.push_back(net.step({scores, v[head]}, tokens * width / heads));
    }
    const NetBuilder::Value joined = net.step(out, tokens * width);
    x = net.in_place({net.step({joined}, tokens * width), x});
    NetBuilder::Value y = net.step({x}, tokens * width);
    y = net.step({y}, tokens * width * 4);
    y = net.in_place({y});
    x = net.in_place({net.step({y}, tokens * width), x});
  }
  net.step({x}, tokens);
  return net.take();
}

// A training step of any network: for each step, last first, the gradient of what it reads from the gradient of what it
// writes, and the gradient of its weights; then, as frameworks emit it, all updates of weights at the end.
inline MemoryGraph training_graph(MemoryGraph graph, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::size_t forward = graph.steps.size();
  std::vector<std::vector<std::uint32_t>> gradients(graph.values.size());
  const auto add = [&](GraphStep step, std::uint64_t bytes) {
    const auto value = static_cast<std::uint32_t>(graph.values.size());
    graph.values.push_back({.bytes = bytes});
    step.writes = {value};
    graph.steps.push_back(std::move(step));
    return value;
  };
  // What a step of the forward pass wrote in place is needed again.
  std::vector<std::uint32_t> weights;
  std::vector<bool> written(graph.values.size(), false);
  for (const GraphStep& step : graph.steps) written[step.writes[0]] = true;
  for (std::size_t i = forward; i-- > 0;) {
    const GraphStep step = graph.steps[i];
    const std::uint32_t out = step.writes[0];
    std::vector<std::uint32_t>& parts = gradients[out];
    std::uint32_t gradient = 0;
    if (parts.empty()) {
      gradient = add({.reads = {out}}, graph.values[out].bytes);  // of the loss
    } else {
      gradient = parts[0];
      for (std::size_t k = 1; k < parts.size(); ++k) {
        GraphStep sum{.reads = {gradient, parts[k]}};
        const auto next = static_cast<std::uint32_t>(graph.values.size());
        sum.in_place = {{next, gradient}};
        gradient = add(std::move(sum), graph.values[out].bytes);
      }
    }
    if (step.in_place.empty() && random() % 4 != 0) {
      std::vector<std::uint32_t> reads = {gradient, step.reads[0]};
      weights.push_back(add({.reads = std::move(reads)}, (1 + random() % 64) * 8192));
    }
    for (const std::uint32_t read : step.reads) {
      if (!written[read]) continue;
      GraphStep back{.reads = {gradient}};
      if (step.reads.size() == 1) back.reads.push_back(step.in_place.empty() ? read : out);
      gradients[read].push_back(add(std::move(back), graph.values[read].bytes));
    }
  }
  for (const std::uint32_t gradient : weights) add({.reads = {gradient}}, 64);
  return graph;
}

}  // namespace berth::bench
