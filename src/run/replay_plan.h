// One run with its plan, in the form in which it is replayed and saved: recorded, or predicted from recordings of other
// shapes. A ReplayPlan is immutable and shared by the runs that follow it, which keep their own state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "berth/run/replay.h"

namespace berth::internal::replay {

inline constexpr std::uint64_t kNoOffset = ~std::uint64_t{0};

// The size of a request's slot in the arena: zero if the pool serves it; a multiple of the alignment if that is at
// least a cache line, because little could use the rest and the planner proves more in larger units. Requires: the
// alignment is a power of two.
constexpr std::uint64_t slot_bytes(const ReplayRequest& request) noexcept {
  constexpr std::uint64_t kLine = 64;
  if (request.kept) return 0;
  if (request.alignment < kLine) return request.bytes;
  return (request.bytes + request.alignment - 1) & ~(request.alignment - 1);
}

// A request of a predicted plan also serves smaller ones in its place, from this many bytes on: it was predicted too
// large. A much smaller one is another, unless it was expected. `least`: the fewest bytes that it may have.
constexpr std::uint64_t served_from(std::uint64_t bytes, std::uint64_t least) noexcept {
  return bytes / 2 + 1 < least ? bytes / 2 + 1 : least;
}

// The next event of the recorded run: a request or a release.
struct Step {
  std::uint64_t bytes;      // of the request; 0 for a release
  std::uint64_t at_least;   // a request of at_least to bytes bytes is this one
  std::uint64_t offset;     // in the arena; kNoOffset: the pool serves it
  std::uint32_t request;    // its number
  std::uint32_t alignment;  // of the request; 0 for a release
};

// Requests of equal size, by number: indices [begin, end) into ReplayPlan::by_size.
struct SizeClass {
  std::uint64_t bytes;
  std::uint32_t begin, end;
};

struct ReplayPlan {
  ReplayTrace trace;
  MemoryPlan memory;
  std::vector<Step> steps;
  std::vector<std::uint64_t> offsets;  // of each request
  std::vector<std::uint64_t> least;    // of each request, if predicted
  std::vector<SizeClass> classes;      // ascending
  std::vector<std::uint32_t> by_size;
  std::uint64_t trace_id = 0;   // identifies the numbering of the requests, over all plans made from one recording
  std::uint64_t alignment = 1;  // the largest of any request
  bool predicted = false;       // the trace was not observed
  bool leaves_none = false;     // every request with a slot is released in the run

  // `least`: of a predicted trace, the fewest bytes that each request may have. Empty: the trace was observed.
  // Requires: `memory` is a valid plan of plan_problem(trace), in at most one block.
  ReplayPlan(ReplayTrace trace, MemoryPlan memory, std::vector<std::uint64_t> least = {});

  const SizeClass* find_class(std::uint64_t bytes) const noexcept;
  // The memory of this object and what it owns.
  std::size_t footprint() const noexcept;
};

// kInvalidData unless the trace is consistent (releases in order, each request released at most once) and the plan is
// a valid one for it. Requires nothing: the input may come from a damaged file.
Result<void> check(const ReplayTrace& trace, const MemoryPlan& memory);
// The same where plan_problem(trace) is known.
Result<void> check(const ReplayTrace& trace, const PlanProblem& problem, const MemoryPlan& memory);

struct NamedPlan {
  std::string key;
  std::vector<std::int64_t> dimensions;
  const ReplayPlan* plan;
};
std::string encode_plans(const std::vector<NamedPlan>& plans, std::string_view stamp);

struct DecodedPlan {
  std::string key;
  std::vector<std::int64_t> dimensions;
  ReplayTrace trace;
  MemoryPlan memory;
};
Result<std::vector<DecodedPlan>> decode_plans(std::string_view bytes, std::string_view stamp);

}  // namespace berth::internal::replay
