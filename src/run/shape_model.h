// What is learned of one key from its recordings: each request's bytes as an exact function of the dimensions of the
// run. Recordings whose events differ (another number of requests, another order of releases) are learned apart, and
// the kind with the most recordings predicts. No locks; used under the lock of the Replay that owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "berth/run/replay.h"
#include "run/exact_fit.h"

namespace berth::internal::replay {

class ShapeModel {
 public:
  using Dimensions = std::span<const std::int64_t>;
  static constexpr std::size_t kMostRecordings = FunctionFinder::kMaxPoints;
  // Among the first of so many runs, functions that explain all recordings must agree on a prediction. Later the
  // largest prediction is made, and learned from.
  static constexpr std::size_t kSureAfter = 6;

  // `max_recordings`: of one kind; the oldest then makes room. `alignment`: ReplayOptions::alignment.
  ShapeModel(std::size_t max_recordings, std::uint64_t alignment)
      : max_recordings_(std::min(max_recordings, kMostRecordings)), alignment_(alignment) {}

  // Learns from a run. Returns the kind of its events, for the functions below.
  std::uint32_t add(Dimensions dimensions, const ReplayTrace& trace);

  struct Prediction {
    ReplayTrace trace;
    std::uint32_t kind = 0;
    bool certain = true;  // all functions agree
  };
  // The requests of a run with these dimensions. Nothing if a dimension changes that never did, or in another relation
  // to the others than in the recordings; if no function explains a request, and no recording is larger in every
  // dimension; or if functions disagree among the first runs. O(requests) but for the first call after add().
  std::optional<Prediction> predict(Dimensions dimensions);

  // A request of this kind was live when its arena was taken again. True if that was not known.
  bool mark_kept(std::uint32_t kind, std::uint32_t request);

  // Orders of offsets in plans of this kind, by which new shapes are laid out. The oldest makes room.
  void add_order(std::uint32_t kind, std::vector<std::uint32_t> order);
  std::span<const std::vector<std::uint32_t>> orders(std::uint32_t kind) const;

  // True if there are as many recordings as can be learned from, and some request is no function that was found.
  bool unlearned() const noexcept { return unlearned_; }
  std::size_t recordings() const noexcept;

 private:
  struct Sample {
    std::vector<std::int64_t> dimensions;
    std::vector<std::uint64_t> bytes;  // of each request
  };
  // Requests whose bytes are multiples of one another in all samples have one function.
  struct Fitted {
    std::uint32_t function = 0;  // index into functions
    std::uint64_t times = 1;
  };
  // How a dimension follows from the variables: the same number in all samples, or a linear combination.
  struct Relation {
    std::uint32_t dimension;
    Combination combination;  // of 1 and the variables
  };
  struct Kind {
    std::vector<ReplayRequest> requests;  // released_at, kept; alignment: what is needed beyond that of the bytes
    std::vector<std::uint32_t> releases;
    std::vector<Sample> samples;
    std::vector<std::vector<std::uint32_t>> orders;

    bool fitted = false;
    std::vector<std::uint32_t> variables;  // dimensions
    std::vector<Relation> relations;
    std::vector<Fitted> fits;                             // one for each request
    std::vector<std::vector<ExactFunction>> functions;    // all that explain a row of values
    std::vector<std::vector<std::uint64_t>> unexplained;  // rows of values, by function, where there is none
  };

  static bool same_events(const Kind& kind, const ReplayTrace& trace) noexcept;
  std::uint64_t natural_alignment(std::uint64_t bytes) const noexcept;
  void fit(Kind& kind);
  static bool find_variables(Kind& kind);
  static bool in_reach(const Kind& kind, Dimensions dimensions) noexcept;
  std::optional<std::uint64_t> value(const Kind& kind, std::uint32_t function, Dimensions dimensions,
                                     std::span<const std::int64_t> point, bool& certain) const;

  std::size_t max_recordings_;
  std::uint64_t alignment_;
  std::vector<Kind> kinds_;
  bool unlearned_ = false;
  std::size_t asked_ = 0;  // predictions asked for
};

}  // namespace berth::internal::replay
