// Live defragmentation of growable memory: one sweep from low to high addresses, in which each buffer that may move
// goes down into the free memory before it. Free memory thereby collects behind the buffers, and steps become empty.
#include <algorithm>
#include <new>

#include "alloc/defragment_pass.h"
#include "alloc/growable_memory.h"
#include "base/round_up.h"
#include "base/try.h"
#include "memory/host_copy.h"
#include "memory/uses.h"

namespace berth::internal {
namespace {

using Clock = DefragmentPass::Clock;

// A block moves if it gains at least this fraction of its size. Bounds the bytes moved for each byte gained, and the
// number of pieces in which a block is copied that overlaps its new place.
constexpr std::size_t kMostCost = 256;
// A block leaves its step for one further down if that fills it by at least this fraction of the block.
constexpr std::size_t kMostCostToCross = 8;

}  // namespace

bool MappedGrowable::enlist(const Block& block, std::size_t alignment, MovableOwner& owner) noexcept {
  try {
    const std::uint64_t offset = block.handle - base_;
    const MutexLock lock(mutex_);
    owned_.emplace(offset, Owned{.owner = &owner, .alignment = std::max<std::size_t>(alignment, 64)});
    owned_bytes_ += *offsets_.size_of(offset);
    // Work of an earlier block may still use the memory, which then must not go to others.
    if (const auto found = handed_on_.find(offset); found != handed_on_.end())
      owner.last_use.store(found->second.bits, std::memory_order_release);
    return true;
  } catch (...) {
    return false;
  }
}

void MappedGrowable::forget_owner(std::uint64_t offset) noexcept {
  const auto found = owned_.find(offset);
  if (found == owned_.end()) return;
  if (found->second.unfinished) {
    settle(*found->second.unfinished, true);  // nobody wants the contents any more
    unfinished_.fetch_sub(1, std::memory_order_acq_rel);
  }
  owned_bytes_ -= *offsets_.size_of(offset);
  owned_.erase(found);
}

void MappedGrowable::rename(std::uint64_t from, std::uint64_t to) noexcept {
  auto node = owned_.extract(from);
  node.key() = to;
  owned_.insert(std::move(node));
  handed_on_.erase(from);  // the work that used the memory is over, or the block would not move
}

bool MappedGrowable::is_mapped(std::uint64_t from, std::uint64_t to) const noexcept {
  for (std::size_t i = from / step_; i * step_ < to; ++i)
    if (!steps_[i].mapped) return false;
  return true;
}

std::size_t MappedGrowable::loose_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Step& step : steps_)
    if (step.mapped && step.live != 0) bytes += step_;
  return bytes - used_;
}

std::uint64_t MappedGrowable::destination(std::uint64_t offset, std::size_t bytes, std::size_t alignment,
                                          bool pack) const {
  const std::uint64_t begin = offset - *offsets_.free_before(offset);
  if (begin == offset) return offset;
  std::uint64_t low = begin;
  if (!pack) {
    // A step that is empty anyway goes back to the system without a move. To go over it only pays if the block fills up
    // what is left of the step below.
    const std::uint64_t own = offset / step_ * step_;
    const std::uint64_t full = round_up(begin, step_);
    if (full + step_ <= own && (full - begin) * kMostCostToCross < bytes) low = own;
    const std::uint64_t to = round_up(low, alignment);
    if (to < offset && !is_mapped(to, std::min(to + bytes, offset))) {
      std::size_t step = first_step(offset);
      while (step > 0 && steps_[step - 1].mapped && step * step_ > low) --step;
      low = std::max<std::uint64_t>(low, step * step_);
    }
  }
  const std::uint64_t to = round_up(low, alignment);
  return to < offset && (offset - to) * kMostCost >= bytes ? to : offset;
}

Result<void> MappedGrowable::start(const Move& move) {
  const std::size_t first = first_step(move.to), end = end_of_new_steps(move);
  BERTH_TRY(grow({.bytes = move.bytes, .label = steps_[first_step(move.from)].label}, first, end));
  const auto undo = [&]() noexcept {
    mutex_.assert_held();
    for (std::size_t i = first; i < end; ++i) --steps_[i].live;
  };
  try {
    auto extended = offsets_.extend_down(move.from, move.from - move.to);
    if (extended) return {};
    undo();
    return extended.error();
  } catch (...) {
    undo();
    throw;
  }
}

void MappedGrowable::settle(const Move& move, bool moved) noexcept {
  const std::uint64_t distance = move.from - move.to;
  static_cast<void>(offsets_.cut(move.to, moved ? 0 : distance, moved ? distance : 0));
  if (moved)
    for (std::size_t i = std::max(first_step(move.from), last_step(move.to, move.bytes) + 1);
         i <= last_step(move.from, move.bytes); ++i)
      --steps_[i].live;
  else
    for (std::size_t i = first_step(move.to); i < end_of_new_steps(move); ++i) --steps_[i].live;
}

Result<Queue*> MappedGrowable::moving_queue() {
  const MutexLock lock(queue_mutex_);
  if (queue_ == nullptr) {
    BERTH_TRY_ASSIGN(queue_, device_->make_queue());
  }
  return queue_.get();
}

Result<void> MappedGrowable::transfer(Move& move) {
  if (space_->is_host()) {
    copy_host(host_at(move.to), host_at(move.from), move.bytes);
    return {};
  }
  BERTH_TRY_ASSIGN(Queue* const queue, moving_queue());
  const auto window = [&](std::uint64_t offset, std::size_t bytes) {
    return Window{.block = {.handle = base_ + offset, .bytes = bytes, .usage = Usage::kAll},
                  .bytes = bytes,
                  .device = device_.get()};
  };
  while (move.recorded < move.bytes) {
    const std::size_t bytes = std::min<std::size_t>(move.from - move.to, move.bytes - move.recorded);
    BERTH_TRY(queue->copy(window(move.from + move.recorded, bytes), window(move.to + move.recorded, bytes)));
    move.recorded += bytes;
  }
  return finish_only(*queue);
}

