#include "explain/models.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "alloc/caching_pool/size_class.h"
#include "berth/alloc/caching_pool.h"
#include "berth/alloc/dry_run.h"
#include "berth/alloc/growable.h"
#include "berth/alloc/offset_allocator.h"
#include "berth/memory/registry.h"

namespace berth::cli {
namespace {

class PoolModel final : public AllocatorModel {
 public:
  explicit PoolModel(std::size_t requests) : blocks_(requests) {}

  void allocate(std::uint32_t number, const Request& request) override {
    const auto block = pool_->allocate({.bytes = request.bytes});
    if (!block) return;  // a dry run refuses nothing but sizes beyond all memory
    blocks_[number] = *block;
    requested_ += block->bytes;
    rounded_ += rounded(block->bytes);
  }
  void release(std::uint32_t number, const Request&) override {
    requested_ -= blocks_[number].bytes;
    rounded_ -= rounded(blocks_[number].bytes);
    pool_->release(blocks_[number]);
    blocks_[number] = {};
  }
  void empty_cache() override { pool_->trim(); }
  Usage usage() const override {
    // A block of the pool is live as a whole or cached as a whole. Its own counters would take O(blocks).
    const std::uint64_t held = below_->counters().live_bytes;
    return {.held = held, .requested = requested_, .rounded = rounded_, .idle = held - rounded_};
  }

 private:
  static std::uint64_t rounded(std::uint64_t bytes) {
    if (bytes == 0 || bytes > CachingPoolOptions{}.max_block_bytes) return bytes;
    return internal::class_bytes(internal::size_class(bytes));
  }

  const std::shared_ptr<DryRun> below_ = make_dry_run(device("CPU").value());
  const std::shared_ptr<CachingPool> pool_ = make_caching_pool(below_);
  std::vector<Block> blocks_;
  std::uint64_t requested_ = 0, rounded_ = 0;
};

// The offsets are those of make_growable(); the steps are counted instead of mapped.
class GrowableModel final : public AllocatorModel {
 public:
  explicit GrowableModel(std::size_t requests) : offsets_of_(requests, kNowhere) {}

  void allocate(std::uint32_t number, const Request& request) override {
    if (request.bytes == 0) return;
    const auto offset = offsets_.allocate(request.bytes, kAlignment);
    if (!offset) return;
    offsets_of_[number] = *offset;
    requested_ += request.bytes;
    const std::uint64_t end = (*offset + *offsets_.size_of(*offset) - 1) / kStep + 1;
    if (end > live_.size()) live_.resize(end);
    if (end > mapped_.size()) mapped_.resize(end);
    for (std::uint64_t i = *offset / kStep; i < end; ++i) {
      if (!mapped_[i])
        ++mapped_steps_;
      else if (live_[i] == 0)
        --idle_steps_;
      mapped_[i] = true;
      ++live_[i];
    }
  }
  void release(std::uint32_t number, const Request& request) override {
    const std::uint64_t offset = std::exchange(offsets_of_[number], kNowhere);
    if (offset == kNowhere) return;
    const std::uint64_t end = (offset + *offsets_.size_of(offset) - 1) / kStep + 1;
    for (std::uint64_t i = offset / kStep; i < end; ++i)
      if (--live_[i] == 0) ++idle_steps_;
    static_cast<void>(offsets_.release(offset));
    requested_ -= request.bytes;
  }
  void empty_cache() override {
    for (std::size_t i = 0; i < mapped_.size(); ++i)
      if (mapped_[i] && live_[i] == 0) {
        mapped_[i] = false;
        --mapped_steps_;
        --idle_steps_;
      }
  }
  std::optional<Place> place_of(std::uint32_t number) const override {
    if (offsets_of_[number] == kNowhere) return std::nullopt;
    return Place{0, offsets_of_[number]};
  }
  Usage usage() const override {
    const std::uint64_t held = mapped_steps_ * kStep;
    return {.held = held, .requested = requested_, .rounded = offsets_.used(), .idle = idle_steps_ * kStep};
  }

 private:
  static constexpr std::uint64_t kNowhere = ~std::uint64_t{0};
  static constexpr std::uint64_t kStep = GrowableOptions{}.step_bytes;
  static constexpr std::uint64_t kAlignment = 64;

  OffsetAllocator offsets_ = OffsetAllocator::make(std::uint64_t{1} << 42).value();
  std::vector<std::uint64_t> offsets_of_;
  std::vector<std::uint32_t> live_{};
  std::vector<bool> mapped_{};
  std::uint64_t mapped_steps_ = 0, idle_steps_ = 0, requested_ = 0;
};

}  // namespace

std::unique_ptr<AllocatorModel> make_pool_model(const RequestTrace& trace) {
  return std::make_unique<PoolModel>(trace.requests.size());
}

std::unique_ptr<AllocatorModel> make_growable_model(const RequestTrace& trace) {
  return std::make_unique<GrowableModel>(trace.requests.size());
}

void run_step(AllocatorModel& model, const RequestTrace& trace, const TraceStep& step) {
  switch (step.kind) {
    case TraceStep::Kind::kAllocate: return model.allocate(step.request, trace.requests[step.request]);
    case TraceStep::Kind::kRelease: return model.release(step.request, trace.requests[step.request]);
    case TraceStep::Kind::kEmptyCache: return model.empty_cache();
    case TraceStep::Kind::kGiveSegmentBack: return model.give_segment_back(step.request);
  }
}

Usage run_model(AllocatorModel& model, const RequestTrace& trace) {
  Usage peak;
  for (const TraceStep& step : trace.steps) {
    run_step(model, trace, step);
    const Usage now = model.usage();
    if (std::pair(now.held, now.requested) > std::pair(peak.held, peak.requested)) peak = now;
  }
  return peak;
}

Reproduction compare_segments(const std::vector<RecordedSegment>& recorded,
                              const std::vector<RecordedSegment>& modelled) {
  // The key of an expandable segment has no size.
  using Key = std::tuple<bool, bool, std::uint64_t>;
  struct Both {
    std::uint64_t count[2] = {}, bytes[2] = {};
  };
  std::map<Key, Both> groups;
  Reproduction result;
  const auto add = [&](const std::vector<RecordedSegment>& segments, int side) {
    for (const RecordedSegment& each : segments) {
      Both& group = groups[{each.expandable, each.small, each.expandable ? 0 : each.bytes}];
      if (each.expandable)
        group.count[side] = 1;
      else
        ++group.count[side];
      group.bytes[side] += each.bytes;
    }
  };
  add(recorded, 0);
  add(modelled, 1);
  for (const auto& [key, group] : groups) {
    result.recorded_count += group.count[0];
    result.modelled_count += group.count[1];
    result.recorded_bytes += group.bytes[0];
    result.modelled_bytes += group.bytes[1];
    const bool is_expandable = std::get<0>(key);
    if (!is_expandable || group.bytes[0] == group.bytes[1])
      result.matched_count += std::min(group.count[0], group.count[1]);
  }
  return result;
}

}  // namespace berth::cli
