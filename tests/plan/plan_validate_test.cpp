// Each rule of plan.h broken once, and the judge compared with a slow one that looks at every pair.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "berth/plan/plan.h"

namespace berth {
namespace {

// Two nodes that live together, one after them in the place of the first, and one of zero bytes.
PlanProblem small_problem() {
  PlanProblem problem;
  problem.lifetimes = {{.bytes = 4096, .first = 0, .last = 2, .label = "first"},
                       {.bytes = 8192, .first = 1, .last = 3, .label = "second"},
                       {.bytes = 2048, .first = 2, .last = 4},
                       {.bytes = 0, .first = 0, .last = 4}};
  return problem;
}

MemoryPlan plan_for(const PlanProblem& problem, std::vector<std::uint64_t> offsets) {
  MemoryPlan plan;
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < problem.lifetimes.size(); ++i) {
    const std::uint64_t bytes = problem.lifetimes[i].bytes;
    plan.slots.push_back(bytes == 0 ? Slot{} : Slot{offsets[i], bytes, 0});
    if (bytes != 0) end = std::max(end, offsets[i] + bytes);
  }
  plan.blocks = {{.bytes = end}};
  plan.size = end;
  plan.lower_bound = end;
  plan.optimal = true;
  plan.fingerprint = fingerprint(problem);
  return plan;
}

MemoryPlan small_plan(const PlanProblem& problem) {
  return plan_for(problem, {0, 4096, 0, 0});
}

PlanRule rule_of(const PlanProblem& problem, const MemoryPlan& plan) {
  return validate(problem, plan).rule;
}

TEST(Validate, AcceptsAValidPlan) {
  const PlanProblem problem = small_problem();
  const Violation none = validate(problem, small_plan(problem));
  EXPECT_FALSE(none) << to_string(none.rule);
}

TEST(Validate, AcceptsThePlanOfNothing) {
  PlanProblem problem;
  MemoryPlan plan;
  plan.optimal = true;
  plan.fingerprint = fingerprint(problem);
  EXPECT_EQ(rule_of(problem, plan), PlanRule::kNone);
}

TEST(Validate, NamesAProblemThatBreaksItsOwnRules) {
  const auto broken = [](auto&& change) {
    PlanProblem problem = small_problem();
    change(problem);
    return validate(problem, small_plan(problem));
  };
  const auto expect_node = [&](std::uint32_t node, auto&& change) {
    const Violation found = broken(change);
    EXPECT_EQ(found.rule, PlanRule::kInvalidProblem);
    EXPECT_EQ(found.node, node);
  };
  expect_node(kNoNode, [](PlanProblem& p) { p.alignment = 3; });
  expect_node(1, [](PlanProblem& p) { p.lifetimes[1].alignment = 0; });
  expect_node(1, [](PlanProblem& p) { p.lifetimes[1].last = 0; });
  expect_node(1, [](PlanProblem& p) { p.lifetimes[1].last = 1; });
  expect_node(1, [](PlanProblem& p) { p.lifetimes[1].pinned = true, p.lifetimes[1].gaps = {{1, 2}}; });
  expect_node(1, [](PlanProblem& p) { p.lifetimes[1].gaps = {{0, 2}}; });
  expect_node(2, [](PlanProblem& p) { p.lifetimes[2].gaps = {{2, 3}, {2, 4}}; });
  expect_node(2, [](PlanProblem& p) { p.lifetimes[2].gaps = {{3, 3}}; });
  expect_node(0, [](PlanProblem& p) { p.lifetimes[0].alignment = 64, p.lifetimes[0].offset = 32; });
  expect_node(0, [](PlanProblem& p) { p.lifetimes[0].offset = ~std::uint64_t{0}; });
  expect_node(0, [](PlanProblem& p) { p.lifetimes[0].bank = 1; });
  expect_node(0, [](PlanProblem& p) { p.lifetimes[0].reuse_in_place = 9; });
  expect_node(0, [](PlanProblem& p) { p.lifetimes[0].reuse_in_place = 0; });
  expect_node(2, [](PlanProblem& p) { p.lifetimes[2].alias = AliasOf{9, 0}; });
  expect_node(2, [](PlanProblem& p) { p.lifetimes[2].alias = AliasOf{0, 4096}; });
  expect_node(2, [](PlanProblem& p) { p.lifetimes[2].alias = AliasOf{0, 0}, p.lifetimes[2].offset = 0; });
  expect_node(2, [](PlanProblem& p) { p.lifetimes[2].alias = AliasOf{0, 0}, p.lifetimes[2].lane = 1; });
  expect_node(2, [](PlanProblem& p) { p.lifetimes[2].alias = AliasOf{0, 32}, p.lifetimes[2].alignment = 64; });
}

TEST(Validate, NamesACycleOfAliases) {
  PlanProblem problem;
  problem.lifetimes = {{.bytes = 8, .first = 0, .last = 1}, {.bytes = 8, .first = 0, .last = 1}};
  problem.lifetimes[0].alias = AliasOf{1, 0};
  problem.lifetimes[1].alias = AliasOf{0, 0};
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0})), PlanRule::kInvalidProblem);
}

