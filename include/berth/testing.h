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
//
// LeakCheck fails a test that leaks without faults.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "berth/alloc/fault.h"
#include "berth/memory/device.h"
#include "berth/tensor/leaks.h"

namespace berth {

// A new device on host memory. Its allocations, mappings, queue creations, transfers, kernels and submits consult
// `plan`, which decides whether to fail them: allocations with kOutOfMemory of cause kInjected, the others with
// kDriver. Work executes as it is recorded, so there is nothing to wait for, and no wait fails. Requires: plan is not
// null.
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

// What a part of a test leaked.
struct LeakReport {
  LiveReport buffers{};                       // made since the check began, and still alive
  std::vector<OutOfMemory::Holder> blocks{};  // what the device has by label more than when the check began

  bool ok() const noexcept { return buffers.count == 0 && blocks.empty(); }
  std::string to_string() const;
};

// A check that a part of a test leaks nothing. It tracks buffers while it lives; checks may be nested and may run on
// several threads, but each then sees the buffers of all.
//
//   berth::LeakCheck check(device);
//   ...                                                  // your code
//   EXPECT_TRUE(check.report().ok()) << check.report().to_string();
class LeakCheck {
 public:
  // With a device, the blocks that the device gave out count too, buffers or not: also those that a pool caches, so
  // trim or destroy the pool before report(). Without one, buffers on all devices count, and nothing else.
  explicit LeakCheck(DevicePtr device = nullptr);
  ~LeakCheck();
  LeakCheck(const LeakCheck&) = delete;
  LeakCheck& operator=(const LeakCheck&) = delete;

  // What is alive now and was not when the check began. Waits for the work of the device first.
  LeakReport report() const;

 private:
  DevicePtr device_;
  std::uint64_t newest_before_;
  std::vector<OutOfMemory::Holder> blocks_before_;
  bool tracked_before_;
};

}  // namespace berth
