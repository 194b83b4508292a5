// Every message that creates something gives nil once, and every command buffer fails once. After each round: no crash,
// no mistake that the double saw, no made-up data, and nothing left alive.
#include "metal/metal_support.h"
#include "support.h"
#include "support/fault_scenarios.h"

namespace berth::metal_test {
namespace {

using test::counting_bytes;

// Uses each part of the device once and lets go of everything. Returns the first error; data that arrives must be
// right.
Result<void> scenario() {
  BERTH_TRY_ASSIGN(const DevicePtr gpu, device("METAL"));
  BERTH_TRY_ASSIGN(const QueuePtr queue, gpu->make_queue());
  BERTH_TRY_ASSIGN(const Kernel add, make_add_kernel(*gpu));
  BERTH_TRY(test::add_on_one_queue_and_read_on_another(*queue, gpu, add, {.alignment = 1 << 16}));

  BERTH_TRY_ASSIGN(const Buffer hidden, Buffer::allocate(gpu, u8, {2000}, {.host = HostAccess::kNone, .zero = true}));
  BERTH_TRY_ASSIGN(const Buffer part, hidden.view(3, 1001));
  BERTH_TRY(part.copyin(counting_bytes(1001)));
  BERTH_TRY_ASSIGN(const Buffer shifted, hidden.view(4, 1001));
  BERTH_TRY(shifted.copy_from(part));
  BERTH_TRY_ASSIGN(const Window edge, hidden.view(1010, 33).value().window());
  BERTH_TRY(queue->fill(edge, 9));
  BERTH_TRY(queue->finish());
  Bytes back(1001);
  BERTH_TRY(shifted.copyout(back));
  EXPECT_EQ(back, counting_bytes(1001));
  BERTH_TRY_ASSIGN(const Buffer host, Buffer::allocate(device("CPU").value(), u8, {1 << 20}));
  BERTH_TRY_ASSIGN(const Buffer wrapped, metal_wrap(gpu, host));
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
