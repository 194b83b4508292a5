// The allocators of this library, alone and stacked, on the CPU device and on a device of the tests.
#include "berth/alloc/caching_pool.h"
#include "berth/alloc/dry_run.h"
#include "berth/alloc/fault.h"
#include "berth/alloc/limit.h"
#include "berth/alloc/linear.h"
#include "berth/alloc/recording.h"
#include "berth/alloc/shareable.h"
#include "berth/alloc/statistics.h"
#include "berth/memory/registry.h"
#include "conformance/allocator_conformance.h"
#include "doubles/lagging_device.h"

namespace berth::conformance {
namespace {

AllocatorPtr cpu() {
  return device("CPU").value();
}
constexpr std::size_t kPlenty = std::size_t{1} << 30;
// The recording itself is looked at elsewhere.
Result<AllocatorPtr> traced(AllocatorPtr inner) {
  auto recorder = make_recorder(std::move(inner), "/dev/null");
  if (!recorder) return recorder.error();
  return AllocatorPtr(*recorder);
}
Result<AllocatorPtr> pooled_trace() {
  auto recorder = traced(cpu());
  if (!recorder) return recorder.error();
  return AllocatorPtr(make_caching_pool(*recorder));
}

BERTH_ALLOCATOR_CONFORMANCE(CpuRoot, [] { return Result<AllocatorPtr>(cpu()); });
BERTH_ALLOCATOR_CONFORMANCE(LaggingRoot, [] { return Result<AllocatorPtr>(doubles::LaggingDevice::make(false)); });
BERTH_ALLOCATOR_CONFORMANCE(PoolOnCpu, [] { return Result<AllocatorPtr>(make_caching_pool(cpu())); });
BERTH_ALLOCATOR_CONFORMANCE(TinyPoolOnCpu, [] {
  return Result<AllocatorPtr>(make_caching_pool(cpu(), {.max_cached_bytes = 10'000}));
});
BERTH_ALLOCATOR_CONFORMANCE(PoolThatCachesOnlySmallBlocks,
                            [] { return Result<AllocatorPtr>(make_caching_pool(cpu(), {.max_block_bytes = 1000})); });
BERTH_ALLOCATOR_CONFORMANCE(PoolOnDeviceOnlyMemory, [] {
  return Result<AllocatorPtr>(make_caching_pool(doubles::LaggingDevice::make(false)));
});
BERTH_ALLOCATOR_CONFORMANCE(PoolOnPool,
                            [] { return Result<AllocatorPtr>(make_caching_pool(make_caching_pool(cpu()))); });
BERTH_ALLOCATOR_CONFORMANCE(ShareableOnCpu, [] { return make_shareable(device("CPU").value()); });
BERTH_ALLOCATOR_CONFORMANCE(LimitOnCpu, [] { return Result<AllocatorPtr>(make_limit(cpu(), kPlenty)); });
BERTH_ALLOCATOR_CONFORMANCE(StatsOnCpu, [] { return Result<AllocatorPtr>(make_statistics(cpu())); });
BERTH_ALLOCATOR_CONFORMANCE(TraceOnCpu, [] { return traced(cpu()); });
BERTH_ALLOCATOR_CONFORMANCE(PoolOnTrace, pooled_trace);
BERTH_ALLOCATOR_CONFORMANCE(FaultOnCpu, [] { return Result<AllocatorPtr>(make_fault(cpu())); });
BERTH_ALLOCATOR_CONFORMANCE(
    NullLikeCpu, [] { return Result<AllocatorPtr>(make_dry_run(cpu())); }, true, false);
BERTH_ALLOCATOR_CONFORMANCE(LinearOnCpu, [] { return Result<AllocatorPtr>(make_linear(cpu())); });
BERTH_ALLOCATOR_CONFORMANCE(TinyLinearOnCpu,
                            [] { return Result<AllocatorPtr>(make_linear(cpu(), {.slab_bytes = 1000})); });
BERTH_ALLOCATOR_CONFORMANCE(LinearOnDeviceOnlyMemory,
                            [] { return Result<AllocatorPtr>(make_linear(doubles::LaggingDevice::make(false))); });
BERTH_ALLOCATOR_CONFORMANCE(LinearOnPool, [] { return Result<AllocatorPtr>(make_linear(make_caching_pool(cpu()))); });
BERTH_ALLOCATOR_CONFORMANCE(
    LinearOnNull, [] { return Result<AllocatorPtr>(make_linear(make_dry_run(cpu()))); }, true, false);
BERTH_ALLOCATOR_CONFORMANCE(FaultLimitPool, [] {
  return Result<AllocatorPtr>(make_fault(make_limit(make_caching_pool(cpu()), kPlenty)));
});
BERTH_ALLOCATOR_CONFORMANCE(PoolStatsLimitPool, [] {
  return Result<AllocatorPtr>(make_caching_pool(make_statistics(make_limit(make_caching_pool(cpu()), kPlenty))));
});
BERTH_ALLOCATOR_CONFORMANCE(
    PoolOnNull, [] { return Result<AllocatorPtr>(make_caching_pool(make_dry_run(cpu()))); }, true, false);

}  // namespace
}  // namespace berth::conformance
