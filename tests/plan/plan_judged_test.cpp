// Random problems that use every feature of plan.h at once. Whatever the planner answers, the judge must agree.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "berth/plan/plan.h"
#include "berth/plan/plan_files.h"

namespace berth {
namespace {

PlanProblem random_problem() {
  PlanProblem problem;
  const auto count = *rc::gen::inRange<std::uint32_t>(1, 14);
  const auto chance = [](int in) { return *rc::gen::inRange(0, in) == 0; };
  if (chance(3)) problem.alignment = 16;
  if (chance(3)) problem.banks = {{"near", *rc::gen::inRange<std::uint64_t>(64, 512)}, {"far", 0}};
  if (chance(5)) problem.max_block_bytes = 512;
  for (std::uint32_t i = 0; i < count; ++i) {
    Lifetime life;
    life.bytes = *rc::gen::inRange<std::uint64_t>(0, 200);
    life.first = *rc::gen::inRange<std::int64_t>(0, 20);
    life.last = life.first + *rc::gen::inRange<std::int64_t>(1, 10);
    if (chance(4)) life.alignment = 64;
    if (chance(10)) life.pinned = true;
    if (chance(8)) life.lane = 1;
    if (chance(6)) life.hint = *rc::gen::inRange<std::uint64_t>(0, 10) * 64;
    if (!life.pinned && life.last - life.first > 3 && chance(3)) life.gaps = {{life.first + 1, life.last - 1}};
    if (i > 0 && chance(4)) {
      const auto target = *rc::gen::inRange<std::uint32_t>(0, i);
      const Lifetime& parent = problem.lifetimes[target];
      if (chance(2)) {
        life.alias = AliasOf{target, parent.bytes / 2};
        life.bytes = parent.bytes - parent.bytes / 2;
        life.alignment = 1;
        life.lane = parent.lane;
        life.gaps.clear();
      } else {
        life.reuse_in_place = target;
        if (chance(2)) {
          life.first = parent.last - 1;
          life.last = std::max(life.last, life.first + 1);
          life.lane = parent.lane;
          life.gaps.clear();
        }
      }
    }
    if (!life.alias && !problem.banks.empty() && chance(4)) life.bank = 1;
    problem.lifetimes.push_back(life);
  }
  return problem;
}

// For whoever reads a failure: the problem, a node a line.
std::string written(const PlanProblem& problem) {
  std::string out = "alignment " + std::to_string(problem.alignment) + ", largest block " +
                    std::to_string(problem.max_block_bytes) + "\n";
  for (const Bank& bank : problem.banks) out += "bank of " + std::to_string(bank.capacity) + "\n";
  for (const Lifetime& life : problem.lifetimes) {
    out +=
        std::to_string(life.bytes) + " bytes [" + std::to_string(life.first) + ", " + std::to_string(life.last) + ")";
    out += " align " + std::to_string(life.alignment) + " lane " + std::to_string(life.lane);
    if (life.pinned) out += " pinned";
    if (life.alias)
      out += " alias of " + std::to_string(life.alias->node) + " at " + std::to_string(life.alias->offset);
    if (life.reuse_in_place) out += " in place of " + std::to_string(*life.reuse_in_place);
    for (const LevelRange& gap : life.gaps)
      out += " gap [" + std::to_string(gap.first) + ", " + std::to_string(gap.last) + ")";
    if (life.bank) out += " bank " + std::to_string(*life.bank);
    if (life.hint) out += " hint " + std::to_string(*life.hint);
    out += "\n";
  }
  return out;
}

RC_GTEST_PROP(PlanJudged, EveryPlanOfEveryStrategyIsValidAndNoneBeatsThePlanner, ()) {
  const PlanProblem problem = random_problem();
  const auto found = plan(problem, {.work_limit = 500, .threads = 1});
  if (!found) {
    // With banks or a largest block a plan may be out of reach; without them there always is one.
    RC_ASSERT(found.error().code() == Code::kInfeasible || found.error().code() == Code::kNotFound);
    RC_ASSERT(!problem.banks.empty() || problem.max_block_bytes != 0);
    return;
  }
  RC_LOG(written(problem));
  RC_LOG(describe(validate(problem, *found), problem, *found));
  RC_ASSERT(!validate(problem, *found));
  RC_ASSERT(plan_from_json(plan_to_json(*found), problem).value().slots == found->slots);
  for (const StrategyInfo& strategy : strategies()) {
    const auto other = plan_with(strategy.name, problem);
    if (!other) continue;
    RC_LOG(std::string(strategy.name) + " " + describe(validate(problem, *other), problem, *other));
    RC_ASSERT(!validate(problem, *other));
    RC_ASSERT(found->lower_bound <= other->size);
    // With banks the preferred one counts before the total does. Fewer blocks count before the padding that more of
    // them would save.
    if (problem.banks.empty() && other->blocks.size() <= found->blocks.size()) RC_ASSERT(found->size <= other->size);
  }
}

// Found by the property above: in two blocks the one byte needs no padding before it.
TEST(PlanJudged, KeepsOneBlockWhereTwoWouldSavePadding) {
  PlanProblem problem{.lifetimes = {{.bytes = 113, .first = 0, .last = 7, .alignment = 64},
                                    {.bytes = 1, .first = 3, .last = 7, .alignment = 64},
                                    {.bytes = 81, .first = 0, .last = 7, .alignment = 64},
                                    {.bytes = 49, .first = 0, .last = 7}},
                      .alignment = 16,
                      .max_block_bytes = 512};
  const MemoryPlan whole = plan(problem).value();
  EXPECT_EQ(whole.blocks.size(), 1u);
  problem.max_block_bytes = 192;
  const MemoryPlan split = plan(problem).value();
  EXPECT_GT(split.blocks.size(), 1u);
  EXPECT_FALSE(validate(problem, split));
}

}  // namespace
}  // namespace berth
