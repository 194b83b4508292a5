// Fail-the-nth sweeps, for programs that must survive running out of memory: run a scenario again and again, failing
// its 1st, 2nd, 3rd ... allocation or device call, until it runs through; after each round nothing may be leaked and
// the device must still work.
//
//   auto report = berth::fail_each([](const berth::DevicePtr& device) -> berth::Result<void> {
//     auto weights = load(device);                      // your code
//     if (!weights) return weights.error();
//     return run(*weights);
//   });
//   ASSERT_TRUE(report.ok()) << report.to_string();
//
// One thread runs a sweep; scenarios may start threads of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "berth/alloc/fault.h"
#include "berth/memory/device.h"

namespace berth {

// A fresh device on host memory, whose allocations, new queues, transfers, kernels, submits and waits ask `plan`
// whether to fail: allocations with OutOfMemory of cause kInjected, the others with Driver.
// Requires: plan is not null.
DevicePtr faulty_device(FaultTriggerPtr plan);

struct SweepReport {
  std::uint64_t rounds = 0;  // the last one ran without a fault
  std::vector<std::string> problems;

  bool ok() const noexcept { return problems.empty(); }
  std::string to_string() const;
};

struct SweepOptions {
  // Run on the same device after each round, without faults: must succeed. Check here that what failed half way
  // left nothing behind and that your objects still work.
  std::function<Result<void>(const DevicePtr&)> after{};
  std::uint64_t max_rounds = 10'000;
};

// A scenario that returns an error without a fault, leaks a block or the device, or does not come to an end is a
// problem. Surviving a fault is not: a scenario may handle it.
SweepReport fail_each(const std::function<Result<void>(const DevicePtr&)>& scenario, const SweepOptions& options = {});

}  // namespace berth
