// The part of the queue that handles the alignment of bytes: in place, in whole words, or at the edges of words.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/round_up.h"
#include "base/try.h"
#include "devices/webgpu/webgpu_queue.h"
#include "devices/webgpu/webgpu_shaders.h"
#include "memory/host_copy.h"

namespace berth::internal::webgpu {
namespace {

// From this size on, waiting for a buffer to become idle and writing it in place is faster than staging, which would
// wait for the same work.
constexpr std::size_t kWorthWaiting = std::size_t{1} << 20;

constexpr std::size_t round_down(std::size_t value, std::size_t multiple) noexcept {
  return value / multiple * multiple;
}
template <class T>
std::span<const std::byte> bytes_of(const T& value) noexcept {
  return std::as_bytes(std::span(&value, 1));
}

std::uint32_t groups_for(std::size_t words) noexcept {
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(words / 256, 1, 1024));
}

static_assert(std::endian::native == std::endian::little, "WebGPU words are little-endian");

}  // namespace

// ---- in place ---------------------------------------------------------------------------------------------------

Result<bool> WebgpuQueue::take_in_place(BufferState& state, std::size_t bytes) {
  if (!state.maps) return false;
  if (state.try_take(context_)) return true;
  if (bytes < kWorthWaiting) return false;
  BERTH_TRY(flush());
  BERTH_TRY(context_.wait(state.last_use.load(std::memory_order_acquire)));
  return state.try_take(context_);
}

template <class Transfer>
Result<void> WebgpuQueue::in_place(BufferState& state, wgpu::Flags mode, std::size_t offset, std::size_t bytes,
                                   Transfer&& transfer) {
  const std::size_t begin = round_down(offset, 8);
  const std::size_t end = round_up(offset + bytes, 8);
  const auto mapped = context_.map(state.buffer, mode, begin, end - begin);
  if (mapped) {
    transfer(*mapped + (offset - begin));
    context_.calls().BufferUnmap(state.buffer);
  }
  state.give_back();
  if (!mapped) return mapped.error();
  return {};
}

Result<void> WebgpuQueue::do_write(const Window& target, std::span<const std::byte> source) {
  BERTH_TRY_ASSIGN(const BufferStatePtr state, state_of(target, "target"));
  BERTH_TRY_ASSIGN(const bool taken, take_in_place(*state, source.size()));
  if (taken)
    return in_place(*state, wgpu::kMapWrite, target.offset, source.size(),
                    [&](std::byte* bytes) { copy_host(bytes, source.data(), source.size()); });
  std::size_t offset = target.offset;
  if (offset % 4 != 0) {
    const std::size_t count = std::min(source.size(), 4 - offset % 4);
    BERTH_TRY(patch(state, offset, source.first(count)));
    offset += count;
    source = source.subspan(count);
  }
  const std::size_t words = round_down(source.size(), 4);
  BERTH_TRY(stage(state, offset, source.first(words)));
  if (words < source.size()) BERTH_TRY(patch(state, offset + words, source.subspan(words)));
  return {};
}

Result<void> WebgpuQueue::do_read(const Window& source, std::span<std::byte> target) {
  BERTH_TRY_ASSIGN(const BufferStatePtr state, state_of(source, "source"));
  BERTH_TRY_ASSIGN(const bool taken, take_in_place(*state, source.bytes));
  if (taken)
    return in_place(*state, wgpu::kMapRead, source.offset, source.bytes,
                    [&](const std::byte* bytes) { copy_host(target.data(), bytes, target.size()); });
  return read_staged(state, source.offset, target);
}

Result<void> WebgpuQueue::do_fill(const Window& target, std::uint8_t value) {
  BERTH_TRY_ASSIGN(const BufferStatePtr state, state_of(target, "target"));
  BERTH_TRY_ASSIGN(const bool taken, take_in_place(*state, target.bytes));
  if (taken)
    return in_place(*state, wgpu::kMapWrite, target.offset, target.bytes,
                    [&](std::byte* bytes) { fill_host(bytes, value, target.bytes); });
  const std::uint32_t word = value * 0x01010101U;
  std::size_t offset = target.offset;
  std::size_t left = target.bytes;
  if (offset % 4 != 0) {
    const std::size_t count = std::min(left, 4 - offset % 4);
    BERTH_TRY(patch(state, offset, bytes_of(word).first(count)));
    offset += count;
    left -= count;
  }
  const std::size_t words = round_down(left, 4);
  if (words > 0) BERTH_TRY(fill_words(state, offset, words, word));
  if (words < left) BERTH_TRY(patch(state, offset + words, bytes_of(word).first(left - words)));
  return {};
}

// ---- words and their edges ----------------------------------------------------------------------------------------

