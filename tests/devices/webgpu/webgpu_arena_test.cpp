// The arena on WEBGPU where it differs from other devices: bindings have a largest size and an alignment. The rules
// that hold everywhere are in arena_test.cpp, which runs on WEBGPU too.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "berth/berth.h"
#include "berth/plan/plan.h"
#include "berth/run/arena.h"
#include "support/support.h"

namespace berth::test {
namespace {

constexpr std::string_view kIncrement = R"(
@group(0) @binding(0) var<storage, read> source: array<f32>;
@group(0) @binding(1) var<storage, read_write> goal: array<f32>;
@compute @workgroup_size(4) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  goal[id.x] = source[id.x] + 1.0;
}
)";

class WebgpuArena : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = device("WEBGPU");
    if (!opened) GTEST_SKIP() << "skipped: no WEBGPU: " << opened.error().message();
    device_ = *opened;
    queue_ = device_->make_queue().value();
    kernel_ = device_->make_kernel({.code = std::as_bytes(std::span(kIncrement))}).value();
    binding_ = device_->limits().max_binding_bytes;
  }

  // Three nodes, each half of what one binding holds, alive at once: together more than one binding.
  PlanProblem large_problem() const {
    PlanProblem problem;
    problem.alignment = device_->limits().binding_alignment;
    for (int i = 0; i < 3; ++i) problem.lifetimes.push_back({.bytes = binding_ / 2, .first = 0, .last = 2});
    return problem;
  }

  // node 0 -> node 1 -> node 2, one added each time, at the first floats of each.
  void expect_increments(const Arena& arena) {
    const std::vector<float> numbers = {1, 2, 3, 4};
    ASSERT_TRUE(arena.write_f32(*queue_, 0, numbers).has_value());
    for (NodeId node = 0; node < 2; ++node) {
      const std::array<KernelArgument, 2> arguments = {
          KernelArgument{arena.buffer(node, Access::kRead).value().window().value(), Access::kRead},
          KernelArgument{arena.buffer(node + 1).value().window().value(), Access::kWrite}};
      const auto launched = queue_->launch(kernel_, arguments, {});
      ASSERT_TRUE(launched.has_value()) << launched.error().message();
    }
    std::vector<float> seen(4);
    ASSERT_TRUE(arena.read_bytes(*queue_, 2, 0, std::as_writable_bytes(std::span(seen))).has_value());
    EXPECT_EQ(seen, (std::vector<float>{3, 4, 5, 6}));
  }

  DevicePtr device_;
  QueuePtr queue_;
  Kernel kernel_;
  std::size_t binding_ = 0;
};

TEST_F(WebgpuArena, BindsEachSlotOfABlockLargerThanABinding) {
  const MemoryPlan planned = plan(large_problem()).value();
  ASSERT_EQ(planned.blocks.size(), 1u);
  ASSERT_GT(planned.blocks[0].bytes, binding_);
  expect_increments(Arena::from_plan(device_, planned, {.f16_shadow = Shadow::kOff}).value());
}

TEST_F(WebgpuArena, RunsKernelsOverAPlanThatIsSplitIntoBindings) {
  PlanProblem problem = large_problem();
  problem.max_block_bytes = binding_;
  const MemoryPlan planned = plan(problem).value();
  ASSERT_EQ(planned.blocks.size(), 2u);
  expect_increments(Arena::from_plan(device_, planned, {.f16_shadow = Shadow::kOff}).value());
}

TEST_F(WebgpuArena, FailsEarlyWithTheNumbersWhenANodeIsLargerThanABinding) {
  const std::size_t before = device_->counters().live_bytes;
  const MemoryPlan planned = plan({{.bytes = binding_ + 4096, .first = 0, .last = 1}}).value();
  const auto refused = Arena::from_plan(device_, planned);
  ASSERT_TRUE(fails_with(refused, Code::kInfeasible));
  EXPECT_NE(refused.error().message().find("4096 more"), std::string::npos) << refused.error().message();
  EXPECT_EQ(device_->counters().live_bytes, before);
}

TEST_F(WebgpuArena, HasAnF16ShadowThatKernelsRead) {
  if (!device_->limits().f16_kernels) GTEST_SKIP() << "skipped: this adapter has no shader-f16";
  constexpr std::string_view kWiden = R"(
enable f16;
@group(0) @binding(0) var<storage, read> source: array<f16>;
@group(0) @binding(1) var<storage, read_write> goal: array<f32>;
@compute @workgroup_size(4) fn main(@builtin(global_invocation_id) id: vec3<u32>) { goal[id.x] = f32(source[id.x]); }
)";
  const Kernel widen = device_->make_kernel({.code = std::as_bytes(std::span(kWiden))}).value();
  PlanProblem problem;
  problem.alignment = 2 * device_->limits().binding_alignment;
  for (int i = 0; i < 3; ++i) problem.lifetimes.push_back({.bytes = 16, .first = 0, .last = 2});
  const Arena arena = Arena::from_plan(device_, plan(problem).value()).value();
  ASSERT_TRUE(arena.has_shadow());
  const auto expect_halves = [&](const std::vector<float>& expected) {
    const std::array<KernelArgument, 2> arguments = {
        KernelArgument{arena.shadow(*queue_, 1).value().window().value(), Access::kRead},
        KernelArgument{arena.buffer(2).value().window().value(), Access::kWrite}};
    ASSERT_TRUE(queue_->launch(widen, arguments, {}).has_value());
    EXPECT_EQ(arena.read_f32(*queue_, 2).value(), expected);
  };
  // 1/3 and 70000 have no f16 of their own; the shadow holds the nearest.
  ASSERT_TRUE(arena.write_f32(*queue_, 1, std::vector<float>{1.0F / 3, 2, -70000, 0.5F}).has_value());
  expect_halves({0.333251953125F, 2, -INFINITY, 0.5F});
  // A kernel writes the node behind the arena's back: the shadow follows.
  const std::vector<float> ones(4, 1.0F);
  ASSERT_TRUE(arena.write_f32(*queue_, 0, ones).has_value());
  const std::array<KernelArgument, 2> arguments = {
      KernelArgument{arena.buffer(0, Access::kRead).value().window().value(), Access::kRead},
      KernelArgument{arena.buffer(1).value().window().value(), Access::kWrite}};
  ASSERT_TRUE(queue_->launch(kernel_, arguments, {}).has_value());
  expect_halves({2, 2, 2, 2});
}

TEST_F(WebgpuArena, MovesPackedWeightsOfAnyLength) {
  // 18-byte blocks, as GGUF packs 32 weights of q4_0: nothing falls on whole words.
  const Arena arena = Arena::from_plan(device_, plan({{.bytes = 18 * 33, .first = 0, .last = 1}}).value()).value();
  ASSERT_TRUE(arena.write_bytes_range(*queue_, 0, std::vector<std::byte>(18 * 33, std::byte{0xee})).has_value());
  for (std::size_t block = 1; block < 33; block += 2)
    ASSERT_TRUE(arena.write_bytes_range(*queue_, block * 18, counting_bytes(18, block)).has_value());
  const std::vector<std::byte> seen = arena.read_bytes_range(*queue_, 0, 18 * 33).value();
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const std::size_t block = i / 18;
    ASSERT_EQ(seen[i], block % 2 == 0 ? std::byte{0xee} : static_cast<std::byte>(block + i % 18)) << i;
  }
}

}  // namespace
}  // namespace berth::test
