// The nodes of models in the engine's own format, their order of execution, and orders that need less memory.
#include "engines/ort_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engines/node_memory.h"
#include "engines/onnxruntime_session.h"
#include "support/seed.h"
#include "support/support.h"
#include "support/tiny_onnx.h"

namespace berth::internal::ort {
namespace {

using testing::onnx_model;
using testing::onnx_node;
using testing::onnx_rows;
using testing::onnx_weights;
using testing::Protobuf;

// A model of rows of 64 numbers with two branches: `wide` makes a large tensor that a small one comes of, `late` makes
// a small one that only the end reads. It needs least if the wide branch is executed first.
std::string branches() {
  Protobuf graph;
  graph.message(1, onnx_node("MatMul", {"x", "w"}, "start"))
      .message(1, onnx_node("MatMul", {"start", "up"}, "wide"))
      .message(1, onnx_node("MatMul", {"wide", "down"}, "narrow"))
      .message(1, onnx_node("Sigmoid", {"x"}, "late"))
      .message(1, onnx_node("Mul", {"narrow", "late"}, "y"))
      .text(2, "branches")
      .message(5, onnx_weights("w", 64, 64))
      .message(5, onnx_weights("up", 64, 512))
      .message(5, onnx_weights("down", 512, 64))
      .message(11, onnx_rows("x"))
      .message(12, onnx_rows("y"));
  return onnx_model(graph);
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

std::span<const std::byte> as_bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::vector<std::uint32_t> indices_of(const OrtGraph& graph) {
  std::vector<std::uint32_t> indices;
  for (const OrtNode& node : graph.nodes) indices.push_back(node.index);
  return indices;
}

struct Ran {
  std::vector<std::byte> output;
  std::uint64_t peak = 0;
  std::vector<TimedRequest> requests;
  std::vector<NodeStart> starts;
};

class OrtOrder : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto found = library(); !found) GTEST_SKIP() << found.error().message();
    const std::string model = branches();
    const std::string path = folder_.write("model.onnx", as_bytes_of(model));
    engine_ = Engine::create({}, 1).value();
    ASSERT_TRUE(engine_->open({.model = path, .save_ready_model = ready_}));
    recorder_ = engine_->attach_recorder().value();
    file_ = read(ready_);
  }

  Ran run(const std::string& path, bool reuse, bool profile) {
    const MappedModel mapped = MappedModel::open(path).value();
    SessionSettings settings{.mapped = &mapped, .recorder = recorder_.get(), .reuse = reuse};
    if (profile) settings.profile = (folder_.path() / "profile").string();
    const auto model = engine_->open(settings).value();
    std::vector<Tensor> inputs{{.name = "x", .element_type = kElementF32, .shape = {100, 64}, .bytes = {}}};
    inputs[0].bytes.resize(100 * 64 * 4);
    for (std::size_t i = 0; i < 100 * 64; ++i) {
      const float value = static_cast<float>(i % 17) / 8.0f - 1.0f;
      std::memcpy(inputs[0].bytes.data() + 4 * i, &value, 4);
    }
    model->bind(inputs).value();
    Ran ran;
    recorder_->begin();
    const auto outputs = model->run().value();
    ran.peak = recorder_->peak();
    std::uint64_t start = 0;
    if (profile) {
      const auto written = model->end_profile().value();
      start = written.start;
      ran.starts = read_profile(read(written.file)).value();
    }
    ran.requests = recorder_->end(start);
    const auto view = outputs.front().view().value();
    ran.output.assign(view.bytes.begin(), view.bytes.end());
    return ran;
  }

  const test::TemporaryFolder folder_;
  const std::string ready_ = folder_.path() / "model.ort";
  std::string file_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RequestRecorder> recorder_;
};

