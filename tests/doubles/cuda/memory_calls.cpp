// Memory of every kind: plain, pooled, pinned, managed, and mapped by hand.
#include <fcntl.h>

#include <cstring>

#include "entry.h"

namespace {

using cuda_double::kGranularityBytes;
using cuda_double::Mapping;
using cuda_double::MemoryKind;
using cuda_double::spell;
using cuda_double::State;

// Berth's graphs use memory and neither allocate nor free it, so a memory node can only be a bug.
constexpr const char* kNoMemoryNodes = "the double's graphs have no memory nodes";

template <class Handle>
Handle new_handle(State& state) {
  state.next_object += 16;
  return reinterpret_cast<Handle>(state.next_object);
}

// The live allocation of one of these kinds that starts exactly at `start`.
Mapping* allocation(State& state, std::uint64_t start, std::initializer_list<MemoryKind> kinds) {
  auto found = state.mappings.find(start);
  if (found == state.mappings.end() || found->second.free_submitted) return nullptr;
  for (MemoryKind kind : kinds) {
    if (found->second.kind == kind) return &found->second;
  }
  return nullptr;
}

}  // namespace

namespace berth::internal::cuda {
extern "C" {

Status cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  DOUBLE_ENTER_CONTEXT("cuMemGetInfo");
  *total = state.options.memory_bytes;
  *free = state.options.memory_bytes - state.used[context->device];
  return kSuccess;
}

Status cuMemAlloc_v2(Address* pointer, std::size_t bytes) {
  DOUBLE_ENTER_UNSAFE("cuMemAlloc");
  if (bytes == 0) return state.misuse(kCall, "zero bytes", kErrorInvalidValue);
  Mapping* mapping = nullptr;
  if (const Status status = state.allocate(context, MemoryKind::kPlain, bytes, &mapping); status != kSuccess) {
    return status;
  }
  *pointer = mapping->start;
  return kSuccess;
}

Status cuMemFree_v2(Address pointer) {
  DOUBLE_ENTER_UNSAFE("cuMemFree");
  if (pointer == 0) return kSuccess;
  Mapping* mapping = allocation(state, pointer, {MemoryKind::kPlain, MemoryKind::kManaged});
  if (mapping == nullptr) return state.misuse(kCall, "no such allocation: " + spell(pointer, 0), kErrorInvalidValue);
  if (!state.waited_for(*mapping)) {
    state.violation("race: cuMemFree of " + spell(pointer, mapping->bytes) + " before its last use was waited for");
  }
  state.used[mapping->device] -= mapping->bytes;
  state.erase(pointer);
  return kSuccess;
}

Status cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  DOUBLE_ENTER_UNSAFE("cuMemHostAlloc");
  if (bytes == 0) return state.misuse(kCall, "zero bytes", kErrorInvalidValue);
  Mapping* mapping = nullptr;
  if (const Status status = state.allocate(context, MemoryKind::kPinned, bytes, &mapping); status != kSuccess) {
    return status;
  }
  *pointer = mapping->physical->host;
  return kSuccess;
}

Status cuMemFreeHost(void* pointer) {
  DOUBLE_ENTER_UNSAFE("cuMemFreeHost");
  const auto start = reinterpret_cast<std::uint64_t>(pointer);
  Mapping* mapping = allocation(state, start, {MemoryKind::kPinned});
  if (mapping == nullptr) return state.misuse(kCall, "no such allocation: " + spell(start, 0), kErrorInvalidValue);
  if (!state.waited_for(*mapping)) {
    state.violation("race: cuMemFreeHost of " + spell(start, mapping->bytes) + " before its last use was waited for");
  }
  state.erase(start);
  return kSuccess;
}

Status cuMemAllocManaged(Address* pointer, std::size_t bytes, unsigned flags) {
  DOUBLE_ENTER_UNSAFE("cuMemAllocManaged");
  if (state.options.managed == 0) return kErrorNotSupported;
  if (bytes == 0 || flags != kAttachGlobal) return state.misuse(kCall, "zero bytes or bad flags", kErrorInvalidValue);
  Mapping* mapping = nullptr;
  if (const Status status = state.allocate(context, MemoryKind::kManaged, bytes, &mapping); status != kSuccess) {
    return status;
  }
  *pointer = mapping->start;
  return kSuccess;
}

