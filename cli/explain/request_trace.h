// What a program requested and when, whichever file says so: a memory snapshot of PyTorch, a recording of Berth, or a
// table of lifetimes. A plain value.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "berth/base/result.h"
#include "berth/plan/plan.h"

namespace berth::cli {

struct Request {
  std::uint64_t bytes = 0;
  std::uint32_t place = 0;   // index into RequestTrace::places
  std::uint32_t stream = 0;  // numbered from 0; memory is not shared between streams
};

struct TraceStep {
  enum class Kind : std::uint8_t {
    kAllocate,
    kRelease,
    kEmptyCache,       // the program gave cached memory back; `request` means nothing
    kGiveSegmentBack,  // of that, one segment: `request` is its number in RecordedAllocator::made
  };
  std::int64_t time = 0;
  std::uint32_t request = 0;
  Kind kind = Kind::kAllocate;

  bool is_of_a_request() const noexcept { return kind == Kind::kAllocate || kind == Kind::kRelease; }
};

// A segment: one piece of memory that PyTorch's allocator took from the driver.
struct RecordedSegment {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  bool small = false;  // of the pool for requests of up to 1 MiB
  bool expandable = false;
};

// roundup_power2_divisions: the sizes between two powers of two that requests below 2 MiB, below 4 MiB, ... are rounded
// up to. 0 and 1: requests are rounded up to 512 bytes.
using PowerOfTwoParts = std::array<std::uint64_t, 16>;

// What a snapshot says about the allocator that made it.
struct RecordedAllocator {
  std::vector<RecordedSegment> segments{};  // at the end
  std::vector<RecordedSegment> made{};      // in the order in which they were made; address and bytes only
  std::uint64_t peak_held = 0;              // the highest sum of all segments
  std::uint64_t max_split_bytes = 0;        // 0: no limit
  bool expandable = false;
  PowerOfTwoParts parts{};
  bool has_private_pools = false;  // of CUDA graphs or the program, which the model does not know
  bool is_complete = true;         // the trace begins before the first request
  bool has_settings = false;       // otherwise all but expandable segments is a guess; torch 2.1 writes none
};

struct RequestTrace {
  std::string kind{};           // "PyTorch snapshot", "Berth recording", "lifetimes"
  double seconds_per_tick = 0;  // of TraceStep::time; 0: the time is a level, or the number of an event
  std::uint32_t device = 0;     // of several in the file, the one with the most memory
  std::uint32_t devices = 1;
  std::vector<Request> requests{};
  std::vector<TraceStep> steps{};  // in order
  std::vector<std::string> places{};
  std::optional<RecordedAllocator> recorded{};  // of a snapshot of PyTorch
  std::optional<PlanProblem> problem{};         // of a table, with all that it asks of a plan

  // The time of a step, as text.
  std::string time_text(const TraceStep& step) const;
};

// Reads a file of any of the three kinds. `device` chooses one of a snapshot; without it, the one with the most memory.
//   kInvalidData  with the position in the file; kIo; kNotFound: the snapshot has no such device
// O(bytes) time.
Result<RequestTrace> read_request_trace(const std::string& path, std::optional<std::uint32_t> device = std::nullopt);

// The argument of --device. A number beyond all devices is one that no snapshot has.
std::optional<std::uint32_t> device_number(std::optional<std::uint64_t> argument);

// The bytes that are live at the highest point, the first step at which they are, and who holds them.
struct TracePeak {
  struct Holder {
    std::string place{};
    std::uint64_t bytes = 0;
    std::uint64_t count = 0;
  };
  std::uint64_t bytes = 0;
  std::size_t step = 0;
  std::uint64_t live_count = 0;
  std::vector<Holder> holders{};  // largest first
};
TracePeak find_peak(const RequestTrace& trace);

}  // namespace berth::cli