// Up to three bytes inside one word.
Result<void> WebgpuQueue::patch(const BufferStatePtr& state, std::size_t offset, std::span<const std::byte> source) {
  std::array<std::uint8_t, 4> mask{}, value{};
  std::memcpy(value.data() + offset % 4, source.data(), source.size());
  std::memset(mask.data() + offset % 4, 0xff, source.size());
  struct Patch {
    std::uint32_t word, mask, value;
  };
  const std::size_t word = round_down(offset, 4);
  const std::size_t base = round_down(word, context_.limits().min_storage_buffer_offset_alignment);
  const Patch constants{static_cast<std::uint32_t>((word - base) / 4), std::bit_cast<std::uint32_t>(mask),
                        std::bit_cast<std::uint32_t>(value)};
  BERTH_TRY_ASSIGN(const auto kernel, shared_.kernel(kPatchShader));
  BERTH_TRY(room_for_constants(sizeof constants));
  BERTH_TRY(record_pending_copy());
  use(state);
  const Binding binding{state.get(), base, word + 4 - base};
  return dispatch(*kernel, kernel->as_written(), {&binding, 1}, {1, 1, 1}, bytes_of(constants), false);
}

Result<void> WebgpuQueue::fill_words(const BufferStatePtr& state, std::size_t offset, std::size_t bytes,
                                     std::uint32_t value) {
  if (value == 0) {
    BERTH_TRY(record_pending_copy());
    BERTH_TRY(need_encoder());
    use(state);
    end_pass();
    context_.calls().CommandEncoderClearBuffer(encoder_, state->buffer, offset, bytes);
    return {};
  }
  struct Fill {
    std::uint32_t first, count, value;
  };
  BERTH_TRY_ASSIGN(const auto kernel, shared_.kernel(kFillShader));
  const std::size_t alignment = context_.limits().min_storage_buffer_offset_alignment;
  const std::size_t most = round_down(context_.limits().max_storage_buffer_binding_size, alignment) - alignment;
  for (std::size_t end = offset + bytes; offset < end;) {
    const std::size_t count = std::min(most, end - offset);
    const std::size_t base = round_down(offset, alignment);
    const Fill constants{static_cast<std::uint32_t>((offset - base) / 4), static_cast<std::uint32_t>(count / 4), value};
    const Binding binding{state.get(), base, offset + count - base};
    BERTH_TRY(room_for_constants(sizeof constants));
    use(state);
    BERTH_TRY(dispatch(*kernel, kernel->as_written(), {&binding, 1}, {groups_for(count / 4), 1, 1}, bytes_of(constants),
                       false));
    offset += count;
  }
  return {};
}

Result<void> WebgpuQueue::do_copy(const Window& source, const Window& target) {
  BERTH_TRY_ASSIGN(const BufferStatePtr from, state_of(source, "source"));
  BERTH_TRY_ASSIGN(const BufferStatePtr to, state_of(target, "target"));
  BERTH_TRY(record_pending_copy());
  if (from != to && source.offset % 4 == 0 && target.offset % 4 == 0 && source.bytes % 4 == 0) {
    use(from);
    use(to);
    return copy_bytes(from->buffer, source.offset, to->buffer, target.offset, source.bytes);
  }
  if (from == to && source.offset == target.offset) return {};
  // WebGPU copies only whole words, and only between two buffers. Everything else goes through scratch memory, piece by
  // piece, in the direction that an overlap allows.
  constexpr std::size_t kPiece = kChunkBytes - 8;
  const bool backwards = from == to && target.offset > source.offset;
  for (std::size_t done = 0; done < source.bytes;) {
    const std::size_t count = std::min(kPiece, source.bytes - done);
    const std::size_t at = backwards ? source.bytes - done - count : done;
    BERTH_TRY(copy_through_scratch(from, source.offset + at, to, target.offset + at, count));
    done += count;
  }
  return {};
}

Result<void> WebgpuQueue::copy_through_scratch(const BufferStatePtr& from, std::size_t from_offset,
                                               const BufferStatePtr& to, std::size_t to_offset, std::size_t bytes) {
  struct Shift {
    std::uint32_t source, goal, bytes;
  };
  BERTH_TRY_ASSIGN(const auto kernel, shared_.kernel(kShiftShader));
  BERTH_TRY(room_for_constants(sizeof(Shift)));
  if (scratch_.buffer == nullptr) {
    BERTH_TRY_ASSIGN(scratch_, shared_.staging.take(ChunkKind::kScratch));
  }
  use(from);
  use(to);
  const std::size_t begin = round_down(from_offset, 4);
  const std::size_t words = round_up(from_offset + bytes, 4) - begin;
  BERTH_TRY(copy_bytes(from->buffer, begin, scratch_.buffer, 0, words));
  if (from_offset == begin && to_offset % 4 == 0 && bytes % 4 == 0)
    return copy_bytes(scratch_.buffer, 0, to->buffer, to_offset, bytes);
  const std::size_t base = round_down(to_offset, context_.limits().min_storage_buffer_offset_alignment);
  const Shift constants{static_cast<std::uint32_t>(from_offset - begin), static_cast<std::uint32_t>(to_offset - base),
                        static_cast<std::uint32_t>(bytes)};
  BufferState scratch;
  scratch.buffer = scratch_.buffer;
  const std::array<Binding, 2> bindings{
      {{&scratch, 0, scratch_.bytes}, {to.get(), base, round_up(to_offset + bytes, 4) - base}}};
  return dispatch(*kernel, kernel->as_written(), bindings, {groups_for(bytes / 4), 1, 1}, bytes_of(constants), false);
}

}  // namespace berth::internal::webgpu
