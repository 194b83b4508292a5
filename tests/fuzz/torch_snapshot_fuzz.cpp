// Snapshots from anywhere: reading must neither crash nor run anything, and what it accepts must be a trace that the
// models can run.
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <vector>

#include "explain/torch_snapshot.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto trace = berth::cli::parse_torch_snapshot(std::as_bytes(std::span(data, size)), std::nullopt);
  if (!trace) return 0;
  using Kind = berth::cli::TraceStep::Kind;
  for (const berth::cli::Request& request : trace->requests)
    if (request.place >= trace->places.size()) std::abort();
  enum class State : std::uint8_t { kNew, kLive, kGone };
  std::vector<State> states(trace->requests.size(), State::kNew);
  for (const berth::cli::TraceStep& step : trace->steps) {
    if (!step.is_of_a_request()) continue;
    if (step.request >= states.size()) std::abort();
    State& state = states[step.request];
    if (state != (step.kind == Kind::kAllocate ? State::kNew : State::kLive)) std::abort();
    state = step.kind == Kind::kAllocate ? State::kLive : State::kGone;
  }
  return 0;
}
