// Every message that creates something gives nil once, and every command buffer fails once. After each round: no crash,
// no mistake that the double saw, no made-up data, and nothing left alive.
#include "metal/metal_support.h"
#include "support.h"

namespace berth::metal_test {
namespace {

using test::counting_bytes;

#define STEP(...)                                                                   \
  do {                                                                              \
    if (auto step_result = (__VA_ARGS__); !step_result) return step_result.error(); \
  } while (false)
#define STEP_ASSIGN(type, name, ...)                \
  auto name##_result = (__VA_ARGS__);               \
  if (!name##_result) return name##_result.error(); \
  type name = *std::move(name##_result)

// Uses each part of the device once and lets go of everything. Returns the first error; data that arrives must be
// right.
Result<void> scenario() {
  STEP_ASSIGN(const DevicePtr, gpu, device("METAL"));
  STEP_ASSIGN(const QueuePtr, queue, gpu->make_queue());
  STEP_ASSIGN(const QueuePtr, other, gpu->make_queue());
  STEP_ASSIGN(const Kernel, add, make_add_kernel(*gpu));
  STEP_ASSIGN(const Buffer, a, Buffer::allocate(gpu, u32, {256}, {.zero = true}));
  STEP_ASSIGN(const Buffer, b, Buffer::allocate(gpu, u32, {256}, {.alignment = 1 << 16}));
  STEP_ASSIGN(const Window, from, a.window());
  STEP_ASSIGN(const Window, to, b.window());
  const std::uint32_t constant = 7;
  STEP(queue->launch(add, std::array{KernelArgument{from, Access::kRead}, KernelArgument{to, Access::kWrite}},
                     {.groups = {4, 1, 1}, .threads = {64, 1, 1}}, std::as_bytes(std::span(&constant, 1))));
  STEP_ASSIGN(const Timepoint, added, queue->submit());
  STEP(other->wait_for(added));
  std::vector<std::uint32_t> seen(256);
  STEP(other->read(to, std::as_writable_bytes(std::span(seen))));
  STEP(other->finish());
  EXPECT_EQ(seen, std::vector<std::uint32_t>(256, 7));

  STEP_ASSIGN(const Buffer, hidden, Buffer::allocate(gpu, u8, {2000}, {.host = HostAccess::kNone, .zero = true}));
  STEP_ASSIGN(const Buffer, part, hidden.view(3, 1001));
  STEP(part.copyin(counting_bytes(1001)));
  STEP_ASSIGN(const Buffer, shifted, hidden.view(4, 1001));
  STEP(shifted.copy_from(part));
  STEP_ASSIGN(const Window, edge, hidden.view(1010, 33).value().window());
  STEP(queue->fill(edge, 9));
  STEP(queue->finish());
  Bytes back(1001);
  STEP(shifted.copyout(back));
  EXPECT_EQ(back, counting_bytes(1001));
  STEP_ASSIGN(const Buffer, host, Buffer::allocate(device("CPU").value(), u8, {1 << 20}));
  STEP_ASSIGN(const Buffer, wrapped, metal_wrap(gpu, host));
  return gpu->synchronize();
}

using MetalFault = MetalTest;

TEST_F(MetalFault, LeavesNothingHalfDoneWhicheverMessageGivesNil) {
  const auto clean = scenario();
  ASSERT_TRUE(clean.has_value()) << clean.error().message();
  const std::uint64_t creations = metal_double().creations();
  ASSERT_GT(creations, 20u);
  std::uint64_t refused = 0;
  for (std::uint64_t nth = 1; nth <= creations; ++nth) {
    metal_double().drain();
    restart({});
    register_kernels();
    metal_double().fail(nullptr, nth);
    const auto outcome = scenario();
    if (!outcome) {
      ++refused;
      EXPECT_FALSE(outcome.error().message().empty());
    }
    EXPECT_EQ(metal_double().stop_failing(), 0) << nth;
    metal_double().drain();
    for (const std::string& text : metal_violations()) ADD_FAILURE() << text;
    EXPECT_STREQ(metal_double().live_report(), "");
    if (HasFailure()) {
      ADD_FAILURE() << "when creation " << nth << " of " << creations << " failed, with "
                    << (outcome ? "success" : outcome.error().message());
      return;
    }
  }
  // The others have another way: a second device list, a residency set.
  EXPECT_GT(refused, creations * 3 / 4);
}

TEST_F(MetalFault, LeavesNothingHalfDoneWhicheverWorkFails) {
  std::uint64_t nth = 1;
  while (true) {
    metal_double().drain();
    restart({});
    register_kernels();
    metal_double().fail_execution(nth, 2);
    const auto outcome = scenario();
    const bool unused = metal_double().stop_failing() != 0;
    metal_double().drain();
    for (const std::string& text : metal_violations()) ADD_FAILURE() << text;
    EXPECT_STREQ(metal_double().live_report(), "");
    if (unused) {
      EXPECT_TRUE(outcome.has_value());
      break;
    }
    EXPECT_FALSE(outcome.has_value()) << "command buffer " << nth << " failed and nobody said so";
    if (HasFailure()) return;
    ++nth;
  }
  EXPECT_GT(nth, 5u);
}

TEST_F(MetalFault, OpensAgainAfterAFailure) {
  metal_double().fail("MTLCreateSystemDefaultDevice", 1);
  static_cast<void>(device("METAL"));
  metal_double().stop_failing();
  EXPECT_TRUE(device("METAL").has_value());
}

}  // namespace
}  // namespace berth::metal_test