TEST_F(OrtOrder, IsWhatTheEngineExecutesForAnyIndices) {
  std::mt19937_64 random(test::seed());
  for (int turn = 0; turn < 4; ++turn) {
    const std::string now = read(ready_);
    const OrtGraph graph = read_graph(as_bytes_of(now)).value();
    ASSERT_EQ(graph.nodes.size(), 5u);
    const Ran ran = run(ready_, false, true);
    std::vector<std::uint32_t> executed, expected;
    for (const NodeStart& start : ran.starts) executed.push_back(start.index);
    for (const std::uint32_t node : execution_order(graph, indices_of(graph)))
      expected.push_back(graph.nodes[node].index);
    EXPECT_EQ(executed, expected);

    std::vector<std::uint32_t> indices = indices_of(graph), movable;
    for (std::uint32_t i = 0; i < indices.size(); ++i)
      if (graph.nodes[i].movable) movable.push_back(i);
    std::vector<std::uint32_t> shuffled = movable;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    for (std::size_t i = 0; i < movable.size(); ++i) indices[movable[i]] = graph.nodes[shuffled[i]].index;
    ASSERT_TRUE(write_indices(ready_, graph, indices));
    const std::string after = read(ready_);
    EXPECT_EQ(indices_of(read_graph(as_bytes_of(after)).value()), indices);
    EXPECT_EQ(after.size(), now.size());
  }
}

// Whoever writes other indices must find all of them: a node has its own, its edges name it, and an edge names both
// ends.
TEST_F(OrtOrder, HasEveryPlaceOfAnIndexInTheFile) {
  const OrtGraph graph = read_graph(as_bytes_of(file_)).value();
  std::map<std::uint32_t, std::uint32_t> writer;
  for (std::uint32_t node = 0; node < graph.nodes.size(); ++node)
    for (const std::uint32_t value : graph.nodes[node].writes) writer[value] = node;
  std::vector<std::size_t> expected(graph.nodes.size()), found(graph.nodes.size());
  for (std::uint32_t node = 0; node < graph.nodes.size(); ++node) {
    if (graph.nodes[node].movable) expected[node] += 2;
    for (const std::uint32_t value : graph.nodes[node].reads) {
      if (!writer.contains(value)) continue;
      ++expected[node];  // in the list of the other end
      ++expected[writer[value]];
    }
  }
  for (const OrtGraph::Place& place : graph.places) ++found[place.node];
  EXPECT_EQ(found, expected);
}

TEST_F(OrtOrder, NeedsLessMemoryAndGivesTheSameBits) {
  const OrtGraph graph = read_graph(as_bytes_of(file_)).value();
  const Ran reference = run(ready_, true, false), before = run(ready_, false, true);
  const NodeMemory memory = memory_of_nodes(graph, before.starts, before.requests).value();
  EXPECT_EQ(peak_in_order(graph, memory, memory.order), before.peak);
  EXPECT_EQ(before.output, reference.output);

  // The worst indices there are, then the chosen ones.
  std::vector<std::uint32_t> worst = indices_of(graph), tried = worst, places;
  std::uint64_t most = 0;
  for (std::uint32_t i = 0; i < tried.size(); ++i)
    if (graph.nodes[i].movable) places.push_back(i);
  std::vector<std::uint32_t> numbers;
  for (const std::uint32_t place : places) numbers.push_back(tried[place]);
  std::sort(numbers.begin(), numbers.end());
  do {
    for (std::size_t i = 0; i < places.size(); ++i) tried[places[i]] = numbers[i];
    const std::uint64_t peak = peak_in_order(graph, memory, execution_order(graph, tried));
    if (peak > most) most = peak, worst = tried;
  } while (std::next_permutation(numbers.begin(), numbers.end()));
  ASSERT_TRUE(write_indices(ready_, graph, worst));
  const std::string bad_file = read(ready_);
  const OrtGraph bad = read_graph(as_bytes_of(bad_file)).value();
  const Ran slow = run(ready_, false, true);
  EXPECT_EQ(slow.peak, most);
  EXPECT_EQ(slow.output, reference.output);

  const IndexChoice choice = choose_indices(bad, memory_of_nodes(bad, slow.starts, slow.requests).value()).value();
  EXPECT_EQ(choice.recorded_peak, most);
  EXPECT_EQ(choice.peak, choice.lower_bound) << "so few nodes are searched exactly";
  EXPECT_LT(choice.peak, most);
  ASSERT_TRUE(write_indices(ready_, bad, choice.indices));
  const Ran better = run(ready_, false, false);
  EXPECT_EQ(better.peak, choice.peak);
  EXPECT_EQ(better.output, reference.output);
}

