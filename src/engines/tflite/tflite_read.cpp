#include <algorithm>
#include <array>
#include <limits>

#include "base/try.h"
#include "engines/flatbuffer.h"
#include "engines/tflite/tflite_model.h"

namespace berth::internal::tflite {
namespace {

constexpr unsigned kSubgraphTensors = 0, kSubgraphInputs = 1, kSubgraphOutputs = 2, kSubgraphOperators = 3;
constexpr unsigned kTensorShape = 0, kTensorType = 1, kTensorBuffer = 2, kTensorName = 3, kTensorIsVariable = 5;
constexpr unsigned kOperatorCode = 0, kOperatorInputs = 1, kOperatorOutputs = 2, kOperatorOptions = 4;
constexpr unsigned kCodeOld = 0, kCodeNew = 3;
constexpr unsigned kLargestVersion = 3;

// Bytes of an element by its type number; 0 for types whose size the runtime decides.
constexpr std::array<std::uint8_t, 17> kElementBytes = {4, 2, 4, 1, 8, 0, 1, 2, 8, 1, 8, 16, 8, 0, 0, 4, 2};

constexpr std::int32_t kIf = 118, kWhile = 119, kCallOnce = 129;

// Operators that have state or run other subgraphs: CALL, CUSTOM, IF, WHILE, CALL_ONCE, and those of random numbers,
// variables and hash tables.
constexpr std::array<std::int32_t, 15> kWithState = {31,  32,  118, 119, 129, 136, 137, 138,
                                                     139, 142, 143, 144, 146, 148, 149};

Error invalid(const char* text, std::uint64_t a = 0, std::uint64_t b = 0) {
  return Error(Code::kInvalidData, Layer::kEngine, text, a, b);
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> file) : bytes_(file), file_(file) {}

  Result<Model> read() {
    constexpr char kMagic[] = {'T', 'F', 'L', '3'};
    if (bytes_.size() < 8 || std::memcmp(bytes_.data() + 4, kMagic, sizeof kMagic) != 0)
      return invalid("this is not a TensorFlow Lite model: no TFL3 at byte 4");
    if (bytes_.size() > std::numeric_limits<std::int32_t>::max())
      return Error(Code::kUnsupported, Layer::kEngine, "a model of {b} is larger than a FlatBuffer can be",
                   bytes_.size());
    model_.root = file_.follow(0);
    if (const auto version = file_.number_in<std::uint32_t>(model_.root, 0, 0);
        !file_.broken && (version == 0 || version > kLargestVersion))
      return invalid("the model has version {} of the schema, not {}", version, kLargestVersion);
    const Flatbuffer::Vector subgraphs = file_.vector_in(model_.root, kModelSubgraphs, 4);
    if (!file_.broken && subgraphs.count == 0) return invalid("the model has no subgraph");
    BERTH_TRY(read_buffers());
    read_metadata();
    for (std::uint32_t i = 0; i < subgraphs.count && !file_.broken; ++i) {
      graph_ = &model_.subgraphs.emplace_back();
      const std::uint64_t table = file_.follow(subgraphs.begin + 4 * std::uint64_t{i});
      BERTH_TRY(read_tensors(table));
      BERTH_TRY(read_indices(table, kSubgraphInputs, graph_->inputs));
      BERTH_TRY(read_indices(table, kSubgraphOutputs, graph_->outputs));
      BERTH_TRY(read_operators(table, subgraphs.count));
    }
    if (file_.broken) return invalid("the model refers to byte {} of a file of {}", file_.broken_at, bytes_.size());
    return std::move(model_);
  }

 private:
  Result<void> read_buffers() {
    const Flatbuffer::Vector buffers = file_.vector_in(model_.root, kModelBuffers, 4);
    for (std::uint32_t i = 0; i < buffers.count && !file_.broken; ++i) {
      const std::uint64_t table = file_.follow(buffers.begin + 4 * std::uint64_t{i});
      if (file_.number_in<std::uint64_t>(table, kBufferOffset, 0) > 1)
        return Error(Code::kUnsupported, Layer::kEngine,
                     "buffer {} is stored behind the FlatBuffer; models above 2 GiB cannot be planned", i);
      model_.buffer_tables.push_back(table);
      has_data_.push_back(file_.vector_in(table, kBufferData, 1).count > 0);
    }
    return {};
  }

  void read_metadata() {
    const Flatbuffer::Vector entries = file_.vector_in(model_.root, kModelMetadata, 4);
    for (std::uint32_t i = 0; i < entries.count && !file_.broken; ++i) {
      const std::uint64_t table = file_.follow(entries.begin + 4 * std::uint64_t{i});
      if (text(table, kMetadataName) == kPlanName)
        model_.has_plan = true;
      else
        model_.metadata_tables.push_back(table);
    }
  }

  Result<void> read_tensors(std::uint64_t graph) {
    stateful_.clear();
    const Flatbuffer::Vector tensors = file_.vector_in(graph, kSubgraphTensors, 4);
    for (std::uint32_t i = 0; i < tensors.count && !file_.broken; ++i) {
      const std::uint64_t table = file_.follow(tensors.begin + 4 * std::uint64_t{i});
      Tensor tensor{.name = std::string(text(table, kTensorName)), .bytes = bytes_of(table)};
      const auto buffer = file_.number_in<std::uint32_t>(table, kTensorBuffer, 0);
      if (buffer >= has_data_.size() && !file_.broken)
        return invalid("a tensor names buffer {} of {}", buffer, has_data_.size());
      const bool is_constant = !file_.broken && has_data_[buffer];
      const bool is_variable = file_.number_in<std::uint8_t>(table, kTensorIsVariable, 0) != 0;
      tensor.in_arena = !is_constant && !is_variable && tensor.bytes != std::uint64_t{0};
      const auto type = file_.number_in<std::uint8_t>(table, kTensorType, 0);
      stateful_.push_back(is_variable || type >= kElementBytes.size() || kElementBytes[type] == 0);
      graph_->tensors.push_back(std::move(tensor));
    }
    return {};
  }

