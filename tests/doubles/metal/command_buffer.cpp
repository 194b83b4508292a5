// MTLCommandBuffer: what is encoded into it, the checks at its commit, and waiting for it.
#include "metal.h"

namespace metal_double {
namespace {

bool is_committed(const CommandBuffer& commands) {
  return commands.status >= kCommitted;
}

Status status_now(const CommandBuffer& commands) {
  State& state = State::get();
  const Guard guard(state.mutex);
  return commands.status;
}

// Whether something may still be put into the command buffer, outside of any encoder.
bool may_add(Object* self, Selector selector) {
  auto& commands = body<CommandBuffer>(self);
  if (status_now(commands) >= kCommitted) {
    violation("after commit: " + describe(self) + " was sent " + selector->name + " when it was already committed");
    return false;
  }
  return true;
}

void close_encoder(Object* self, const std::string& what) {
  auto& commands = body<CommandBuffer>(self);
  if (commands.encoder == nullptr) return;
  violation("open encoder: " + describe(self) + " " + what + " while " + describe(commands.encoder) +
            " had not ended its encoding");
  body<Encoder>(commands.encoder).ended = true;
  commands.encoder = nullptr;
}

void enqueue(Object* self, Selector selector) {
  if (!may_add(self, selector)) return;
  auto& commands = body<CommandBuffer>(self);
  State& state = State::get();
  bool again = false;
  {
    const Guard guard(state.mutex);
    again = commands.enqueued;
    if (!again) {
      commands.enqueued = true;
      commands.status = kEnqueued;
      body<Queue>(commands.queue.get()).line->order.emplace_back(self);
    }
  }
  if (again) violation("order: " + describe(self) + " was enqueued twice");
}

// The buffers that are used and that neither a set nor the commands themselves make resident. Requires: the mutex.
std::vector<Object*> missing(const State& state, const CommandBuffer& commands) {
  const auto& queue = body<Queue>(commands.queue.get());
  const int residency = state.options.residency;
  const bool has_sets = !queue.sets.empty() || !commands.sets.empty();
  if (residency == kMetalResidencyFree || (residency == kMetalResidencySets && !has_sets)) return {};
  std::vector<Object*> found;
  for (Object* buffer : commands.uses) {
    if (!is_alive(buffer) || body<Buffer>(buffer).always_resident || commands.granted.contains(buffer)) continue;
    bool resident = false;
    for (const auto* sets : {&queue.sets, &commands.sets}) {
      for (const Held& set : *sets) resident = resident || body<ResidencySet>(set.get()).committed.contains(buffer);
    }
    if (!resident) found.push_back(buffer);
  }
  return found;
}

void commit(Object* self, Selector selector) {
  if (!may_add(self, selector)) return;
  close_encoder(self, "was committed");
  auto& commands = body<CommandBuffer>(self);
  State& state = State::get();
  std::vector<std::string> wrong;
  std::vector<Held> pinned;
  {
    const Guard guard(state.mutex);
    if (!commands.retains) {
      // The buffers must be alive now; from here on their release is noticed, and put off so that running is safe.
      for (auto use = commands.uses.begin(); use != commands.uses.end();) {
        if (try_hold(*use)) {
          pinned.push_back(Held::adopt(*use));
          ++body<Buffer>(*use).in_flight_unretained;
          ++use;
        } else {
          wrong.push_back("use after release: " + describe(*use) + " is used by " + describe(self) +
                          ", which does not retain it, and was released before the commit");
          use = commands.uses.erase(use);
        }
      }
      if (!wrong.empty()) commands.operations.clear();
      for (Held& pin : pinned) commands.kept.push_back(std::move(pin));
    }
    for (Object* buffer : missing(state, commands)) {
      const auto& lacking = body<Buffer>(buffer);
      wrong.push_back("not resident: " + describe(self) + " uses " + describe(buffer) + " of " +
                      std::to_string(lacking.length) + " bytes, which is in no committed residency set of its queue");
      commands.evicted.insert(buffer);
    }
    auto& line = body<Queue>(commands.queue.get()).line;
    if (!commands.enqueued) line->order.emplace_back(self);
    commands.enqueued = true;
    commands.status = kCommitted;
    ++state.running;
    commands.place = line->next++;
    commands.late = std::chrono::system_clock::now() + std::chrono::milliseconds(state.options.pause_milliseconds);
    start(line);
    for (const auto& [event, value] : state.awaited) demand_signal(state, event, value);
    state.changed.notify_all();
  }
  for (std::string& text : wrong) violation(std::move(text));
}

void wait_for(Object* self, Selector selector, bool completed) {
  auto& commands = body<CommandBuffer>(self);
  State& state = State::get();
  Lock lock(state.mutex);
  if (!is_committed(commands)) {
    lock.unlock();
    return violation("would block for ever: " + describe(self) + " was sent " + selector->name +
                     " and was never committed");
  }
  demand(state, *body<Queue>(commands.queue.get()).line, commands.place);
  state.changed.wait(lock, [&] { return completed ? commands.finished : commands.status >= kScheduled; });
}

void wait_completed(Object* self, Selector selector) {
  wait_for(self, selector, true);
}
void wait_scheduled(Object* self, Selector selector) {
  wait_for(self, selector, false);
}

std::uintptr_t status(Object* self, Selector) {
  auto& commands = body<CommandBuffer>(self);
  State& state = State::get();
  const Guard guard(state.mutex);
  if (is_committed(commands) && commands.status < kCompleted && ++commands.asked >= 3) {
    demand(state, *body<Queue>(commands.queue.get()).line, commands.place);
  }
  return commands.status;
}

Object* error(Object* self, Selector) {
  State& state = State::get();
  const Guard guard(state.mutex);
  return body<CommandBuffer>(self).error.get();
}

void add_completed(Object* self, Selector selector, const void* block) {
  if (!may_add(self, selector)) return;
  Callback callback(block);
  body<CommandBuffer>(self).completed_handlers.push_back(std::move(callback));
}

void add_scheduled(Object* self, Selector selector, const void* block) {
  if (!may_add(self, selector)) return;
  Callback callback(block);
  body<CommandBuffer>(self).scheduled_handlers.push_back(std::move(callback));
}

bool may_encode_event(Object* self, Selector selector, Object* event) {
  if (!may_add(self, selector)) return false;
  if (event == nullptr || !is_alive(event) || dynamic_cast<Event*>(event->body) == nullptr) {
    violation("argument: " + std::string(selector->name) + " was given " + describe(event) + " for an event");
    return false;
  }
  auto& commands = body<CommandBuffer>(self);
  close_encoder(self, "was sent " + selector->name);
  if (!body<Event>(event).shared && body<Event>(event).device.get() != device_of(commands)) {
    violation("wrong device: " + describe(event) + " is of another device than " + describe(self));
    return false;
  }
  return true;
}

void encode_signal(Object* self, Selector selector, Object* event, std::uint64_t value) {
  if (!may_encode_event(self, selector, event)) return;
  auto& commands = body<CommandBuffer>(self);
  commands.kept.emplace_back(event);
  commands.signals.emplace_back(event, value);
  commands.operations.emplace_back([event, value](CommandBuffer&) -> std::optional<Fault> {
    signal(body<Event>(event), value);
    return {};
  });
}

void encode_wait(Object* self, Selector selector, Object* event, std::uint64_t value) {
  if (!may_encode_event(self, selector, event)) return;
  auto& commands = body<CommandBuffer>(self);
  commands.kept.emplace_back(event);
  commands.operations.emplace_back([event, value](CommandBuffer&) -> std::optional<Fault> {
    State& state = State::get();
    Lock lock(state.mutex);
    if (await(state, lock, event, value, {})) return {};
    return Fault{kDeviceRemoved, "the device was removed"};
  });
}

void use_set(Object* self, Selector selector, Object* set) {
  if (!may_add(self, selector) || !expect(set, "MTLResidencySet", "a residency set")) return;
  body<CommandBuffer>(self).sets.emplace_back(set);
}

void use_sets(Object* self, Selector selector, Object* const* sets, std::uintptr_t count) {
  for (std::uintptr_t i = 0; i < count; ++i) use_set(self, selector, sets[i]);
}

Object* open_encoder(Object* self, Selector selector, Encoder* encoder, const char* type_name) {
  if (!may_add(self, selector)) {
    encoder->ended = true;
    delete encoder;
    return nullptr;
  }
  close_encoder(self, "was sent " + selector->name);
  encoder->commands = Held(self);
  encoder->self = create(type_name, encoder);
  body<CommandBuffer>(self).encoder = encoder->self;
  return autorelease(encoder->self);
}

Object* blit_encoder(Object* self, Selector selector) {
  return open_encoder(self, selector, new_blit_encoder(), "MTLBlitCommandEncoder");
}
Object* compute_encoder(Object* self, Selector selector) {
  return open_encoder(self, selector, new_compute_encoder(), "MTLComputeCommandEncoder");
}
Object* typed_compute_encoder(Object* self, Selector selector, std::uintptr_t) {
  return compute_encoder(self, selector);
}

Object* queue_of(Object* self, Selector) {
  return body<CommandBuffer>(self).queue.get();
}
Object* device(Object* self, Selector) {
  return device_of(body<CommandBuffer>(self));
}
bool retains(Object* self, Selector) {
  return body<CommandBuffer>(self).retains;
}
double no_time(Object*, Selector) {
  return 0;
}

}  // namespace

void CommandBuffer::disowned() {
  if (encoder != nullptr) return;  // the encoder still holds it
  State& state = State::get();
  Held dropped;
  {
    const Guard guard(state.mutex);
    if (!enqueued || is_committed(*this)) return;
    auto& order = body<Queue>(queue.get()).line->order;
    for (auto entry = order.begin(); entry != order.end(); ++entry) {
      if (entry->get() != self) continue;
      dropped = std::move(*entry);
      order.erase(entry);
      break;
    }
  }
  violation("order: " + describe(self) + " was enqueued and released without a commit");
}

CommandBuffer::~CommandBuffer() {
  State& state = State::get();
  const Guard guard(state.mutex);
  --body<Queue>(queue.get()).outstanding;
  state.changed.notify_all();
}

Object* device_of(const CommandBuffer& commands) {
  return body<Queue>(commands.queue.get()).device.get();
}

void add_command_buffer_types() {
  make_type("MTLCommandBuffer")
      .on("blitCommandEncoder", &blit_encoder, Kind::kCreates)
      .on("computeCommandEncoder", &compute_encoder, Kind::kCreates)
      .on("computeCommandEncoderWithDispatchType:", &typed_compute_encoder, Kind::kCreates)
      .on("encodeSignalEvent:value:", &encode_signal)
      .on("encodeWaitForEvent:value:", &encode_wait)
      .on("addCompletedHandler:", &add_completed)
      .on("addScheduledHandler:", &add_scheduled)
      .on("enqueue", &enqueue)
      .on("commit", &commit)
      .on("waitUntilCompleted", &wait_completed)
      .on("waitUntilScheduled", &wait_scheduled)
      .on("status", &status)
      .on("error", &error)
      .on("commandQueue", &queue_of)
      .on("device", &device)
      .on("retainedReferences", &retains)
      .on("label", &get_label<CommandBuffer>)
      .on("setLabel:", &set_label<CommandBuffer>)
      .on("GPUStartTime", &no_time)
      .on("GPUEndTime", &no_time)
      .on("kernelStartTime", &no_time)
      .on("kernelEndTime", &no_time)
      .on("useResidencySet:", &use_set)
      .on("useResidencySets:count:", &use_sets)
      .with_residency("useResidencySet:")
      .with_residency("useResidencySets:count:");
}

}  // namespace metal_double