TEST_F(OrtOrder, RefusesIndicesThatAreNotTheModels) {
  const OrtGraph graph = read_graph(as_bytes_of(file_)).value();
  std::vector<std::uint32_t> indices = indices_of(graph);
  indices[0] = indices[1];
  EXPECT_EQ(write_indices(ready_, graph, indices).error().code(), Code::kInvalidArgument);
  indices = indices_of(graph);
  const auto fixed =
      std::find_if(graph.nodes.begin(), graph.nodes.end(), [](const OrtNode& node) { return !node.movable; });
  if (fixed != graph.nodes.end()) {
    std::swap(indices[static_cast<std::size_t>(fixed - graph.nodes.begin())],
              indices[fixed == graph.nodes.begin() ? 1 : 0]);
    EXPECT_EQ(write_indices(ready_, graph, indices).error().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(read(ready_), file_) << "nothing was written";
  EXPECT_EQ(write_indices("/nonexistent/model.ort", graph, indices_of(graph)).error().code(), Code::kIo);
}

TEST_F(OrtOrder, DamagedFilesAreRefusedOrReadWithinTheirBytes) {
  std::mt19937_64 random(test::seed());
  for (std::size_t size = 0; size < file_.size(); size += 1 + random() % 97) {
    const std::string cut = file_.substr(0, size);
    const auto graph = read_graph(as_bytes_of(cut));
    if (!graph) {
      EXPECT_EQ(graph.error().code(), Code::kInvalidData);
      continue;
    }
    for (const OrtGraph::Place& place : graph->places) EXPECT_LE(place.at + 4, size);
  }
  for (const char* text : {"not a model", "short", ""}) {
    const auto other = read_graph(as_bytes_of(text));
    ASSERT_FALSE(other) << text;
    EXPECT_NE(other.error().message().find("no ORTM at byte 4"), std::string::npos);
  }
}

TEST_F(OrtOrder, ASessionWithoutReuseNeedsSharedThreads) {
  recorder_.reset();
  const auto plain = Engine::create().value();
  const MappedModel mapped = MappedModel::open(ready_).value();
  const auto refused = plain->open({.mapped = &mapped, .reuse = false});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
}

// A graph without a file: node i has index i + 1.
OrtGraph graph_of(std::vector<std::pair<std::vector<std::uint32_t>, std::vector<std::uint32_t>>> nodes,
                  std::vector<bool> returned) {
  OrtGraph graph;
  graph.returned = std::move(returned);
  for (auto& [reads, writes] : nodes)
    graph.nodes.push_back({.index = static_cast<std::uint32_t>(graph.nodes.size() + 1),
                           .movable = true,
                           .reads = std::move(reads),
                           .writes = std::move(writes)});
  return graph;
}

TEST(NodeMemory, TellsValuesFromWorkspaces) {
  // Two nodes in a row; the first has two outputs, of which nobody reads the second, and two workspaces.
  const OrtGraph graph = graph_of({{{0}, {1, 2}}, {{1}, {3}}}, {false, false, false, true});
  const std::vector<NodeStart> starts = {{1, 100}, {2, 200}};
  const std::vector<TimedRequest> requests = {
      {.bytes = 7, .begin = 50, .end = 60},     // before the first node
      {.bytes = 10, .begin = 100, .end = 120},  // a workspace, or the output that nobody reads
      {.bytes = 1000, .begin = 110, .end = 240},
      {.bytes = 30, .begin = 130, .end = 140},
      {.bytes = 50, .begin = 145, .end = 200},  // released in the microsecond in which the next node starts
      {.bytes = 400, .begin = 210},
  };
  const NodeMemory memory = memory_of_nodes(graph, starts, requests).value();
  EXPECT_EQ(memory.order, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(memory.value_bytes[1], 1000u);
  EXPECT_EQ(memory.value_bytes[3], 400u);
  EXPECT_EQ(memory.value_bytes[2], 10u);
  EXPECT_EQ(memory.node_scratch[0], 50u) << "the workspaces are not live at the same time";
  EXPECT_EQ(memory.node_scratch[1], 0u);
  EXPECT_EQ(peak_in_order(graph, memory, memory.order), 1400u);
}

TEST(NodeMemory, RefusesAnotherOrderThanTheEnginesRule) {
  const OrtGraph graph = graph_of({{{}, {0}}, {{}, {1}}, {{0, 1}, {2}}}, {false, false, true});
  const auto error_of = [&](const std::vector<NodeStart>& starts) {
    return memory_of_nodes(graph, starts, {}).error().code();
  };
  EXPECT_TRUE(memory_of_nodes(graph, std::vector<NodeStart>{{2, 1}, {1, 2}, {3, 3}}, {})) << "the highest index first";
  EXPECT_EQ(error_of({{1, 1}, {2, 2}, {3, 3}}), Code::kUnsupported);
  EXPECT_EQ(error_of({{2, 1}, {1, 2}}), Code::kUnsupported) << "a node is missing";
  EXPECT_EQ(error_of({{2, 1}, {1, 2}, {3, 3}, {3, 4}}), Code::kUnsupported) << "one is there twice";
  EXPECT_EQ(error_of({{2, 1}, {9, 2}, {3, 3}}), Code::kUnsupported) << "one is unknown";
  EXPECT_EQ(error_of({{2, 5}, {1, 2}, {3, 3}}), Code::kUnsupported) << "time goes back";
}

TEST(NodeMemory, ReportsACycle) {
  const OrtGraph graph = graph_of({{{1}, {0}}, {{0}, {1}}, {{}, {2}}}, {false, false, true});
  const NodeMemory memory{.order = {0, 1, 2}, .value_bytes = {1, 1, 1}, .node_scratch = {0, 0, 0}};
  ASSERT_FALSE(choose_indices(graph, memory));
}

// Random graphs: what is chosen is never worse than what was recorded, never below the bound, and a permutation.
TEST(NodeMemoryProperty, ChoosesAnOrderThatIsNeverWorse) {
  std::mt19937_64 random(test::seed());
  for (int turn = 0; turn < 15; ++turn) {
    const std::size_t count = 2 + random() % 30;
    std::vector<std::pair<std::vector<std::uint32_t>, std::vector<std::uint32_t>>> nodes;
    NodeMemory memory;
    for (std::uint32_t i = 0; i < count; ++i) {
      std::vector<std::uint32_t> reads;
      for (std::size_t k = random() % 3; k > 0 && i > 0; --k) reads.push_back(static_cast<std::uint32_t>(random() % i));
      nodes.push_back({std::move(reads), {i}});
      memory.value_bytes.push_back(random() % 1000);
      memory.node_scratch.push_back(random() % 4 == 0 ? random() % 1000 : 0);
    }
    std::vector<bool> returned(count);
    returned.back() = true;
    const OrtGraph graph = graph_of(std::move(nodes), std::move(returned));
    memory.order = execution_order(graph, indices_of(graph));
    const IndexChoice choice = choose_indices(graph, memory).value();
    EXPECT_EQ(choice.recorded_peak, peak_in_order(graph, memory, memory.order));
    EXPECT_LE(choice.peak, choice.recorded_peak);
    EXPECT_GE(choice.peak, choice.lower_bound);
    EXPECT_EQ(choice.peak, peak_in_order(graph, memory, execution_order(graph, choice.indices)));
    std::vector<std::uint32_t> sorted = choice.indices;
    std::sort(sorted.begin(), sorted.end());
    for (std::uint32_t i = 0; i < count; ++i) EXPECT_EQ(sorted[i], i + 1);
  }
}

TEST(EngineProfile, HasTheStartOfEachNode) {
  const auto starts = read_profile(R"([
    {"cat": "Session", "ts": 1, "name": "model_run"},
    {"cat": "Node", "ts": 12, "name": "a_kernel_time", "args": {"node_index": "7", "op_name": "Add"}},
    {"cat": "Node", "ts": 13, "name": "a_fence_after", "args": {"op_name": "Add"}},
    {"cat": "Node", "ts": 40, "name": "b_kernel_time", "args": {"node_index": "0"}}])");
  ASSERT_TRUE(starts);
  ASSERT_EQ(starts->size(), 2u);
  EXPECT_EQ((*starts)[0].index, 7u);
  EXPECT_EQ((*starts)[0].at, 12u);
  EXPECT_EQ((*starts)[1].index, 0u);
}

TEST(EngineProfile, RefusesWhatIsNone) {
  for (const char* text :
       {"", "{}", "[1]", "[", R"([{"cat": "Node"}])", R"([{"cat": "Node", "ts": -1, "args": {}}])",
        R"([{"cat": "Node", "ts": 1, "args": []}])", R"([{"cat": "Node", "ts": 1, "args": {"node_index": 3}}])",
        R"([{"cat": "Node", "ts": 1, "args": {"node_index": "x"}}])",
        R"([{"cat": "Node", "ts": 1, "args": {"node_index": "99999999999"}}])"}) {
    const auto starts = read_profile(text);
    ASSERT_FALSE(starts) << text;
    EXPECT_EQ(starts.error().code(), Code::kInvalidData);
  }
}

}  // namespace
}  // namespace berth::internal::ort