Status cuMemAdvise_v2(Address pointer, std::size_t bytes, Advice, Location location) {
  DOUBLE_ENTER_CONTEXT("cuMemAdvise");
  const Mapping* mapping = state.mapping_at(pointer);
  if (mapping == nullptr || mapping->kind != MemoryKind::kManaged || !state.usable(pointer, bytes, context, true)) {
    return state.misuse(kCall, "not managed memory: " + spell(pointer, bytes), kErrorInvalidValue);
  }
  if (location.type == kLocationDevice && (location.id < 0 || location.id >= state.options.devices)) {
    return state.misuse(kCall, "unknown device", kErrorInvalidDevice);
  }
  return kSuccess;
}

Status cuMemPrefetchAsync_v2(Address pointer, std::size_t bytes, Location location, unsigned flags, Stream handle) {
  DOUBLE_ENTER_CONTEXT("cuMemPrefetchAsync");
  const Mapping* mapping = state.mapping_at(pointer);
  if (mapping == nullptr || mapping->kind != MemoryKind::kManaged || !state.usable(pointer, bytes, context, true)) {
    return state.misuse(kCall, "not managed memory: " + spell(pointer, bytes), kErrorInvalidValue);
  }
  if (flags != 0 || (location.type == kLocationDevice && location.id >= state.options.devices)) {
    return state.misuse(kCall, "bad flags or unknown device", kErrorInvalidValue);
  }
  auto stream = state.stream_of(handle);
  if (stream == nullptr || stream->context != context)
    return state.misuse(kCall, "unknown stream", kErrorInvalidHandle);
  if (stream->capture != nullptr) return state.conflict(kCall, kNoMemoryNodes, *stream->capture, kErrorNotSupported);
  state.submit(kCall, stream, {{pointer, bytes, false, true}}, [](auto&, bool) { return kSuccess; });
  return kSuccess;
}

Status cuMemPoolCreate(MemoryPool* pool, const PoolProperties* properties) {
  DOUBLE_ENTER_UNSAFE("cuMemPoolCreate");
  if (state.options.pools == 0) return kErrorNotSupported;
  if (properties->type != kAllocationPinned || properties->location.type != kLocationDevice ||
      properties->location.id != context->device) {
    return state.misuse(kCall, "bad properties", kErrorInvalidValue);
  }
  for (unsigned char byte : properties->reserved) {
    if (byte != 0) return state.misuse(kCall, "reserved bytes must be 0", kErrorInvalidValue);
  }
  *pool = new_handle<MemoryPool>(state);
  state.pools[*pool] = {context, context->device, 0};
  return kSuccess;
}

Status cuMemPoolDestroy(MemoryPool pool) {
  DOUBLE_ENTER_UNSAFE("cuMemPoolDestroy");
  if (state.pools.erase(pool) == 0) return state.misuse(kCall, "unknown pool", kErrorInvalidHandle);
  return kSuccess;
}

Status cuMemPoolSetAttribute(MemoryPool pool, PoolAttribute attribute, void* value) {
  DOUBLE_ENTER_CONTEXT("cuMemPoolSetAttribute");
  auto found = state.pools.find(pool);
  if (found == state.pools.end()) return state.misuse(kCall, "unknown pool", kErrorInvalidHandle);
  if (attribute != kPoolReleaseThreshold) return state.misuse(kCall, "read-only attribute", kErrorInvalidValue);
  std::memcpy(&found->second.threshold, value, sizeof found->second.threshold);
  return kSuccess;
}

Status cuMemPoolTrimTo(MemoryPool pool, std::size_t) {
  DOUBLE_ENTER_UNSAFE("cuMemPoolTrimTo");
  if (!state.pools.contains(pool)) return state.misuse(kCall, "unknown pool", kErrorInvalidHandle);
  return kSuccess;
}

