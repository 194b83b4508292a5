// What `berth explain` says about a trace, as a value, as text and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "berth/plan/memory_map.h"
#include "berth/plan/plan.h"
#include "explain/models.h"
#include "explain/request_trace.h"

namespace berth::cli {

// The same requests under one allocator.
struct Scenario {
  std::string name{};
  Usage peak{};
};

struct Explanation {
  std::string file{};
  TracePeak peak{};
  std::vector<Scenario> scenarios{};
  TorchSettings recorded{};                    // of the allocator that a snapshot was made with; refers to the trace
  std::optional<Reproduction> reproduction{};  // of the segments of a complete snapshot
  std::uint64_t plan_bound = 0;                // no plan can be smaller
  std::optional<std::uint64_t> plan_bytes{};   // of a plan, if the trace is not too large for one
};

// Runs every model. O(n log n) for n requests, and the planner for up to kMostPlanned requests.
inline constexpr std::size_t kMostPlanned = 20'000;
Result<Explanation> explain(const RequestTrace& trace, const std::string& file);

std::string to_text(const Explanation& explanation, const RequestTrace& trace, std::size_t holders);
nlohmann::ordered_json to_json(const Explanation& explanation, const RequestTrace& trace);

// Where each request is, over time: in the segments of PyTorch, and in growable memory. Of a large trace, the largest
// requests.
MemoryMap to_map(const RequestTrace& trace, const Explanation& explanation);

// The requests of a trace as a planning problem. A level is a step of the trace.
PlanProblem to_problem(const RequestTrace& trace);

}  // namespace berth::cli
