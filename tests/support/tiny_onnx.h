// A small ONNX model, written byte by byte so that tests need no model file and no ONNX package: rows of 64 numbers
// go through four matrix products with what people put between them. The number of rows is symbolic ("rows").
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

namespace berth::testing {

class Protobuf {
 public:
  Protobuf& number(int field, std::uint64_t value) {
    varint(static_cast<std::uint64_t>(field) << 3);
    varint(value);
    return *this;
  }
  Protobuf& text(int field, const std::string& value) {
    varint(static_cast<std::uint64_t>(field) << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Protobuf& message(int field, const Protobuf& value) { return text(field, value.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

// A tensor of `rows` x `columns` numbers between -1/8 and 1/8, the same ones every time.
inline Protobuf onnx_weights(const std::string& name, unsigned rows, unsigned columns) {
  std::string raw(std::size_t{4} * rows * columns, '\0');
  for (unsigned i = 0; i < rows * columns; ++i) {
    const float value = static_cast<float>(static_cast<int>(i * 2654435761u % 2001u) - 1000) / 8000.0f;
    std::memcpy(raw.data() + std::size_t{4} * i, &value, 4);
  }
  return Protobuf().number(1, rows).number(1, columns).number(2, 1).text(8, name).text(9, raw);
}

// A node that is called after its one output.
inline Protobuf onnx_node(const char* type, std::initializer_list<std::string> inputs, const std::string& output) {
  Protobuf proto;
  for (const std::string& name : inputs) proto.text(1, name);
  return proto.text(2, output).text(3, "make " + output).text(4, type);
}

// An input or output of a graph: "rows" rows of 64 numbers.
inline Protobuf onnx_rows(const std::string& name) {
  const Protobuf shape = Protobuf().message(1, Protobuf().text(2, "rows")).message(1, Protobuf().number(1, 64));
  return Protobuf().text(1, name).message(2, Protobuf().message(1, Protobuf().number(1, 1).message(2, shape)));
}

// The bytes of a model with this graph.
inline std::string onnx_model(const Protobuf& graph) {
  return Protobuf().number(1, 8).message(7, graph).message(8, Protobuf().text(1, "").number(2, 13)).bytes();
}

inline std::string tiny_onnx(unsigned hidden = 192, const std::string& input = "x") {
  Protobuf graph;
  graph.message(1, onnx_node("MatMul", {input, "w1"}, "a"))
      .message(1, onnx_node("Relu", {"a"}, "b"))
      .message(1, onnx_node("MatMul", {"b", "w2"}, "c"))
      .message(1, onnx_node("Add", {"c", input}, "d"))
      .message(1, onnx_node("MatMul", {"d", "w1"}, "e"))
      .message(1, onnx_node("Sigmoid", {"e"}, "f"))
      .message(1, onnx_node("Mul", {"f", "b"}, "g"))
      .message(1, onnx_node("MatMul", {"g", "w2"}, "y"))
      .text(2, "tiny")
      .message(5, onnx_weights("w1", 64, hidden))
      .message(5, onnx_weights("w2", hidden, 64))
      .message(11, onnx_rows(input))
      .message(12, onnx_rows("y"))
      .message(12, onnx_rows("d"));
  return onnx_model(graph);
}

inline void write_tiny_onnx(const std::string& path, unsigned hidden = 192) {
  const std::string bytes = tiny_onnx(hidden);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace berth::testing
