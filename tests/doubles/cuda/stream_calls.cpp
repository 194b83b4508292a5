// Streams, events, copies, fills and launches.
#include <algorithm>
#include <cstring>

#include "entry.h"

namespace {

using cuda_double::DeviceContext;
using cuda_double::EventState;
using cuda_double::kRaceByte;
using cuda_double::Mapping;
using cuda_double::MemoryKind;
using cuda_double::Range;
using cuda_double::spell;
using cuda_double::State;
using cuda_double::StreamState;
using namespace berth::internal::cuda;  // NOLINT
using Lock = std::unique_lock<std::mutex>;

template <class Handle>
Handle new_handle(State& state) {
  state.next_object += 16;
  return reinterpret_cast<Handle>(state.next_object);
}

// One end of a copy: device or known host memory by address, or bytes of the caller's that were taken along.
struct Side {
  std::uint64_t address = 0;
  std::size_t pitch = 0;
  std::shared_ptr<std::vector<unsigned char>> taken;
  unsigned char* pageable = nullptr;
};

// Moves rows of `width` bytes, resolving each row when it runs: memory that is gone by then is an illegal address.
Status move_rows(State& state, Lock& lock, const Side& target, const Side& source, std::size_t width,
                 std::size_t height, bool raced) {
  if (width == 0) return kSuccess;
  std::vector<unsigned char> row(width);
  for (std::size_t y = 0; y < height; ++y) {
    const auto resolve = [&](const Side& side) {
      if (side.taken != nullptr) {
        return std::vector<State::Piece>{{nullptr, side.taken->data() + y * side.pitch, width}};
      }
      if (side.pageable != nullptr) {
        return std::vector<State::Piece>{{nullptr, side.pageable + y * side.pitch, width}};
      }
      return state.pieces(side.address + y * side.pitch, width);
    };
    const auto from = resolve(source);
    const auto to = resolve(target);
    if (from.empty() || to.empty()) return kErrorIllegalAddress;
    lock.unlock();
    std::size_t done = 0;
    for (const auto& piece : from) {
      std::memcpy(row.data() + done, piece.host, piece.bytes);
      done += piece.bytes;
    }
    if (raced) std::memset(row.data(), kRaceByte, width);
    done = 0;
    for (const auto& piece : to) {
      std::memcpy(piece.host, row.data() + done, piece.bytes);
      done += piece.bytes;
    }
    lock.lock();
  }
  return kSuccess;
}

struct Transfer {
  Side target;
  Side source;
  std::size_t width = 0;
  std::size_t height = 1;
  std::vector<Range> ranges;
  bool blocks = false;  // the call returns only when the bytes are there
};

std::size_t extent(const Side& side, std::size_t width, std::size_t height) {
  return height == 0 ? 0 : side.pitch * (height - 1) + width;
}

// Fills in the device's side of a transfer, or says what is wrong with it.
Status device_side(State& state, const char* call, DeviceContext* context, Transfer& transfer, Side& side,
                   Address pointer, std::size_t pitch, bool writes) {
  side.address = pointer;
  side.pitch = pitch;
  const std::size_t bytes = extent(side, transfer.width, transfer.height);
  if (!state.usable(pointer, bytes, context, false)) {
    return state.misuse(call, "not usable by this context: " + spell(pointer, bytes), kErrorInvalidValue);
  }
  for (std::size_t y = 0; y < transfer.height; ++y) {
    transfer.ranges.push_back({pointer + y * pitch, transfer.width, writes});
  }
  return kSuccess;
}

// The same for the host's side. Pinned and managed memory is read or written when the stream comes to it; of other
// memory a source is copied now, and a target makes the call block, as with the driver.
Status host_side(State& state, const char* call, Transfer& transfer, Side& side, void* pointer, std::size_t pitch,
                 bool writes) {
  side.pitch = pitch;
  const std::size_t bytes = extent(side, transfer.width, transfer.height);
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  const Mapping* mapping = state.mapping_at(address);
  if (mapping != nullptr) {
    if (!state.usable(address, bytes, nullptr, true)) {
      return state.misuse(call, "not host memory: " + spell(address, bytes), kErrorInvalidValue);
    }
    side.address = address;
    // A read that is not waited for finds this. Memory that a stream may still read is left alone.
    if (writes && state.waited_for(*mapping)) {
      for (std::size_t y = 0; y < transfer.height; ++y) {
        std::memset(static_cast<unsigned char*>(pointer) + y * pitch, kRaceByte, transfer.width);
      }
    }
    for (std::size_t y = 0; y < transfer.height; ++y) {
      transfer.ranges.push_back({address + y * pitch, transfer.width, writes});
    }
    return kSuccess;
  }
  if (pointer == nullptr && bytes != 0) return state.misuse(call, "null host pointer", kErrorInvalidValue);
  if (writes) {
    side.pageable = static_cast<unsigned char*>(pointer);
    transfer.blocks = true;
  } else {
    const auto* from = static_cast<const unsigned char*>(pointer);
    side.taken = std::make_shared<std::vector<unsigned char>>(from, from + bytes);
  }
  return kSuccess;
}

void send(State& state, Lock& lock, const char* call, const std::shared_ptr<StreamState>& stream, Transfer transfer) {
  const bool blocks = transfer.blocks;
  auto ranges = transfer.ranges;
  const std::uint64_t sequence =
      state.submit(call, stream, std::move(ranges), [&state, transfer = std::move(transfer)](Lock& held, bool raced) {
        return move_rows(state, held, transfer.target, transfer.source, transfer.width, transfer.height, raced);
      });
  if (!blocks) return;
  const cuda_double::Clock waited = stream->clock;
  state.drain(lock, *stream, sequence);
  state.host.join(waited);
}

}  // namespace

