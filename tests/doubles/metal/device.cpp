// MTLDevice: what it says of itself, and what it makes.
#include "metal.h"

#define DOUBLE_EXPORT extern "C" __attribute__((visibility("default")))

namespace metal_double {
namespace {

MetalDoubleOptions options() {
  State& state = State::get();
  const Guard guard(state.mutex);
  return state.options;
}

Object* device_name(Object* self, Selector) {
  return body<Device>(self).name.get();
}
std::uintptr_t max_buffer(Object*, Selector) {
  return options().max_buffer_bytes;
}
std::uint64_t working_set(Object*, Selector) {
  return options().working_set_bytes;
}
bool unified(Object*, Selector) {
  return options().unified_memory != 0;
}
bool no(Object*, Selector) {
  return false;
}
std::uintptr_t threadgroup_memory(Object*, Selector) {
  return 32768;
}
Size threadgroup_size(Object*, Selector) {
  return {1024, 1024, 1024};
}
std::uint64_t registry_id(Object* self, Selector) {
  return 0x100000000 + static_cast<std::uint64_t>(body<Device>(self).ordinal);
}
std::uintptr_t allocated(Object*, Selector) {
  State& state = State::get();
  const Guard guard(state.mutex);
  return state.bytes;
}
// A machine like the first with Apple silicon: families Apple1 to Apple7, Common, Mac2 and Metal3.
bool supports_family(Object*, Selector, std::intptr_t family) {
  return (family >= 1001 && family <= 1007) || (family >= 3001 && family <= 3003) || family == 2002 || family == 5001;
}

// Requires: the state's mutex.
Object* open_device(State& state, int ordinal) {
  Object*& known = state.devices[ordinal];
  if (known != nullptr && try_hold(known)) {
    retain(known);
    return known;
  }
  auto* device = new Device;
  device->ordinal = ordinal;
  device->name = held_string("Metal double " + std::to_string(ordinal));
  known = create("MTLDevice", device);
  hold(known);
  return known;
}

}  // namespace

Device::~Device() = default;

void add_device_types() {
  make_type("MTLDevice")
      .on("name", &device_name)
      .on("maxBufferLength", &max_buffer)
      .on("recommendedMaxWorkingSetSize", &working_set)
      .on("currentAllocatedSize", &allocated)
      .on("hasUnifiedMemory", &unified)
      .on("isLowPower", &no)
      .on("isRemovable", &no)
      .on("isHeadless", &no)
      .on("registryID", &registry_id)
      .on("maxThreadgroupMemoryLength", &threadgroup_memory)
      .on("maxThreadsPerThreadgroup", &threadgroup_size)
      .on("supportsFamily:", &supports_family);
}

}  // namespace metal_double

// Both give one reference to what they return, as Apple's do.
DOUBLE_EXPORT metal_double::Object* MTLCreateSystemDefaultDevice() {
  using namespace metal_double;
  if (told_to_fail("", "MTLCreateSystemDefaultDevice")) return nullptr;
  State& state = State::get();
  Object* device = nullptr;
  {
    const Guard guard(state.mutex);
    if (state.options.devices == 0) return nullptr;
    device = open_device(state, 0);
  }
  let_go(device);
  return device;
}

DOUBLE_EXPORT metal_double::Object* MTLCopyAllDevices() {
  using namespace metal_double;
  if (told_to_fail("", "MTLCopyAllDevices")) return nullptr;
  State& state = State::get();
  std::vector<Object*> devices;
  {
    const Guard guard(state.mutex);
    for (int i = 0; i < state.options.devices; ++i) devices.push_back(open_device(state, i));
  }
  Object* array = make_array(devices);
  for (Object* device : devices) {
    let_go(device);
    release(device);
  }
  return array;
}