Status cuMemAllocFromPoolAsync(Address* pointer, std::size_t bytes, MemoryPool pool, Stream handle) {
  DOUBLE_ENTER_CONTEXT("cuMemAllocFromPoolAsync");
  auto found = state.pools.find(pool);
  if (found == state.pools.end()) return state.misuse(kCall, "unknown pool", kErrorInvalidHandle);
  auto stream = state.stream_of(handle);
  if (stream == nullptr) return state.misuse(kCall, "unknown stream", kErrorInvalidHandle);
  if (stream->capture != nullptr) return state.conflict(kCall, kNoMemoryNodes, *stream->capture, kErrorNotSupported);
  if (found->second.context != context || stream->context != context) {
    return state.misuse(kCall, "pool or stream of another context", kErrorInvalidContext);
  }
  if (bytes == 0) return state.misuse(kCall, "zero bytes", kErrorInvalidValue);
  Mapping* mapping = nullptr;
  if (const Status status = state.allocate(context, MemoryKind::kPooled, bytes, &mapping); status != kSuccess) {
    return status;
  }
  mapping->pool = pool;
  state.submit(kCall, stream, {}, [](auto&, bool) { return kSuccess; });
  mapping->made_on = stream->number;
  mapping->made_at = stream->clock.at(stream->number);
  *pointer = mapping->start;
  return kSuccess;
}

Status cuMemFreeAsync(Address pointer, Stream handle) {
  DOUBLE_ENTER_CONTEXT("cuMemFreeAsync");
  auto stream = state.stream_of(handle);
  if (stream == nullptr || stream->context != context)
    return state.misuse(kCall, "unknown stream", kErrorInvalidHandle);
  if (stream->capture != nullptr) return state.conflict(kCall, kNoMemoryNodes, *stream->capture, kErrorNotSupported);
  Mapping* mapping = allocation(state, pointer, {MemoryKind::kPooled});
  if (mapping == nullptr) return state.misuse(kCall, "no such allocation: " + spell(pointer, 0), kErrorInvalidValue);
  // The free is a write to the whole allocation: every use must come before it.
  state.used[mapping->device] -= mapping->bytes;
  state.submit(kCall, stream, {{pointer, mapping->bytes, true}}, [&state, pointer](auto&, bool) {
    state.erase(pointer);
    return kSuccess;
  });
  mapping->free_submitted = true;
  return kSuccess;
}

Status cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProperties* properties, Granularity) {
  DOUBLE_ENTER_CONTEXT("cuMemGetAllocationGranularity");
  if (state.options.virtual_memory == 0) return kErrorNotSupported;
  if (properties->type != kAllocationPinned) return state.misuse(kCall, "bad properties", kErrorInvalidValue);
  *bytes = kGranularityBytes;
  return kSuccess;
}

Status cuMemAddressReserve(Address* pointer, std::size_t bytes, std::size_t alignment, Address,
                           unsigned long long flags) {
  DOUBLE_ENTER_UNSAFE("cuMemAddressReserve");
  if (state.options.virtual_memory == 0) return kErrorNotSupported;
  if (bytes == 0 || bytes % kGranularityBytes != 0 || flags != 0 || (alignment & (alignment - 1)) != 0) {
    return state.misuse(kCall, "bad size, alignment or flags", kErrorInvalidValue);
  }
  const std::uint64_t start = state.reserve_addresses(bytes, std::max(alignment, kGranularityBytes));
  if (start == 0) return kErrorOutOfMemory;
  state.reservations[start] = bytes;
  *pointer = start;
  return kSuccess;
}

Status cuMemAddressFree(Address pointer, std::size_t bytes) {
  DOUBLE_ENTER_UNSAFE("cuMemAddressFree");
  auto found = state.reservations.find(pointer);
  if (found == state.reservations.end() || found->second != bytes) {
    return state.misuse(kCall, "no such reservation: " + spell(pointer, bytes), kErrorInvalidValue);
  }
  const auto inside = state.mappings.lower_bound(pointer);
  if (inside != state.mappings.end() && inside->first < pointer + bytes) {
    return state.misuse(kCall, "memory is still mapped in " + spell(pointer, bytes), kErrorInvalidValue);
  }
  state.reservations.erase(found);
  return kSuccess;
}

