// The contiguous way: each sequence has a range of addresses for each group, and the pages of its blocks are mapped
// there one after the other. The pages are those of the pool, so they are shared, copied, moved and evicted as in the
// paged way; `shown` says how far the range of a sequence agrees with its blocks.
#include <algorithm>
#include <limits>
#include <numeric>

#include "base/round_up.h"
#include "base/try.h"
#include "kv/cache_state.h"

namespace berth::kv {
using namespace berth::internal;
using namespace berth::internal::kv_cache;
namespace {

// Unmapping waits for the device, so pages behind a window are unmapped this many blocks at a time.
constexpr std::uint32_t kHideBlocks = 64;

Error not_contiguous() {
  return Error(Code::kUnsupported, Layer::kAllocator,
               "the sequences of this cache have pages and no addresses: set CacheOptions::contiguous_tokens");
}

}  // namespace

Result<void> Cache::State::prepare_ranges(std::unique_ptr<AddressSpace> space) {
  constexpr std::size_t kMostAddresses = std::numeric_limits<std::size_t>::max() / 4;
  const std::uint64_t blocks = blocks_of(options.contiguous_tokens);
  std::size_t frame = 0;
  for (std::uint32_t g = 0; g < group_count; ++g) {
    const bool state = groups[g].kind == GroupKind::kState;
    const std::size_t pages_most = state ? 1 : static_cast<std::size_t>(blocks);
    ranges.page_bytes[g] = state ? pool.page_bytes(g) : groups[g].bytes_per_token * block_tokens;
    ranges.at[g] = ranges.bytes;
    if (pages_most > (kMostAddresses - ranges.bytes) / ranges.page_bytes[g])
      return Error(Code::kInvalidArgument, Layer::kAllocator,
                   "group {}: {} contiguous tokens of {} bytes are more than there are addresses", g,
                   options.contiguous_tokens, groups[g].bytes_per_token);
    ranges.bytes += pages_most * ranges.page_bytes[g];
    frame = std::gcd(std::gcd(frame, pool.page_bytes(g)), ranges.page_bytes[g]);
  }
  BERTH_TRY_ASSIGN(frames, PageFrames::make(allocator->device().shared_from_this(), std::move(space), frame,
                                            pool.bytes() / frame, options.label));
  BERTH_TRY_ASSIGN(buffer, Buffer::allocate(frames, DType::kU8, {pool.bytes()}, {.label = options.label}));
  BERTH_TRY_ASSIGN(memory, buffer.window());
  return frames->show(memory.block.handle, 0, 0, pool.bytes());
}

Result<void> Cache::State::give_range(Sequence& sequence) {
  if (!frames) return {};
  if (ranges.free.empty()) {
    Range range;
    BERTH_TRY_ASSIGN(range.buffer, Buffer::allocate(frames, DType::kU8, {ranges.bytes}, {.label = options.label}));
    BERTH_TRY_ASSIGN(const Window window, range.buffer.window());
    range.address = window.block.handle;
    ranges.all.push_back(std::move(range));
    ranges.free.reserve(ranges.all.capacity());  // so that close() allocates nothing
    ranges.free.push_back(static_cast<std::uint32_t>(ranges.all.size() - 1));
  }
  sequence.range = ranges.free.back();
  ranges.free.pop_back();
  sequence.shown = 0;
  sequence.hidden = sequence.first;
  BERTH_TRY(show_range(sequence));
  // What an earlier sequence left goes now, rather than when this one grows: the device may have to be waited for.
  Range& range = ranges.all[sequence.range];
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (groups[g].kind == GroupKind::kState) continue;
    static_cast<void>(hide(range, g, 0, groups[g].kind == GroupKind::kWindow ? sequence.first[g] : 0));
    static_cast<void>(hide(range, g, sequence.blocks.size(), range.most));
  }
  range.most = sequence.blocks.size();
  return {};
}

void Cache::State::take_range(Sequence& sequence) noexcept {
  if (sequence.range == kNoRange) return;
  ranges.free.push_back(sequence.range);
  sequence.range = kNoRange;
}

Result<void> Cache::State::hide(const Range& range, std::uint32_t group, std::size_t first, std::size_t end) {
  if (first >= end) return {};
  const std::size_t bytes = ranges.page_bytes[group];
  return frames->hide(range.address, ranges.at[group] + first * bytes, (end - first) * bytes);
}

Result<void> Cache::State::show(const Range& range, std::uint32_t group, std::size_t block, Page page) {
  const std::size_t bytes = ranges.page_bytes[group];
  return frames->show(range.address, ranges.at[group] + block * bytes,
                      static_cast<std::size_t>(page) * pool.page_bytes(group), bytes);
}

