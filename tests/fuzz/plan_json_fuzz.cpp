// Any text is either refused, or is a plan that the validator accepts for the problem at hand.
#include <cstdio>
#include <cstdlib>

#include "berth/plan/plan_files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const berth::PlanProblem problem = [] {
    berth::PlanProblem out;
    out.lifetimes = {{.bytes = 64, .first = 0, .last = 2}, {.bytes = 128, .first = 1, .last = 3}};
    return out;
  }();
  // The corpus writes the fingerprint as @: a fuzzer would never guess it.
  std::string json(reinterpret_cast<const char*>(data), size);
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(berth::fingerprint(problem)));
  if (const std::size_t at = json.find('@'); at != std::string::npos) json.replace(at, 1, digits);
  const auto plan = berth::plan_from_json(json, problem);
  if (plan && berth::validate(problem, *plan)) {
    std::fprintf(stderr, "plan_json_fuzz: a plan was read that does not hold\n");
    std::abort();
  }
  return 0;
}
