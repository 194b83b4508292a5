// The control table that tests reach through the symbol "cuda_double_control".
#include "entry.h"

namespace cuda_double {
namespace {

using Guard = std::lock_guard<std::mutex>;

int reset(const CudaDoubleOptions* options) {
  State& state = State::get();
  const Guard guard(state.mutex);
  if (!state.primary.empty()) return 0;
  state.options = *options;
  state.initialised = false;
  state.calls.clear();
  state.failures.clear();
  state.failed_call = "";
  state.executions_to_failure = 0;
  state.violations.clear();
  state.traffic = {};
  state.reservations.clear();
  state.used.clear();
  return 1;
}

void fail(const char* name, std::uint64_t nth, unsigned status, int lose_device) {
  State& state = State::get();
  const Guard guard(state.mutex);
  state.failures.push_back({name == nullptr ? "" : name, nth, static_cast<Status>(status), lose_device != 0});
}

void fail_execution(std::uint64_t nth, unsigned status) {
  State& state = State::get();
  const Guard guard(state.mutex);
  state.executions_to_failure = nth;
  state.execution_failure = static_cast<Status>(status);
}

int stop_failing() {
  State& state = State::get();
  const Guard guard(state.mutex);
  const bool waiting = !state.failures.empty() || state.executions_to_failure != 0;
  state.failures.clear();
  state.executions_to_failure = 0;
  return waiting ? 1 : 0;
}

std::uint64_t calls(const char* name) {
  State& state = State::get();
  const Guard guard(state.mutex);
  if (name != nullptr) {
    auto found = state.calls.find(name);
    return found == state.calls.end() ? 0 : found->second;
  }
  std::uint64_t sum = 0;
  for (const auto& entry : state.calls) sum += entry.second;
  return sum;
}

void clear_calls() {
  State& state = State::get();
  const Guard guard(state.mutex);
  state.calls.clear();
  state.traffic = {};
}

std::size_t violation_count() {
  State& state = State::get();
  const Guard guard(state.mutex);
  return state.violations.size();
}

const char* violation(std::size_t index) {
  State& state = State::get();
  const Guard guard(state.mutex);
  return index < state.violations.size() ? state.violations[index].c_str() : nullptr;
}

void clear_violations() {
  State& state = State::get();
  const Guard guard(state.mutex);
  state.violations.clear();
}

std::size_t live_objects() {
  State& state = State::get();
  const Guard guard(state.mutex);
  std::size_t count = state.handles.size() + state.reservations.size() + state.streams.size() + state.events.size() +
                      state.modules.size() + state.pools.size() + state.primary.size() + state.graphs.size() +
                      state.graph_execs.size() + state.captures.size();
  for (const auto& entry : state.mappings) count += entry.second.free_submitted ? 0 : 1;
  return count;
}

std::size_t live_bytes(int device) {
  State& state = State::get();
  const Guard guard(state.mutex);
  return state.used[device];
}

CudaDoubleTraffic traffic() {
  State& state = State::get();
  const Guard guard(state.mutex);
  return state.traffic;
}

void register_kernel(const CudaDoubleKernel* kernel) {
  State& state = State::get();
  const Guard guard(state.mutex);
  state.kernels[kernel->name] = *kernel;
}

void set_eager(int eager) {
  State& state = State::get();
  const Guard guard(state.mutex);
  state.options.eager = eager;
  for (const auto& stream : state.all_streams) {
    if (eager != 0) state.demand(*stream, stream->submitted);
  }
}

void drop_context(int device) {
  State& state = State::get();
  while (true) {
    {
      const Guard guard(state.mutex);
      if (!state.primary.contains(device)) return;
    }
    static_cast<void>(cuDevicePrimaryCtxRelease_v2(device));
  }
}

const char* failed_call() {
  State& state = State::get();
  const Guard guard(state.mutex);
  return state.failed_call;
}

}  // namespace
}  // namespace cuda_double

extern "C" __attribute__((visibility("default"))) const CudaDoubleControl cuda_double_control = {
    &cuda_double::reset,           &cuda_double::fail,       &cuda_double::fail_execution,
    &cuda_double::stop_failing,    &cuda_double::calls,      &cuda_double::clear_calls,
    &cuda_double::violation_count, &cuda_double::violation,  &cuda_double::clear_violations,
    &cuda_double::live_objects,    &cuda_double::live_bytes, &cuda_double::traffic,
    &cuda_double::register_kernel, &cuda_double::set_eager,  &cuda_double::drop_context,
    &cuda_double::failed_call,
};
