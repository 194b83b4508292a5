#include <algorithm>

#include "base/try.h"
#include "kv/cache_state.h"

namespace berth::kv {
using namespace berth::internal;
using namespace berth::internal::kv_cache;

Result<void> Cache::State::check_group(std::uint32_t group) const {
  if (group < group_count) return {};
  return Error(Code::kInvalidArgument, Layer::kAllocator, "there is no group {}: the cache has {}", group, group_count);
}

Result<void> Cache::write_block_table(std::uint32_t group, std::span<const SequenceId> ids, std::size_t row_pages,
                                      std::span<std::int32_t> table, std::int32_t padding) const {
  State& state = *state_;
  const MutexLock lock(state.mutex);
  BERTH_TRY(state.check_group(group));
  if (row_pages != 0 && ids.size() > table.size() / row_pages)
    return Error(Code::kSizeMismatch, Layer::kAllocator, "a table of {} rows of {} pages does not fit {} elements",
                 ids.size(), row_pages, table.size());
  std::int32_t* row = table.data();
  for (const SequenceId id : ids) {
    BERTH_TRY_ASSIGN(const State::Sequence* sequence, state.find(id));
    const bool constant = state.groups[group].kind == GroupKind::kState;
    const std::size_t used = constant ? 1 : static_cast<std::size_t>(state.blocks_of(sequence->length));
    if (used > row_pages)
      return Error(Code::kSizeMismatch, Layer::kAllocator, "sequence {} has {} pages and a row of the table has {}",
                   id.bits, used, row_pages);
    if (constant) {
      row[0] = sequence->states[group];
    } else if (state.identity) {
      std::transform(sequence->blocks.begin(), sequence->blocks.begin() + static_cast<std::ptrdiff_t>(used), row,
                     [](Node node) { return static_cast<std::int32_t>(node); });
    } else {
      const std::size_t first = state.groups[group].kind == GroupKind::kWindow ? sequence->first[group] : 0;
      for (std::size_t i = 0; i < used; ++i) row[i] = i < first ? padding : state.page_of(sequence->blocks[i], group);
    }
    std::fill(row + used, row + row_pages, padding);
    row += row_pages;
  }
  return {};
}

Result<std::size_t> Cache::write_csr(std::uint32_t group, std::span<const SequenceId> ids,
                                     std::span<std::int32_t> indptr, std::span<std::int32_t> indices,
                                     std::span<std::int32_t> last_page_len, std::int32_t padding) const {
  State& state = *state_;
  const MutexLock lock(state.mutex);
  BERTH_TRY(state.check_group(group));
  if (indptr.size() < ids.size() + 1 || last_page_len.size() < ids.size())
    return Error(Code::kSizeMismatch, Layer::kAllocator,
                 "{} sequences need {} elements of indptr and as many last lengths, and there are {} and {}",
                 ids.size(), ids.size() + 1, indptr.size(), last_page_len.size());
  std::size_t at = 0;
  indptr[0] = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    BERTH_TRY_ASSIGN(const State::Sequence* sequence, state.find(ids[i]));
    const bool constant = state.groups[group].kind == GroupKind::kState;
    const std::size_t used = constant ? 1 : static_cast<std::size_t>(state.blocks_of(sequence->length));
    if (used > indices.size() - at)
      return Error(Code::kSizeMismatch, Layer::kAllocator, "{} indices are too few: sequence {} needs {} more",
                   indices.size(), ids[i].bits, used - (indices.size() - at));
    const std::size_t first = state.groups[group].kind == GroupKind::kWindow ? sequence->first[group] : 0;
    for (std::size_t block = 0; block < used; ++block)
      indices[at++] = constant        ? sequence->states[group]
                      : block < first ? padding
                                      : state.page_of(sequence->blocks[block], group);
    indptr[i + 1] = static_cast<std::int32_t>(at);
    last_page_len[i] =
        sequence->length == 0 ? 0 : static_cast<std::int32_t>((sequence->length - 1) % state.block_tokens + 1);
  }
  return at;
}

Result<void> Cache::write_slots(std::uint32_t group, SequenceId id, std::uint64_t first,
                                std::span<std::int64_t> slots) const {
  State& state = *state_;
  const MutexLock lock(state.mutex);
  BERTH_TRY(state.check_group(group));
  BERTH_TRY_ASSIGN(const State::Sequence* sequence, state.find(id));
  if (first > sequence->length || slots.size() > sequence->length - first)
    return Error(Code::kInvalidArgument, Layer::kAllocator, "tokens {} to {} are asked for and the sequence has {}",
                 first, first + slots.size(), sequence->length);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::uint64_t token = first + i, block = token / state.block_tokens;
    const bool gone = state.groups[group].kind == GroupKind::kState ||
                      (state.groups[group].kind == GroupKind::kWindow && block < sequence->first[group]);
    slots[i] = gone ? -1
                    : std::int64_t{state.page_of(sequence->blocks[static_cast<std::size_t>(block)], group)} *
                              state.block_tokens +
                          static_cast<std::int64_t>(token % state.block_tokens);
  }
  return {};
}

Result<void> Cache::write_seq_lens(std::span<const SequenceId> ids, std::span<std::int32_t> lengths) const {
  State& state = *state_;
  const MutexLock lock(state.mutex);
  if (lengths.size() < ids.size())
    return Error(Code::kSizeMismatch, Layer::kAllocator, "{} sequences do not fit {} lengths", ids.size(),
                 lengths.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    BERTH_TRY_ASSIGN(const State::Sequence* sequence, state.find(ids[i]));
    lengths[i] = static_cast<std::int32_t>(sequence->length);
  }
  return {};
}

}  // namespace berth::kv
