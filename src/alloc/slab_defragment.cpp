// Live defragmentation of slabs: one sweep from the oldest slab to the newest, and in each from low to high offsets, in
// which each part that may move goes to a place before its own: in an older slab, or further down in its own. Free
// memory thereby collects in the newest slabs, and those that become empty go back to the device.
#include <algorithm>
#include <new>

#include "alloc/defragment_pass.h"
#include "alloc/slab_memory.h"
#include "base/round_up.h"
#include "base/try.h"
#include "memory/host_copy.h"

namespace berth::internal {
namespace {

using Clock = DefragmentPass::Clock;

// A part slides down over its own bytes if it gains at least this fraction of its size. Bounds the number of pieces in
// which it is copied, each of which is submitted and waited for.
constexpr std::size_t kMostPieces = 64;

}  // namespace

std::optional<SlabMemory::Goal> SlabMemory::find_goal(const Part& part) {
  for (auto& [number, slab] : slabs_) {
    if (slab.host != part.slab->host) continue;
    if (const auto offset = slab.offsets.allocate(part.bytes, part.alignment)) {
      if (&slab != part.slab || *offset < part.offset) return Goal{&slab, *offset, true};
      static_cast<void>(slab.offsets.release(*offset));
    }
    if (&slab == part.slab) break;
  }
  const std::uint64_t free = *part.slab->offsets.free_before(part.offset);
  const std::uint64_t to = round_up(part.offset - free, part.alignment);
  if (to >= part.offset || (part.offset - to) * kMostPieces < part.bytes) return std::nullopt;
  return Goal{part.slab, to, false};
}

void SlabMemory::give_up(const Goal& goal) noexcept {
  if (goal.is_taken) static_cast<void>(goal.slab->offsets.release(goal.offset));
}

std::optional<SlabMemory::Candidate> SlabMemory::next_candidate(DefragmentPass& pass) {
  const DefragmentOptions& options = pass.options;
  while (!pass.is_late()) {
    const MutexLock lock(mutex_);
    for (int examined = 0; examined < DefragmentPass::kExaminedAtOnce; ++examined) {
      auto slab = slabs_.lower_bound(cursor_slab_);
      if (slab == slabs_.end()) {
        pass.result.finished = true;
        return std::nullopt;
      }
      if (slab->first != cursor_slab_) {  // the first one, or the next one after a slab that is gone
        cursor_slab_ = slab->first;
        cursor_ = 0;
      }
      const auto next = slab->second.parts.lower_bound(cursor_);
      if (next == slab->second.parts.end()) {
        ++cursor_slab_;
        cursor_ = 0;
        continue;
      }
      const auto [offset, key] = *next;
      const Part& part = parts_[key];
      Candidate candidate{part.owner, key, part.bytes, part.unfinished.has_value(), {part.slab, part.offset, false}};
      std::optional<Goal> goal;
      if (part.owner != nullptr && !candidate.unfinished) goal = find_goal(part);
      if (goal) candidate.goal = *goal;
      const bool moves = goal || candidate.unfinished;
      const bool fits = part.bytes <= options.max_bytes;
      if (moves && fits && part.bytes > options.max_bytes - pass.result.moved_bytes) {
        if (goal) give_up(*goal);
        return std::nullopt;
      }
      cursor_ = offset + 1;
      if (!moves) continue;
      if (fits && part.owner->try_retain()) return candidate;
      if (!fits) DefragmentPass::count(pass.result.too_large, part.bytes);
      if (goal) give_up(*goal);
    }
  }
  return std::nullopt;
}

Result<void> SlabMemory::copy_once(const Window& from, const Window& to) {
  if (queue_ == nullptr) {
    BERTH_TRY_ASSIGN(queue_, device_->make_queue());
  }
  BERTH_TRY(queue_->copy(from, to));
  return finish_only(*queue_);
}

Result<void> SlabMemory::copy(const Block& from, std::uint64_t from_offset, const Block& to, std::uint64_t to_offset,
                              std::size_t bytes) {
  if (from.has(BlockFlags::kHostTransfer) && to.has(BlockFlags::kHostTransfer)) {
    copy_host(to.host + to_offset, from.host + from_offset, bytes);
    return {};
  }
  const Window source{.block = from, .offset = from_offset, .bytes = bytes, .device = device_.get()};
  const Window target{.block = to, .offset = to_offset, .bytes = bytes, .device = device_.get()};
  const MutexLock lock(queue_mutex_);
  auto outcome = copy_once(source, target);
  for (const bool last : {false, true}) {
    if (outcome) return outcome;
    // What was recorded must not be executed later, when the target is memory of another block. A queue that is
    // destroyed drops it, and waits for what was submitted.
    queue_.reset();
    if (!last) outcome = copy_once(source, target);  // a failure may be of the moment
  }
  return outcome;
}

Result<void> SlabMemory::carry_on(const Block& block, std::size_t bytes, Slide& slide) {
  while (slide.done < bytes) {
    const std::size_t piece = std::min<std::size_t>(slide.from - slide.to, bytes - slide.done);
    BERTH_TRY(copy(block, slide.from + slide.done, block, slide.to + slide.done, piece));
    slide.done += piece;
  }
  return {};
}

void SlabMemory::settle(std::uint32_t key, const Goal& goal) noexcept {
  Part& part = parts_[key];
  auto node = part.slab->parts.extract(part.offset);
  node.key() = goal.offset;
  goal.slab->parts.insert(std::move(node));
  part.slab = goal.slab;
  part.offset = goal.offset;
  part.owner->set_place({goal.slab->block.handle, goal.slab->block.host, goal.offset});
}

void SlabMemory::try_move(DefragmentPass& pass, const Candidate& candidate) {
  MovableOwner& owner = *candidate.owner;
  const Goal& goal = candidate.goal;
  const Clock::time_point began = Clock::now();
  if (!pass.take(owner, candidate.bytes)) {
    const MutexLock lock(mutex_);
    return give_up(goal);
  }
  Block from, to;
  Slide slide;
  bool started = goal.is_taken;
  Result<void> outcome;
  auto ended = MovableOwner::Moved::kDone;
  try {
    {
      const MutexLock lock(mutex_);
      const Part& part = parts_[candidate.key];
      from = part.slab->block;
      to = goal.slab->block;
      slide = {.from = part.offset, .to = goal.offset};
      // The free memory before the part may be gone by now.
      if (!goal.is_taken) started = part.slab->offsets.extend_down(part.offset, part.offset - goal.offset).has_value();
    }
    if (goal.is_taken)
      outcome = copy(from, slide.from, to, slide.to, candidate.bytes);
    else if (started)
      outcome = carry_on(from, candidate.bytes, slide);
  } catch (const std::bad_alloc&) {
    outcome =
        Error(Code::kOutOfMemory, Layer::kAllocator, "no host memory to move a buffer of {} bytes", candidate.bytes);
  }
  {
    const MutexLock lock(mutex_);
    Part& part = parts_[candidate.key];
    if (goal.is_taken) {
      static_cast<void>(outcome ? part.slab->offsets.release(part.offset) : goal.slab->offsets.release(goal.offset));
      if (outcome) settle(candidate.key, goal);
    } else if (started) {
      const std::uint64_t distance = slide.from - slide.to;
      const bool stays = !outcome && slide.done == 0;
      if (!stays) settle(candidate.key, goal);
      if (outcome || stays) {
        static_cast<void>(part.slab->offsets.cut(slide.to, stays ? distance : 0, stays ? 0 : distance));
      } else {
        // Part of the block is in its new place. It keeps both, and whoever wants it next completes the move.
        part.unfinished = slide;
        ended = MovableOwner::Moved::kUnfinished;
      }
    }
  }
  pass.give_back(owner, ended, began, started, outcome, candidate.bytes);
}

Result<void> SlabMemory::complete(MovableOwner& owner) {
  const std::uint32_t key = owner.block().key;
  Block block;
  Slide slide;
  std::size_t bytes = 0;
  {
    const MutexLock lock(mutex_);
    block = parts_[key].slab->block;
    slide = *parts_[key].unfinished;
    bytes = parts_[key].bytes;
  }
  auto copied = carry_on(block, bytes, slide);
  const MutexLock lock(mutex_);
  Part& part = parts_[key];
  part.unfinished = slide;
  if (!copied) return copied;
  static_cast<void>(part.slab->offsets.cut(slide.to, 0, slide.from - slide.to));
  part.unfinished.reset();
  return {};
}

DefragmentResult SlabMemory::defragment(const DefragmentOptions& options) {
  const MutexLock turn(pass_mutex_);
  DefragmentPass pass{.options = options};
  {
    const MutexLock lock(mutex_);
    free_reached();
    pass.result.not_buffers = {.count = whole_count_, .bytes = whole_bytes_};
  }
  while (const auto candidate = next_candidate(pass)) {
    if (candidate->unfinished)
      pass.finish_earlier_move(*candidate->owner, candidate->bytes);
    else
      try_move(pass, *candidate);
    candidate->owner->drop();
  }
  if (pass.result.finished) cursor_slab_ = cursor_ = 0;
  pass.result.returned_bytes = give_back_empty(0);
  return pass.result;
}

}  // namespace berth::internal
