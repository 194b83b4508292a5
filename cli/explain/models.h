// Models of allocators: what the requests of a trace would hold under each of them. The caching pool and the growable
// memory of Berth are the real code without memory. PyTorch's caching allocator for CUDA is modelled here by its
// documented rules. A model belongs to one thread.
//
// PyTorch's rules. A request is rounded up to 512 bytes, or as roundup_power2_divisions says. Requests of up to 1 MiB
// come from segments of 2 MiB; larger ones from segments of 20 MiB, and those of 10 MiB and more from a segment of
// their own size rounded up to 2 MiB. A segment belongs to one stream. The smallest free block of the stream that fits
// is taken, of equal ones that of the oldest segment or lowest address, and the rest is split off if it has at least
// 512 bytes (small) or more than 1 MiB (large). Neighbours that are free are merged. With expandable segments there is
// one segment for each stream and size class, which grows in pages of 2 MiB (small) or 20 MiB (large) behind its last
// block, and every rest of 512 bytes is split off.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "explain/request_trace.h"

namespace berth::cli {

// What an allocator holds at one moment.
struct Usage {
  std::uint64_t held = 0;       // taken from the driver
  std::uint64_t requested = 0;  // by what is live
  std::uint64_t rounded = 0;    // requested, rounded up by the allocator
  std::uint64_t idle = 0;       // segments in which nothing is live

  std::uint64_t lost_to_rounding() const noexcept { return rounded - requested; }
  std::uint64_t lost_to_caching() const noexcept { return idle; }
  // Free parts of segments in which something is live.
  std::uint64_t lost_to_fragmentation() const noexcept { return held - rounded - idle; }
};

class AllocatorModel {
 public:
  virtual ~AllocatorModel() = default;
  // The requests of a trace, each allocated and released at most once.
  virtual void allocate(std::uint32_t number, const Request& request) = 0;
  virtual void release(std::uint32_t number, const Request& request) = 0;
  virtual void empty_cache() = 0;
  // One segment of those that a recorded program made. Only a model that follows this program knows which.
  virtual void give_segment_back(std::uint32_t) {}
  virtual Usage usage() const = 0;
  // Where a live request is, for models that know it.
  struct Place {
    std::uint32_t segment = 0;
    std::uint64_t offset = 0;
  };
  virtual std::optional<Place> place_of(std::uint32_t) const { return std::nullopt; }
  // What is held at the end, for models of PyTorch.
  virtual std::vector<RecordedSegment> segments() const { return {}; }
};

struct TorchSettings {
  bool expandable = false;
  std::uint64_t max_split_bytes = 0;  // larger blocks are not split; 0: no limit
  PowerOfTwoParts parts{};
  // The segments of a program, in the order in which it made them. As long as the model makes the same ones it has them
  // at the same addresses, and gives those back that the program gave back.
  const std::vector<RecordedSegment>* made = nullptr;
  // Which of several free blocks of one size is taken: that of the oldest segment, as torch 2.15 does, or the one with
  // the lowest address, as torch 2.6 did. Addresses are known of `made` alone.
  bool oldest_first = true;
};
std::unique_ptr<AllocatorModel> make_torch_model(const RequestTrace& trace, const TorchSettings& settings);
std::unique_ptr<AllocatorModel> make_pool_model(const RequestTrace& trace);
std::unique_ptr<AllocatorModel> make_growable_model(const RequestTrace& trace);

void run_step(AllocatorModel& model, const RequestTrace& trace, const TraceStep& step);
// Runs a trace. Returns the usage at the moment at which the most was held; of several, the one with the most
// requested.
Usage run_model(AllocatorModel& model, const RequestTrace& trace);

// How many of the recorded segments a model reproduces: segments of one pool and size in both. For expandable segments,
// which have no size of their own, the sums of each pool are compared instead.
struct Reproduction {
  std::uint64_t recorded_count = 0, modelled_count = 0, matched_count = 0;
  std::uint64_t recorded_bytes = 0, modelled_bytes = 0;
  bool exact() const noexcept {
    return matched_count == recorded_count && matched_count == modelled_count && recorded_bytes == modelled_bytes;
  }
};
Reproduction compare_segments(const std::vector<RecordedSegment>& recorded,
                              const std::vector<RecordedSegment>& modelled);

}  // namespace berth::cli
