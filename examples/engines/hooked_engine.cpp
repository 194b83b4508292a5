// How another engine gets Berth's memory. The engine here is a toy of 40 lines with the allocator hook that engines
// have: two functions and a pointer. The adapter below it is all that one needs, and main() checks what a test of an
// adapter should: the outputs have the same bits, the arena is as large as what is live at once, and a broken plan is
// noticed.
#include <berth/engines/engine_memory.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

namespace toy {

// The hook: the engine calls these for every tensor.
struct Hooks {
  void* (*allocate)(void* user, std::size_t bytes) = [](void*, std::size_t bytes) { return std::malloc(bytes); };
  void (*release)(void* user, void* memory) = [](void*, void* memory) { std::free(memory); };
  void* user = nullptr;
};

// A chain of layers. Each reads one tensor and writes another; every second one also adds the tensor before that.
std::vector<float> run(const Hooks& hooks, const std::vector<float>& input, int layers) {
  const auto make = [&](std::size_t count) {
    return std::pair(static_cast<float*>(hooks.allocate(hooks.user, count * sizeof(float))), count);
  };
  const auto at = [](const auto& tensor, std::size_t i) { return tensor.first[i % tensor.second]; };
  auto before = make(input.size()), last = make(input.size());
  for (std::size_t i = 0; i < input.size(); ++i) last.first[i] = before.first[i] = input[i];
  for (int layer = 0; layer < layers; ++layer) {
    auto next = make(input.size() * static_cast<std::size_t>(1 + layer % 3));
    for (std::size_t i = 0; i < next.second; ++i)
      next.first[i] = std::sin(at(last, i + 1)) + (layer % 2 == 0 ? at(before, i) : 0.0f);
    hooks.release(hooks.user, before.first);
    before = std::exchange(last, next);
  }
  std::vector<float> output(last.first, last.first + last.second);
  hooks.release(hooks.user, before.first);
  hooks.release(hooks.user, last.first);
  return output;
}

}  // namespace toy

// The adapter.
class ToyMemory {
 public:
  static berth::Result<ToyMemory> create(berth::engines::EngineMemoryOptions options = {}) {
    auto memory = berth::engines::EngineMemory::create(std::move(options));
    if (!memory) return memory.error();
    return ToyMemory(*std::move(memory));
  }

  // What the engine is given. Valid as long as this object, also if that is moved.
  toy::Hooks hooks() {
    return {.allocate = [](void* user, std::size_t bytes) { return of(user).allocate(bytes); },
            .release = [](void* user, void* memory) { of(user).release(memory); },
            .user = &memory_.replay()};
  }

  // One run: the model, and the numbers that its sizes depend on.
  berth::engines::EngineRun run(std::string_view key, berth::Replay::Dimensions dimensions) {
    return memory_.run(key, dimensions);
  }

  berth::Replay& replay() { return memory_.replay(); }

 private:
  explicit ToyMemory(berth::engines::EngineMemory memory) : memory_(std::move(memory)) {}
  static berth::Replay& of(void* user) { return *static_cast<berth::Replay*>(user); }
  berth::engines::EngineMemory memory_;
};

namespace {

bool check(bool holds, const char* what) {
  std::printf("%s: %s\n", holds ? "yes" : "NO", what);
  return holds;
}

}  // namespace

int main() {
  constexpr int kLayers = 12;
  std::vector<float> input(4096);
  bool good = true;

  // Same bits, from an arena of the live peak.
  ToyMemory memory = ToyMemory::create().value();
  bool same = true;
  for (int i = 0; i < 5; ++i) {
    for (std::size_t k = 0; k < input.size(); ++k) input[k] = static_cast<float>(k % 7 + static_cast<std::size_t>(i));
    auto run = memory.run("toy", {{static_cast<std::int64_t>(input.size())}});
    same = same && toy::run(memory.hooks(), input, kLayers) == toy::run({}, input, kLayers);
  }
  const auto trace = memory.replay().trace("toy", {{static_cast<std::int64_t>(input.size())}});
  good &= check(same, "the outputs are those of the engine's own memory");
  good &= check(memory.replay().counters().planned == 4 * trace->requests.size(), "four runs came from the arena");
  good &= check(memory.replay().counters().arena_bytes == trace->live_peak(), "the arena is as large as the live peak");

  // Memory that is returned twice must show in the outputs, or the comparison above proves nothing.
  static std::vector<float> shared(1 << 16);
  const toy::Hooks broken{.allocate = [](void*, std::size_t) { return static_cast<void*>(shared.data()); },
                          .release = [](void*, void*) {}};
  good &= check(toy::run(broken, input, kLayers) != toy::run({}, input, kLayers), "overlapping memory is noticed");

  // A plan with overlaps never reaches the engine.
  berth::engines::EngineMemoryOptions options;
  options.replay.planner = [](const berth::PlanProblem& problem) -> berth::Result<berth::MemoryPlan> {
    berth::MemoryPlan plan = berth::plan(problem).value();
    for (berth::Slot& slot : plan.slots) slot.offset = 0;
    return plan;
  };
  ToyMemory misplanned = ToyMemory::create(std::move(options)).value();
  bool refused = false;
  for (int i = 0; i < 2; ++i) {
    auto run = misplanned.run("toy", {{static_cast<std::int64_t>(input.size())}});
    refused = !run.status;
    good &=
        check(toy::run(misplanned.hooks(), input, kLayers) == toy::run({}, input, kLayers), "the outputs are right");
  }
  good &= check(refused, "the run says that its plan is not valid");
  return good ? 0 : 1;
}