struct BrokenPlan {
  PlanRule rule;
  std::uint32_t node;
  void (*change)(MemoryPlan&);
};

TEST(Validate, NamesEachRuleThatASlotBreaks) {
  const BrokenPlan cases[] = {
      {PlanRule::kWrongCount, kNoNode, [](MemoryPlan& p) { p.slots.pop_back(); }},
      {PlanRule::kWrongProblem, kNoNode, [](MemoryPlan& p) { p.fingerprint ^= 1; }},
      {PlanRule::kMissingSlot, 1, [](MemoryPlan& p) { p.slots[1] = {}; }},
      {PlanRule::kUnexpectedSlot, 3, [](MemoryPlan& p) { p.slots[3].block = 0; }},
      {PlanRule::kWrongBytes, 2, [](MemoryPlan& p) { p.slots[2].bytes -= 1; }},
      {PlanRule::kUnknownBlock, 2, [](MemoryPlan& p) { p.slots[2].block = 1; }},
      {PlanRule::kOutsideBlock, 1, [](MemoryPlan& p) { p.slots[1].offset += 1; }},
      {PlanRule::kOutsideBlock, 1, [](MemoryPlan& p) { p.slots[1].offset = ~std::uint64_t{0}; }},
      {PlanRule::kOverlap, 1, [](MemoryPlan& p) { p.slots[1].offset -= 1; }},
      {PlanRule::kWrongLane, 0, [](MemoryPlan& p) { p.blocks[0].lane = 1; }},
      {PlanRule::kWrongBank, kNoNode, [](MemoryPlan& p) { p.blocks[0].bank = 1; }},
      {PlanRule::kWrongSize, kNoNode, [](MemoryPlan& p) { p.size += 1, p.optimal = false; }},
      {PlanRule::kWrongSize, kNoNode, [](MemoryPlan& p) { p.blocks[0].bytes += 1, p.size += 1, p.optimal = false; }},
      {PlanRule::kWrongSize, kNoNode, [](MemoryPlan& p) { p.blocks.push_back({}); }},
      {PlanRule::kWrongBound, kNoNode, [](MemoryPlan& p) { p.lower_bound += 1, p.optimal = false; }},
      {PlanRule::kWrongBound, kNoNode, [](MemoryPlan& p) { p.optimal = false; }},
      {PlanRule::kWrongBound, kNoNode, [](MemoryPlan& p) { p.lower_bound -= 1; }},
  };
  const PlanProblem problem = small_problem();
  for (const BrokenPlan& broken : cases) {
    MemoryPlan plan = small_plan(problem);
    broken.change(plan);
    const Violation found = validate(problem, plan);
    EXPECT_EQ(to_string(found.rule), to_string(broken.rule));
    EXPECT_EQ(found.node, broken.node) << to_string(broken.rule);
  }
}

TEST(Validate, NamesBothNodesOfAnOverlapAndSaysWhere) {
  const PlanProblem problem = small_problem();
  MemoryPlan plan = small_plan(problem);
  plan.slots[1].offset = 4000;
  const Violation found = validate(problem, plan);
  EXPECT_EQ(
      describe(found, problem, plan),
      "Overlap: two nodes share bytes and a level: \"second\" (levels [1, 3), bytes [4000, 12192) of block 0) and "
      "\"first\" (levels [0, 2), bytes [0, 4096) of block 0)");
}

TEST(Validate, DescribesRulesThatBlameNoNode) {
  PlanProblem problem = small_problem();
  problem.capacity = 100;
  const MemoryPlan plan = small_plan(problem);
  EXPECT_EQ(describe(validate(problem, plan), problem, plan),
            "OverCapacity: the plan exceeds the capacity: 12288 of 100 bytes");
  MemoryPlan empty;
  EXPECT_EQ(describe(validate(problem, empty), problem, empty),
            "WrongCount: the plan has not one slot for each lifetime: 0 slots for 4");
}

