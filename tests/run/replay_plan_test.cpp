#include "run/replay_plan.h"

#include <gtest/gtest.h>

#include <functional>

#include "support/support.h"

namespace berth::internal::replay {
namespace {

using test::fails_with;

// Three requests; the second is released before the third is made, the first after it, the third never.
ReplayTrace sound_trace() {
  ReplayTrace trace;
  trace.requests = {{.bytes = 64, .alignment = 16, .released_at = 3},
                    {.bytes = 32, .alignment = 16, .released_at = 2},
                    {.bytes = 96, .alignment = 64}};
  trace.releases = {1, 0};
  return trace;
}

TEST(ReplayPlan, IsCheckedAgainstEveryContradictionOfItsTrace) {
  const ReplayTrace sound = sound_trace();
  const PlanProblem problem = plan_problem(sound);
  const MemoryPlan memory = plan(problem).value();
  ASSERT_TRUE(check(sound, problem, memory));
  ASSERT_TRUE(check(sound, memory));
  const std::pair<const char*, std::function<void(ReplayTrace&)>> damages[] = {
      {"releases what is not there", [](ReplayTrace& trace) { trace.releases[0] = 3; }},
      {"releases what is far from there", [](ReplayTrace& trace) { trace.releases[0] = 0xffff'fff0; }},
      {"releases twice",
       [](ReplayTrace& trace) {
         trace.releases = {1, 0, 0};
       }},
      {"releases before the request", [](ReplayTrace& trace) { trace.requests[1].released_at = 1; }},
      {"releases after the end", [](ReplayTrace& trace) { trace.requests[0].released_at = 4; }},
      {"releases in another order",
       [](ReplayTrace& trace) {
         trace.releases = {0, 1};
       }},
      {"does not say that it releases", [](ReplayTrace& trace) { trace.releases = {1}; }},
      {"releases what lives on", [](ReplayTrace& trace) { trace.requests[0].released_at = 0xffff'ffff; }},
      {"asks for nothing", [](ReplayTrace& trace) { trace.requests[2].bytes = 0; }},
      {"has no alignment", [](ReplayTrace& trace) { trace.requests[2].alignment = 0; }},
      {"has an odd alignment", [](ReplayTrace& trace) { trace.requests[2].alignment = 48; }},
      {"has an endless alignment", [](ReplayTrace& trace) { trace.requests[2].alignment = std::uint64_t{1} << 32; }},
  };
  for (const auto& [what, damage] : damages) {
    ReplayTrace trace = sound;
    damage(trace);
    // The problem and the plan are sound, so that nothing else refuses it.
    EXPECT_TRUE(fails_with(check(trace, problem, memory), Code::kInvalidData)) << what;
  }
  MemoryPlan low = memory;
  low.slots[2].offset = low.slots[0].offset;
  EXPECT_TRUE(fails_with(check(sound, problem, low), Code::kInvalidData)) << "two requests in one place";
}

}  // namespace
}  // namespace berth::internal::replay
