#include "berth/plan/plan_files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdio>
#include <fstream>

namespace berth {
namespace {

PlanTable parsed(std::string_view text) {
  return parse_plan_csv(text, "p.csv").value();
}

std::string refusal(std::string_view text) {
  const auto result = parse_plan_csv(text, "p.csv");
  if (result) return "accepted";
  EXPECT_EQ(result.error().code(), Code::kInvalidData);
  return result.error().message();
}

TEST(PlanCsv, ReadsTheFourColumnsInAnyOrder) {
  for (const char* text :
       {"id,lower,upper,size\na,0,2,4096\nb,1,3,8192\n", "size,upper,id,lower\n4096,2,a,0\n8192,3,b,1",
        "\xEF\xBB\xBF"
        "id, lower ,upper,size\r\n"
        "\r\na,0, 2,4096\r\n b ,1,3,8192\r\n\r\n"}) {
    const PlanTable table = parsed(text);
    ASSERT_EQ(table.problem.lifetimes.size(), 2u) << text;
    EXPECT_EQ(table.ids, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(table.problem.lifetimes[1].bytes, 8192u);
    EXPECT_EQ(table.problem.lifetimes[1].first, 1);
    EXPECT_EQ(table.problem.lifetimes[1].last, 3);
    EXPECT_FALSE(table.problem.lifetimes[1].offset);
    EXPECT_TRUE(table.problem.banks.empty());
  }
}

TEST(PlanCsv, ReadsEveryOptionalColumn) {
  const PlanTable table = parsed(
      "id,lower,upper,size,alignment,offset,gaps,hint,label,bank\n"
      "a,-4,9,10,64,128,-3--1 2-4,256,\"conv \"\"1\"\", out\",2\n"
      "b,0,1,0,,,,,,\n");
  const Lifetime& a = table.problem.lifetimes[0];
  EXPECT_EQ(a.first, -4);
  EXPECT_EQ(a.alignment, 64u);
  EXPECT_EQ(a.offset, 128u);
  ASSERT_EQ(a.gaps.size(), 2u);
  EXPECT_EQ(a.gaps[0].first, -3);
  EXPECT_EQ(a.gaps[0].last, -1);
  EXPECT_EQ(a.gaps[1].last, 4);
  EXPECT_EQ(a.hint, 256u);
  EXPECT_EQ(a.label, "conv \"1\", out");
  EXPECT_EQ(a.bank, 2u);
  const Lifetime& b = table.problem.lifetimes[1];
  EXPECT_EQ(b.alignment, 1u);
  EXPECT_FALSE(b.offset || b.hint || b.bank);
  EXPECT_EQ(table.problem.banks.size(), 3u);
}

TEST(PlanCsv, SaysFileLineColumnAndWhatWasExpected) {
  const std::string head = "id,lower,upper,size\n";
  EXPECT_EQ(refusal(""), "p.csv:1:1: expected a header such as id,lower,upper,size, found an empty file");
  EXPECT_EQ(refusal("id,lower,upper\n"),
            "p.csv:1:1: expected a column size in the header; id, lower, upper and size must all be there");
  EXPECT_EQ(
      refusal("id,lower,upper,bytes\n"),
      "p.csv:1:16: expected one of the columns id, lower, upper, size, alignment, offset, gaps, hint, label, bank, "
      "found \"bytes\"");
  EXPECT_EQ(refusal("id,lower,lower,size\n"), "p.csv:1:10: the column lower is there twice");
  EXPECT_EQ(refusal(head + "a,0,1,2\nb,0,1\n"), "p.csv:3:1: expected 4 fields as in the header, found 3");
  EXPECT_EQ(refusal(head + "a,0,1,2,7\n"), "p.csv:2:9: expected 4 fields as in the header, found 5");
  EXPECT_EQ(refusal(head + "a,0,1,12x\n"), "p.csv:2:7: expected a whole number of bytes for size, found \"12x\"");
  EXPECT_EQ(refusal(head + "a,0,1,-1\n"), "p.csv:2:7: expected a whole number of bytes for size, found \"-1\"");
  EXPECT_EQ(refusal(head + "a,0,1,\n"), "p.csv:2:7: expected a whole number of bytes for size, found nothing");
  EXPECT_EQ(refusal(head + "a,0,1,99999999999999999999\n"),
            "p.csv:2:7: expected a whole number of bytes for size up to 18446744073709551615, found "
            "\"99999999999999999999\"");
  EXPECT_EQ(refusal(head + "a, 1.5,2,1\n"), "p.csv:2:4: expected a whole number for lower, found \"1.5\"");
  EXPECT_EQ(refusal(head + "a,0,x,1\n"), "p.csv:2:5: expected a whole number for upper, found \"x\"");
  EXPECT_EQ(refusal(head + "a,3,3,1\n"),
            "p.csv:2:5: expected upper to be more than lower, which is \"3\", found \"3\"");
  EXPECT_EQ(refusal(head + ",0,1,1\n"), "p.csv:2:1: expected an id, found nothing");
  EXPECT_EQ(refusal(head + "a,0,1,1\n\na,0,1,1\n"),
            "p.csv:4:1: expected an id of its own, found \"a\" again, which line 2 has");
  EXPECT_EQ(refusal(head + "\"a,0,1,1\n"), "p.csv:2:1: expected a closing quote before the line ends");
  EXPECT_EQ(refusal(head + "\"a\"b,0,1,1\n"), "p.csv:2:4: expected a comma after the closing quote, found \"b\"");
}

TEST(PlanCsv, RefusesOptionalColumnsThatMakeNoSense) {
  const auto with = [](const std::string& column, const std::string& value) {
    return refusal("id,lower,upper,size," + column + "\na,0,9,1," + value + "\n");
  };
  EXPECT_EQ(with("alignment", "48"), "p.csv:2:9: expected a power of two for alignment, found \"48\"");
  EXPECT_EQ(with("alignment", "0"), "p.csv:2:9: expected a power of two for alignment, found \"0\"");
  EXPECT_EQ(with("alignment", "x"), "p.csv:2:9: expected a power of two for alignment, found \"x\"");
  EXPECT_EQ(with("offset", "x"), "p.csv:2:9: expected a whole number of bytes for offset, or nothing, found \"x\"");
  EXPECT_EQ(with("hint", "-2"), "p.csv:2:9: expected a whole number of bytes for hint, or nothing, found \"-2\"");
  EXPECT_EQ(with("bank", "1024"), "p.csv:2:9: expected a bank below 1024, found \"1024\"");
  EXPECT_EQ(with("bank", "dram"), "p.csv:2:9: expected the number of a bank, from 0, found \"dram\"");
  EXPECT_EQ(with("gaps", "1-2 x"), "p.csv:2:13: expected gaps such as \"3-5 7-8\", found \"x\"");
  EXPECT_EQ(with("gaps", "1-"), "p.csv:2:9: expected gaps such as \"3-5 7-8\", found \"1-\"");
  EXPECT_EQ(with("gaps", "1-2;"), "p.csv:2:9: expected gaps such as \"3-5 7-8\", found \"1-2;\"");
  EXPECT_EQ(with("gaps", "3-5 4-6"),
            "p.csv:2:13: expected gaps in ascending order, disjoint, inside the life [0, 9), found \"4-6\"");
  EXPECT_EQ(with("gaps", "3-10"),
            "p.csv:2:9: expected gaps in ascending order, disjoint, inside the life [0, 9), found \"3-10\"");
}

TEST(PlanCsv, KeepsControlCharactersOutOfItsErrors) {
  const std::string message = refusal("id,lower,upper,size\na,0,1,\x1b[31m" + std::string(100, 'x') + "\n");
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_NE(message.find("...\""), std::string::npos);
}

TEST(PlanCsv, SaysWhenAFileCannotBeOpened) {
  const auto result = read_plan_csv("/nowhere/p.csv");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), Code::kIo);
  EXPECT_EQ(result.error().message(), "/nowhere/p.csv: cannot be opened: No such file or directory");
}

TEST(PlanCsv, ReadsAFile) {
  const std::string path = testing::TempDir() + "berth_plan_files_test.csv";
  std::ofstream(path) << "id,lower,upper,size\nx,0,1,2\n";
  EXPECT_EQ(read_plan_csv(path).value().ids[0], "x");
  std::remove(path.c_str());
}

MemoryPlan plan_of(const PlanProblem& problem, std::vector<Slot> slots) {
  MemoryPlan plan;
  plan.slots = std::move(slots);
  for (const Slot& slot : plan.slots) {
    if (slot.block == kNoBlock) continue;
    if (slot.block >= plan.blocks.size()) plan.blocks.resize(slot.block + 1);
    plan.blocks[slot.block].bytes = std::max(plan.blocks[slot.block].bytes, slot.offset + slot.bytes);
  }
  for (const PlanBlock& block : plan.blocks) plan.size += block.bytes;
  plan.lower_bound = plan.size;
  plan.optimal = true;
  plan.strategy = "by \"hand\"";
  plan.seconds = 0.25;
  plan.work = 17;
  plan.fingerprint = fingerprint(problem);
  return plan;
}

TEST(PlanCsv, WritesTheInputPlusOffset) {
  const PlanTable table = parsed("size,id,lower,upper\n4096,a,0,2\n8192,\"b,c\",1,3\n0,z,0,3\n");
  const MemoryPlan plan = plan_of(table.problem, {{0, 4096, 0}, {4096, 8192, 0}, {}});
  EXPECT_EQ(format_plan_csv(table, plan),
            "size,id,lower,upper,offset\n4096,a,0,2,0\n8192,\"b,c\",1,3,4096\n0,z,0,3,\n");
}

TEST(PlanCsv, FillsAnOffsetColumnWhereItIs) {
  const PlanTable table = parsed("id,offset,lower,upper,size\na,0,0,2,64\nb,,1,3,64\n");
  const MemoryPlan plan = plan_of(table.problem, {{0, 64, 0}, {64, 64, 0}});
  EXPECT_EQ(format_plan_csv(table, plan), "id,offset,lower,upper,size\na,0,0,2,64\nb,64,1,3,64\n");
}

TEST(PlanCsv, NamesTheBlockWhenThereAreSeveral) {
  const PlanTable table = parsed("id,lower,upper,size\na,0,2,64\nb,1,3,64\n");
  const MemoryPlan plan = plan_of(table.problem, {{0, 64, 0}, {0, 64, 1}});
  EXPECT_EQ(format_plan_csv(table, plan), "id,lower,upper,size,offset,block\na,0,2,64,0,0\nb,1,3,64,0,1\n");
}

RC_GTEST_PROP(PlanCsvProperty, ReadsBackWhatItWrites, ()) {
  PlanTable table;
  table.columns = {PlanColumn::kLabel,  PlanColumn::kSize,  PlanColumn::kId,
                   PlanColumn::kUpper,  PlanColumn::kLower, PlanColumn::kAlignment,
                   PlanColumn::kOffset, PlanColumn::kHint,  PlanColumn::kGaps};
  const std::size_t count = *rc::gen::inRange<std::size_t>(0, 20);
  for (std::size_t i = 0; i < count; ++i) {
    Lifetime life;
    life.bytes = *rc::gen::arbitrary<std::uint64_t>();
    life.first = *rc::gen::inRange<std::int64_t>(-1000, 1000);
    life.last = life.first + *rc::gen::inRange<std::int64_t>(1, 1000);
    life.alignment = std::uint64_t{1} << *rc::gen::inRange(0, 64);
    if (*rc::gen::arbitrary<bool>()) life.offset = *rc::gen::arbitrary<std::uint64_t>();
    if (*rc::gen::arbitrary<bool>()) life.hint = *rc::gen::arbitrary<std::uint64_t>();
    if (life.last - life.first > 5) life.gaps = {{life.first, life.first + 1}, {life.last - 2, life.last}};
    life.label = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab ,\"'\t")));
    table.ids.push_back("n" + std::to_string(i));
    table.problem.lifetimes.push_back(life);
  }
  const std::string text = format_plan_csv(table);
  const auto again = parse_plan_csv(text, "again");
  RC_ASSERT(again.has_value());
  RC_ASSERT(format_plan_csv(*again) == text);
  RC_ASSERT(fingerprint(again->problem) == fingerprint(table.problem));
  for (std::size_t i = 0; i < count; ++i)
    RC_ASSERT(again->problem.lifetimes[i].label == table.problem.lifetimes[i].label);
}

