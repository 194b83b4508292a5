// One suite that every allocator passes, whether a device's root or a stack of policies. A stack joins with one
// line: BERTH_ALLOCATOR_CONFORMANCE(PoolOnCpu, [] { return AllocatorPtr(make_caching_pool(cpu())); });
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "berth/berth.h"

namespace berth::conformance {

struct AllocatorCase {
  std::function<Result<AllocatorPtr>()> make;  // a fresh stack; kDeviceUnavailable skips the checks
  bool writable = true;                        // blocks with a host pointer may be written
  bool has_memory = true;                      // false for dry runs
};

// A device as the root that it is.
inline Result<AllocatorPtr> allocator_of(Result<DevicePtr> device) {
  if (!device) return device.error();
  return AllocatorPtr(*std::move(device));
}

class AllocatorConformance : public testing::TestWithParam<const AllocatorCase*> {};

#define BERTH_ALLOCATOR_CONFORMANCE(suite, ...)                                              \
  static const ::berth::conformance::AllocatorCase suite##_allocator{__VA_ARGS__};           \
  INSTANTIATE_TEST_SUITE_P(suite, AllocatorConformance, testing::Values(&suite##_allocator), \
                           [](const auto&) { return std::string("Holds"); })

}  // namespace berth::conformance