  std::optional<std::uint64_t> bytes_of(std::uint64_t table) {
    const auto type = file_.number_in<std::uint8_t>(table, kTensorType, 0);
    std::uint64_t bytes = type < kElementBytes.size() ? kElementBytes[type] : 0;
    if (bytes == 0) return std::nullopt;
    const Flatbuffer::Vector shape = file_.vector_in(table, kTensorShape, 4);
    bool is_empty = false;
    for (std::uint32_t i = 0; i < shape.count; ++i) {
      const auto extent = file_.number<std::int32_t>(shape.begin + 4 * std::uint64_t{i});
      if (extent < 0) return std::nullopt;
      is_empty |= extent == 0;
      // Saturates: a tensor of 2^40 bytes is refused later, whatever its exact size.
      bytes = std::min(bytes * std::max<std::uint64_t>(1, static_cast<std::uint64_t>(extent)), std::uint64_t{1} << 40);
    }
    return is_empty ? 0 : bytes;
  }

  Result<void> read_indices(std::uint64_t table, unsigned index, std::vector<std::uint32_t>& into,
                            bool may_be_left_out = false) {
    const Flatbuffer::Vector list = file_.vector_in(table, index, 4);
    for (std::uint32_t i = 0; i < list.count && !file_.broken; ++i) {
      const auto tensor = file_.number<std::int32_t>(list.begin + 4 * std::uint64_t{i});
      if (tensor == -1 && may_be_left_out) continue;
      if (tensor < 0 || static_cast<std::uint32_t>(tensor) >= graph_->tensors.size())
        return invalid("an operator or the graph names tensor {} of {}", static_cast<std::uint32_t>(tensor),
                       graph_->tensors.size());
      into.push_back(static_cast<std::uint32_t>(tensor));
    }
    return {};
  }

  Result<void> read_operators(std::uint64_t graph, std::uint32_t subgraphs) {
    const Flatbuffer::Vector codes = file_.vector_in(model_.root, kModelOperatorCodes, 4);
    const Flatbuffer::Vector operators = file_.vector_in(graph, kSubgraphOperators, 4);
    graph_->order_at = operators.begin;
    std::vector<bool> is_written(graph_->tensors.size());
    for (const std::uint32_t tensor : graph_->inputs) is_written[tensor] = true;
    for (std::uint32_t i = 0; i < operators.count && !file_.broken; ++i) {
      const std::uint64_t table = file_.follow(operators.begin + 4 * std::uint64_t{i});
      Operator each;
      BERTH_TRY(read_indices(table, kOperatorInputs, each.inputs, true));
      BERTH_TRY(read_indices(table, kOperatorOutputs, each.outputs, true));
      const auto code = file_.number_in<std::uint32_t>(table, kOperatorCode, 0);
      if (code >= codes.count) return invalid("operator {} has code {}, which the model does not have", i, code);
      const std::int32_t kind = kind_of(file_.follow(codes.begin + 4 * std::uint64_t{code}));
      each.has_state = std::find(kWithState.begin(), kWithState.end(), kind) != kWithState.end();
      read_calls(table, kind, each.calls);
      for (const std::uint32_t called : each.calls)
        if (called >= subgraphs)
          return invalid("operator {} runs subgraph {}, which the model does not have", i, called);
      for (const auto* list : {&each.inputs, &each.outputs})
        for (const std::uint32_t tensor : *list) each.has_state |= stateful_[tensor];
      for (const std::uint32_t tensor : each.outputs) {
        if (is_written[tensor] && graph_->tensors[tensor].in_arena)
          return Error(Code::kUnsupported, Layer::kEngine,
                       "operator {} writes tensor {}, which is an input or was written before", i, tensor);
        is_written[tensor] = true;
      }
      graph_->operator_tables.push_back(table);
      graph_->operators.push_back(std::move(each));
    }
    return {};
  }

  // The subgraphs that an operator runs: the first fields of its options.
  void read_calls(std::uint64_t table, std::int32_t kind, std::vector<std::uint32_t>& calls) {
    const unsigned count = kind == kIf || kind == kWhile ? 2 : kind == kCallOnce ? 1 : 0;
    const std::uint64_t options = count == 0 ? 0 : file_.field(table, kOperatorOptions);
    for (unsigned i = 0; i < count; ++i)
      calls.push_back(options == 0 ? 0 : file_.number_in<std::uint32_t>(file_.follow(options), i, 0));
  }

  // The code has two fields: the old one holds codes up to 127 and stays at 127 for newer ones.
  std::int32_t kind_of(std::uint64_t code_table) {
    return std::max<std::int32_t>(file_.number_in<std::int8_t>(code_table, kCodeOld, 0),
                                  file_.number_in<std::int32_t>(code_table, kCodeNew, 0));
  }

  std::string_view text(std::uint64_t table, unsigned index) {
    const Flatbuffer::Vector characters = file_.vector_in(table, index, 1);
    if (file_.broken || characters.count == 0) return {};
    return {reinterpret_cast<const char*>(bytes_.data()) + characters.begin, characters.count};
  }

  std::span<const std::byte> bytes_;
  Flatbuffer file_;
  Model model_;
  Subgraph* graph_ = nullptr;   // the one that is read
  std::vector<bool> has_data_;  // by buffer
  std::vector<bool> stateful_;  // by tensor of that subgraph
};

}  // namespace

Result<Model> read_model(std::span<const std::byte> file) {
  return Reader(file).read();
}

}  // namespace berth::internal::tflite