#define DOUBLE_STREAM(handle)                                                                                     \
  auto stream = state.stream_of(handle);                                                                          \
  if (stream == nullptr) return state.misuse(kCall, "unknown stream", kErrorInvalidHandle);                       \
  if (stream->context != context) return state.misuse(kCall, "a stream of another context", kErrorInvalidHandle); \
  if (const Status unusable = State::usable_stream(*stream); unusable != kSuccess) return unusable

// A stream that captures nothing: there is no time at which captured work is done.
#define DOUBLE_WAITABLE_STREAM(handle) \
  DOUBLE_STREAM(handle);               \
  if (stream->capture != nullptr)      \
  return state.conflict(kCall, "the stream captures", *stream->capture, kErrorCaptureUnsupported)

namespace berth::internal::cuda {
extern "C" {

Status cuStreamCreate(Stream* handle, unsigned flags) {
  DOUBLE_ENTER_CONTEXT("cuStreamCreate");
  if (flags != kStreamNonBlocking) return state.misuse(kCall, "the double has no default stream", kErrorNotSupported);
  auto stream = std::make_shared<StreamState>();
  stream->context = context;
  stream->number = state.streams_made++;
  state.context_of_stream.push_back(context);
  *handle = new_handle<Stream>(state);
  state.streams[*handle] = stream;
  state.all_streams.push_back(stream);
  state.start(stream);
  return kSuccess;
}

Status cuStreamDestroy_v2(Stream handle) {
  DOUBLE_ENTER_CONTEXT("cuStreamDestroy");
  auto stream = state.stream_of(handle);
  if (stream == nullptr) return state.misuse(kCall, "unknown stream", kErrorInvalidHandle);
  if (stream->capture != nullptr)
    return state.conflict(kCall, "the stream captures", *stream->capture, kErrorCaptureUnsupported);
  // What was submitted still runs, when somebody waits for it.
  stream->destroyed = true;
  state.streams.erase(handle);
  state.changed.notify_all();
  return kSuccess;
}

Status cuStreamSynchronize(Stream handle) {
  DOUBLE_ENTER_UNSAFE("cuStreamSynchronize");
  DOUBLE_WAITABLE_STREAM(handle);
  const cuda_double::Clock waited = stream->clock;
  state.drain(lock, *stream, stream->submitted);
  state.host.join(waited);
  return context->lost;
}

Status cuStreamQuery(Stream handle) {
  DOUBLE_ENTER_UNSAFE("cuStreamQuery");
  DOUBLE_WAITABLE_STREAM(handle);
  if (stream->completed < stream->submitted) {
    state.demand(*stream, stream->submitted);
    return kErrorNotReady;
  }
  state.host.join(stream->clock);
  return kSuccess;
}

Status cuStreamWaitEvent(Stream handle, Event event_handle, unsigned flags) {
  DOUBLE_ENTER_CONTEXT("cuStreamWaitEvent");
  // The event may be another context's; the stream may not.
  DOUBLE_STREAM(handle);
  auto found = state.events.find(event_handle);
  if (found == state.events.end()) return state.misuse(kCall, "unknown event", kErrorInvalidHandle);
  if (flags != 0) return state.misuse(kCall, "bad flags", kErrorInvalidValue);
  const EventState& event = *found->second;
  if (event.stream == nullptr && event.capture == nullptr) return kSuccess;  // never recorded: nothing to wait for
  if (stream->capture != nullptr && event.capture != stream->capture)
    return state.conflict(kCall, "a capturing stream waits for an event from outside of its capture", *stream->capture,
                          kErrorCaptureIsolation);
  if (event.capture != nullptr) {
    if (!event.capture->active) return state.misuse(kCall, "the event was captured", kErrorCapturedEvent);
    if (event.capture->invalid) return kErrorCaptureInvalidated;
    if (stream->capture == nullptr) {
      stream->capture = event.capture;  // the stream joins the capture
      stream->capture_clock = {};
    }
    stream->capture_clock.join(event.capture_clock);
    return kSuccess;
  }
  stream->clock.join(event.clock);
  state.submit(kCall, stream, {}, [&state, from = event.stream, sequence = event.sequence](Lock& held, bool) {
    state.drain(held, *from, sequence);
    return from->context->lost;  // what was waited for never happened
  });
  return kSuccess;
}

Status cuEventCreate(Event* handle, unsigned) {
  DOUBLE_ENTER_CONTEXT("cuEventCreate");
  *handle = new_handle<Event>(state);
  auto event = std::make_unique<EventState>();
  event->context = context;
  state.events[*handle] = std::move(event);
  return kSuccess;
}

Status cuEventDestroy_v2(Event handle) {
  DOUBLE_ENTER_CONTEXT("cuEventDestroy");
  if (state.events.erase(handle) == 0) return state.misuse(kCall, "unknown event", kErrorInvalidHandle);
  return kSuccess;
}

Status cuEventRecord(Event handle, Stream stream_handle) {
  DOUBLE_ENTER_CONTEXT("cuEventRecord");
  DOUBLE_STREAM(stream_handle);
  auto found = state.events.find(handle);
  if (found == state.events.end()) return state.misuse(kCall, "unknown event", kErrorInvalidHandle);
  EventState& event = *found->second;
  if (event.context != stream->context) return state.misuse(kCall, "an event of another context", kErrorInvalidHandle);
  event.capture = stream->capture;
  if (event.capture != nullptr) {
    event.capture_clock = stream->capture_clock;
    event.stream = nullptr;
    return kSuccess;
  }
  event.sequence = state.submit(kCall, stream, {}, [](Lock&, bool) { return kSuccess; });
  event.stream = stream;
  event.clock = stream->clock;
  event.asked = 0;
  return kSuccess;
}

Status cuEventSynchronize(Event handle) {
  DOUBLE_ENTER_UNSAFE("cuEventSynchronize");
  auto found = state.events.find(handle);
  if (found == state.events.end()) return state.misuse(kCall, "unknown event", kErrorInvalidHandle);
  if (found->second->capture != nullptr)
    return state.conflict(kCall, "the event was captured", *found->second->capture, kErrorCapturedEvent);
  auto stream = found->second->stream;
  if (stream == nullptr) return kSuccess;
  const cuda_double::Clock waited = found->second->clock;
  state.drain(lock, *stream, found->second->sequence);
  state.host.join(waited);
  return stream->context->lost;
}

Status cuEventQuery(Event handle) {
  DOUBLE_ENTER_UNSAFE("cuEventQuery");
  auto found = state.events.find(handle);
  if (found == state.events.end()) return state.misuse(kCall, "unknown event", kErrorInvalidHandle);
  if (found->second->capture != nullptr)
    return state.conflict(kCall, "the event was captured", *found->second->capture, kErrorCapturedEvent);
  EventState& event = *found->second;
  if (event.stream == nullptr) return kSuccess;
  if (event.stream->completed >= event.sequence) {
    state.host.join(event.clock);
    return kSuccess;
  }
  // Late: only one who asks again and again gets the stream to move.
  if (++event.asked >= 3) {
    auto stream = event.stream;
    state.drain(lock, *stream, event.sequence);
  }
  return kErrorNotReady;
}

Status cuMemcpyHtoDAsync_v2(Address target, const void* source, std::size_t bytes, Stream handle) {
  DOUBLE_ENTER_CONTEXT("cuMemcpyHtoDAsync");
  DOUBLE_STREAM(handle);
  Transfer transfer;
  transfer.width = bytes;
  Status status = device_side(state, kCall, context, transfer, transfer.target, target, 0, true);
  if (status == kSuccess) {
    status = host_side(state, kCall, transfer, transfer.source, const_cast<void*>(source), 0, false);
  }
  if (status != kSuccess) return status;
  // A replay would read the caller's memory again, which may be gone.
  if (stream->capture != nullptr && transfer.source.taken != nullptr)
    return state.conflict(kCall, "a captured copy from pageable memory", *stream->capture, kErrorCaptureUnsupported);
  state.traffic.host_to_device += bytes;
  send(state, lock, kCall, stream, std::move(transfer));
  return kSuccess;
}

Status cuMemcpyDtoHAsync_v2(void* target, Address source, std::size_t bytes, Stream handle) {
  DOUBLE_ENTER_CONTEXT("cuMemcpyDtoHAsync");
  DOUBLE_STREAM(handle);
  Transfer transfer;
  transfer.width = bytes;
  Status status = device_side(state, kCall, context, transfer, transfer.source, source, 0, false);
  if (status == kSuccess) status = host_side(state, kCall, transfer, transfer.target, target, 0, true);
  if (status != kSuccess) return status;
  const bool blocks = transfer.blocks;
  if (stream->capture != nullptr && blocks)
    return state.conflict(kCall, "a captured copy to pageable memory", *stream->capture, kErrorCaptureUnsupported);
  if (const Status unsafe = blocks ? state.unsafe(kCall) : kSuccess; unsafe != kSuccess) return unsafe;
  state.traffic.device_to_host += bytes;
  send(state, lock, kCall, stream, std::move(transfer));
  return blocks ? context->lost : kSuccess;
}

Status cuMemcpyDtoDAsync_v2(Address target, Address source, std::size_t bytes, Stream handle) {
  DOUBLE_ENTER_CONTEXT("cuMemcpyDtoDAsync");
  DOUBLE_STREAM(handle);
  if (target < source + bytes && source < target + bytes && bytes != 0) {
    return state.misuse(kCall, "source and target overlap", kErrorInvalidValue);
  }
  Transfer transfer;
  transfer.width = bytes;
  Status status = device_side(state, kCall, context, transfer, transfer.target, target, 0, true);
  if (status == kSuccess) status = device_side(state, kCall, context, transfer, transfer.source, source, 0, false);
  if (status != kSuccess) return status;
  state.traffic.device_to_device += bytes;
  send(state, lock, kCall, stream, std::move(transfer));
  return kSuccess;
}

Status cuMemcpyPeerAsync(Address target, Context target_context, Address source, Context source_context,
                         std::size_t bytes, Stream handle) {
  DOUBLE_ENTER_CONTEXT("cuMemcpyPeerAsync");
  DOUBLE_STREAM(handle);
  auto* to = reinterpret_cast<DeviceContext*>(target_context);
  auto* from = reinterpret_cast<DeviceContext*>(source_context);
  if (!state.contexts.contains(to) || !state.contexts.contains(from)) {
    return state.misuse(kCall, "unknown context", kErrorInvalidContext);
  }
  if (to->lost != kSuccess || from->lost != kSuccess) return to->lost != kSuccess ? to->lost : from->lost;
  Transfer transfer;
  transfer.width = bytes;
  Status status = device_side(state, kCall, to, transfer, transfer.target, target, 0, true);
  if (status == kSuccess) status = device_side(state, kCall, from, transfer, transfer.source, source, 0, false);
  if (status != kSuccess) return status;
  state.traffic.device_to_device += bytes;
  send(state, lock, kCall, stream, std::move(transfer));
  return kSuccess;
}

Status cuMemcpy2DAsync_v2(const Copy2d* copy, Stream handle) {
  DOUBLE_ENTER_CONTEXT("cuMemcpy2DAsync");
  DOUBLE_STREAM(handle);
  if (copy->source_pitch < copy->width_bytes || copy->target_pitch < copy->width_bytes) {
    return state.misuse(kCall, "a pitch is smaller than the width", kErrorInvalidValue);
  }
  Transfer transfer;
  transfer.width = copy->width_bytes;
  transfer.height = copy->height;
  const std::size_t source_at = copy->source_y * copy->source_pitch + copy->source_x_bytes;
  const std::size_t target_at = copy->target_y * copy->target_pitch + copy->target_x_bytes;
  Status status = kSuccess;
  if (copy->source_type == kMemoryDevice) {
    status = device_side(state, kCall, context, transfer, transfer.source, copy->source_device + source_at,
                         copy->source_pitch, false);
  } else if (copy->source_type == kMemoryHost) {
    auto* host = const_cast<unsigned char*>(static_cast<const unsigned char*>(copy->source_host)) + source_at;
    status = host_side(state, kCall, transfer, transfer.source, host, copy->source_pitch, false);
  } else {
    return state.misuse(kCall, "unknown source type", kErrorInvalidValue);
  }
  if (status != kSuccess) return status;
  if (copy->target_type == kMemoryDevice) {
    status = device_side(state, kCall, context, transfer, transfer.target, copy->target_device + target_at,
                         copy->target_pitch, true);
  } else if (copy->target_type == kMemoryHost) {
    auto* host = static_cast<unsigned char*>(copy->target_host) + target_at;
    status = host_side(state, kCall, transfer, transfer.target, host, copy->target_pitch, true);
  } else {
    return state.misuse(kCall, "unknown target type", kErrorInvalidValue);
  }
  if (status != kSuccess) return status;
  send(state, lock, kCall, stream, std::move(transfer));
  return kSuccess;
}

Status cuMemsetD8Async(Address target, unsigned char value, std::size_t count, Stream handle) {
  DOUBLE_ENTER_CONTEXT("cuMemsetD8Async");
  DOUBLE_STREAM(handle);
  if (!state.usable(target, count, context, false)) {
    return state.misuse(kCall, "not usable by this context: " + spell(target, count), kErrorInvalidValue);
  }
  state.traffic.filled += count;
  state.submit(kCall, stream, {{target, count, true}}, [&state, target, value, count](Lock& held, bool raced) {
    const auto pieces = state.pieces(target, count);
    if (pieces.empty() && count != 0) return kErrorIllegalAddress;
    held.unlock();
    for (const auto& piece : pieces) std::memset(piece.host, raced ? kRaceByte : value, piece.bytes);
    held.lock();
    return kSuccess;
  });
  return kSuccess;
}

Status cuMemsetD32Async(Address target, unsigned value, std::size_t count, Stream handle) {
  DOUBLE_ENTER_CONTEXT("cuMemsetD32Async");
  DOUBLE_STREAM(handle);
  const std::size_t bytes = count * 4;
  if (target % 4 != 0) return state.misuse(kCall, "target is not aligned to 4", kErrorInvalidValue);
  if (count > SIZE_MAX / 4 || !state.usable(target, bytes, context, false)) {
    return state.misuse(kCall, "not usable by this context: " + spell(target, bytes), kErrorInvalidValue);
  }
  state.traffic.filled += bytes;
  auto pattern = std::make_shared<std::vector<unsigned char>>(bytes);
  for (std::size_t i = 0; i < count; ++i) std::memcpy(pattern->data() + i * 4, &value, 4);
  Transfer transfer;
  transfer.width = bytes;
  transfer.source.taken = std::move(pattern);
  transfer.target.address = target;
  transfer.ranges.push_back({target, bytes, true});
  send(state, lock, kCall, stream, std::move(transfer));
  return kSuccess;
}

}  // extern "C"
}  // namespace berth::internal::cuda
