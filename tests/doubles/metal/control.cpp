// The control table that tests steer the double with.
#include "metal.h"

namespace metal_double {

// From state.cpp.
std::uint64_t nil_message_count();
void clear_nil_messages();
void tell_to_fail(const char* name, std::uint64_t nth);
bool forget_failures();
std::uint64_t creation_count();
void clear_creations();
std::atomic<bool>& aborting();
std::size_t violation_count();
const char* violation_text(std::size_t index);
void clear_violations();

namespace {

std::size_t live_objects(const char* class_name) {
  if (class_name != nullptr && std::string_view(class_name) == "Block") return live_blocks();
  std::size_t sum = class_name == nullptr ? live_blocks() : 0;
  for_each_type([&](const Type& type) {
    if (class_name == nullptr || type.name == class_name) sum += type.live.load();
  });
  return sum;
}

const char* live_report() {
  thread_local std::string text;
  text.clear();
  const auto add = [&](const std::string& name, std::size_t count) {
    if (count != 0) text += (text.empty() ? "" : ", ") + name + " " + std::to_string(count);
  };
  for_each_type([&](const Type& type) { add(type.name, type.live.load()); });
  add("Block", live_blocks());
  return text.c_str();
}

void clear_messages() {
  for_each_method([](Type&, Selector, Method& method) { method.calls.store(0); });
  clear_nil_messages();
  clear_creations();
}

int reset(const MetalDoubleOptions* options) {
  if (live_objects(nullptr) != 0) return 0;
  State& state = State::get();
  {
    const Guard guard(state.mutex);
    state.options = *options;
    state.lost = false;
    state.executions_to_failure = 0;
    state.devices.clear();
    state.kernels.clear();
  }
  forget_failures();
  clear_messages();
  clear_violations();
  aborting().store(options->abort_on_violation != 0);
  return 1;
}

void fail(const char* name, std::uint64_t nth) {
  tell_to_fail(name, nth);
}

void fail_execution(std::uint64_t nth, unsigned code) {
  State& state = State::get();
  const Guard guard(state.mutex);
  state.executions_to_failure = nth;
  state.execution_failure = code;
}

int stop_failing() {
  const bool messages = forget_failures();
  State& state = State::get();
  const Guard guard(state.mutex);
  const bool executions = state.executions_to_failure != 0;
  state.executions_to_failure = 0;
  return messages || executions ? 1 : 0;
}

void lose_device() {
  State& state = State::get();
  const Guard guard(state.mutex);
  state.lost = true;
  state.changed.notify_all();
}

std::uint64_t messages(const char* name) {
  std::uint64_t sum = 0;
  for_each_method([&](Type& type, Selector selector, Method& method) {
    if (name == nullptr || selector->name == name || type.name + " " + selector->name == name) sum += method.calls;
  });
  return sum;
}

std::size_t live_bytes() {
  State& state = State::get();
  const Guard guard(state.mutex);
  return state.bytes;
}

std::size_t resident_bytes() {
  State& state = State::get();
  const Guard guard(state.mutex);
  return state.resident_bytes;
}

void register_kernel(const MetalDoubleKernel* kernel) {
  State& state = State::get();
  const Guard guard(state.mutex);
  state.kernels[kernel->name] = *kernel;
}

void set_pace(int pace) {
  State& state = State::get();
  const Guard guard(state.mutex);
  state.options.pace = pace;
  state.changed.notify_all();
}

void set_residency(int residency) {
  State& state = State::get();
  const Guard guard(state.mutex);
  state.options.residency = residency;
}

void keep_resident(const void* buffer) {
  auto* object = static_cast<Object*>(const_cast<void*>(buffer));
  if (!expect(object, "MTLBuffer", "a buffer to keep resident")) return;
  State& state = State::get();
  const Guard guard(state.mutex);
  body<Buffer>(object).always_resident = true;
}

void drain() {
  State& state = State::get();
  {
    Lock lock(state.mutex);
    for (Line* line : state.lines) demand(state, *line, line->next);
    state.changed.wait(lock, [&] { return state.running == 0; });
  }
  drain_notifications();
}

}  // namespace
}  // namespace metal_double

extern "C" __attribute__((visibility("default"))) const MetalDoubleControl metal_double_control = {
    &metal_double::reset,           &metal_double::fail,
    &metal_double::fail_execution,  &metal_double::stop_failing,
    &metal_double::lose_device,     &metal_double::creation_count,
    &metal_double::messages,        &metal_double::nil_message_count,
    &metal_double::clear_messages,  &metal_double::violation_count,
    &metal_double::violation_text,  &metal_double::clear_violations,
    &metal_double::live_objects,    &metal_double::live_report,
    &metal_double::live_bytes,      &metal_double::resident_bytes,
    &metal_double::register_kernel, &metal_double::set_pace,
    &metal_double::set_residency,   &metal_double::keep_resident,
    &metal_double::drain,
};
