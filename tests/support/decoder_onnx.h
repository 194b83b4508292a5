// A small decoder as an ONNX model, written byte by byte: attention over a cache of keys and values that the caller
// passes in and that comes out one row longer. The length of the cache is symbolic ("past").
#pragma once

#include <initializer_list>
#include <string>

#include "support/tiny_onnx.h"

namespace berth::testing {

// Inputs x [1, width] and for each layer k0, v0, ... [past, width]; outputs y and the caches, one row longer. A step
// can therefore be fed with the outputs of the one before.
inline std::string decoder_onnx(unsigned layers = 2, unsigned width = 64) {
  const auto weights = [&](const std::string& name, unsigned seed) {
    std::string raw(std::size_t{4} * width * width, '\0');
    for (unsigned i = 0; i < width * width; ++i) {
      const float value = static_cast<float>(static_cast<int>((i + seed) * 2654435761u % 2001u) - 1000) / 9000.0f;
      std::memcpy(raw.data() + std::size_t{4} * i, &value, 4);
    }
    return Protobuf().number(1, width).number(1, width).number(2, 1).text(8, name).text(9, raw);
  };
  const auto node = [](const char* type, std::initializer_list<std::string> inputs, const std::string& output) {
    Protobuf proto;
    for (const std::string& name : inputs) proto.text(1, name);
    return proto.text(2, output).text(3, "make " + output).text(4, type);
  };
  const auto axis = [](std::uint64_t value) {
    return Protobuf().text(1, "axis").number(3, value).number(20, 2);  // an attribute of type INT
  };
  const auto value = [&](const std::string& name, const std::string& rows) {
    const Protobuf first = rows.empty() ? Protobuf().number(1, 1) : Protobuf().text(2, rows);
    const Protobuf shape = Protobuf().message(1, first).message(1, Protobuf().number(1, width));
    return Protobuf().text(1, name).message(2, Protobuf().message(1, Protobuf().number(1, 1).message(2, shape)));
  };
  Protobuf graph;
  std::string hidden = "x";
  for (unsigned layer = 0; layer < layers; ++layer) {
    const std::string n = std::to_string(layer);
    Protobuf keys = node("Concat", {"k" + n, "key" + n}, "k_out" + n);
    Protobuf values = node("Concat", {"v" + n, "val" + n}, "v_out" + n);
    Protobuf softmax = node("Softmax", {"scores" + n}, "weights" + n);
    graph.message(1, node("MatMul", {hidden, "wk" + n}, "key" + n))
        .message(1, node("MatMul", {hidden, "wv" + n}, "val" + n))
        .message(1, node("MatMul", {hidden, "wq" + n}, "query" + n))
        .message(1, keys.message(5, axis(0)))
        .message(1, values.message(5, axis(0)))
        .message(1, node("Transpose", {"k_out" + n}, "turned" + n))
        .message(1, node("MatMul", {"query" + n, "turned" + n}, "scores" + n))
        .message(1, softmax.message(5, axis(1)))
        .message(1, node("MatMul", {"weights" + n, "v_out" + n}, "mixed" + n))
        .message(1, node("Add", {"mixed" + n, hidden}, layer + 1 == layers ? "y" : "hidden" + n));
    hidden = "hidden" + n;
  }
  graph.text(2, "decoder");
  for (unsigned layer = 0; layer < layers; ++layer)
    for (const char* name : {"wk", "wv", "wq"}) graph.message(5, weights(name + std::to_string(layer), layer * 7 + 1));
  graph.message(11, value("x", ""));
  for (unsigned layer = 0; layer < layers; ++layer)
    for (const char* name : {"k", "v"}) graph.message(11, value(name + std::to_string(layer), "past"));
  graph.message(12, value("y", ""));
  for (unsigned layer = 0; layer < layers; ++layer)
    for (const char* name : {"k_out", "v_out"}) graph.message(12, value(name + std::to_string(layer), "longer"));
  return Protobuf().number(1, 8).message(7, graph).message(8, Protobuf().text(1, "").number(2, 13)).bytes();
}

}  // namespace berth::testing