TEST(Validate, GivesEveryRuleANameAndASentenceOfItsOwn) {
  std::set<std::string_view> names;
  std::set<std::string> sentences;
  for (int i = 0; i <= static_cast<int>(PlanRule::kWrongBound); ++i) {
    names.insert(to_string(static_cast<PlanRule>(i)));
    sentences.insert(describe({static_cast<PlanRule>(i)}, {}, {}));
  }
  EXPECT_EQ(names.size(), 21u);
  EXPECT_EQ(sentences.size(), 21u);
  EXPECT_FALSE(names.contains("Unknown"));
}

TEST(Validate, HoldsSlotsToTheProblemsAlignmentAndTheirOwn) {
  PlanProblem problem = small_problem();
  problem.lifetimes[2].alignment = 1024;
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 4096, 512, 0})), PlanRule::kMisaligned);
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 4096, 1024, 0})), PlanRule::kNone);
  problem = small_problem();
  problem.alignment = 64;
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 4100, 0, 0})), PlanRule::kMisaligned);
}

TEST(Validate, HoldsFixedOffsetsInTheirHomeBlock) {
  PlanProblem problem = small_problem();
  problem.lifetimes[2].offset = 1024;
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 4096, 1024, 0})), PlanRule::kNone);
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 4096, 0, 0})), PlanRule::kMovedFixed);
  MemoryPlan plan = plan_for(problem, {0, 4096, 1024, 0});
  plan.blocks.push_back({.bytes = 3072});
  plan.slots[2].block = 1;
  plan.size += 3072;
  plan.lower_bound = plan.size;
  EXPECT_EQ(rule_of(problem, plan), PlanRule::kMovedFixed);
}

TEST(Validate, HoldsAliasesInTheirWindow) {
  PlanProblem problem = small_problem();
  problem.lifetimes.push_back({.bytes = 1024, .first = 1, .last = 3, .alias = AliasOf{1, 512}});
  problem.lifetimes.push_back({.bytes = 256, .first = 1, .last = 3, .alias = AliasOf{4, 256}});
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 4096, 0, 0, 4608, 4864})), PlanRule::kNone);
  const Violation found = validate(problem, plan_for(problem, {0, 4096, 0, 0, 4608, 4608}));
  EXPECT_EQ(found.rule, PlanRule::kBrokenAlias);
  EXPECT_EQ(found.node, 5u);
  EXPECT_EQ(found.other, 1u);
}

TEST(Validate, LetsARootLiveAsLongAsItsAliases) {
  PlanProblem problem = small_problem();
  problem.lifetimes.push_back({.bytes = 16, .first = 2, .last = 3, .alias = AliasOf{0, 0}});
  const Violation found = validate(problem, plan_for(problem, {0, 4096, 0, 0, 0}));
  EXPECT_EQ(found.rule, PlanRule::kOverlap);
  EXPECT_EQ(found.node, 2u);
  EXPECT_EQ(found.other, 0u);
}

TEST(Validate, LetsPinnedNodesLiveAlways) {
  PlanProblem problem = small_problem();
  problem.lifetimes[0].pinned = true;
  EXPECT_EQ(rule_of(problem, small_plan(problem)), PlanRule::kOverlap);
}

TEST(Validate, LetsOthersUseAGapButNoLevelMore) {
  PlanProblem problem;
  problem.lifetimes = {{.bytes = 64, .first = 0, .last = 9, .gaps = {{2, 4}, {6, 8}}},
                       {.bytes = 64, .first = 2, .last = 4},
                       {.bytes = 32, .first = 6, .last = 8}};
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0, 0})), PlanRule::kNone);
  problem.lifetimes[1].last = 5;
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0, 0})), PlanRule::kOverlap);
}

TEST(Validate, FillsAGapInWhichAnAliasLives) {
  PlanProblem problem;
  problem.lifetimes = {{.bytes = 64, .first = 0, .last = 9, .gaps = {{2, 4}, {6, 8}}},
                       {.bytes = 64, .first = 6, .last = 8},
                       {.bytes = 32, .first = 3, .last = 4, .alias = AliasOf{0, 0}}};
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0, 0})), PlanRule::kNone);
  problem.lifetimes[1] = {.bytes = 64, .first = 2, .last = 4};
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0, 0})), PlanRule::kOverlap);
  // The rest of the gap is still one.
  problem.lifetimes[1] = {.bytes = 64, .first = 2, .last = 3};
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0, 0})), PlanRule::kNone);
}