class PlanJson : public testing::Test {
 protected:
  PlanTable table_ = parsed("id,lower,upper,size\na,0,2,4096\nb,1,3,8192\nz,0,3,0\n");
  MemoryPlan plan_ = plan_of(table_.problem, {{0, 4096, 0}, {4096, 8192, 0}, {}});

  std::string refusal_after(const std::string& from, const std::string& to) {
    std::string json = plan_to_json(plan_);
    const std::size_t at = json.find(from);
    EXPECT_NE(at, std::string::npos) << from << " is not in " << json;
    json.replace(at, from.size(), to);
    const auto result = plan_from_json(json, table_.problem);
    return result ? "accepted" : result.error().message();
  }
};

TEST_F(PlanJson, ReadsBackWhatItWrites) {
  const MemoryPlan again = plan_from_json(plan_to_json(plan_), table_.problem).value();
  EXPECT_EQ(again.slots, plan_.slots);
  EXPECT_EQ(again.blocks, plan_.blocks);
  EXPECT_EQ(again.size, plan_.size);
  EXPECT_EQ(again.lower_bound, plan_.lower_bound);
  EXPECT_EQ(again.optimal, plan_.optimal);
  EXPECT_EQ(again.strategy, plan_.strategy);
  EXPECT_EQ(again.work, plan_.work);
  EXPECT_EQ(again.seconds, plan_.seconds);
  EXPECT_EQ(again.fingerprint, plan_.fingerprint);
}

