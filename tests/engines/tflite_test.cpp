#include "berth/engines/tflite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "engines/flatbuffer.h"
#include "engines/tflite/tflite_model.h"
#include "support/seed.h"
#include "support/tiny_tflite.h"

namespace berth::test {
namespace {

using namespace internal;
using engines::plan_tflite;

// A chain: tensor 0 is the input, operator k reads tensor k and writes tensor k + 1.
TinyTflite chain(std::vector<std::int32_t> bytes) {
  TinyTflite model{.tensor_bytes = std::move(bytes)};
  for (std::int32_t i = 0; i + 1 < static_cast<std::int32_t>(model.tensor_bytes.size()); ++i)
    model.ops.push_back({{i}, {i + 1}});
  return model;
}

// The offsets that a runtime finds in the file: the last entry of the metadata.
std::vector<std::int32_t> offsets_in(std::span<const std::byte> file) {
  Flatbuffer reader(file);
  const std::uint64_t root = reader.follow(0);
  const auto metadata = reader.vector_in(root, tflite::kModelMetadata, 4);
  const std::uint64_t entry = reader.follow(metadata.begin + 4 * (std::uint64_t{metadata.count} - 1));
  const auto name = reader.vector_in(entry, tflite::kMetadataName, 1);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file.data()) + name.begin, name.count), tflite::kPlanName);
  const auto buffers = reader.vector_in(root, tflite::kModelBuffers, 4);
  const auto index = reader.number_in<std::uint32_t>(entry, tflite::kMetadataBuffer, 0);
  EXPECT_LT(index, buffers.count);
  const auto data = reader.vector_in(reader.follow(buffers.begin + 4 * std::uint64_t{index}), tflite::kBufferData, 1);
  EXPECT_EQ(data.begin % 16, 0u);
  EXPECT_EQ(reader.number<std::int32_t>(data.begin), 1);
  std::vector<std::int32_t> offsets(reader.number<std::uint32_t>(data.begin + 8));
  EXPECT_EQ(data.count, 4 * (3 + offsets.size()));
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = reader.number<std::int32_t>(data.begin + 12 + 4 * i);
  EXPECT_FALSE(reader.broken);
  return offsets;
}

TEST(Tflite, WritesAnOffsetForEachTensorThatTheArenaHolds) {
  TinyTflite model = chain({100, 200, 100, 50});
  model.constants[1] = std::vector<std::byte>(200);  // a weight, so not in the arena
  const auto planned = plan_tflite(model.file()).value();
  const auto offsets = offsets_in(planned.file);
  ASSERT_EQ(offsets.size(), 4u);
  EXPECT_EQ(offsets[1], -1);
  for (const std::size_t i : {0u, 2u, 3u}) EXPECT_EQ(offsets[i] % 16, 0);
  EXPECT_FALSE(validate(planned.problem, planned.plan))
      << describe(validate(planned.problem, planned.plan), planned.problem, planned.plan);
  EXPECT_EQ(planned.problem.lifetimes.size(), 3u);
}