Result<void> Cache::State::show_range(Sequence& sequence) {
  if (sequence.range == kNoRange) return {};
  Range& range = ranges.all[sequence.range];
  for (std::uint32_t g = 0; g < group_count; ++g)
    if (groups[g].kind == GroupKind::kState) BERTH_TRY(show(range, g, 0, sequence.states[g]));
  for (; sequence.shown < sequence.blocks.size(); ++sequence.shown) {
    const std::uint32_t at = sequence.shown;
    range.most = std::max<std::size_t>(range.most, at + 1);
    for (std::uint32_t g = 0; g < group_count; ++g) {
      if (groups[g].kind == GroupKind::kState) continue;
      if (groups[g].kind == GroupKind::kWindow && at < sequence.first[g]) continue;
      BERTH_TRY(show(range, g, at, page_of(sequence.blocks[at], g)));
    }
  }
  for (std::uint32_t g = 0; g < group_count; ++g) {
    if (groups[g].kind != GroupKind::kWindow || sequence.first[g] < sequence.hidden[g] + kHideBlocks) continue;
    // What cannot be unmapped now is unmapped with the next blocks.
    if (hide(range, g, sequence.hidden[g], sequence.first[g])) sequence.hidden[g] = sequence.first[g];
  }
  return {};
}

void Cache::State::show_moved() noexcept {
  if (!moved) return;
  moved = false;
  // Where this fails, show_range() is tried again when the addresses are asked for.
  for (Sequence& sequence : sequences) {
    if (!sequence.open) continue;
    sequence.shown = 0;
    static_cast<void>(show_range(sequence));
  }
}

Result<void> Cache::State::check_ranges() const {
  std::vector<bool> used(ranges.all.size());
  for (const std::uint32_t range : ranges.free) used[range] = true;
  for (std::uint32_t s = 0; s < sequences.size(); ++s) {
    const Sequence& sequence = sequences[s];
    if (!sequence.open) continue;
    if (sequence.range >= used.size() || used[sequence.range])
      return Error(Code::kInvalidData, Layer::kAllocator, "sequence {} has no range of its own", s);
    used[sequence.range] = true;
    if (sequence.shown > sequence.blocks.size())
      return Error(Code::kInvalidData, Layer::kAllocator, "the range of sequence {} shows {} of {} blocks", s,
                   sequence.shown, sequence.blocks.size());
    const std::uint64_t address = ranges.all[sequence.range].address;
    for (std::uint32_t i = 0; i < sequence.shown; ++i)
      for (std::uint32_t g = 0; g < group_count; ++g) {
        if (groups[g].kind == GroupKind::kState) continue;
        if (groups[g].kind == GroupKind::kWindow && i < sequence.first[g]) continue;
        const std::size_t bytes = ranges.page_bytes[g];
        const auto page = static_cast<std::size_t>(page_of(sequence.blocks[i], g));
        if (!frames->shows(address, ranges.at[g] + i * bytes, page * pool.page_bytes(g), bytes))
          return Error(Code::kInvalidData, Layer::kAllocator, "block {} of sequence {} has another page in its range",
                       i, s);
      }
  }
  if (std::find(used.begin(), used.end(), false) != used.end())
    return Error(Code::kInvalidData, Layer::kAllocator, "a range is lost");
  return {};
}

Result<void> Cache::write_addresses(std::uint32_t group, std::span<const SequenceId> ids,
                                    std::span<std::uint64_t> addresses) const {
  State& state = *state_;
  const MutexLock lock(state.mutex);
  if (!state.frames) return not_contiguous();
  BERTH_TRY(state.check_group(group));
  if (addresses.size() < ids.size())
    return Error(Code::kSizeMismatch, Layer::kAllocator, "{} sequences do not fit {} addresses", ids.size(),
                 addresses.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    BERTH_TRY_ASSIGN(State::Sequence * sequence, state.find(ids[i]));
    BERTH_TRY(state.show_range(*sequence));
    addresses[i] = state.ranges.all[sequence->range].address + state.ranges.at[group];
  }
  return {};
}

Result<ContiguousTokens> Cache::contiguous(std::uint32_t group, SequenceId id) const {
  State& state = *state_;
  const MutexLock lock(state.mutex);
  if (!state.frames) return not_contiguous();
  BERTH_TRY(state.check_group(group));
  BERTH_TRY_ASSIGN(State::Sequence * sequence, state.find(id));
  BERTH_TRY(state.show_range(*sequence));
  const State::Range& range = state.ranges.all[sequence->range];
  const Group& kind = state.groups[group];
  ContiguousTokens found;
  if (kind.kind == GroupKind::kState) {
    BERTH_TRY_ASSIGN(found.tokens,
                     range.buffer.view(state.ranges.at[group], DType::kU8, {std::size_t{1}, kind.state_bytes}));
    return found;
  }
  if (kind.kind == GroupKind::kWindow)
    found.first = std::min<std::uint64_t>(std::uint64_t{sequence->first[group]} * state.block_tokens, sequence->length);
  BERTH_TRY_ASSIGN(found.tokens,
                   range.buffer.view(state.ranges.at[group] + found.first * kind.bytes_per_token, DType::kU8,
                                     {static_cast<std::size_t>(sequence->length - found.first), kind.bytes_per_token}));
  return found;
}

}  // namespace berth::kv
