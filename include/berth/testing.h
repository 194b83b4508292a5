// Fault sweeps for programs that must survive lack of memory. A sweep runs a scenario repeatedly and fails its 1st,
// 2nd, 3rd ... allocation or device call, until the scenario completes without a fault. After each round nothing may be
// leaked and the device must still work.
//
//   auto report = berth::fail_each([](const berth::DevicePtr& device) -> berth::Result<void> {
//     auto weights = load(device);                      // your code
//     if (!weights) return weights.error();
//     return run(*weights);
//   });
//   ASSERT_TRUE(report.ok()) << report.to_string();
//
// A sweep runs on one thread; scenarios may start threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "berth/alloc/fault.h"
#include "berth/memory/device.h"

namespace berth {

// A new device on host memory. Its allocations, queue creations, transfers, kernels, submits and waits consult `plan`,
// which decides whether to fail them: allocations with kOutOfMemory of cause kInjected, the others with kDriver.
// Requires: plan is not null.
DevicePtr faulty_device(FaultTriggerPtr plan);

struct SweepReport {
  std::uint64_t rounds = 0;  // the last one ran without a fault
  std::vector<std::string> problems;

  bool ok() const noexcept { return problems.empty(); }
  std::string to_string() const;
};

struct SweepOptions {
  // Called after each round, without faults, on the same device. It must succeed. Use it to check that a failed round
  // left nothing behind and that your objects still work.
  std::function<Result<void>(const DevicePtr&)> after{};
  std::uint64_t max_rounds = 10'000;
};

// A scenario that returns an error without a fault, leaks a block or the device, or does not terminate is a problem. A
// scenario that handles a fault and succeeds is not.
SweepReport fail_each(const std::function<Result<void>(const DevicePtr&)>& scenario, const SweepOptions& options = {});

}  // namespace berth
