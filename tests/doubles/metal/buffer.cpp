// MTLBuffer, and the device's messages that make one.
#include <cstring>

#include "metal.h"

namespace metal_double {
namespace {

constexpr std::uintptr_t kManaged = 1;
constexpr std::uintptr_t kPrivate = 2;

std::uintptr_t storage_of(std::uintptr_t options) {
  return (options >> 4) & 0xF;
}

// Nil when the memory that the options allow is used up.
Object* new_buffer(Object* device, std::size_t length, std::uintptr_t options) {
  State& state = State::get();
  if (length == 0) {
    violation("argument: a buffer of 0 bytes was asked for");
    return nullptr;
  }
  const std::uintptr_t storage = storage_of(options);
  if (storage > kPrivate) {
    violation("argument: a buffer cannot have storage mode " + std::to_string(storage));
    return nullptr;
  }
  const std::size_t whole = (length + kPageBytes - 1) / kPageBytes * kPageBytes;
  unsigned char fresh = 0;
  {
    const Guard guard(state.mutex);
    const MetalDoubleOptions& limits = state.options;
    if (length > limits.max_buffer_bytes) return nullptr;
    if (whole > limits.memory_bytes || state.bytes > limits.memory_bytes - whole) return nullptr;
    if (storage == kPrivate && limits.private_memory == 0) return nullptr;
    fresh = limits.fresh_byte;
    state.bytes += whole;
  }
  Piece piece;
  if (!take_piece(length, piece)) {
    const Guard guard(state.mutex);
    state.bytes -= whole;
    return nullptr;
  }
  if (fresh != 0) std::memset(piece.host, fresh, piece.bytes);
  auto* buffer = new Buffer;
  buffer->device = Held(device);
  buffer->length = length;
  buffer->storage = storage;
  buffer->options = options;
  buffer->piece = piece;
  buffer->host = piece.host;
  buffer->gpu = piece.gpu;
  buffer->self = create("MTLBuffer", buffer);
  return buffer->self;
}

Object* with_length(Object* self, Selector, std::uintptr_t length, std::uintptr_t options) {
  return new_buffer(self, length, options);
}

Object* with_bytes(Object* self, Selector, const void* bytes, std::uintptr_t length, std::uintptr_t options) {
  if (storage_of(options) == kPrivate) {
    violation("argument: a private buffer cannot be made with bytes");
    return nullptr;
  }
  Object* made = new_buffer(self, length, options);
  if (made != nullptr) std::memcpy(body<Buffer>(made).host, bytes, length);
  return made;
}

Object* with_bytes_no_copy(Object* self, Selector, void* bytes, std::uintptr_t length, std::uintptr_t options,
                           const void* deallocator) {
  const auto address = reinterpret_cast<std::uintptr_t>(bytes);
  if (bytes == nullptr || length == 0 || address % kPageBytes != 0 || length % kPageBytes != 0) {
    violation("argument: memory to wrap must be whole pages; it is " + std::to_string(length) + " bytes that start " +
              std::to_string(address % kPageBytes) + " bytes into a page");
    return nullptr;
  }
  if (storage_of(options) == kPrivate) {
    violation("argument: the program's own memory cannot be wrapped as private");
    return nullptr;
  }
  State& state = State::get();
  {
    const Guard guard(state.mutex);
    if (length > state.options.max_buffer_bytes) return nullptr;
  }
  auto* buffer = new Buffer;
  buffer->device = Held(self);
  buffer->length = length;
  buffer->storage = storage_of(options);
  buffer->options = options;
  buffer->host = static_cast<unsigned char*>(bytes);
  buffer->gpu = buffer->host;
  if (deallocator != nullptr) buffer->deallocator = Callback(deallocator);
  buffer->self = create("MTLBuffer", buffer);
  return buffer->self;
}

void* contents(Object* self, Selector) {
  auto& buffer = body<Buffer>(self);
  return buffer.storage == kPrivate ? nullptr : buffer.host;
}
std::uintptr_t length(Object* self, Selector) {
  return body<Buffer>(self).length;
}
std::uint64_t gpu_address(Object* self, Selector) {
  return reinterpret_cast<std::uint64_t>(body<Buffer>(self).gpu);
}
std::uintptr_t allocated_size(Object* self, Selector) {
  return bytes_of(body<Buffer>(self));
}
std::uintptr_t storage_mode(Object* self, Selector) {
  return body<Buffer>(self).storage;
}
std::uintptr_t resource_options(Object* self, Selector) {
  return body<Buffer>(self).options;
}
std::uintptr_t cache_mode(Object* self, Selector) {
  return body<Buffer>(self).options & 0xF;
}
std::uintptr_t hazard_mode(Object* self, Selector) {
  const std::uintptr_t asked = (body<Buffer>(self).options >> 8) & 3;
  return asked == 0 ? 2 : asked;
}
Object* device(Object* self, Selector) {
  return body<Buffer>(self).device.get();
}

void did_modify(Object* self, Selector, NSRange range) {
  auto& buffer = body<Buffer>(self);
  if (buffer.storage != kManaged) {
    violation("argument: didModifyRange: is for managed memory, and " + describe(self) + " has none");
  } else if (range.location > buffer.length || range.length > buffer.length - range.location) {
    violation("range: didModifyRange: [" + std::to_string(range.location) + ", " +
              std::to_string(range.location + range.length) + ") is outside the " + std::to_string(buffer.length) +
              " bytes of " + describe(self));
  }
}

std::uintptr_t set_purgeable(Object*, Selector, std::uintptr_t) {
  return 2;
}

}  // namespace

void Buffer::disowned() {
  State& state = State::get();
  int uses = 0;
  {
    const Guard guard(state.mutex);
    uses = in_flight_unretained;
  }
  if (uses > 0) {
    violation("in use: " + describe(self) +
              " was released while a command buffer that does not retain its buffers was still using it");
  }
}

Buffer::~Buffer() {
  if (piece.bytes != 0) {
    give_piece_back(piece);
    State& state = State::get();
    const Guard guard(state.mutex);
    state.bytes -= piece.bytes;
  }
  if (deallocator) deallocator(static_cast<void*>(host), static_cast<std::uintptr_t>(length));
}

std::size_t bytes_of(const Buffer& buffer) {
  return buffer.piece.bytes != 0 ? buffer.piece.bytes : buffer.length;
}

void open(Buffer& buffer) {
  if (buffer.openings++ == 0 && buffer.piece.bytes != 0) open_to_gpu(buffer.piece);
}

void close(Buffer& buffer) {
  if (--buffer.openings == 0 && buffer.piece.bytes != 0) close_to_gpu(buffer.piece);
}

void add_buffer_types() {
  made_type("MTLDevice")
      .on("newBufferWithLength:options:", &with_length, Kind::kCreates)
      .on("newBufferWithBytes:length:options:", &with_bytes, Kind::kCreates)
      .on("newBufferWithBytesNoCopy:length:options:deallocator:", &with_bytes_no_copy, Kind::kCreates);
  make_type("MTLBuffer")
      .on("contents", &contents)
      .on("length", &length)
      .on("gpuAddress", &gpu_address)
      .on("allocatedSize", &allocated_size)
      .on("storageMode", &storage_mode)
      .on("resourceOptions", &resource_options)
      .on("cpuCacheMode", &cache_mode)
      .on("hazardTrackingMode", &hazard_mode)
      .on("device", &device)
      .on("didModifyRange:", &did_modify)
      .on("label", &get_label<Buffer>)
      .on("setLabel:", &set_label<Buffer>)
      .on("setPurgeableState:", &set_purgeable);
}

}  // namespace metal_double
