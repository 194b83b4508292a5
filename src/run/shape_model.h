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
#include "run/pieces.h"

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
    std::vector<std::uint64_t> least;  // the fewest bytes that each request may have; those of the trace are the most
    std::uint32_t kind = 0;
    bool certain = true;   // all functions agree
    bool monotone = true;  // larger dimensions never have smaller requests
  };
  // The requests of a run with these dimensions. Nothing if a dimension changes that never did, or in another relation
  // to the others than in the recordings; or if it is not certain, among the first runs. O(requests) but for the first
  // call after add().
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
  // Bytes that a function explains, or what they would be if one variable were 1: an engine that works on one image of
  // a batch at a time has workspaces of that size.
  struct Quantity {
    std::uint32_t function;
    std::optional<std::uint32_t> without = {};  // the variable
  };
  struct Kind {
    std::vector<ReplayRequest> requests;  // released_at, kept; alignment: what is needed beyond that of the bytes
    std::vector<std::uint32_t> releases;
    std::vector<Sample> samples;
    std::vector<std::vector<std::uint32_t>> orders;

    bool fitted = false, monotone = false;
    std::vector<std::uint32_t> variables;  // dimensions
    std::vector<Relation> relations;
    std::vector<Fitted> fits;                           // one for each request
    std::vector<std::vector<ExactFunction>> functions;  // all that explain a row of values
    std::vector<std::optional<Pieces>> pieces;          // by function, where there is none
    std::vector<Quantity> quantities;                   // that order and scale them
  };

  static bool same_events(const Kind& kind, const ReplayTrace& trace) noexcept;
  std::uint64_t natural_alignment(std::uint64_t bytes) const noexcept;
  void fit(Kind& kind);
  static bool find_variables(Kind& kind);
  void find_pieces(Kind& kind, const std::vector<std::vector<std::int64_t>>& points,
                   std::vector<std::vector<std::uint64_t>> rows);
  void make_room(Kind& kind) const;
  static bool in_reach(const Kind& kind, Dimensions dimensions) noexcept;
  // What all functions of a row of values say. Nothing if they say nothing.
  static std::optional<Pieces::Bounds> bounds(const std::vector<ExactFunction>& functions,
                                              std::span<const std::int64_t> point);
  // What may order or scale bytes that are no function. 0 where a quantity has no value at this point.
  static std::vector<std::uint64_t> known_at(const Kind& kind, std::span<const std::int64_t> point);
  // The bounds of every row of values at a point. Empty if there are none for some row.
  static std::vector<Pieces::Bounds> all_bounds(const Kind& kind, std::span<const std::int64_t> point);

  std::size_t max_recordings_;
  std::uint64_t alignment_;
  std::vector<Kind> kinds_;
  bool unlearned_ = false;
  std::size_t asked_ = 0;  // predictions asked for
};

}  // namespace berth::internal::replay
