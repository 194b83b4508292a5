// Writes small TensorFlow Lite models for tests: tables of fields, laid out front to back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace berth::test {

struct FlatTable {
  using Value = std::variant<std::uint8_t, std::uint32_t, std::string, std::vector<std::int32_t>,
                             std::vector<FlatTable>, std::vector<std::byte>, std::shared_ptr<FlatTable>>;
  std::map<unsigned, Value> fields;
};

class FlatWriter {
 public:
  // The whole file, with this identifier.
  static std::vector<std::byte> write(const FlatTable& root, const char (&identifier)[5]) {
    FlatWriter writer;
    writer.number(0);
    writer.raw(identifier, 4);
    writer.point(0, writer.table(root));
    return std::move(writer.bytes_);
  }

 private:
  void raw(const void* data, std::size_t size) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + size);
  }
  void number(std::uint32_t value) { raw(&value, sizeof value); }
  void pad() { bytes_.resize((bytes_.size() + 3) / 4 * 4); }
  void point(std::size_t at, std::size_t target) {
    const auto distance = static_cast<std::uint32_t>(target - at);
    std::memcpy(bytes_.data() + at, &distance, sizeof distance);
  }

  std::size_t table(const FlatTable& from) {
    pad();
    const unsigned count = from.fields.empty() ? 0 : from.fields.rbegin()->first + 1;
    std::vector<std::uint16_t> layout(2 + count);
    layout[0] = static_cast<std::uint16_t>(2 * layout.size());
    layout[1] = static_cast<std::uint16_t>(4 + 4 * from.fields.size());
    std::uint16_t place = 4;
    for (const auto& [index, value] : from.fields) {
      layout[2 + index] = place;
      place = static_cast<std::uint16_t>(place + 4);
    }
    const std::size_t layout_at = bytes_.size();
    raw(layout.data(), 2 * layout.size());
    pad();
    const std::size_t at = bytes_.size();
    number(static_cast<std::uint32_t>(at - layout_at));
    for (const auto& [index, value] : from.fields) {
      const auto* small = std::get_if<std::uint8_t>(&value);
      const auto* plain = std::get_if<std::uint32_t>(&value);
      number(small != nullptr ? *small : plain != nullptr ? *plain : 0);
    }
    std::size_t field = at + 4;
    for (const auto& [index, value] : from.fields) {
      if (const auto* text = std::get_if<std::string>(&value)) {
        point(field, vector(text->data(), text->size(), text->size()));
        bytes_.push_back(std::byte{0});
      } else if (const auto* numbers = std::get_if<std::vector<std::int32_t>>(&value)) {
        point(field, vector(numbers->data(), 4 * numbers->size(), numbers->size()));
      } else if (const auto* data = std::get_if<std::vector<std::byte>>(&value)) {
        point(field, vector(data->data(), data->size(), data->size()));
      } else if (const auto* single = std::get_if<std::shared_ptr<FlatTable>>(&value)) {
        point(field, table(**single));
      } else if (const auto* tables = std::get_if<std::vector<FlatTable>>(&value)) {
        const std::vector<std::uint32_t> blank(tables->size());
        const std::size_t list = vector(blank.data(), 4 * blank.size(), blank.size());
        point(field, list);
        for (std::size_t i = 0; i < tables->size(); ++i) {
          const std::size_t entry = list + 4 + 4 * i;
          point(entry, table((*tables)[i]));
        }
      }
      field += 4;
    }
    return at;
  }

  std::size_t vector(const void* data, std::size_t size, std::size_t count) {
    pad();
    const std::size_t at = bytes_.size();
    number(static_cast<std::uint32_t>(count));
    raw(data, size);
    return at;
  }

  std::vector<std::byte> bytes_;
};

// A model with one subgraph. Tensors are uint8 with `bytes` elements; the first is the input, the last the output.
struct TinyTflite {
  struct Op {
    std::vector<std::int32_t> inputs, outputs;
    std::int32_t kind = 0;  // ADD; 32 is a custom operator
  };
  std::vector<std::int32_t> tensor_bytes;
  std::vector<Op> ops = {};
  std::map<std::int32_t, std::vector<std::byte>> constants = {};  // by tensor
  std::vector<std::int32_t> variables = {};

  FlatTable table() const {
    FlatTable graph;
    std::vector<FlatTable> tensors, operators, codes, buffers(1);
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(tensor_bytes.size()); ++i) {
      const auto at = static_cast<std::size_t>(i);
      FlatTable tensor{
          {{0, std::vector<std::int32_t>{tensor_bytes[at]}}, {1, std::uint8_t{3}}, {3, "tensor " + std::to_string(i)}}};
      if (const auto data = constants.find(i); data != constants.end()) {
        tensor.fields[2] = static_cast<std::uint32_t>(buffers.size());
        buffers.push_back({{{0, data->second}}});
      }
      for (const std::int32_t variable : variables)
        if (variable == i) tensor.fields[5] = std::uint8_t{1};
      tensors.push_back(std::move(tensor));
    }
    for (const Op& op : ops) {
      operators.push_back({{{0, static_cast<std::uint32_t>(codes.size())}, {1, op.inputs}, {2, op.outputs}}});
      codes.push_back({{{0, static_cast<std::uint8_t>(op.kind)}}});
    }
    graph.fields = {{0, tensors},
                    {1, std::vector<std::int32_t>{0}},
                    {2, std::vector<std::int32_t>{static_cast<std::int32_t>(tensor_bytes.size()) - 1}},
                    {3, operators}};
    return {{{0, std::uint32_t{3}}, {1, codes}, {2, std::vector<FlatTable>{graph}}, {4, buffers}}};
  }
  std::vector<std::byte> file() const { return FlatWriter::write(table(), "TFL3"); }
};

}  // namespace berth::test
