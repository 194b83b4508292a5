// A network of small_networks.h on Berth: its steps are scheduled by what they read and write, their
// lifetimes planned, and all activations live in one arena.
#pragma once

#include "berth/memory/device.h"
#include "berth/plan/plan.h"
#include "berth/run/arena.h"
#include "berth/run/schedule.h"
#include "networks/small_networks.h"

namespace networks {

class ArenaNetwork {
 public:
  static berth::Result<ArenaNetwork> make(const berth::DevicePtr& cpu, const Network& net) {
    berth::ScheduleBuilder builder;
    for (const Tensor& tensor : net.tensors) {
      berth::Lifetime memory{.bytes = tensor.count * sizeof(float), .alignment = 64, .label = tensor.name};
      if (tensor.of)
        memory.alias = {.node = static_cast<berth::NodeId>(*tensor.of), .offset = tensor.at * sizeof(float)};
      if (tensor.over) memory.reuse_in_place = static_cast<berth::NodeId>(*tensor.over);
      builder.add_node(std::move(memory), tensor.is_output ? berth::NodeRole::kOutput : berth::NodeRole::kTemporary);
    }
    for (const Operation& operation : net.operations) {
      std::vector<berth::Operand> reads;
      for (const std::size_t tensor : operation.inputs) reads.push_back(node(tensor));
      builder.add_step({.label = operation.name,
                        .reads = std::move(reads),
                        .writes = {node(operation.output)},
                        .run = [operation](const berth::StepRun& run) -> berth::Result<void> {
                          std::array<Floats, 4> inputs;
                          for (std::size_t i = 0; i < operation.inputs.size(); ++i)
                            inputs[i] = run.node(node(operation.inputs[i])).as_slice<float>().value();
                          operation.kernel(std::span(inputs).first(operation.inputs.size()),
                                           run.node(node(operation.output)).as_slice_mut<float>().value());
                          return {};
                        }});
    }
    auto steps = builder.build();
    if (!steps) return steps.error();
    auto plan = berth::plan({.lifetimes = berth::lifetimes_from_schedule(*steps), .alignment = 64});
    if (!plan) return plan.error();
    auto arena = berth::Arena::from_plan(cpu, *plan, {.label = "activations"});
    if (!arena) return arena.error();
    auto bound = steps->bind(*arena);
    if (!bound) return bound.error();
    auto queue = cpu->make_queue();
    if (!queue) return queue.error();
    return ArenaNetwork{*std::move(plan),  *std::move(arena),  *std::move(bound),
                        *std::move(queue), node(net.input).id, node(net.output).id};
  }

  berth::Result<std::vector<float>> run(Floats input, const berth::RunOptions& options = {}) const {
    if (auto written = arena.write_f32(*queue, input_node, input); !written) return written.error();
    if (auto done = queue->finish(); !done) return done.error();
    if (auto done = schedule.run(options); !done) return done.error();
    return arena.read_f32(*queue, output_node);
  }

  static berth::Node node(std::size_t tensor) { return {static_cast<berth::NodeId>(tensor)}; }

  berth::MemoryPlan plan;
  berth::Arena arena;
  berth::Schedule schedule;
  berth::QueuePtr queue;
  berth::NodeId input_node, output_node;
};

}  // namespace networks
