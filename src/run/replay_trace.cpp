#include <algorithm>

#include "berth/run/replay.h"
#include "run/replay_plan.h"

namespace berth {

using namespace internal;

std::uint64_t ReplayTrace::live_peak() const noexcept {
  std::uint64_t live = 0, peak = 0;
  std::size_t next_release = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    // Releases come in order of position, so those made before request i are at the front of what is left.
    while (next_release < releases.size() && requests[releases[next_release]].released_at <= i)
      live -= requests[releases[next_release++]].bytes;
    live += requests[i].bytes;
    peak = std::max(peak, live);
  }
  return peak;
}

PlanProblem plan_problem(const ReplayTrace& trace) {
  PlanProblem problem;
  problem.lifetimes.reserve(trace.requests.size());
  const auto end = static_cast<std::int64_t>(trace.requests.size());
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const ReplayRequest& request = trace.requests[i];
    Lifetime lifetime;
    lifetime.bytes = replay::slot_bytes(request);
    lifetime.first = static_cast<std::int64_t>(i);
    lifetime.last = request.released_at == ReplayRequest::kNeverReleased ? end : request.released_at;
    lifetime.alignment = request.alignment;
    problem.lifetimes.push_back(std::move(lifetime));
  }
  return problem;
}

}  // namespace berth
