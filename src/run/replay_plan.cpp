#include "run/replay_plan.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/try.h"

namespace berth::internal::replay {
namespace {

constexpr std::string_view kMagic = "berth replay plans 2\n";

Error damaged() {
  return Error(Code::kInvalidData, Layer::kPlan,
               "these saved plans are damaged or were made by something else: delete them, and the next run is "
               "recorded again");
}

std::uint64_t checksum(std::string_view bytes) noexcept {
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100'0000'01b3;
  return hash;
}

class Writer {
 public:
  void number(std::uint64_t value) {
    for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  void text(std::string_view value) {
    number(value.size());
    bytes_ += value;
  }
  void raw(std::string_view value) { bytes_ += value; }
  std::string take() && { return std::move(bytes_); }
  std::string_view bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads the output of Writer. Past the end everything is zero and failed() is set, so that callers check once.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  std::uint64_t number() noexcept {
    if (rest_.size() < 8) return fail();
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
    rest_.remove_prefix(8);
    return value;
  }
  std::string_view text() noexcept {
    const std::uint64_t size = number();
    if (size > rest_.size()) return fail(), std::string_view{};
    const std::string_view value = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return value;
  }
  // The number of records of `record_bytes` that follow. Refused, before anything is reserved, if the rest cannot hold
  // them.
  std::size_t count(std::size_t record_bytes) noexcept {
    const std::uint64_t n = number();
    return n > rest_.size() / record_bytes ? fail() : n;
  }
  bool failed() const noexcept { return failed_; }
  bool at_end() const noexcept { return rest_.empty(); }

 private:
  std::uint64_t fail() noexcept {
    failed_ = true;
    rest_ = {};
    return 0;
  }
  std::string_view rest_;
  bool failed_ = false;
};

}  // namespace

ReplayPlan::ReplayPlan(ReplayTrace trace_in, MemoryPlan memory_in, std::vector<std::uint64_t> least_in)
    : trace(std::move(trace_in)), memory(std::move(memory_in)), least(std::move(least_in)), predicted(!least.empty()) {
  const std::size_t n = trace.requests.size();
  offsets.resize(n);
  for (std::size_t i = 0; i < n; ++i) offsets[i] = memory.has(i) ? memory.slots[i].offset : kNoOffset;

  steps.reserve(n + trace.releases.size());
  std::size_t next_release = 0;
  const auto add_releases_until = [&](std::size_t position) {
    while (next_release < trace.releases.size()) {
      const std::uint32_t request = trace.releases[next_release];
      if (trace.requests[request].released_at > position) break;
      steps.push_back({.bytes = 0, .at_least = 0, .offset = offsets[request], .request = request, .alignment = 0});
      ++next_release;
    }
  };
  for (std::size_t i = 0; i < n; ++i) {
    alignment = std::max(alignment, trace.requests[i].alignment);
    add_releases_until(i);
    const std::uint64_t bytes = trace.requests[i].bytes;
    steps.push_back({.bytes = bytes,
                     .at_least = predicted ? served_from(bytes, least[i]) : bytes,
                     .offset = offsets[i],
                     .request = static_cast<std::uint32_t>(i),
                     .alignment = static_cast<std::uint32_t>(trace.requests[i].alignment)});
  }
  add_releases_until(n);
  leaves_none = std::all_of(trace.requests.begin(), trace.requests.end(), [](const ReplayRequest& request) {
    return request.kept || request.released_at != ReplayRequest::kNeverReleased;
  });

  by_size.resize(n);
  std::iota(by_size.begin(), by_size.end(), 0u);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](auto a, auto b) { return trace.requests[a].bytes < trace.requests[b].bytes; });
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint64_t bytes = trace.requests[by_size[i]].bytes;
    if (classes.empty() || classes.back().bytes != bytes) classes.push_back({bytes, i, i});
    classes.back().end = i + 1;
  }
}

const SizeClass* ReplayPlan::find_class(std::uint64_t bytes) const noexcept {
  const auto at = std::lower_bound(classes.begin(), classes.end(), bytes,
                                   [](const SizeClass& c, std::uint64_t wanted) { return c.bytes < wanted; });
  return at != classes.end() && at->bytes == bytes ? &*at : nullptr;
}

std::size_t ReplayPlan::footprint() const noexcept {
  return sizeof(*this) + trace.requests.capacity() * sizeof(ReplayRequest) +
         (trace.releases.capacity() + by_size.capacity()) * sizeof(std::uint32_t) +
         memory.slots.capacity() * sizeof(Slot) + steps.capacity() * sizeof(Step) +
         (offsets.capacity() + least.capacity()) * sizeof(std::uint64_t) + classes.capacity() * sizeof(SizeClass);
}

Result<void> check(const ReplayTrace& trace, const MemoryPlan& memory) {
  return check(trace, plan_problem(trace), memory);
}

