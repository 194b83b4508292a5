// A whole network in one arena, run in parallel, against the same kernels with a buffer each.
#include "networks/arena_network.h"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include "berth/memory/registry.h"

namespace berth {
namespace {

void expect_identical(const networks::Network& net) {
  tbb::global_control threads(tbb::global_control::max_allowed_parallelism, 4);
  const DevicePtr cpu = device("CPU").value();
  const std::size_t before = cpu->counters().live_bytes;
  const auto on_berth = networks::ArenaNetwork::make(cpu, net).value();
  EXPECT_EQ(cpu->counters().live_bytes - before, on_berth.plan.size) << "the planned bytes and no more";
  EXPECT_EQ(on_berth.arena.total_size(), on_berth.plan.size);
  EXPECT_EQ(on_berth.plan.blocks.size(), 1u);
  std::size_t separate = 0;
  for (const networks::Tensor& tensor : net.tensors) separate += tensor.of ? 0 : tensor.count * sizeof(float);
  EXPECT_LT(on_berth.plan.size, separate);

  const std::vector<float> input = networks::make_input(net);
  const std::vector<float> expected = networks::run_with_separate_buffers(net, input);
  const std::uint64_t allocations = cpu->counters().allocations;
  for (const std::uint32_t workers : {1u, 2u, 4u, 4u, 4u})
    EXPECT_EQ(on_berth.run(input, {.workers = workers, .check_overlaps = workers == 2}).value(), expected)
        << workers << " workers";
  EXPECT_EQ(cpu->counters().allocations, allocations) << "a run takes no memory from the device";
}

TEST(ArenaNetwork, OfConvolutionsIsBitIdenticalToSeparateBuffers) {
  expect_identical(networks::convolutional());
}

TEST(ArenaNetwork, OfATransformerBlockIsBitIdenticalToSeparateBuffers) {
  expect_identical(networks::transformer());
}

TEST(ArenaNetwork, WritesOverItsInputWhereTheKernelAllows) {
  const networks::Network net = networks::transformer();
  const auto on_berth = networks::ArenaNetwork::make(device("CPU").value(), net).value();
  std::size_t in_place = 0;
  for (NodeId node = 0; node < net.tensors.size(); ++node)
    if (net.tensors[node].over)
      in_place += on_berth.arena.offset(node).value() ==
                  on_berth.arena.offset(static_cast<NodeId>(*net.tensors[node].over)).value();
  EXPECT_GT(in_place, 0u);
}

}  // namespace
}  // namespace berth
