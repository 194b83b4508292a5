// Runs two small networks with all activations in one arena, in parallel, and shows what that takes.
#include "networks/arena_network.h"

#include <cstdio>

#include "berth/memory/registry.h"

int main() {
  const berth::DevicePtr cpu = berth::device("CPU").value();
  bool same = true;
  for (const networks::Network& net : {networks::convolutional(), networks::transformer()}) {
    const auto on_berth = networks::ArenaNetwork::make(cpu, net).value();
    const std::vector<float> input = networks::make_input(net);
    const std::vector<float> output = on_berth.run(input).value();
    const bool identical = output == networks::run_with_separate_buffers(net, input);
    same = same && identical;
    std::size_t separate = 0;
    for (const networks::Tensor& tensor : net.tensors)
      if (!tensor.of) separate += tensor.count * sizeof(float);
    std::printf("%-18s %2zu steps on %2u levels, a buffer each %9s, one arena %9s (bound %s), results %s\n",
                net.name.c_str(), on_berth.schedule.step_count(), on_berth.schedule.level_count(),
                berth::format_bytes(separate).c_str(), berth::format_bytes(on_berth.arena.total_size()).c_str(),
                berth::format_bytes(on_berth.plan.lower_bound).c_str(), identical ? "identical" : "DIFFERENT");
  }
  return same ? 0 : 1;
}