TEST(Validate, KeepsPinnedNodesApartWhenThereIsNothingElse) {
  PlanProblem problem;
  problem.lifetimes = {{.bytes = 64, .pinned = true}, {.bytes = 64, .pinned = true}};
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0})), PlanRule::kOverlap);
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 64})), PlanRule::kNone);
}

TEST(Validate, LetsNodesOfZeroBytesKeepNothingAlive) {
  PlanProblem problem = small_problem();
  problem.lifetimes[3].alias = AliasOf{0, 0};
  EXPECT_EQ(rule_of(problem, small_plan(problem)), PlanRule::kNone);
}

PlanProblem in_place_problem() {
  PlanProblem problem;
  problem.lifetimes = {{.bytes = 64, .first = 0, .last = 3}, {.bytes = 64, .first = 2, .last = 5}};
  problem.lifetimes[1].reuse_in_place = 0;
  return problem;
}

TEST(Validate, LetsANodeTakeTheExactPlaceOfAnother) {
  PlanProblem problem = in_place_problem();
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0})), PlanRule::kNone);
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 64})), PlanRule::kNone);
  problem.lifetimes[1].bytes = 32;
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0})), PlanRule::kNone);
}

TEST(Validate, NamesAPlaceTakenWrongly) {
  PlanProblem problem = in_place_problem();
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 32})), PlanRule::kBrokenInPlace);
  problem.lifetimes[1].bytes = 96;
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0})), PlanRule::kBrokenInPlace);
}

TEST(Validate, RefusesAPlaceTakenWhileItIsStillNeeded) {
  PlanProblem problem = in_place_problem();
  problem.lifetimes[0].last = 4;
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0})), PlanRule::kOverlap);
}

TEST(Validate, RefusesAPlaceTakenFromAPinnedNode) {
  PlanProblem problem = in_place_problem();
  problem.lifetimes[0] = {.bytes = 64, .first = 0, .last = 3, .pinned = true};
  problem.lifetimes[1].last = 3;
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0})), PlanRule::kOverlap);
}

TEST(Validate, RefusesTwoNodesInOnePlace) {
  PlanProblem problem = in_place_problem();
  problem.lifetimes.push_back({.bytes = 16, .first = 2, .last = 4});
  problem.lifetimes[2].reuse_in_place = 0;
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0, 0})), PlanRule::kOverlap);
}

TEST(Validate, ProtectsTheRestOfAPlaceThatWasTakenInPart) {
  PlanProblem problem = in_place_problem();
  problem.lifetimes[1].bytes = 32;
  problem.lifetimes.push_back({.bytes = 32, .first = 2, .last = 4});
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0, 32})), PlanRule::kOverlap);
  problem.lifetimes[2].first = 3;
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0, 32})), PlanRule::kNone);
}

TEST(Validate, RefusesAChainOfPlacesTakenInOneLevel) {
  // 1 takes 0's place at level 2 and dies there; 2 takes 1's place at level 2 too, so it meets 0.
  PlanProblem problem = in_place_problem();
  problem.lifetimes[1].last = 3;
  problem.lifetimes.push_back({.bytes = 64, .first = 2, .last = 4});
  problem.lifetimes[2].reuse_in_place = 1;
  const Violation found = validate(problem, plan_for(problem, {0, 0, 0}));
  EXPECT_EQ(found.rule, PlanRule::kOverlap);
  // One level later it is a legal chain.
  problem.lifetimes[1].last = 4;
  problem.lifetimes[2].first = 3;
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0, 0})), PlanRule::kNone);
}

TEST(Validate, LetsANodeTakeThePlaceOfOneThatStartsAtTheSameLevelButComesLaterInTheList) {
  PlanProblem problem;
  problem.lifetimes = {{.bytes = 64, .first = 2, .last = 5}, {.bytes = 64, .first = 2, .last = 3}};
  problem.lifetimes[0].reuse_in_place = 1;
  EXPECT_EQ(rule_of(problem, plan_for(problem, {0, 0})), PlanRule::kNone);
}

