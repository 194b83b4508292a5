// One recorded run with its plan, in the form in which it is replayed and saved. A ReplayPlan is immutable; the run
// that follows it keeps its own state. Used under the lock of the Replay that owns it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
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

// The next event of the recorded run: a request or a release.
struct Step {
  std::uint64_t bytes;      // of the request; 0 for a release
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
  std::vector<SizeClass> classes;      // ascending
  std::vector<std::uint32_t> by_size;

  // Requires: `memory` is a valid plan of plan_problem(trace), in at most one block.
  ReplayPlan(ReplayTrace trace, MemoryPlan memory);

  const SizeClass* find_class(std::uint64_t bytes) const noexcept;
};

// kInvalidData unless the trace is consistent (releases in order, each request released at most once) and the plan is
// a valid one for it. Requires nothing: the input may come from a damaged file.
Result<void> check(const ReplayTrace& trace, const MemoryPlan& memory);

using NamedPlan = std::pair<std::string, const ReplayPlan*>;
std::string encode_plans(const std::vector<NamedPlan>& plans, std::string_view stamp);

struct DecodedPlan {
  std::string key;
  ReplayTrace trace;
  MemoryPlan memory;
};
Result<std::vector<DecodedPlan>> decode_plans(std::string_view bytes, std::string_view stamp);

}  // namespace berth::internal::replay