Result<void> MappedGrowable::complete(MovableOwner& owner) {
  const std::uint64_t offset = owner.block().handle - base_;
  Move move;
  {
    const MutexLock lock(mutex_);
    move = *owned_.find(offset)->second.unfinished;
  }
  auto copied = transfer(move);
  const MutexLock lock(mutex_);
  Owned& owned = owned_.find(offset)->second;
  if (!copied) {
    owned.unfinished = move;
    return copied;
  }
  settle(move, true);
  owned.unfinished.reset();
  unfinished_.fetch_sub(1, std::memory_order_acq_rel);
  return {};
}

Timepoint MappedGrowable::after_unfinished_move(std::uint64_t offset, Timepoint last_use) noexcept {
  {
    const MutexLock lock(mutex_);
    const auto found = owned_.find(offset);
    if (found == owned_.end() || !found->second.unfinished) return last_use;
  }
  // No work used the block since, so only the copies count.
  const MutexLock lock(queue_mutex_);
  return finish_only(*queue_) ? Timepoint() : queue_->next();
}

std::optional<MappedGrowable::Candidate> MappedGrowable::next_candidate(DefragmentPass& pass) {
  const DefragmentOptions& options = pass.options;
  while (!pass.is_late()) {
    const MutexLock lock(mutex_);
    for (int examined = 0; examined < DefragmentPass::kExaminedAtOnce; ++examined) {
      const auto next = owned_.lower_bound(cursor_);
      if (next == owned_.end() || (!options.pack_addresses && loose_ < step_)) {
        pass.result.finished = true;
        return std::nullopt;
      }
      const auto& [offset, owned] = *next;
      const Candidate candidate{.owner = owned.owner,
                                .offset = offset,
                                .bytes = owned.unfinished ? owned.unfinished->bytes : *offsets_.size_of(offset),
                                .unfinished = owned.unfinished.has_value()};
      const bool moves = candidate.unfinished ||
                         destination(offset, candidate.bytes, owned.alignment, options.pack_addresses) != offset;
      const bool fits = candidate.bytes <= options.max_bytes;
      if (moves && fits && candidate.bytes > options.max_bytes - pass.result.moved_bytes) return std::nullopt;
      cursor_ = offset + 1;
      if (!moves) continue;
      if (!fits) {
        DefragmentPass::count(pass.result.too_large, candidate.bytes);
        continue;
      }
      if (owned.owner->try_retain()) return candidate;
    }
  }
  return std::nullopt;
}

void MappedGrowable::try_move(DefragmentPass& pass, const Candidate& candidate) {
  MovableOwner& owner = *candidate.owner;
  const Clock::time_point began = Clock::now();
  if (!pass.take(owner, candidate.bytes)) return;
  Move move{.from = candidate.offset, .to = candidate.offset, .bytes = candidate.bytes, .recorded = 0};
  bool started = false;
  Result<void> outcome;
  try {
    {
      const MutexLock lock(mutex_);
      const std::size_t alignment = owned_.find(move.from)->second.alignment;
      for (const bool pack : {pass.options.pack_addresses, false}) {
        move.to = destination(move.from, move.bytes, alignment, pack);
        outcome = move.to == move.from ? Result<void>() : start(move);
        if (outcome || !pack) break;
      }
      started = outcome && move.to != move.from;
    }
    // A failure may be of the moment, so each move is tried twice.
    if (started) outcome = transfer(move);
    if (started && !outcome) outcome = transfer(move);
  } catch (const std::bad_alloc&) {
    outcome = Error(Code::kOutOfMemory, Layer::kAllocator, "no host memory to move a buffer of {} bytes", move.bytes);
  }
  auto ended = MovableOwner::Moved::kDone;
  if (started) {
    const MutexLock lock(mutex_);
    if (outcome) {
      settle(move, true);
      rename(move.from, move.to);
      owner.set_place({.handle = base_ + move.to, .host = host_at(move.to)});
    } else if (move.recorded == 0) {
      settle(move, false);
    } else {
      // Part of the block is on its way. It keeps both places, and whoever wants it next completes the move.
      owner.set_place({.handle = base_ + move.to, .host = host_at(move.to)});
      rename(move.from, move.to);
      owned_.find(move.to)->second.unfinished = move;
      unfinished_.fetch_add(1, std::memory_order_acq_rel);
      ended = MovableOwner::Moved::kUnfinished;
    }
  }
  pass.give_back(owner, ended, began, started, outcome, candidate.bytes);
}

DefragmentResult MappedGrowable::defragment(const DefragmentOptions& options) {
  const MutexLock turn(pass_mutex_);
  DefragmentPass pass{.options = options};
  {
    const MutexLock lock(mutex_);
    free_reached(true);
    loose_ = loose_bytes();
    pass.result.not_buffers = {.count = offsets_.allocations() - owned_.size() - pending_.size(),
                               .bytes = used_ - owned_bytes_ - pending_bytes_};
  }
  while (const auto candidate = next_candidate(pass)) {
    if (candidate->unfinished)
      pass.finish_earlier_move(*candidate->owner, candidate->bytes);
    else
      try_move(pass, *candidate);
    candidate->owner->drop();
  }
  if (pass.result.finished) cursor_ = 0;
  const MutexLock lock(mutex_);
  free_reached(true);
  pass.result.returned_bytes = unmap_idle(0);
  return pass.result;
}

}  // namespace berth::internal
