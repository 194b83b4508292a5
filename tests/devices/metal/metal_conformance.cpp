// METAL: on the double, and on a Mac the real one.
#include <cstring>

#include "berth/alloc/caching_pool.h"
#include "berth/alloc/linear.h"
#include "berth/memory/registry.h"
#include "conformance/allocator_conformance.h"
#include "conformance/device_conformance.h"
#include "devices/metal/metal_device.h"
#include "devices/metal/metal_kernels.h"
#ifndef __APPLE__
#include "devices/metal/metal_support.h"
#endif

namespace berth::conformance {

using namespace internal;

namespace {

#ifdef __APPLE__

Result<DevicePtr> open_default() {
  return device("METAL");
}
void keep_resident(const MTL::Buffer&) {}

#else

using metal_test::metal_double;
using metal_test::metal_violations;

// A device that, when a check lets go of it, fails the check for every mistake that the double saw and for every object
// that is left.
Result<DevicePtr> open(const MetalDoubleOptions& options) {
  EXPECT_EQ(metal_double().reset(&options), 1) << "left behind: " << metal_double().live_report();
  metal_test::register_kernels();
  auto opened = device("METAL");
  if (!opened) return opened;
  auto inner = *std::move(opened);
  Device* const plain = inner.get();
  return DevicePtr(plain, [inner = std::move(inner)](Device*) mutable {
    inner.reset();
    metal_double().drain();
    for (const std::string& text : metal_violations()) ADD_FAILURE() << text;
    EXPECT_STREQ(metal_double().live_report(), "") << "objects outlived the check";
  });
}

Result<DevicePtr> open_default() {
  return open({});
}
void keep_resident(const MTL::Buffer& buffer) {
  metal_double().keep_resident(&buffer);
}

#endif

// A buffer from Metal itself, as another library would make it.
Result<ForeignMemory> foreign(Device& device, std::span<const std::byte> contents) {
  auto& native = static_cast<internal::metal::MetalDevice&>(device).native_device();
  MTL::Buffer* const buffer = native.newBuffer(contents.size(), MTL::ResourceStorageModeShared);
  std::memcpy(buffer->contents(), contents.data(), contents.size());
  keep_resident(*buffer);
  return ForeignMemory{
      .address = internal::metal::handle_of(buffer), .bytes = contents.size(), .read_only = false, .release = [buffer] {
        buffer->release();
      }};
}

const std::vector<Never>& never() {
  static const std::vector<Never> list{{"KvCacheGivesSequencesContiguousAddresses", Code::kUnsupported,
                                        "Metal maps no memory at addresses that a program chooses"}};
  return list;
}

BERTH_DEVICE_CONFORMANCE(Metal, DeviceCase{.open = open_default,
                                           .never = never(),
                                           .add_kernel = metal_test::make_add_kernel,
                                           .foreign = foreign});

#ifndef __APPLE__

// With work that starts as soon as it is committed.
BERTH_DEVICE_CONFORMANCE(MetalEager, DeviceCase{.open = [] { return open({.pace = kMetalEager}); },
                                                .never = never(),
                                                .add_kernel = metal_test::make_add_kernel,
                                                .foreign = foreign});

// A GPU with memory of its own: everything goes through staging.
BERTH_DEVICE_CONFORMANCE(MetalSeparate, DeviceCase{.open = [] { return open({.unified_memory = 0}); },
                                                   .never = never(),
                                                   .add_kernel = metal_test::make_add_kernel,
                                                   .foreign = foreign});

// A system without residency sets: the marks are counted all the same.
BERTH_DEVICE_CONFORMANCE(MetalOldSystem, DeviceCase{.open = [] { return open({.residency_sets = 0}); },
                                                    .never = never(),
                                                    .add_kernel = metal_test::make_add_kernel,
                                                    .foreign = foreign});

// Checks that the double saw no mistake in the test before, which kept the device until its end.
void check_the_test_before() {
  metal_double().drain();
  for (const std::string& text : metal_violations()) ADD_FAILURE() << "an allocator: " << text;
  EXPECT_STREQ(metal_double().live_report(), "") << "an allocator left objects behind";
}
class CheckTheLastTest : public testing::Environment {
  void TearDown() override { check_the_test_before(); }
};

Result<AllocatorPtr> root(const MetalDoubleOptions& options) {
  static const auto* const last = testing::AddGlobalTestEnvironment(new CheckTheLastTest);
  static_cast<void>(last);
  check_the_test_before();
  EXPECT_EQ(metal_double().reset(&options), 1);
  metal_test::register_kernels();
  return allocator_of(device("METAL"));
}

BERTH_ALLOCATOR_CONFORMANCE(MetalRoot, [] { return root({}); });
BERTH_ALLOCATOR_CONFORMANCE(MetalSeparateRoot, [] { return root({.unified_memory = 0}); });
BERTH_ALLOCATOR_CONFORMANCE(MetalOldSystemRoot, [] { return root({.residency_sets = 0}); });
BERTH_ALLOCATOR_CONFORMANCE(LinearOnMetal, [] {
  auto metal = root({});
  return metal ? Result<AllocatorPtr>(make_linear(*metal)) : metal;
});
BERTH_ALLOCATOR_CONFORMANCE(PoolOnMetal, [] {
  auto metal = root({});
  return metal ? Result<AllocatorPtr>(make_caching_pool(*metal)) : metal;
});

#else

BERTH_ALLOCATOR_CONFORMANCE(MetalRoot, [] { return allocator_of(device("METAL")); });

#endif

}  // namespace
}  // namespace berth::conformance