Status cuMemCreate(MemoryHandle* handle, std::size_t bytes, const AllocationProperties* properties,
                   unsigned long long flags) {
  DOUBLE_ENTER_UNSAFE("cuMemCreate");
  if (state.options.virtual_memory == 0) return kErrorNotSupported;
  if (bytes == 0 || bytes % kGranularityBytes != 0 || flags != 0 || properties->type != kAllocationPinned ||
      properties->location.type != kLocationDevice || properties->location.id != context->device) {
    return state.misuse(kCall, "bad size, flags or properties", kErrorInvalidValue);
  }
  if (bytes > state.options.memory_bytes - state.used[context->device]) return kErrorOutOfMemory;
  if (properties->requested_handle_types != kHandleNone && properties->requested_handle_types != kHandleDescriptor)
    return state.misuse(kCall, "unknown handle type", kErrorInvalidValue);
  const bool shareable = properties->requested_handle_types == kHandleDescriptor;
  auto physical = std::make_shared<cuda_double::Physical>(context->device, bytes, shareable);
  if (physical->host == nullptr) return kErrorOutOfMemory;
  state.used[context->device] += bytes;
  *handle = state.next_handle++;
  state.handles[*handle] = std::move(physical);
  return kSuccess;
}

Status cuMemRelease(MemoryHandle handle) {
  DOUBLE_ENTER_UNSAFE("cuMemRelease");
  auto found = state.handles.find(handle);
  if (found == state.handles.end()) return state.misuse(kCall, "unknown handle", kErrorInvalidValue);
  // The bytes live on while they are mapped. Imported ones are counted by the process that made them.
  if (found->second.use_count() == 1 && !found->second->imported)
    state.used[found->second->device] -= found->second->bytes;
  state.handles.erase(found);
  return kSuccess;
}

// Exported memory is a file in memory, so that another process with a double of its own can map it.
Status cuMemExportToShareableHandle(void* shareable, MemoryHandle handle, HandleType type, unsigned long long flags) {
  DOUBLE_ENTER_CONTEXT("cuMemExportToShareableHandle");
  auto found = state.handles.find(handle);
  if (found == state.handles.end() || type != kHandleDescriptor || flags != 0)
    return state.misuse(kCall, "unknown handle, bad type or flags", kErrorInvalidValue);
  if (found->second->file < 0) return state.misuse(kCall, "memory that was not made to be shared", kErrorInvalidValue);
  *static_cast<int*>(shareable) = fcntl(found->second->file, F_DUPFD_CLOEXEC, 0);
  return *static_cast<int*>(shareable) < 0 ? kErrorUnknown : kSuccess;
}

Status cuMemImportFromShareableHandle(MemoryHandle* handle, void* shareable, HandleType type) {
  DOUBLE_ENTER_CONTEXT("cuMemImportFromShareableHandle");
  if (type != kHandleDescriptor) return state.misuse(kCall, "bad type", kErrorInvalidValue);
  auto physical =
      cuda_double::Physical::import(context->device, static_cast<int>(reinterpret_cast<std::uintptr_t>(shareable)));
  if (physical == nullptr) return kErrorInvalidValue;  // as the driver says of a descriptor that is not its own
  *handle = state.next_handle++;
  state.handles[*handle] = std::move(physical);
  return kSuccess;
}