TEST_F(PlanJson, RefusesAPlanForAnotherProblem) {
  PlanProblem other = table_.problem;
  other.lifetimes[0].last = 1;
  const auto result = plan_from_json(plan_to_json(plan_), other);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), Code::kSizeMismatch);
  EXPECT_NE(result.error().message().find("for another problem"), std::string::npos);
}

TEST_F(PlanJson, RefusesAPlanWhoseSlotsWereTamperedWith) {
  EXPECT_EQ(refusal_after("[0, 4096, 8192]", "[0, 4095, 8192]").substr(0, 31), "the plan does not hold: Overlap");
  EXPECT_EQ(refusal_after("[0, 4096, 8192]", "[7, 4096, 8192]").substr(0, 36), "the plan does not hold: UnknownBlock");
}

TEST_F(PlanJson, RefusesWhatIsNotAPlan) {
  const auto refused = [&](std::string_view json) {
    const auto result = plan_from_json(json, table_.problem);
    EXPECT_FALSE(result);
    EXPECT_EQ(result.error().code(), Code::kInvalidData);
    return result.error().message();
  };
  EXPECT_EQ(refused("{"), "this is not a plan: it is not JSON");
  EXPECT_EQ(refused("[]"), "this is not a plan: expected an object whose \"format\" is \"berth-plan\"");
  EXPECT_EQ(refused("{\"format\": 3}"), "this is not a plan: expected an object whose \"format\" is \"berth-plan\"");
  EXPECT_EQ(refusal_after("\"version\": 1", "\"version\": 2"), "this is not a plan: expected \"version\" 1");
  const std::string digits = "this is not a plan: expected \"fingerprint\" to be 16 hexadecimal digits";
  EXPECT_EQ(refusal_after("\"fingerprint\"", "\"finger\""), digits);
  EXPECT_EQ(refusal_after("\"fingerprint\": \"", "\"fingerprint\": \"x"), digits);
  const std::string whole = fmt::format("\"{:016x}\"", plan_.fingerprint);
  for (const std::string& other :
       {whole.substr(0, 16) + "\"", whole.substr(0, 17) + "0\"", whole.substr(0, 16) + "x\""})
    EXPECT_EQ(refusal_after(whole, other), digits) << other;
  EXPECT_EQ(refusal_after("\"size\": 12288", "\"size\": -1"),
            "this is not a plan: expected a whole number for \"size\"");
  EXPECT_EQ(refusal_after("\"optimal\": true", "\"optimal\": 1"),
            "this is not a plan: expected \"optimal\" to be true or false");
  EXPECT_EQ(refusal_after("\"strategy\"", "\"s\""), "this is not a plan: expected \"strategy\" to be a name");
  EXPECT_EQ(refusal_after("\"seconds\"", "\"s\""), "this is not a plan: expected \"seconds\" to be a number");
  EXPECT_EQ(refusal_after("\"blocks\"", "\"b\""), "this is not a plan: expected a list \"blocks\"");
  EXPECT_EQ(refusal_after("[{\"bytes\"", "[3, {\"bytes\""),
            "this is not a plan: expected a block to be an object with bytes, bank and lane");
  EXPECT_EQ(refusal_after("\"bank\": 0", "\"bank\": 5000000000"), "this is not a plan: a bank or lane is out of range");
  EXPECT_EQ(refusal_after("\"slots\"", "\"s\""), "this is not a plan: expected a list \"slots\"");
  for (const char* slot : {"[0, 0]", "{}", "[0, 0, 0, 0]", "[-1, 0, 0]", "[\"0\", 0, 0]", "[0, -1, 0]", "[0, \"0\", 0]",
                           "[0, 0, -1]", "[0, 0, 0.5]", "[4294967296, 0, 0]"})
    EXPECT_EQ(refusal_after("null", slot), "this is not a plan: expected a slot to be [block, offset, bytes] or null")
        << slot;
}

}  // namespace
}  // namespace berth
