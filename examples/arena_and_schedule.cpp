// Steps that name what they read and write, planned into one arena and run in parallel. docs/arena_and_schedule.md
// walks through it.
#include <cstdio>

#include "berth/memory/device.h"
#include "berth/memory/registry.h"
#include "berth/plan/plan.h"
#include "berth/run/arena.h"
#include "berth/run/schedule.h"

int main() {
  const berth::DevicePtr cpu = berth::device("CPU").value();
  constexpr std::size_t kCount = 1024;

  // 1. What there is to do. Nodes have a size and no memory yet.
  berth::ScheduleBuilder builder;
  const auto node = [&](berth::NodeRole role = berth::NodeRole::kTemporary) {
    return builder.add_node({.bytes = kCount * sizeof(float), .alignment = 64}, role);
  };
  const berth::Node input = node(), twice = node(), square = node(), both = node(),
                    result = node(berth::NodeRole::kOutput);
  const auto step = [&](const char* label, std::vector<berth::Node> from, berth::Node to, auto function) {
    builder.add_step({.label = label,
                      .reads = {from.begin(), from.end()},
                      .writes = {to},
                      .run = [=](const berth::StepRun& run) -> berth::Result<void> {
                        const auto out = run.node(to).as_slice_mut<float>().value();
                        const auto a = run.node(from.front()).as_slice<float>().value();
                        const auto b = run.node(from.back()).as_slice<float>().value();
                        for (std::size_t i = 0; i < out.size(); ++i) out[i] = function(a[i], b[i]);
                        return {};
                      }});
  };
  step("twice", {input}, twice, [](float a, float) { return 2 * a; });
  step("square", {input}, square, [](float a, float) { return a * a; });
  step("both", {twice, square}, both, [](float a, float b) { return a + b; });
  step("result", {both}, result, [](float a, float) { return a + 1; });
  const berth::Schedule steps = builder.build().value();

  // 2. When each node lives, where it goes, and the memory.
  const berth::MemoryPlan plan = berth::plan({.lifetimes = berth::lifetimes_from_schedule(steps)}).value();
  const berth::Arena arena = berth::Arena::from_plan(cpu, plan).value();
  const berth::Schedule schedule = steps.bind(arena).value();

  // 3. Run it, as often as you like.
  const berth::QueuePtr queue = cpu->make_queue().value();
  arena.write_f32(*queue, input.id, std::vector<float>(kCount, 3.0f)).value();
  queue->finish().value();
  schedule.run().value();
  const float first = arena.read_f32(*queue, result.id).value().front();

  std::printf("%zu steps on %u levels, %zu nodes of %s in %s; 2 * 3 + 3 * 3 + 1 = %g\n", schedule.step_count(),
              schedule.level_count(), schedule.node_count(), berth::format_bytes(kCount * sizeof(float)).c_str(),
              berth::format_bytes(arena.total_size()).c_str(), static_cast<double>(first));
  return first == 16.0f ? 0 : 1;
}