Status cuMemMap(Address pointer, std::size_t bytes, std::size_t offset, MemoryHandle handle, unsigned long long flags) {
  DOUBLE_ENTER_UNSAFE("cuMemMap");
  auto found = state.handles.find(handle);
  if (found == state.handles.end()) return state.misuse(kCall, "unknown handle", kErrorInvalidValue);
  if (offset != 0 || flags != 0 || bytes != found->second->bytes || pointer % kGranularityBytes != 0) {
    return state.misuse(kCall, "bad size, offset, alignment or flags", kErrorInvalidValue);
  }
  auto reservation = state.reservations.upper_bound(pointer);
  if (reservation == state.reservations.begin()) return state.misuse(kCall, "not reserved", kErrorInvalidValue);
  --reservation;
  if (pointer + bytes > reservation->first + reservation->second) {
    return state.misuse(kCall, "outside the reservation: " + spell(pointer, bytes), kErrorInvalidValue);
  }
  const auto next = state.mappings.lower_bound(pointer);
  if (state.mapping_at(pointer) != nullptr || (next != state.mappings.end() && next->first < pointer + bytes)) {
    return state.misuse(kCall, "already mapped: " + spell(pointer, bytes), kErrorInvalidValue);
  }
  Mapping mapping;
  mapping.start = pointer;
  mapping.bytes = bytes;
  mapping.kind = MemoryKind::kMapped;
  mapping.physical = found->second;
  mapping.context = context;
  mapping.device = found->second->device;
  mapping.accessible = false;
  state.mappings[pointer] = std::move(mapping);
  return kSuccess;
}

Status cuMemUnmap(Address pointer, std::size_t bytes) {
  DOUBLE_ENTER_UNSAFE("cuMemUnmap");
  std::uint64_t at = pointer;
  while (at < pointer + bytes) {
    auto found = state.mappings.find(at);
    if (found == state.mappings.end() || found->second.kind != MemoryKind::kMapped) {
      return state.misuse(kCall, "not mapped: " + spell(pointer, bytes), kErrorInvalidValue);
    }
    if (!state.waited_for(found->second)) {
      state.violation("race: cuMemUnmap of " + spell(pointer, bytes) + " before its last use was waited for");
    }
    at += found->second.bytes;
  }
  if (at != pointer + bytes) return state.misuse(kCall, "cuts a mapping in two", kErrorInvalidValue);
  for (at = pointer; at < pointer + bytes;) {
    auto found = state.mappings.find(at);
    at += found->second.bytes;
    // Mapped bytes whose handle was released go with their last mapping.
    if (found->second.physical.use_count() == 1 && !found->second.physical->imported)
      state.used[found->second.device] -= found->second.physical->bytes;
    state.mappings.erase(found);
  }
  return kSuccess;
}

Status cuMemSetAccess(Address pointer, std::size_t bytes, const AccessDescription* access, std::size_t count) {
  DOUBLE_ENTER_UNSAFE("cuMemSetAccess");
  if (count != 1 || access->location.type != kLocationDevice) {
    return state.misuse(kCall, "bad access description", kErrorInvalidValue);
  }
  std::vector<Mapping*> found;
  for (std::uint64_t at = pointer; at < pointer + bytes;) {
    auto mapping = state.mappings.find(at);
    if (mapping == state.mappings.end() || mapping->second.kind != MemoryKind::kMapped) {
      return state.misuse(kCall, "not mapped: " + spell(pointer, bytes), kErrorInvalidValue);
    }
    found.push_back(&mapping->second);
    at += mapping->second.bytes;
  }
  for (Mapping* mapping : found) mapping->accessible = access->flags == kAccessReadWrite;
  return kSuccess;
}

Status cuPointerGetAttribute(void* value, PointerAttribute attribute, Address pointer) {
  DOUBLE_ENTER_CONTEXT("cuPointerGetAttribute");
  const Mapping* mapping = state.mapping_at(pointer);
  if (mapping == nullptr) return kErrorInvalidValue;  // as the driver says of memory it does not know
  switch (attribute) {
    case kPointerMemoryType:
      *static_cast<unsigned*>(value) = mapping->kind == MemoryKind::kPinned ? kMemoryHost : kMemoryDevice;
      return kSuccess;
    case kPointerIsManaged: *static_cast<unsigned*>(value) = mapping->kind == MemoryKind::kManaged; return kSuccess;
    case kPointerDeviceOrdinal: *static_cast<int*>(value) = mapping->device; return kSuccess;
  }
  return state.misuse(kCall, "unknown attribute", kErrorInvalidValue);
}

}  // extern "C"
}  // namespace berth::internal::cuda
