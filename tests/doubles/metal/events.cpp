// MTLEvent and MTLSharedEvent: values that queues and the host signal and wait for.
#include <algorithm>

#include "metal.h"

namespace metal_double {
namespace {

Object* new_event(Object* device, const char* type_name, bool shared) {
  auto* event = new Event;
  event->device = Held(device);
  event->shared = shared;
  event->self = create(type_name, event);
  return event->self;
}

Object* plain(Object* self, Selector) {
  return new_event(self, "MTLEvent", false);
}
Object* shared(Object* self, Selector) {
  return new_event(self, "MTLSharedEvent", true);
}
Object* device(Object* self, Selector) {
  return body<Event>(self).device.get();
}

std::uint64_t value(Object* self, Selector) {
  auto& event = body<Event>(self);
  State& state = State::get();
  const Guard guard(state.mutex);
  // Who asks again and again is waiting.
  if (++event.asked % 3 == 0) demand_signal(state, self, event.value + 1);
  return event.value;
}

void set_value(Object* self, Selector, std::uint64_t to) {
  signal(body<Event>(self), to);
}

bool wait_value(Object* self, Selector, std::uint64_t to, std::uint64_t milliseconds) {
  constexpr std::uint64_t kForEver = std::uint64_t{1} << 40;
  std::optional<std::chrono::system_clock::time_point> until;
  if (milliseconds < kForEver) until = std::chrono::system_clock::now() + std::chrono::milliseconds(milliseconds);
  State& state = State::get();
  Lock lock(state.mutex);
  return await(state, lock, self, to, until);
}

void hand_over(Object* self, Callback block, std::uint64_t reached) {
  auto task = std::make_shared<Callback>(std::move(block));
  notify([event = Held(self), task, reached] { (*task)(event.get(), reached); });
}

void notify_listener(Object* self, Selector, Object* listener, std::uint64_t at, const void* block) {
  if (!expect(listener, "MTLSharedEventListener", "a listener")) return;
  auto& event = body<Event>(self);
  Callback callback(block);
  State& state = State::get();
  std::uint64_t reached = 0;
  {
    const Guard guard(state.mutex);
    reached = event.value;
    if (reached < at) {
      event.waiting.push_back({at, std::move(callback)});
      demand_signal(state, self, at);
      return;
    }
  }
  hand_over(self, std::move(callback), reached);
}

Object* listener_alloc(Object*, Selector) {
  return create("MTLSharedEventListener", new Body);
}
Object* shared_listener(Object*, Selector) {
  return autorelease(listener_alloc(nullptr, nullptr));
}
Object* listener_init(Object* self, Selector, Object* queue) {
  if (expect(queue, "OS_dispatch_queue", "a listener's queue")) return self;
  release(self);
  return nullptr;
}

}  // namespace

void signal(Event& event, std::uint64_t to) {
  State& state = State::get();
  std::vector<Callback> due;
  std::uint64_t before = 0;
  {
    const Guard guard(state.mutex);
    before = event.value;
    event.value = std::max(before, to);
    const auto later = std::stable_partition(event.waiting.begin(), event.waiting.end(),
                                             [&](const Event::Waiting& one) { return one.value > event.value; });
    for (auto entry = later; entry != event.waiting.end(); ++entry) due.push_back(std::move(entry->block));
    event.waiting.erase(later, event.waiting.end());
    state.changed.notify_all();
  }
  if (to < before) {
    violation("order: " + describe(event.self) + " was signalled to " + std::to_string(to) + " after " +
              std::to_string(before));
  }
  for (Callback& block : due) hand_over(event.self, std::move(block), to);
}

bool await(State& state, Lock& lock, Object* object, std::uint64_t to,
           std::optional<std::chrono::system_clock::time_point> until) {
  auto& event = body<Event>(object);
  const auto reached = [&] { return event.value >= to || state.lost; };
  if (!reached()) {
    const std::pair<Object*, std::uint64_t> entry(object, to);
    state.awaited.push_back(entry);
    demand_signal(state, object, to);
    if (until) {
      state.changed.wait_until(lock, *until, reached);
    } else {
      state.changed.wait(lock, reached);
    }
    state.awaited.erase(std::find(state.awaited.begin(), state.awaited.end(), entry));
  }
  return event.value >= to;
}

void add_event_types() {
  made_type("MTLDevice").on("newEvent", &plain, Kind::kCreates).on("newSharedEvent", &shared, Kind::kCreates);
  make_type("MTLEvent").on("device", &device).on("label", &get_label<Event>).on("setLabel:", &set_label<Event>);
  make_type("MTLSharedEvent")
      .on("device", &device)
      .on("label", &get_label<Event>)
      .on("setLabel:", &set_label<Event>)
      .on("signaledValue", &value)
      .on("setSignaledValue:", &set_value)
      .on("waitUntilSignaledValue:timeoutMS:", &wait_value)
      .on("notifyListener:atValue:block:", &notify_listener);
  make_type("MTLSharedEventListener")
      .on_class("alloc", &listener_alloc, Kind::kCreates)
      .on_class("sharedListener", &shared_listener)
      .on("initWithDispatchQueue:", &listener_init, Kind::kInitialises);
}

}  // namespace metal_double
