#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bitset>
#include <sstream>

#include "berth/berth.h"
#include "berth/format.h"
#include "devices/cpu/cpu_device.h"
#include "doubles/opaque_device.h"

namespace berth {
namespace {

DevicePtr own_cpu() {
  return internal::cpu::open().value();
}

// The three ways to print give the same text.
template <class T>
std::string printed(const T& value) {
  std::ostringstream stream;
  stream << value;
  EXPECT_EQ(stream.str(), std::string(to_string(value)));
  EXPECT_EQ(fmt::format("{}", value), stream.str());
  return stream.str();
}

TEST(Printing, ShowsShapesDtypesDevicesAndCodes) {
  EXPECT_EQ(printed(Shape{32, 50257}), "[32, 50257]");
  EXPECT_EQ(printed(Shape{}), "[]");
  EXPECT_EQ(printed(DType::kQ4_0), "q4_0");
  EXPECT_EQ(printed(*own_cpu()), "CPU");
  EXPECT_EQ(printed(Code::kReadOnly), "ReadOnly");
}

TEST(Printing, ShowsWhatABufferIs) {
  const DevicePtr cpu = own_cpu();
  EXPECT_EQ(printed(Buffer()), "empty");
  const Buffer lazy = Buffer::lazy(cpu, f32, {2, 3}).value();
  EXPECT_EQ(printed(lazy), "f32[2, 3] on CPU, 24 B, lazy");
  EXPECT_FALSE(lazy.is_allocated()) << "printing allocates nothing";
  EXPECT_EQ(printed(Buffer::allocate(cpu, u8, {2048}, {.label = "k\nv"}).value()),
            "u8[2048] on CPU, 2.0 KiB, label \"k\\x0av\"");
  float value = 0;
  const ForeignMemory memory{.address = reinterpret_cast<std::uint64_t>(&value), .bytes = 4, .read_only = true};
  EXPECT_EQ(printed(Buffer::import(cpu, memory, f32, {1}).value()), "f32[1] on CPU, 4 B, read-only, foreign");
  EXPECT_EQ(printed(Buffer::lazy(opaque_device(), f16, {4}).value()), "f16[4] on OPAQUE, 8 B, lazy");
}

TEST(Printing, ShowsThePlanAndItsQuality) {
  const MemoryPlan best =
      plan({{.bytes = 4096, .first = 0, .last = 2}, {.bytes = 8192, .first = 1, .last = 3}}).value();
  EXPECT_EQ(printed(best), "2 buffers in 12.0 KiB, optimal");
  MemoryPlan worse = best;
  worse.optimal = false;
  worse.size = 15360;
  worse.blocks.push_back({});
  EXPECT_EQ(printed(worse), "2 buffers in 15.0 KiB in 2 blocks, at most 25.00 % above the optimum");
}

TEST(Printing, NamesEachCounter) {
  const DevicePtr cpu = own_cpu();
  const Buffer buffer = Buffer::allocate(cpu, u8, {100}).value();
  EXPECT_EQ(printed(cpu->counters()),
            "live_bytes=100, live_count=1, peak_bytes=100, allocations=1, releases=0, pending_bytes=0, "
            "foreign_bytes=0, foreign_count=0");
  StepBuffers step(cpu);
  ASSERT_TRUE(step.allocate(u8, {64}));
  EXPECT_EQ(printed(step.counters()), "fresh=1, reused=0, reclaimed=0, used=1, free=0, registered=0, bytes=64");
  EXPECT_EQ(printed(LiveCounters{1, 2, 3, 4, 5}),
            "live_bytes=1, live_count=2, peak_bytes=3, allocations=4, releases=5");
  EXPECT_EQ(printed(ResidencyCounters{1, 2, 3, 4, 5}), "added=1, removed=2, commits=3, renewals=4, members=5");
  EXPECT_EQ(printed(GrowableCounters{1, 2, 3, 4}), "reserved_bytes=1, mapped_bytes=2, used_bytes=3, pending_bytes=4");
  EXPECT_EQ(printed(EvictableCounters{1, 2, 3}), "resident_bytes=1, evicted_bytes=2, spilled_bytes=3");
  EXPECT_EQ(printed(OffsetAllocatorCounters{1, 2, 3, 4, 5, 6}),
            "capacity=1, used=2, peak=3, largest_free=4, allocations=5, free_ranges=6");
  EXPECT_EQ(printed(CachingPoolCounters{1, 2, 3, 4, 5, 6, 7}),
            "live_bytes=1, live_count=2, cached_bytes=3, peak_bytes=4, hits=5, misses=6, refused_releases=7");
  StatisticsCounters statistics;
  statistics.live_bytes = 1;
  statistics.failures = 2;
  statistics.total_bytes = 3;
  EXPECT_EQ(printed(statistics),
            "live_bytes=1, live_count=0, peak_bytes=0, allocations=0, releases=0, failures=2, total_bytes=3");
  EXPECT_EQ(
      printed(ReplayCounters{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24}),
      "runs=1, recorded_runs=2, predicted_runs=3, deviating_runs=4, pooled_runs=5, waits=6, requests=7, "
      "planned=8, reordered=9, deviated=10, unattributed=11, renewals=12, predictions=13, unlearned=14, plans=15, "
      "plan_bytes=16, forgotten=17, arenas=18, arenas_peak=19, arena_bytes=20, given_back=21, pool_bytes=22, "
      "pool_peak=23, beside_peak=24");
}

TEST(Printing, SaysHowADefragmentationEnded) {
  DefragmentResult result{.moved_bytes = 1,
                          .moved_count = 2,
                          .returned_bytes = 3,
                          .held = {4, 0},
                          .in_use = {5, 0},
                          .too_large = {6, 0},
                          .failed = {7, 0},
                          .not_buffers = {8, 0},
                          .finished = true};
  const std::string counts =
      "moved_bytes=1, moved_count=2, returned_bytes=3, held=4, in_use=5, too_large=6, failed=7, not_buffers=8";
  EXPECT_EQ(printed(result), counts);
  result.finished = false;
  EXPECT_EQ(printed(result), counts + ", to be continued");
  result.error = Error(Code::kIo, Layer::kDevice, "broken");
  EXPECT_EQ(printed(result), counts + ", to be continued: broken");
}

TEST(Printing, TakesTheFormatOptionsOfAString) {
  EXPECT_EQ(fmt::format("{:>8}|{:.3}", DType::kF32, Shape{100, 200}), "     f32|[10");
}

TEST(Printing, IsForTypesWithATextOfTheirOwnOnly) {
  static_assert(Printable<Buffer> && Printable<DType> && Printable<DeviceCounters> && Printable<MemoryPlan>);
  static_assert(!Printable<int> && !Printable<const char*> && !Printable<std::string>);
  static_assert(!Printable<std::bitset<8>> && !Printable<Name> && !Printable<Result<int>>);
  // Converts to a printable type, and is none.
  struct Wrapped {
    operator DType() const { return DType::kF32; }
  };
  static_assert(!Printable<Wrapped>);
  SUCCEED();
}

}  // namespace
}  // namespace berth