TEST(Tflite, RefusesOtherVersionsOfTheSchema) {
  for (const std::uint32_t version : {0u, 1u, 3u, 4u, 0xffff'ffffu}) {
    FlatTable model = chain({16, 16}).table();
    model.fields[0] = version;
    const auto planned = plan_tflite(FlatWriter::write(model, "TFL3"));
    EXPECT_EQ(planned.has_value(), version >= 1 && version <= 3) << version;
    if (!planned) {
      EXPECT_EQ(planned.error().code(), Code::kInvalidData) << version;
    }
  }
}

TEST(Tflite, KeepsEveryOtherByteOfTheModel) {
  const auto model = chain({64, 128, 32, 16}).file();
  const auto planned = plan_tflite(model).value();
  const std::size_t inserted = planned.file.size() - model.size();
  EXPECT_EQ(inserted % 64, 0u);
  EXPECT_TRUE(std::equal(model.begin() + 8, model.end(), planned.file.begin() + 8 + static_cast<long>(inserted)));
}

TEST(Tflite, ReadsItsOwnOutputAndReplacesThePlan) {
  const auto once = plan_tflite(chain({64, 128, 32, 16}).file()).value();
  EXPECT_FALSE(once.had_plan);
  const auto twice = plan_tflite(once.file).value();
  EXPECT_TRUE(twice.had_plan);
  EXPECT_EQ(offsets_in(twice.file), offsets_in(once.file));
  EXPECT_EQ(twice.plan.size, once.plan.size);
}

// The runtime's rule places equal tensors from the last to the first, which leaves a hole here.
TEST(Tflite, IsNeverLargerThanTheRuntimesOwnRule) {
  std::mt19937 random(test::seed());
  const auto seed = random();
  SCOPED_TRACE(seed);
  random.seed(seed);
  for (int round = 0; round < 50; ++round) {
    TinyTflite model{.tensor_bytes = {64}};
    const int count = 3 + static_cast<int>(random() % 20);
    for (int i = 1; i <= count; ++i) {
      model.tensor_bytes.push_back(16 * static_cast<std::int32_t>(1 + random() % 8));
      const auto from = static_cast<std::int32_t>(random() % static_cast<unsigned>(i));
      model.ops.push_back({{i - 1, from}, {i}});
    }
    const auto planned = plan_tflite(model.file()).value();
    EXPECT_LE(planned.plan.size, planned.stock_bytes);
    EXPECT_GE(planned.plan.size, planned.plan.lower_bound);
    const auto reordered = plan_tflite(model.file(), {.reorder = true}).value();
    EXPECT_LE(reordered.plan.size, planned.plan.size);
    EXPECT_FALSE(validate(reordered.problem, reordered.plan));
  }
}

// Two branches of a large and a small tensor: computing one after the other needs less than computing them side by
// side.
TinyTflite branches() {
  return {.tensor_bytes = {16, 1024, 1024, 16, 16, 16},
          .ops = {{{0}, {1}}, {{0}, {2}}, {{1}, {3}}, {{2}, {4}}, {{3, 4}, {5}}}};
}

TEST(Tflite, ChoosesAnOrderThatNeedsLess) {
  const auto given = plan_tflite(branches().file()).value();
  const auto better = plan_tflite(branches().file(), {.reorder = true}).value();
  EXPECT_TRUE(better.reordered);
  EXPECT_EQ(better.given_bytes, given.plan.size);
  EXPECT_LT(better.plan.size, 1024u + 128u);
  EXPECT_GE(given.plan.size, 2048u);
  // The order in the file is the order of the plan: planning it as it is gives the same size.
  EXPECT_EQ(plan_tflite(better.file).value().plan.size, better.plan.size);
}

// Every order of a small model, tried one by one.
std::uint64_t least_of_all_orders(const TinyTflite& model) {
  std::vector<std::size_t> order(model.ops.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  do {
    std::vector<bool> written(model.tensor_bytes.size());
    written[0] = written[1] = true;
    bool can_run = true;
    TinyTflite other = model;
    other.ops.clear();
    for (const std::size_t i : order) {
      for (const std::int32_t read : model.ops[i].inputs) can_run &= written[static_cast<std::size_t>(read)];
      for (const std::int32_t write : model.ops[i].outputs) written[static_cast<std::size_t>(write)] = true;
      other.ops.push_back(model.ops[i]);
    }
    if (can_run) least = std::min(least, plan_tflite(other.file()).value().plan.size);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

TEST(Tflite, BoundsWhatAnyOrderNeeds) {
  std::mt19937 random(test::seed());
  const auto seed = random();
  SCOPED_TRACE(seed);
  random.seed(seed);
  int proven = 0;
  for (int round = 0; round < 40; ++round) {
    TinyTflite model{.tensor_bytes = {64, 64}};
    model.constants[1] = std::vector<std::byte>(64);  // an operator may read nothing but this
    const auto count = static_cast<std::int32_t>(3 + random() % 4);
    for (std::int32_t i = 2; i < 2 + count; ++i) {
      model.tensor_bytes.push_back(16 * static_cast<std::int32_t>(1 + random() % 8));
      const auto from = [&] { return static_cast<std::int32_t>(random() % static_cast<unsigned>(i)); };
      model.ops.push_back({{from(), from()}, {i}});
    }
    const std::uint64_t least = least_of_all_orders(model);
    const auto planned = plan_tflite(model.file(), {.reorder = true}).value();
    EXPECT_LE(planned.order_bound, least) << "round " << round;
    EXPECT_GE(planned.plan.size, least) << "round " << round;
    EXPECT_EQ(plan_tflite(planned.file).value().plan.size, planned.plan.size) << "round " << round;
    proven += planned.plan.size == planned.order_bound;
  }
  EXPECT_GT(proven, 20);  // a bound that is always zero would be right too
  EXPECT_EQ(plan_tflite(branches().file()).value().order_bound, 0u);
}

TEST(Tflite, UnpacksAWeightJustBeforeItsReader) {
  TinyTflite model{.tensor_bytes = {16, 64, 1024, 1024, 16, 16},
                   .ops = {{{1}, {2}}, {{0}, {3}}, {{3}, {4}}, {{4, 2}, {5}}}};
  model.constants[1] = std::vector<std::byte>(64);
  const auto planned = plan_tflite(model.file(), {.reorder = true}).value();
  EXPECT_EQ(planned.given_bytes, 2064u);
  EXPECT_EQ(planned.plan.size, 1056u);
  EXPECT_EQ(planned.order_bound, 1056u);
}

TEST(Tflite, KeepsOperatorsWithStateInTheirOrder) {
  TinyTflite model = branches();
  for (auto& op : model.ops) op.kind = 32;
  const auto planned = plan_tflite(model.file(), {.reorder = true}).value();
  EXPECT_FALSE(planned.reordered);
}

TEST(Tflite, LeavesVariablesAndTensorsOfUnknownSizeToTheRuntime) {
  TinyTflite model = chain({64, 64, 64, 64});
  model.variables = {1};
  model.tensor_bytes[2] = -1;
  const auto planned = plan_tflite(model.file()).value();
  const auto offsets = offsets_in(planned.file);
  EXPECT_EQ(offsets[1], -1);
  EXPECT_EQ(offsets[2], -1);
  EXPECT_EQ(planned.left_to_runtime, 1u);
}

constexpr std::uint32_t kIf = 118, kWhile = 119, kCallOnce = 129;

// A model of two subgraphs whose operator 0, of this kind, runs `called`, and `other` if it is of a kind that runs two.
std::vector<std::byte> with_call(std::uint32_t called, std::uint32_t kind = kCallOnce, std::uint32_t other = 1) {
  FlatTable root = chain({256, 128, 64, 32}).table();
  auto& graphs = std::get<std::vector<FlatTable>>(root.fields[2]);
  graphs.push_back(std::get<std::vector<FlatTable>>(chain({512, 512, 16}).table().fields[2]).front());
  for (FlatTable& op : std::get<std::vector<FlatTable>>(graphs[1].fields[3])) op.fields[0] = std::uint32_t{1};
  std::get<std::vector<FlatTable>>(root.fields[1])[0].fields = {{0, std::uint8_t(std::min(kind, 127u))}, {3, kind}};
  auto& op = std::get<std::vector<FlatTable>>(graphs[0].fields[3])[0];
  op.fields[3] = std::uint8_t{103};
  op.fields[4] = std::make_shared<FlatTable>(FlatTable{{{0, called}, {1, other}}});
  return FlatWriter::write(root, "TFL3");
}

TEST(Tflite, GivesTensorsOfOneIndexOneOffsetInAllSubgraphs) {
  const auto planned = plan_tflite(with_call(1)).value();
  const auto offsets = offsets_in(planned.file);
  ASSERT_EQ(offsets.size(), 7u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(offsets[i], offsets[4 + i]);
  EXPECT_LE(planned.plan.size, planned.stock_bytes);
  // Tensors 0 and 1 of the main subgraph hold data while the other one runs with its 0 and 1.
  EXPECT_GE(planned.plan.size, 2 * 512u);
}

TEST(Tflite, RefusesASubgraphThatRunsItselfAndOneThatIsNotThere) {
  EXPECT_EQ(plan_tflite(with_call(0)).error().code(), Code::kUnsupported);
  EXPECT_EQ(plan_tflite(with_call(2)).error().code(), Code::kInvalidData);
  EXPECT_TRUE(plan_tflite(with_call(1, kCallOnce, 2)).has_value()) << "it runs one subgraph";
  for (const std::uint32_t kind : {kIf, kWhile}) {
    const auto planned = plan_tflite(with_call(1, kind));
    ASSERT_TRUE(planned.has_value()) << planned.error().message();
    EXPECT_GE(planned->plan.size, 2 * 512u) << "it runs while tensors of the main subgraph hold data";
    for (const bool first : {false, true}) {
      EXPECT_EQ(plan_tflite(with_call(first ? 0 : 1, kind, first ? 1 : 0)).error().code(), Code::kUnsupported);
      EXPECT_EQ(plan_tflite(with_call(first ? 2 : 1, kind, first ? 1 : 2)).error().code(), Code::kInvalidData);
    }
  }
}

TEST(Tflite, RefusesWhatItCannotPlan) {
  const auto code_of = [](std::span<const std::byte> file) { return plan_tflite(file).error().code(); };
  auto model = chain({64, 128, 16});
  EXPECT_EQ(code_of({}), Code::kInvalidData);
  auto file = model.file();
  ASSERT_TRUE(plan_tflite(file));
  file[4] = std::byte{'X'};
  EXPECT_EQ(code_of(file), Code::kInvalidData);
  model.ops[1].outputs = {1};
  EXPECT_EQ(code_of(model.file()), Code::kUnsupported);  // written twice
  model.ops[1].outputs = {7};
  EXPECT_EQ(code_of(model.file()), Code::kInvalidData);
  FlatTable table = chain({64, 128, 16}).table();
  table.fields.erase(4);  // no buffers, and tensors that name buffer 0
  EXPECT_EQ(code_of(FlatWriter::write(table, "TFL3")), Code::kInvalidData);
  model = chain({2'000'000'000, 2'000'000'000, 16});
  EXPECT_EQ(code_of(model.file()), Code::kInfeasible);
}

TEST(Tflite, RefusesEveryTruncation) {
  const auto file = chain({64, 128, 32, 16}).file();
  for (std::size_t size = 0; size < file.size() - 4; ++size) {
    const auto planned = plan_tflite(std::span(file).first(size));
    ASSERT_FALSE(planned) << size;
    EXPECT_EQ(planned.error().code(), Code::kInvalidData);
  }
}

}  // namespace
}  // namespace berth::test