TEST(Validate, CountsLanesBanksAndBlocks) {
  PlanProblem problem;
  problem.banks = {{"sram", 100}, {"dram", 0}};
  problem.max_block_bytes = 80;
  problem.lifetimes = {{.bytes = 64, .first = 0, .last = 2}, {.bytes = 64, .first = 0, .last = 2}};
  problem.lifetimes[1].bank = 1;
  MemoryPlan plan;
  plan.slots = {{0, 64, 0}, {0, 64, 1}};
  plan.blocks = {{64, 0, 0}, {64, 1, 0}};
  plan.size = plan.lower_bound = 128;
  plan.optimal = true;
  plan.fingerprint = fingerprint(problem);
  EXPECT_EQ(rule_of(problem, plan), PlanRule::kNone);

  MemoryPlan wrong_bank = plan;
  wrong_bank.blocks[1].bank = 0;
  EXPECT_EQ(validate(problem, wrong_bank).node, 1u);
  EXPECT_EQ(rule_of(problem, wrong_bank), PlanRule::kWrongBank);

  problem.lifetimes[1].bank = 0;
  wrong_bank.fingerprint = fingerprint(problem);
  EXPECT_EQ(rule_of(problem, wrong_bank), PlanRule::kBankOverfull);

  problem.banks[0].capacity = 0;
  problem.max_block_bytes = 63;
  wrong_bank.fingerprint = fingerprint(problem);
  EXPECT_EQ(rule_of(problem, wrong_bank), PlanRule::kBlockTooLarge);

  problem.max_block_bytes = 64;
  problem.capacity = 127;
  wrong_bank.fingerprint = fingerprint(problem);
  EXPECT_EQ(rule_of(problem, wrong_bank), PlanRule::kOverCapacity);
}

// A judge that compares every pair at every level: slow, and obviously right.
bool some_pair_meets(const PlanProblem& problem, const MemoryPlan& plan) {
  const auto alive = [&](std::size_t i, std::int64_t level) {
    const Lifetime& life = problem.lifetimes[i];
    if (life.pinned) return true;
    for (const LevelRange& gap : life.gaps)
      if (gap.first <= level && level < gap.last) return false;
    return life.first <= level && level < life.last;
  };
  const auto may_share = [&](std::size_t taker, std::size_t giver, std::int64_t level) {
    const Lifetime& a = problem.lifetimes[taker];
    const Lifetime& b = problem.lifetimes[giver];
    return a.reuse_in_place == static_cast<std::uint32_t>(giver) && !a.pinned && !b.pinned && a.first == level &&
           b.last == level + 1 && plan.slots[taker].offset == plan.slots[giver].offset && a.bytes <= b.bytes;
  };
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Slot &a = plan.slots[i], &b = plan.slots[j];
      if (a.bytes == 0 || b.bytes == 0 || a.offset >= b.offset + b.bytes || b.offset >= a.offset + a.bytes) continue;
      for (std::int64_t level = 0; level < 12; ++level)
        if (alive(i, level) && alive(j, level) && !may_share(i, j, level) && !may_share(j, i, level)) return true;
    }
  }
  return false;
}

RC_GTEST_PROP(ValidateProperty, AgreesWithAJudgeThatLooksAtEveryPair, ()) {
  const std::size_t count = *rc::gen::inRange<std::size_t>(1, 9);
  PlanProblem problem;
  std::vector<std::uint64_t> offsets;
  // The whole range of levels is always in use, so that "pinned" means all twelve.
  problem.lifetimes.push_back({.bytes = 1, .first = 0, .last = 12});
  offsets.push_back(1000);
  for (std::size_t i = 1; i <= count; ++i) {
    Lifetime life;
    life.bytes = *rc::gen::inRange<std::uint64_t>(0, 4);
    life.first = *rc::gen::inRange<std::int64_t>(0, 12);
    life.last = life.first + *rc::gen::inRange<std::int64_t>(1, 13 - life.first);
    if (*rc::gen::inRange(0, 8) == 0) life.pinned = true;
    if (*rc::gen::inRange(0, 2) == 0) {
      const auto target = *rc::gen::inRange<std::uint32_t>(0, static_cast<std::uint32_t>(count + 1));
      if (target != i) life.reuse_in_place = target;
    }
    if (!life.pinned && life.last - life.first > 2 && *rc::gen::inRange(0, 3) == 0)
      life.gaps = {{life.first + 1, life.first + 2}};
    problem.lifetimes.push_back(life);
    offsets.push_back(*rc::gen::inRange<std::uint64_t>(0, 10));
  }
  const MemoryPlan plan = plan_for(problem, offsets);
  const Violation found = validate(problem, plan);
  const bool meets = some_pair_meets(problem, plan);
  RC_CLASSIFY(meets);
  if (meets) {
    RC_ASSERT(found.rule == PlanRule::kOverlap || found.rule == PlanRule::kBrokenInPlace);
  } else {
    RC_ASSERT(to_string(found.rule) == "None");
  }
}

}  // namespace
}  // namespace berth
