// MTLResidencySet: members change at once in the set's own view, and for the GPU at the commit.
#include "metal.h"

namespace metal_double {
namespace {

struct Descriptor : Body {
  std::string label;
  std::uintptr_t capacity = 0;
};

Object* descriptor_alloc(Object*, Selector) {
  return create("MTLResidencySetDescriptor", new Descriptor);
}
std::uintptr_t capacity(Object* self, Selector) {
  return body<Descriptor>(self).capacity;
}
void set_capacity(Object* self, Selector, std::uintptr_t to) {
  body<Descriptor>(self).capacity = to;
}

Object* new_set(Object* self, Selector, Object* descriptor, Object** error) {
  if (!expect(descriptor, "MTLResidencySetDescriptor", "a residency set's descriptor")) {
    if (error != nullptr) *error = autorelease(make_error("MTLResidencySetErrorDomain", 1, "no descriptor"));
    return nullptr;
  }
  auto* set = new ResidencySet;
  set->device = Held(self);
  set->label = body<Descriptor>(descriptor).label;
  return create("MTLResidencySet", set);
}

void add(Object* self, Selector, Object* buffer) {
  if (!expect(buffer, "MTLBuffer", "an allocation to add")) return;
  auto& set = body<ResidencySet>(self);
  if (body<Buffer>(buffer).device.get() != set.device.get()) {
    return violation("wrong device: " + describe(buffer) + " was added to a residency set of another device");
  }
  Held member(buffer);
  State& state = State::get();
  const Guard guard(state.mutex);
  set.members.try_emplace(buffer, std::move(member));
}

void remove(Object* self, Selector, Object* buffer) {
  auto& set = body<ResidencySet>(self);
  State& state = State::get();
  Held removed;
  {
    const Guard guard(state.mutex);
    if (const auto found = set.members.find(buffer); found != set.members.end()) {
      removed = std::move(found->second);
      set.members.erase(found);
    }
  }
  if (!removed)
    violation("argument: " + describe(buffer) + " was removed from " + describe(self) + ", which has it not");
}

void add_all(Object* self, Selector selector, Object* const* buffers, std::uintptr_t count) {
  for (std::uintptr_t i = 0; i < count; ++i) add(self, selector, buffers[i]);
}

void remove_all(Object* self, Selector selector, Object* const* buffers, std::uintptr_t count) {
  for (std::uintptr_t i = 0; i < count; ++i) remove(self, selector, buffers[i]);
}

void clear(Object* self, Selector) {
  State& state = State::get();
  std::map<Object*, Held> removed;  // outlives the guard: nothing is let go of under the lock
  const Guard guard(state.mutex);
  removed.swap(body<ResidencySet>(self).members);
}

// Requires: the state's mutex, both.
void join(State& state, Buffer& buffer) {
  if (buffer.memberships++ == 0) state.resident_bytes += bytes_of(buffer);
  open(buffer);
}

void leave(State& state, Buffer& buffer) {
  if (--buffer.memberships == 0) state.resident_bytes -= bytes_of(buffer);
  close(buffer);
}

// Gives the GPU what the set has now. What it had before goes outside the lock.
void replace(ResidencySet& set, std::map<Object*, Held> now) {
  State& state = State::get();
  std::map<Object*, Held> before;
  {
    const Guard guard(state.mutex);
    for (const auto& entry : now) {
      if (!set.committed.contains(entry.first)) join(state, body<Buffer>(entry.first));
    }
    for (const auto& entry : set.committed) {
      if (!now.contains(entry.first)) leave(state, body<Buffer>(entry.first));
    }
    before = std::move(set.committed);
    set.committed = std::move(now);
  }
}

void commit(Object* self, Selector) {
  auto& set = body<ResidencySet>(self);
  State& state = State::get();
  std::map<Object*, Held> now;
  {
    const Guard guard(state.mutex);
    now = set.members;
  }
  replace(set, std::move(now));
}

void nothing(Object*, Selector) {}

std::uintptr_t count(Object* self, Selector) {
  State& state = State::get();
  const Guard guard(state.mutex);
  return body<ResidencySet>(self).members.size();
}

std::uint64_t size(Object* self, Selector) {
  State& state = State::get();
  const Guard guard(state.mutex);
  std::uint64_t sum = 0;
  for (const auto& entry : body<ResidencySet>(self).committed) sum += bytes_of(body<Buffer>(entry.first));
  return sum;
}

bool contains(Object* self, Selector, Object* buffer) {
  State& state = State::get();
  const Guard guard(state.mutex);
  return body<ResidencySet>(self).members.contains(buffer);
}

Object* all(Object* self, Selector) {
  State& state = State::get();
  std::map<Object*, Held> now;
  {
    const Guard guard(state.mutex);
    now = body<ResidencySet>(self).members;
  }
  std::vector<Object*> members;
  members.reserve(now.size());
  for (const auto& entry : now) members.push_back(entry.first);
  return autorelease(make_array(members));
}

Object* device(Object* self, Selector) {
  return body<ResidencySet>(self).device.get();
}

}  // namespace

ResidencySet::~ResidencySet() {
  replace(*this, {});
}

void add_residency_types() {
  made_type("MTLDevice")
      .on("newResidencySetWithDescriptor:error:", &new_set, Kind::kErrorSecond)
      .with_residency("newResidencySetWithDescriptor:error:");
  make_type("MTLResidencySetDescriptor")
      .on_class("alloc", &descriptor_alloc, Kind::kCreates)
      .on("initialCapacity", &capacity)
      .on("setInitialCapacity:", &set_capacity)
      .on("label", &get_label<Descriptor>)
      .on("setLabel:", &set_label<Descriptor>)
      .needs_residency = true;
  make_type("MTLResidencySet")
      .on("addAllocation:", &add)
      .on("addAllocations:count:", &add_all)
      .on("removeAllocation:", &remove)
      .on("removeAllocations:count:", &remove_all)
      .on("removeAllAllocations", &clear)
      .on("commit", &commit)
      .on("requestResidency", &nothing)
      .on("endResidency", &nothing)
      .on("allocationCount", &count)
      .on("allocatedSize", &size)
      .on("containsAllocation:", &contains)
      .on("allAllocations", &all)
      .on("device", &device)
      .on("label", &get_label<ResidencySet>);
}

}  // namespace metal_double
