#include "explain/request_trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "base/input_file.h"
#include "base/try.h"
#include "berth/alloc/recording.h"
#include "berth/plan/plan_files.h"
#include "explain/torch_snapshot.h"

namespace berth::cli {
namespace {

constexpr std::size_t kMostRequests = 0xffff'fff0;

Error too_many() {
  return Error::with_text(Code::kInvalidData, Layer::kProgram, "the file has more than 4 billion requests");
}

// Numbers the places of a trace.
class Places {
 public:
  explicit Places(std::vector<std::string>& places) : places_(places) {}
  std::uint32_t number_of(const std::string& text) {
    const auto [at, is_new] = numbers_.try_emplace(text, static_cast<std::uint32_t>(places_.size()));
    if (is_new) places_.push_back(text);
    return at->second;
  }

 private:
  std::vector<std::string>& places_;
  std::unordered_map<std::string, std::uint32_t> numbers_{};
};

Result<RequestTrace> from_recording(const Recording& recording) {
  if (recording.blocks > kMostRequests) return too_many();
  RequestTrace trace{.kind = "Berth recording", .seconds_per_tick = 1e-9};
  for (const std::string& label : recording.labels) trace.places.push_back(label.empty() ? "(no label)" : label);
  trace.requests.reserve(recording.blocks);
  trace.steps.reserve(recording.events.size());
  for (const RecordedEvent& event : recording.events) {
    if (!event.is_free) trace.requests.push_back({event.bytes, event.label, 0});
    trace.steps.push_back({static_cast<std::int64_t>(event.time_ns), static_cast<std::uint32_t>(event.block),
                           event.is_free ? TraceStep::Kind::kRelease : TraceStep::Kind::kAllocate});
  }
  return trace;
}

// Aliases have no bytes of their own. A gap is a release and an allocation.
Result<RequestTrace> from_lifetimes(PlanTable table) {
  RequestTrace trace{.kind = "lifetimes"};
  Places places(trace.places);
  const auto add = [&](std::uint64_t bytes, std::uint32_t place, std::int64_t first, std::int64_t last) {
    if (last <= first) return;
    const auto request = static_cast<std::uint32_t>(trace.requests.size());
    trace.requests.push_back({bytes, place, 0});
    trace.steps.push_back({first, request, TraceStep::Kind::kAllocate});
    trace.steps.push_back({last, request, TraceStep::Kind::kRelease});
  };
  for (std::size_t i = 0; i < table.problem.lifetimes.size(); ++i) {
    const Lifetime& lifetime = table.problem.lifetimes[i];
    if (trace.requests.size() >= kMostRequests) return too_many();
    if (lifetime.alias) continue;
    const std::uint32_t place = places.number_of(lifetime.label.empty() ? table.ids[i] : lifetime.label);
    std::int64_t begin = lifetime.first;
    for (const LevelRange& gap : lifetime.gaps) {
      add(lifetime.bytes, place, begin, gap.first);
      begin = gap.last;
    }
    add(lifetime.bytes, place, begin, lifetime.last);
  }
  // What ends at a level is gone before what begins there.
  std::stable_sort(trace.steps.begin(), trace.steps.end(), [](const TraceStep& a, const TraceStep& b) {
    const auto is_allocation = [](const TraceStep& step) { return step.kind == TraceStep::Kind::kAllocate; };
    return a.time != b.time ? a.time < b.time : is_allocation(a) < is_allocation(b);
  });
  trace.problem = std::move(table.problem);
  return trace;
}

struct CloseFile {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};

}  // namespace

std::string RequestTrace::time_text(const TraceStep& step) const {
  if (seconds_per_tick == 0) return fmt::format("{} {}", problem ? "level" : "event", step.time);
  return fmt::format("{:.3f} s", static_cast<double>(step.time) * seconds_per_tick);
}

Result<RequestTrace> read_request_trace(const std::string& path, std::optional<std::uint32_t> device) {
  BERTH_TRY_ASSIGN(const int descriptor, internal::open_regular_file(path));
  const std::unique_ptr<std::FILE, CloseFile> file(fdopen(descriptor, "rb"));
  if (file == nullptr) ::close(descriptor);
  const auto named = [&](const Error& error) {
    return Error::with_text(error.code(), error.layer(), path + ": " + error.message());
  };
  char start[8] = {};
  if (file == nullptr || (std::fread(start, 1, sizeof start, file.get()), std::ferror(file.get()) != 0))
    return Error::with_text(Code::kIo, Layer::kProgram,
                            fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  const std::string_view magic(start, sizeof start);
  if (magic == "BRTHTRC1") {
    BERTH_TRY_ASSIGN(const Recording recording, read_recording(path));
    return from_recording(recording);
  }
  if (start[0] == '\x80' || start[0] == '}' || start[0] == '(') {
    std::rewind(file.get());
    auto trace = read_torch_snapshot(file.get(), device);
    if (!trace) return named(trace.error());
    return trace;
  }
  auto table = read_plan_csv(path);
  if (!table)
    return Error::with_text(table.error().code(), table.error().layer(),
                            fmt::format("{} (a file is a memory snapshot of PyTorch, a recording of Berth, or a table "
                                        "of lifetimes with the columns id, lower, upper and size)",
                                        table.error().message()));
  return from_lifetimes(*std::move(table));
}

std::optional<std::uint32_t> device_number(std::optional<std::uint64_t> argument) {
  if (!argument) return std::nullopt;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(*argument, 0xffff'ffff));
}

TracePeak find_peak(const RequestTrace& trace) {
  TracePeak peak;
  std::uint64_t live = 0;
  for (std::size_t i = 0; i < trace.steps.size(); ++i) {
    const TraceStep& step = trace.steps[i];
    if (!step.is_of_a_request()) continue;
    const std::uint64_t bytes = trace.requests[step.request].bytes;
    live = step.kind == TraceStep::Kind::kAllocate ? live + bytes : live - bytes;
    if (live > peak.bytes) {
      peak.bytes = live;
      peak.step = i;
    }
  }
  std::vector<bool> is_live(trace.requests.size());
  if (!trace.steps.empty())
    for (std::size_t i = 0; i <= peak.step; ++i)
      if (trace.steps[i].is_of_a_request())
        is_live[trace.steps[i].request] = trace.steps[i].kind == TraceStep::Kind::kAllocate;
  std::vector<TracePeak::Holder> by_place(trace.places.size());
  for (std::size_t i = 0; i < is_live.size(); ++i) {
    if (!is_live[i]) continue;
    TracePeak::Holder& holder = by_place[trace.requests[i].place];
    holder.bytes += trace.requests[i].bytes;
    ++holder.count;
    ++peak.live_count;
  }
  for (std::size_t i = 0; i < by_place.size(); ++i) {
    if (by_place[i].count == 0) continue;
    by_place[i].place = trace.places[i];
    peak.holders.push_back(std::move(by_place[i]));
  }
  std::stable_sort(peak.holders.begin(), peak.holders.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return peak;
}

}  // namespace berth::cli
