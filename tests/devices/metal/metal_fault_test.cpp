// Every message that creates something gives nil once, and every command buffer fails once. After each round: no crash,
// no mistake that the double saw, no made-up data, and nothing left alive.
#include "berth/memory/registry.h"
#include "devices/metal/metal_support.h"
#include "support/fault_scenarios.h"
#include "support/support.h"

namespace berth::metal_test {
namespace {

using test::counting_bytes;

// Uses each part of the device once and lets go of everything. Returns the first error; data that arrives must be
// right.
Result<void> scenario() {
  BERTH_TRY_ASSIGN(const DevicePtr gpu, device("METAL"));
  BERTH_TRY_ASSIGN(const QueuePtr queue, gpu->make_queue());
  BERTH_TRY_ASSIGN(const Kernel add, make_add_kernel(*gpu));
  BERTH_TRY(gpu->make_kernel({.code = std::as_bytes(std::span(kAddLibrary)), .entry = "add_constant"}));
  BERTH_TRY(test::add_on_one_queue_and_read_on_another(*queue, gpu, add, {.alignment = std::size_t{1} << 28}));

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

// Every message by which the device creates something, and whether it has another way when it gets nothing: a second
// list of devices, or no residency set.
struct Creation {
  const char* name;
  bool has_another_way = false;
};
constexpr Creation kCreations[] = {
    {"MTLCreateSystemDefaultDevice", true},
    {"MTLCopyAllDevices", true},
    {"MTLResidencySetDescriptor alloc", true},
    {"MTLResidencySetDescriptor init", true},
    {"MTLDevice newResidencySetWithDescriptor:error:", true},
    {"MTLDevice newCommandQueue"},
    {"MTLDevice newSharedEvent"},
    {"MTLDevice newLibraryWithSource:options:error:"},
    {"MTLDevice newLibraryWithData:error:"},
    {"MTLLibrary newFunctionWithName:"},
    {"MTLDevice newComputePipelineStateWithFunction:error:"},
    {"MTLDevice newBufferWithLength:options:"},
    {"MTLDevice newBufferWithBytesNoCopy:length:options:deallocator:"},
    {"MTLCommandQueue commandBuffer"},
    {"MTLCommandBuffer blitCommandEncoder"},
    {"MTLCommandBuffer computeCommandEncoder"},
};

TEST_F(MetalFault, LeavesNothingHalfDoneWhicheverMessageGivesNil) {
  const auto clean = scenario();
  ASSERT_TRUE(clean.has_value()) << clean.error().message();
  std::vector<std::uint64_t> counts;
  std::uint64_t sum = 0;
  for (const Creation& creation : kCreations) {
    // The two functions are no messages, and are called once.
    const bool is_function = std::string_view(creation.name).find(' ') == std::string_view::npos;
    counts.push_back(is_function ? 1 : metal_double().messages(creation.name));
    EXPECT_GT(counts.back(), 0u) << creation.name << " is not sent";
    sum += counts.back();
  }
  EXPECT_EQ(sum, metal_double().creations()) << "something else is created too";
  for (std::size_t i = 0; i < counts.size(); ++i)
    for (std::uint64_t nth = 1; nth <= counts[i]; ++nth) {
      const Creation& creation = kCreations[i];
      metal_double().drain();
      restart({});
      register_kernels();
      metal_double().fail(creation.name, nth);
      const auto outcome = scenario();
      EXPECT_EQ(outcome.has_value(), creation.has_another_way);
      EXPECT_EQ(metal_double().stop_failing(), 0) << "it was not sent that often";
      metal_double().drain();
      for (const std::string& text : metal_violations()) ADD_FAILURE() << text;
      EXPECT_STREQ(metal_double().live_report(), "");
      if (HasFailure()) {
        ADD_FAILURE() << "when number " << nth << " of " << counts[i] << " of " << creation.name
                      << " gave nothing, with " << (outcome ? "success" : outcome.error().message());
        return;
      }
    }
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
