#include "berth/remote/sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

#include "support/seed.h"
#include "support/support.h"

namespace berth {

// Damages plans, for tests of check().
struct ShardPlanAccess {
  static std::vector<ShardPlan::Tensor>& tensors(ShardPlan& plan) { return plan.tensors_; }
  static std::vector<std::uint64_t>& first_piece(ShardPlan& plan) { return plan.first_piece_; }
  static std::uint64_t& shared_bytes(ShardPlan& plan) { return plan.shared_bytes_; }
  static std::vector<std::uint32_t>& by_offset(ShardPlan& plan) { return plan.by_offset_; }
  static ShardOptions& options(ShardPlan& plan) { return plan.options_; }
};

namespace {

using test::fails_with;
using ::testing::HasSubstr;

// A header in memory.
struct Header {
  struct Entry {
    std::string name;
    DType dtype;
    std::vector<std::size_t> shape{};
    std::uint32_t file = 0;
  };
  std::vector<Entry> entries;
  std::vector<std::uint64_t> file_bytes;
  std::uint64_t gap = 0;  // between tensors

  std::vector<TensorInfo> infos() {
    std::vector<TensorInfo> infos;
    file_bytes.clear();
    for (const Entry& entry : entries) {
      file_bytes.resize(std::max<std::size_t>(file_bytes.size(), entry.file + 1), 100);
      const std::size_t elements =
          std::accumulate(entry.shape.begin(), entry.shape.end(), std::size_t{1}, std::multiplies<>());
      TensorInfo info{.name = entry.name,
                      .shape = entry.shape,
                      .offset = file_bytes[entry.file],
                      .bytes = byte_size(entry.dtype, elements).value(),
                      .file = entry.file,
                      .dtype = entry.dtype};
      file_bytes[entry.file] += info.bytes + gap;
      infos.push_back(info);
    }
    return infos;
  }
};

// The bytes of files, drawn at random.
std::vector<std::vector<std::byte>> contents_of(const Header& header, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<std::byte>> files;
  for (const std::uint64_t bytes : header.file_bytes) {
    files.emplace_back(bytes);
    for (std::byte& byte : files.back()) byte = static_cast<std::byte>(random());
  }
  return files;
}

// A slice by its plain definition: element by element (block by block) along the axis.
std::vector<std::byte> sliced(const TensorInfo& info, const std::vector<std::byte>& file, std::size_t axis,
                              std::size_t begin, std::size_t end) {
  const DTypeInfo& type = berth::info(info.dtype);
  std::vector<std::byte> bytes;
  std::uint64_t inner = 1;
  for (std::size_t i = axis + 1; i < info.shape.size(); ++i) inner *= info.shape[i];
  for (std::uint64_t at = 0; at < info.bytes; at += type.block_bytes) {
    const std::uint64_t element = at / type.block_bytes * type.block_elements;
    const std::uint64_t coordinate = info.shape.empty() ? 0 : element / inner % info.shape[axis];
    if (info.shape.empty() || (coordinate >= begin && coordinate < end))
      for (std::uint32_t b = 0; b < type.block_bytes; ++b) bytes.push_back(file[info.offset + at + b]);
  }
  return bytes;
}

struct Done {
  std::vector<std::vector<std::byte>> memory;  // by rank
  std::uint64_t storage = 0, network = 0;
  std::vector<std::uint64_t> puts;  // by target
};

// Does what a plan says, with all ranks in this process.
Done executed(const ShardPlan& plan, const std::vector<std::vector<std::byte>>& files) {
  Done done;
  done.puts.resize(plan.ranks());
  for (std::uint32_t rank = 0; rank < plan.ranks(); ++rank)
    done.memory.emplace_back(plan.memory_bytes(rank), std::byte{0xEE});
  for (std::uint32_t rank = 0; rank < plan.ranks(); ++rank)
    for (auto [number, end] = plan.reads(rank); number < end; ++number) {
      done.storage += plan.piece(number).bytes;
      plan.for_each_put(number, [&](const ShardPut& put) {
        std::uint64_t at = put.offset;
        put.for_each_run([&](std::uint64_t offset, std::uint64_t bytes) {
          std::copy_n(files.at(plan.piece(number).file).begin() + static_cast<std::ptrdiff_t>(offset), bytes,
                      done.memory[put.target].begin() + static_cast<std::ptrdiff_t>(at));
          at += bytes;
        });
        if (put.target != rank) done.network += put.bytes;
        ++done.puts[put.target];
      });
    }
  return done;
}

std::vector<std::byte> part_of_memory(const std::vector<std::byte>& memory, const Shard& shard) {
  const auto first = memory.begin() + static_cast<std::ptrdiff_t>(shard.offset);
  return {first, first + static_cast<std::ptrdiff_t>(shard.bytes)};
}

struct Drawn {
  Header header;
  std::vector<ShardRule> rules;
  ShardOptions options;
};

// Tensors and rules for which a plan can be made.
Drawn drawn(std::mt19937& random, std::uint32_t most_ranks = 7) {
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  Drawn made;
  made.rules = {{"row*", ShardKind::kRow},        {"unit*", ShardKind::kRow, 3},
                {"column*", ShardKind::kColumn},  {"expert.#.*", ShardKind::kExpert},
                {"stacked*", ShardKind::kExpert}, {"quant_column*", ShardKind::kColumn, 32}};
  const char* kinds[] = {"row", "unit", "column", "expert.", "stacked", "plain", "quant_row", "quant_column"};
  const std::size_t count = below(12);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string kind = kinds[below(8)];
    Header::Entry entry{.name = kind + std::to_string(i),
                        .dtype = below(2) == 0 ? DType::kF32 : DType::kU8,
                        .file = static_cast<std::uint32_t>(below(2))};
    const std::size_t axes = 1 + below(4);
    for (std::size_t axis = 0; axis < axes; ++axis) entry.shape.push_back(below(9) + (below(4) == 0 ? 0 : 1));
    if (kind == "unit") entry.shape[0] *= 3;
    if (kind == "expert.")
      entry.name = "expert." + std::to_string(below(std::max<std::size_t>(count, 1))) + ".w" + std::to_string(i);
    if (kind == "plain" && below(3) == 0) entry.shape.clear();
    if (kind.starts_with("quant")) {
      entry.dtype = DType::kQ4_0;
      entry.shape.back() *= 32;
      if (kind == "quant_row") {
        entry.name = "row_q" + std::to_string(i);
        if (entry.shape.size() == 1) entry.shape.insert(entry.shape.begin(), 5);
      }
    }
    made.header.entries.push_back(entry);
  }
  made.header.gap = below(3) == 0 ? 40 : 0;
  made.options.parts = static_cast<std::uint32_t>(1 + below(most_ranks));
  made.options.ranks = made.options.parts * static_cast<std::uint32_t>(1 + below(3));
  made.options.piece_bytes = 4096;
  made.options.alignment = std::size_t{1} << below(9);
  return made;
}

RC_GTEST_PROP(ShardPlan, PutsEachByteWhereThePlainDefinitionHasIt, (std::uint32_t seed)) {
  std::mt19937 random(seed);
  Drawn problem = drawn(random);
  const std::vector<TensorInfo> infos = problem.header.infos();
  const std::vector<std::vector<std::byte>> files = contents_of(problem.header, seed);
  const ShardPlan plan = make_shard_plan(infos, problem.rules, problem.options).value();
  plan.check().value();
  const Done done = executed(plan, files);
  for (std::uint32_t rank = 0; rank < plan.ranks(); ++rank) {
    RC_ASSERT(done.puts[rank] == plan.puts_to(rank));
    for (std::size_t i = 0; i < infos.size(); ++i) {
      const Shard shard = plan.shard(i, rank);
      RC_ASSERT(shard.offset % problem.options.alignment == 0);
      RC_ASSERT(part_of_memory(done.memory[rank], shard) ==
                sliced(infos[i], files[infos[i].file], shard.slice.axis, shard.slice.begin, shard.slice.end));
    }
  }
  const ShardCost cost = plan.cost();
  RC_ASSERT(cost.storage_bytes == done.storage);
  RC_ASSERT(cost.network_bytes == done.network);
  std::uint64_t tensors = 0, shards = 0;
  for (const TensorInfo& info : infos) tensors += info.bytes;
  for (std::uint32_t rank = 0; rank < plan.ranks(); ++rank)
    for (std::size_t i = 0; i < infos.size(); ++i) shards += plan.shard(i, rank).bytes;
  RC_ASSERT(cost.file_bytes == tensors);
  RC_ASSERT(cost.network_bytes <= shards);
  RC_ASSERT(cost.storage_bytes <= tensors + infos.size() * problem.header.gap);
}

RC_GTEST_PROP(ShardPlan, MovesFromAnyShardingToAnyOther, (std::uint32_t seed)) {
  std::mt19937 random(seed);
  Drawn problem = drawn(random);
  const std::vector<TensorInfo> infos = problem.header.infos();
  const std::vector<std::vector<std::byte>> files = contents_of(problem.header, seed);
  const ShardPlan from = make_shard_plan(infos, problem.rules, problem.options).value();
  Drawn other = drawn(random);
  // Sometimes the same tensors are split along other axes.
  std::vector<ShardRule> rules = problem.rules;
  if (random() % 2 == 0)
    for (ShardRule& rule : rules)
      if (rule.unit == 1) rule.kind = static_cast<ShardKind>(random() % 4);
  auto made = make_shard_plan(infos, rules, other.options);
  if (!made) made = make_shard_plan(infos, problem.rules, other.options);  // a border in a block
  const ShardPlan& to = made.value();
  const Done before = executed(from, files), after = executed(to, files);
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::vector<bool>> written;
  for (std::uint32_t rank = 0; rank < to.ranks(); ++rank) {
    memory.emplace_back(to.memory_bytes(rank), std::byte{0xEE});
    written.emplace_back(to.memory_bytes(rank), false);
  }
  std::map<std::uint32_t, std::set<std::pair<std::uint32_t, std::uint32_t>>> pairs;
  reshard(from, to, [&](const ReshardMove& move) {
    RC_ASSERT(move.from < from.ranks() && move.to < to.ranks());
    RC_ASSERT(move.rows > 0 && move.bytes > 0);
    pairs[move.tensor].emplace(move.from % from.parts(), move.to % to.parts());
    for (std::uint64_t row = 0; row < move.rows; ++row)
      for (std::uint64_t byte = 0; byte < move.bytes; ++byte) {
        const std::uint64_t at = move.to_offset + row * move.to_pitch + byte;
        RC_ASSERT(!written[move.to].at(at));
        written[move.to][at] = true;
        memory[move.to][at] = before.memory[move.from].at(move.from_offset + row * move.from_pitch + byte);
      }
  }).value();
  for (std::uint32_t rank = 0; rank < to.ranks(); ++rank) RC_ASSERT(memory[rank] == after.memory[rank]);
  for (std::uint32_t i = 0; i < infos.size(); ++i) {
    const auto &a = from.tensors()[i], &b = to.tensors()[i];
    if (a.split && b.split && a.axis == b.axis && a.unit == b.unit)
      RC_ASSERT(pairs[i].size() <= from.parts() + to.parts() - std::gcd(from.parts(), to.parts()));
  }
}

Header model() {
  Header header;
  header.entries = {{"a.q_proj.weight", DType::kBF16, {64, 512}},    {"a.o_proj.weight", DType::kBF16, {512, 64}},
                    {"a.norm.weight", DType::kF32, {512}},           {"a.experts.0.w", DType::kF32, {100}},
                    {"a.experts.1.w", DType::kF32, {100}},           {"a.experts.2.w", DType::kF32, {100}},
                    {"b.q_proj.weight", DType::kBF16, {64, 512}, 1}, {"b.gate", DType::kQ4_0, {8, 64}, 1}};
  return header;
}

std::vector<ShardRule> model_rules() {
  return parse_shard_rules("*.q_proj.weight row unit 16\n*.o_proj.weight column\n*.experts.#.* expert\n*.gate row\n")
      .value();
}

TEST(ShardPlan, SaysWhatEachRankHas) {
  Header header = model();
  const ShardPlan plan = make_shard_plan(header.infos(), model_rules(), {.ranks = 2, .piece_bytes = 65'536}).value();
  EXPECT_EQ(plan.shard(0, 1).shape, (std::vector<std::size_t>{32, 512}));
  EXPECT_EQ(plan.shard(0, 1).slice.begin, 32U);
  EXPECT_EQ(plan.shard(1, 1).shape, (std::vector<std::size_t>{512, 32}));
  EXPECT_EQ(plan.shard(1, 1).slice.axis, 1U);
  EXPECT_EQ(plan.shard(2, 1).bytes, 2048U);
  EXPECT_EQ(plan.shard(3, 0).bytes + plan.shard(4, 0).bytes + plan.shard(5, 0).bytes, 400U) << "one expert of three";
  EXPECT_EQ(plan.shard(4, 1).bytes, 400U);
  EXPECT_EQ(plan.shard(3, 1).bytes, 0U);
  EXPECT_LT(plan.memory_bytes(0), plan.memory_bytes(1));
  const std::string text = to_string(plan);
  EXPECT_THAT(text, HasSubstr("8 tensors for 2 ranks"));
  EXPECT_THAT(text, HasSubstr("a.q_proj.weight bf16[64, 512], 64.0 KiB: row: axis 0 in parts of 32"));
  EXPECT_THAT(text, HasSubstr("expert, whole to part 1"));
  EXPECT_THAT(text, HasSubstr("a.norm.weight f32[512], 2.0 KiB: replicated"));
  EXPECT_THAT(to_string(plan, 1), HasSubstr("and 7 more"));
  EXPECT_THAT(to_string(plan.cost()), HasSubstr("storage 195.5 KiB (1.00 of the file)"));
}

TEST(ShardPlan, RefusesWhatCannotBeSplit) {
  const auto made = [](Header::Entry entry, ShardRule rule, ShardOptions options = {.ranks = 3}) {
    Header header;
    header.entries = {std::move(entry)};
    return make_shard_plan(header.infos(), std::span(&rule, 1), options);
  };
  const auto refused = [&](Header::Entry entry, ShardRule rule) {
    const auto plan = made(std::move(entry), std::move(rule));
    ASSERT_TRUE(fails_with(plan, Code::kInvalidArgument));
    EXPECT_THAT(plan.error().message(), HasSubstr("\"w\""));
  };
  refused({"w", DType::kF32, {}}, {"w", ShardKind::kRow});
  refused({"w", DType::kF32, {10}}, {"w", ShardKind::kRow, 4});
  refused({"w", DType::kF32, {10}}, {"w", ShardKind::kRow, 0});
  refused({"w", DType::kQ4_0, {4, 64}}, {"w", ShardKind::kColumn});
  refused({"w", DType::kQ4_0, {96}}, {"w", ShardKind::kRow, 6});
  EXPECT_TRUE(made({"w", DType::kQ4_0, {4, 96}}, {"w", ShardKind::kColumn}).value().check()) << "32 to each";
  EXPECT_TRUE(made({"w", DType::kQ4_0, {4, 64}}, {"w", ShardKind::kColumn, 32}).value().check()) << "one has none";
  EXPECT_TRUE(made({"w", DType::kQ4_0, {5, 64}}, {"w", ShardKind::kRow}).value().check());
  EXPECT_TRUE(fails_with(made({"w.7", DType::kF32, {4}}, {"w.#", ShardKind::kExpert}), Code::kInvalidArgument));
  for (const ShardOptions options :
       {ShardOptions{.ranks = 0}, ShardOptions{.ranks = 4, .parts = 3}, ShardOptions{.ranks = 2'000'000},
        ShardOptions{.ranks = 1, .piece_bytes = 0}, ShardOptions{.ranks = 1, .piece_bytes = 1000},
        ShardOptions{.ranks = 1, .alignment = 3}, ShardOptions{.ranks = 1, .alignment = 8192}})
    EXPECT_TRUE(fails_with(made({"w", DType::kF32, {4}}, {"w", ShardKind::kRow}, options), Code::kInvalidArgument));
}

TEST(ShardPlan, RefusesHeadersThatCannotBe) {
  const std::vector<std::size_t> shape{4}, huge{std::size_t{1} << 40, std::size_t{1} << 40};
  const auto made = [](std::vector<TensorInfo> infos) { return make_shard_plan(infos, {}, {.ranks = 2}); };
  const TensorInfo right{.name = "a", .shape = shape, .offset = 0, .bytes = 4};
  EXPECT_TRUE(made({right}));
  TensorInfo wrong = right;
  wrong.bytes = 5;
  EXPECT_TRUE(fails_with(made({wrong}), Code::kInvalidData));
  wrong = right;
  wrong.shape = huge;
  EXPECT_TRUE(fails_with(made({wrong}), Code::kInvalidData));
  wrong = right;
  wrong.offset = 2;
  EXPECT_TRUE(fails_with(made({right, wrong}), Code::kInvalidData)) << "they overlap";
  wrong.offset = UINT64_MAX - 1;
  EXPECT_TRUE(fails_with(made({wrong}), Code::kInvalidData));
  wrong = right;
  wrong.file = 1'000'000;
  EXPECT_TRUE(fails_with(made({wrong}), Code::kInvalidData));
  const std::vector<std::size_t> large{std::size_t{1} << 60};
  wrong = {.name = "large", .shape = large, .offset = 0, .bytes = std::uint64_t{1} << 60};
  TensorInfo second = wrong;
  second.file = 1;
  EXPECT_TRUE(fails_with(made({wrong, second}), Code::kInvalidData));
}

TEST(ShardPlan, OfNothingIsAPlan) {
  const ShardPlan plan = make_shard_plan({}, {}, {.ranks = 3}).value();
  EXPECT_TRUE(plan.check());
  EXPECT_EQ(plan.cost().storage_bytes, 0U);
  EXPECT_EQ(plan.memory_bytes(2), 0U);
  EXPECT_TRUE(ShardPlan().check());
}

TEST(ShardPlan, CheckFindsEachKindOfDamage) {
  Header header = model();
  const ShardPlan whole = make_shard_plan(header.infos(), model_rules(), {.ranks = 2, .piece_bytes = 4096}).value();
  ASSERT_TRUE(whole.check());
  const auto damaged = [&](auto damage) {
    ShardPlan plan = whole;
    damage(plan);
    return plan.check();
  };
  using Access = ShardPlanAccess;
  EXPECT_TRUE(
      fails_with(damaged([](ShardPlan& p) { Access::tensors(p)[1].target_offset -= 256; }), Code::kInvalidData));
  EXPECT_TRUE(fails_with(damaged([](ShardPlan& p) { Access::tensors(p)[7].file_offset += 2; }), Code::kInvalidData));
  EXPECT_TRUE(fails_with(damaged([](ShardPlan& p) { Access::tensors(p)[0].unit_bytes *= 2; }), Code::kInvalidData));
  EXPECT_TRUE(fails_with(damaged([](ShardPlan& p) { Access::tensors(p)[1].units -= 1; }), Code::kInvalidData));
  EXPECT_TRUE(fails_with(damaged([](ShardPlan& p) { Access::tensors(p)[1].axis = 0; }), Code::kInvalidData));
  EXPECT_TRUE(fails_with(damaged([](ShardPlan& p) { Access::tensors(p)[0].outer = 2; }), Code::kInvalidData));
  EXPECT_TRUE(fails_with(damaged([](ShardPlan& p) { Access::tensors(p)[3].owner = 1; }), Code::kInvalidData));
  EXPECT_TRUE(fails_with(damaged([](ShardPlan& p) { Access::first_piece(p).back() -= 1; }), Code::kInvalidData));
  EXPECT_TRUE(fails_with(damaged([](ShardPlan& p) { Access::shared_bytes(p) = 0; }), Code::kInvalidData));
  EXPECT_TRUE(fails_with(damaged([](ShardPlan& p) { Access::by_offset(p).pop_back(); }), Code::kInvalidData));
  EXPECT_TRUE(fails_with(damaged([](ShardPlan& p) { Access::by_offset(p)[1] = 0; }), Code::kInvalidData));
  EXPECT_TRUE(fails_with(damaged([](ShardPlan& p) { Access::options(p).piece_bytes *= 2; }), Code::kInvalidData));
}

TEST(ShardPlan, OfManyTensorsAndRanksIsNotQuadratic) {
  // 100,000 tensors and 10,000 ranks: 10^9 pairs. A quadratic step would run for minutes here.
  const std::vector<std::size_t> shape{4096, 512};
  std::vector<TensorInfo> infos(100'000, {.name = "", .shape = shape, .bytes = 4096 * 512 * 2, .dtype = DType::kBF16});
  std::vector<std::string> names(infos.size());
  for (std::size_t i = 0; i < infos.size(); ++i) {
    names[i] = (i % 3 == 0 ? "row" : i % 3 == 1 ? "column" : "whole") + std::to_string(i);
    infos[i].name = names[i];
    infos[i].offset = i * infos[i].bytes;
  }
  const auto rules = parse_shard_rules("row* row\ncolumn* column\n").value();
  const ShardPlan plan = make_shard_plan(infos, rules, {.ranks = 10'000}).value();
  const ShardCost cost = plan.cost();
  EXPECT_EQ(cost.storage_bytes, 100'000ULL * 4096 * 512 * 2);
  std::uint64_t bytes = 0;
  for (auto [number, end] = plan.reads(1234); number < end; ++number)
    plan.for_each_put(number, [&](const ShardPut& put) { bytes += put.bytes; });
  EXPECT_GT(bytes, 0U);
  EXPECT_GT(plan.puts_to(7), 0U);
}

TEST(Reshard, RefusesPlansOfOtherTensors) {
  Header header = model(), fewer = model(), renamed = model();
  fewer.entries.pop_back();
  renamed.entries[0].name = "other";
  const auto plan_of = [](Header& of) { return make_shard_plan(of.infos(), {}, {.ranks = 2}).value(); };
  const auto nothing = [](const ReshardMove&) {};
  EXPECT_TRUE(reshard(plan_of(header), plan_of(header), nothing));
  EXPECT_TRUE(fails_with(reshard(plan_of(header), plan_of(fewer), nothing), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(reshard(plan_of(header), plan_of(renamed), nothing), Code::kInvalidArgument));
}

}  // namespace
}  // namespace berth
