// MTLCommandQueue, and the thread that runs its command buffers, late.
#include <thread>

#include "metal.h"

namespace metal_double {
namespace {

constexpr std::size_t kMostSets = 32;

struct Next {
  bool now = false;
  std::optional<std::chrono::system_clock::time_point> at;
};

// Whether the first command buffer of the line may run. Requires: the state's mutex.
Next next_of(const State& state, const Line& line) {
  if (line.order.empty()) return {};
  const auto& first = body<CommandBuffer>(line.order.front().get());
  if (first.place == 0 || state.options.pace == kMetalHeld) return {};
  if (state.options.pace == kMetalEager || line.demanded >= first.place || state.lost) return {true, {}};
  if (state.options.pause_milliseconds == 0) return {};
  return {std::chrono::system_clock::now() >= first.late, first.late};
}

void run_handlers(Object* commands, std::vector<Callback> handlers) {
  for (const Callback& handler : handlers) {
    const PoolScope pool;
    handler(commands);
  }
}

std::optional<Fault> told_fault(State& state) {
  if (state.lost) return Fault{kDeviceRemoved, "the device was removed"};
  if (state.executions_to_failure == 0 || --state.executions_to_failure != 0) return {};
  return Fault{state.execution_failure, "the double was told to fail this command buffer"};
}

void execute(State& state, Object* object) {
  auto& commands = body<CommandBuffer>(object);
  std::vector<Callback> handlers;
  std::optional<Fault> fault;
  {
    const Guard guard(state.mutex);
    commands.status = kScheduled;
    handlers = std::move(commands.scheduled_handlers);
    fault = told_fault(state);
    for (Object* buffer : commands.uses) {
      if (!commands.evicted.contains(buffer)) open(body<Buffer>(buffer));
    }
    state.changed.notify_all();
  }
  run_handlers(object, std::move(handlers));
  for (const auto& operation : commands.operations) {
    if (fault) break;
    fault = operation(commands);
  }
  Held error;
  if (fault) {
    Object* made = make_error("MTLCommandBufferErrorDomain", fault->code, fault->text);
    error = Held(made);
    release(made);
  }
  std::vector<Held> kept;
  decltype(commands.operations) operations;
  {
    const Guard guard(state.mutex);
    for (Object* buffer : commands.uses) {
      if (!commands.evicted.contains(buffer)) close(body<Buffer>(buffer));
      if (!commands.retains) --body<Buffer>(buffer).in_flight_unretained;
    }
    commands.uses.clear();
    commands.error = std::move(error);
    commands.status = fault ? kError : kCompleted;
    handlers = std::move(commands.completed_handlers);
    kept = std::move(commands.kept);
    operations = std::move(commands.operations);
  }
  run_handlers(object, std::move(handlers));
}

void run_line(const std::shared_ptr<Line>& line) {
  State& state = State::get();
  Lock lock(state.mutex);
  while (true) {
    const Next next = next_of(state, *line);
    if (next.now) {
      Held first = line->order.front();
      lock.unlock();
      execute(state, first.get());
      lock.lock();
      auto& commands = body<CommandBuffer>(first.get());
      commands.finished = true;
      Held front = std::move(line->order.front());
      line->order.pop_front();
      state.changed.notify_all();
      lock.unlock();
      front = Held();
      first = Held();
      lock.lock();
      --state.running;
      state.changed.notify_all();
    } else if (line->closed) {
      return;
    } else if (next.at) {
      state.changed.wait_until(lock, *next.at);
    } else {
      state.changed.wait(lock);
    }
  }
}

Object* new_queue(Object* device, std::size_t limit) {
  auto* queue = new Queue;
  queue->device = Held(device);
  queue->limit = limit;
  State& state = State::get();
  {
    const Guard guard(state.mutex);
    state.lines.insert(queue->line.get());
  }
  return create("MTLCommandQueue", queue);
}

Object* queue_plain(Object* self, Selector) {
  return new_queue(self, 64);
}
Object* queue_limited(Object* self, Selector, std::uintptr_t limit) {
  return new_queue(self, limit);
}
Object* queue_device(Object* self, Selector) {
  return body<Queue>(self).device.get();
}

// A place among the queue's command buffers, or false if none would ever come free.
bool take_place(Object* self) {
  auto& queue = body<Queue>(self);
  State& state = State::get();
  Lock lock(state.mutex);
  while (queue.outstanding >= queue.limit) {
    const auto& order = queue.line->order;
    if (order.empty() || body<CommandBuffer>(order.front().get()).place == 0) {
      lock.unlock();
      violation("would block for ever: " + describe(self) + " has " + std::to_string(queue.limit) +
                " command buffers that were not committed");
      return false;
    }
    demand(state, *queue.line, body<CommandBuffer>(order.front().get()).place);
    state.changed.wait(lock);
  }
  ++queue.outstanding;
  return true;
}

Object* new_commands(Object* self, bool retains) {
  if (!take_place(self)) return nullptr;
  auto* commands = new CommandBuffer;
  commands->queue = Held(self);
  commands->retains = retains;
  commands->self = create("MTLCommandBuffer", commands);
  return autorelease(commands->self);
}

Object* retained_commands(Object* self, Selector) {
  return new_commands(self, true);
}
Object* unretained_commands(Object* self, Selector) {
  return new_commands(self, false);
}

void add_set(Object* self, Selector, Object* set) {
  if (!expect(set, "MTLResidencySet", "a residency set")) return;
  auto& queue = body<Queue>(self);
  if (body<ResidencySet>(set).device.get() != queue.device.get()) {
    return violation("wrong device: " + describe(set) + " was added to a queue of another device");
  }
  State& state = State::get();
  bool known = false;
  bool full = false;
  {
    const Guard guard(state.mutex);
    for (const Held& other : queue.sets) known = known || other.get() == set;
    full = queue.sets.size() == kMostSets;
    if (!known && !full) queue.sets.emplace_back(set);
  }
  if (known) violation("argument: " + describe(set) + " was added to the same queue twice");
  if (!known && full) violation("argument: a queue has at most " + std::to_string(kMostSets) + " residency sets");
}

void remove_set(Object* self, Selector, Object* set) {
  State& state = State::get();
  Held removed;
  {
    const Guard guard(state.mutex);
    auto& sets = body<Queue>(self).sets;
    for (auto entry = sets.begin(); entry != sets.end(); ++entry) {
      if (entry->get() != set) continue;
      removed = std::move(*entry);
      sets.erase(entry);
      break;
    }
  }
  if (!removed) violation("argument: " + describe(set) + " is not among the residency sets of " + describe(self));
}

void add_sets(Object* self, Selector selector, Object* const* sets, std::uintptr_t count) {
  for (std::uintptr_t i = 0; i < count; ++i) add_set(self, selector, sets[i]);
}

void remove_sets(Object* self, Selector selector, Object* const* sets, std::uintptr_t count) {
  for (std::uintptr_t i = 0; i < count; ++i) remove_set(self, selector, sets[i]);
}

}  // namespace

Queue::~Queue() {
  State& state = State::get();
  const Guard guard(state.mutex);
  state.lines.erase(line.get());
  line->closed = true;
  state.changed.notify_all();
}

void start(const std::shared_ptr<Line>& line) {
  if (line->started) return;
  line->started = true;
  std::thread(&run_line, line).detach();
}

void demand(State& state, Line& line, std::uint64_t place) {
  if (line.demanded < place) line.demanded = place;
  state.changed.notify_all();
}

void demand_signal(State& state, Object* event, std::uint64_t value) {
  for (Line* line : state.lines) {
    for (const Held& entry : line->order) {
      const auto& commands = body<CommandBuffer>(entry.get());
      for (const auto& [signalled, to] : commands.signals) {
        if (signalled == event && to >= value && commands.place != 0) demand(state, *line, commands.place);
      }
    }
  }
}

void add_queue_types() {
  made_type("MTLDevice")
      .on("newCommandQueue", &queue_plain, Kind::kCreates)
      .on("newCommandQueueWithMaxCommandBufferCount:", &queue_limited, Kind::kCreates);
  make_type("MTLCommandQueue")
      .on("device", &queue_device)
      .on("commandBuffer", &retained_commands, Kind::kCreates)
      .on("commandBufferWithUnretainedReferences", &unretained_commands, Kind::kCreates)
      .on("label", &get_label<Queue>)
      .on("setLabel:", &set_label<Queue>)
      .on("addResidencySet:", &add_set)
      .on("addResidencySets:count:", &add_sets)
      .on("removeResidencySet:", &remove_set)
      .on("removeResidencySets:count:", &remove_sets)
      .with_residency("addResidencySet:")
      .with_residency("addResidencySets:count:")
      .with_residency("removeResidencySet:")
      .with_residency("removeResidencySets:count:");
}

}  // namespace metal_double