Result<void> check(const ReplayTrace& trace, const PlanProblem& problem, const MemoryPlan& memory) {
  const std::size_t n = trace.requests.size();
  if (n >= ReplayRequest::kNeverReleased) return damaged();
  std::vector<bool> released(n);
  std::uint32_t position = 0;
  for (const std::uint32_t request : trace.releases) {
    if (request >= n || released[request]) return damaged();
    const std::uint32_t at = trace.requests[request].released_at;
    if (at <= request || at > n || at < position) return damaged();
    released[request] = true;
    position = at;
  }
  for (std::size_t i = 0; i < n; ++i) {
    const ReplayRequest& request = trace.requests[i];
    const bool power_of_two = request.alignment != 0 && (request.alignment & (request.alignment - 1)) == 0;
    if (request.bytes == 0 || !power_of_two || request.alignment > 0x8000'0000u) return damaged();
    if (released[i] != (request.released_at != ReplayRequest::kNeverReleased)) return damaged();
  }
  if (const Violation violation = validate(problem, memory))
    return Error::with_text(Code::kInvalidData, Layer::kPlan,
                            "the plan for a recorded run is not valid: " + describe(violation, problem, memory));
  if (memory.blocks.size() > 1)
    return Error(Code::kInvalidData, Layer::kPlan, "a run is replayed from one block, and its plan has {}",
                 memory.blocks.size());
  return {};
}

std::string encode_plans(const std::vector<NamedPlan>& plans, std::string_view stamp) {
  Writer out;
  out.raw(kMagic);
  out.text(stamp);
  out.number(plans.size());
  for (const auto& [key, dimensions, plan] : plans) {
    out.text(key);
    out.number(dimensions.size());
    for (const std::int64_t dimension : dimensions) out.number(static_cast<std::uint64_t>(dimension));
    out.number(plan->trace.requests.size());
    for (std::size_t i = 0; i < plan->trace.requests.size(); ++i) {
      const ReplayRequest& request = plan->trace.requests[i];
      out.number(request.bytes);
      out.number(request.alignment);
      out.number(std::uint64_t{request.released_at} | std::uint64_t{request.kept} << 32);
      out.number(plan->offsets[i]);
    }
    out.number(plan->trace.releases.size());
    for (const std::uint32_t request : plan->trace.releases) out.number(request);
    out.number(plan->memory.size);
    out.number(plan->memory.lower_bound);
    out.text(plan->memory.strategy);
    out.number(plan->memory.fingerprint);
  }
  out.number(checksum(out.bytes()));
  return std::move(out).take();
}

Result<std::vector<DecodedPlan>> decode_plans(std::string_view bytes, std::string_view stamp) {
  if (!bytes.starts_with(kMagic) || bytes.size() < kMagic.size() + 8) return damaged();
  const std::string_view body = bytes.substr(0, bytes.size() - 8);
  if (Reader(bytes.substr(body.size())).number() != checksum(body)) return damaged();
  Reader in(body.substr(kMagic.size()));
  if (in.text() != stamp)
    return Error(Code::kNotFound, Layer::kPlan,
                 "the saved plans are for another model, engine or setting: the next run is recorded again");
  std::vector<DecodedPlan> plans;
  for (std::uint64_t left = in.count(8); left > 0 && !in.failed(); --left) {
    DecodedPlan plan;
    plan.key = in.text();
    plan.dimensions.resize(in.count(8));
    for (std::int64_t& dimension : plan.dimensions) dimension = static_cast<std::int64_t>(in.number());
    const std::size_t n = in.count(32);
    plan.trace.requests.resize(n);
    plan.memory.slots.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      ReplayRequest& request = plan.trace.requests[i];
      request.bytes = in.number();
      request.alignment = in.number();
      const std::uint64_t released = in.number();
      request.released_at = static_cast<std::uint32_t>(released);
      request.kept = (released >> 32 & 1) != 0;
      const std::uint64_t offset = in.number();
      if (offset != kNoOffset) plan.memory.slots[i] = {.offset = offset, .bytes = slot_bytes(request), .block = 0};
    }
    plan.trace.releases.resize(in.count(8));
    for (std::uint32_t& request : plan.trace.releases) request = static_cast<std::uint32_t>(in.number());
    plan.memory.size = in.number();
    plan.memory.lower_bound = in.number();
    plan.memory.optimal = plan.memory.size == plan.memory.lower_bound;
    plan.memory.strategy = in.text();
    plan.memory.fingerprint = in.number();
    if (plan.memory.size > 0) plan.memory.blocks.push_back({.bytes = plan.memory.size});
    if (in.failed()) break;
    BERTH_TRY(check(plan.trace, plan.memory));
    plans.push_back(std::move(plan));
  }
  if (in.failed() || !in.at_end()) return damaged();
  return plans;
}

}  // namespace berth::internal::replay
