// What a device's memory must do: allocation, counting, budgets, lazy buffers, host access.
#include <atomic>
#include <cstdint>
#include <latch>
#include <thread>

#include "conformance/device_conformance.h"

namespace berth::conformance {
namespace {

void allocates_at_the_alignment_asked(Bed& bed) {
  for (const std::size_t bytes : {1u, 63u, 64u, 4097u, 300'000u})
    for (const std::size_t alignment : {1u, 64u, 256u, 4096u}) {
      BED_TRY_ASSIGN(const Block block, bed, bed.device()->allocate({.bytes = bytes, .alignment = alignment}));
      EXPECT_GE(block.bytes, bytes);
      EXPECT_NE(block.handle, 0u);
      if (block.has(BlockFlags::kHostPointer)) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.host) % alignment, 0u);
      }
      bed.device()->release(block);
    }
}

void gives_zero_bytes_without_a_driver_call(Bed& bed) {
  const DeviceCounters before = bed.device()->counters();
  BED_TRY_ASSIGN(const Block block, bed, bed.device()->allocate({.bytes = 0}));
  EXPECT_EQ(block.bytes, 0u);
  bed.device()->release(block);
  const DeviceCounters after = bed.device()->counters();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.releases, before.releases);
}

void refuses_a_bad_alignment(Bed& bed) {
  for (const std::size_t alignment : {0u, 3u, 96u}) {
    const auto block = bed.device()->allocate({.bytes = 64, .alignment = alignment});
    ASSERT_FALSE(block.has_value());
    EXPECT_EQ(block.error().code(), Code::kInvalidArgument);
  }
}

void zeroes_on_request(Bed& bed) {
  for (const std::size_t bytes : {1u, 5u, 4096u, 70'001u})
    for (int round = 0; round < 3; ++round) {
      BED_TRY_ASSIGN(const Buffer buffer, bed, Buffer::allocate(bed.device(), u8, {bytes}, {.zero = true}));
      BED_TRY_ASSIGN(const std::vector<std::byte> seen, bed, contents(buffer));
      EXPECT_EQ(seen, std::vector<std::byte>(bytes));
      // Leave something behind for the next round to trip over.
      BED_TRY(bed, buffer.copyin(std::vector<std::byte>(bytes, std::byte{0xee})));
    }
}

void counts_live_and_peak_bytes(Bed& bed) {
  BED_TRY(bed, bed.device()->synchronize());
  const DeviceCounters before = bed.device()->counters();
  {
    BED_TRY_ASSIGN(const Buffer buffer, bed, Buffer::allocate(bed.device(), u8, {10'000}));
    const DeviceCounters during = bed.device()->counters();
    EXPECT_GE(during.live_bytes, before.live_bytes + 10'000);
    EXPECT_EQ(during.live_count, before.live_count + 1);
    EXPECT_GE(during.peak_bytes, during.live_bytes);
    EXPECT_EQ(during.allocations, before.allocations + 1);
  }
  const DeviceCounters after = bed.device()->counters();
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_EQ(after.live_count, before.live_count);
  EXPECT_EQ(after.releases, before.releases + 1);
}

void keeps_its_budget_and_explains(Bed& bed) {
  Device& device = *bed.device();
  BED_TRY_ASSIGN(const Block held, bed, device.allocate({.bytes = 65'536, .label = "held"}));
  const std::size_t budget = device.counters().live_bytes + 4096;
  device.set_budget(budget);
  const auto refused = device.allocate({.bytes = 65'536, .label = "too much"});
  const auto small = device.allocate({.bytes = 1024});
  device.set_budget(0);
  const auto after = device.allocate({.bytes = 65'536});
  device.release(held);
  if (small) device.release(*small);
  if (after) device.release(*after);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kOutOfMemory);
  const OutOfMemory* report = refused.error().out_of_memory();
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->cause, OutOfMemory::Cause::kBudget);
  EXPECT_EQ(report->asked, 65'536u);
  EXPECT_EQ(report->budget, budget);
  EXPECT_TRUE(small.has_value()) << "a request inside the budget was refused";
  EXPECT_TRUE(after.has_value()) << "lifting the budget did not help";
}

void asks_for_relief_before_it_fails(Bed& bed) {
  Device& device = *bed.device();
  BED_TRY_ASSIGN(const Block held, bed, device.allocate({.bytes = 65'536}));
  device.set_budget(device.counters().live_bytes);
  int calls = 0;
  device.on_pressure([&](const BlockSpec& spec) {
    EXPECT_EQ(spec.bytes, 1024u);
    ++calls;
    device.release(held);
    return true;
  });
  const auto block = device.allocate({.bytes = 1024});
  device.on_pressure({});
  device.set_budget(0);
  EXPECT_EQ(calls, 1);
  if (calls == 0) device.release(held);
  BED_TRY(bed, block);
  device.release(*block);
}

void gives_a_host_pointer_or_refuses(Bed& bed) {
  auto block = bed.device()->allocate({.bytes = 4096, .host = HostAccess::kRequired});
  if (!block) {
    EXPECT_EQ(block.error().code(), Code::kUnsupported);
    return;
  }
  EXPECT_TRUE(block->has(BlockFlags::kHostPointer));
  EXPECT_NE(block->host, nullptr);
  bed.device()->release(*block);
}

void agrees_with_itself_about_host_access(Bed& bed) {
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 4096));
  BED_TRY_ASSIGN(const Window window, bed, buffer.window());
  const auto bytes = buffer.as_host_bytes();
  if (window.block.has(BlockFlags::kHostPointer)) {
    BED_TRY(bed, bytes);
    EXPECT_EQ((*bytes)[17], pattern(17));
  } else {
    ASSERT_FALSE(bytes.has_value());
    EXPECT_EQ(bytes.error().code(), Code::kNotCpuAccessible);
    EXPECT_FALSE(window.block.has(BlockFlags::kHostTransfer));
  }
}

void takes_no_memory_until_first_use(Bed& bed) {
  const DeviceCounters before = bed.device()->counters();
  BED_TRY_ASSIGN(const Buffer buffer, bed, Buffer::lazy(bed.device(), u8, {5000}));
  BED_TRY_ASSIGN(const Buffer view, bed, buffer.view(100, 50));
  EXPECT_EQ(bed.device()->counters().allocations, before.allocations);
  EXPECT_FALSE(view.is_allocated());
  BED_TRY(bed, view.ensure_allocated());
  EXPECT_TRUE(buffer.is_allocated());
  EXPECT_EQ(bed.device()->counters().allocations, before.allocations + 1);
  EXPECT_GE(bed.device()->counters().live_bytes, before.live_bytes + 5000);
}

void allocates_once_for_sixteen_threads(Bed& bed) {
  const std::uint64_t before = bed.device()->counters().allocations;
  BED_TRY_ASSIGN(const Buffer buffer, bed, Buffer::lazy(bed.device(), u8, {100'000}));
  std::latch start(16);
  std::atomic<int> failed{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 16; ++i)
      threads.emplace_back([&] {
        start.arrive_and_wait();
        if (!buffer.ensure_allocated()) failed.fetch_add(1);
      });
  }
  EXPECT_EQ(failed.load(), 0);
  EXPECT_EQ(bed.device()->counters().allocations, before + 1);
}

void survives_threads_that_allocate_at_once(Bed& bed) {
  const DeviceCounters before = bed.device()->counters();
  std::atomic<int> failed{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (std::size_t i = 0; i < 50; ++i) {
          auto block = bed.device()->allocate({.bytes = 1 + i * 97 + static_cast<std::size_t>(t)});
          if (block)
            bed.device()->release(*block);
          else
            failed.fetch_add(1);
        }
      });
  }
  EXPECT_EQ(failed.load(), 0);
  EXPECT_EQ(bed.device()->counters().live_bytes, before.live_bytes);
  EXPECT_EQ(bed.device()->counters().live_count, before.live_count);
}

void refuses_what_no_memory_can_hold(Bed& bed) {
  const DeviceCounters before = bed.device()->counters();
  const auto block = bed.device()->allocate({.bytes = std::size_t{1} << 61});
  ASSERT_FALSE(block.has_value());
  EXPECT_TRUE(block.error().code() == Code::kOutOfMemory || block.error().code() == Code::kInvalidArgument)
      << block.error().message();
  EXPECT_EQ(bed.device()->counters().live_bytes, before.live_bytes);
  EXPECT_EQ(bed.device()->counters().live_count, before.live_count);
}

void knows_the_flags_of_a_block_before_it_exists(Bed& bed) {
  for (const HostAccess host : {HostAccess::kPreferred, HostAccess::kNone, HostAccess::kRequired}) {
    const BlockSpec spec{.bytes = 4096, .host = host};
    const BlockFlags expected = bed.device()->expected_flags(spec);
    const auto block = bed.device()->allocate(spec);
    if (!block && host == HostAccess::kRequired) continue;  // a device may refuse it
    ASSERT_TRUE(block.has_value()) << block.error().message();
    EXPECT_EQ(static_cast<int>(block->flags), static_cast<int>(expected)) << static_cast<int>(host);
    bed.device()->release(*block);
  }
}

constexpr Check kChecks[] = {
    {"AllocatesAtTheAlignmentAsked", allocates_at_the_alignment_asked},
    {"GivesZeroBytesWithoutADriverCall", gives_zero_bytes_without_a_driver_call},
    {"RefusesABadAlignment", refuses_a_bad_alignment},
    {"ZeroesOnRequest", zeroes_on_request},
    {"CountsLiveAndPeakBytes", counts_live_and_peak_bytes},
    {"KeepsItsBudgetAndExplains", keeps_its_budget_and_explains},
    {"AsksForReliefBeforeItFails", asks_for_relief_before_it_fails},
    {"GivesAHostPointerOrRefuses", gives_a_host_pointer_or_refuses},
    {"AgreesWithItselfAboutHostAccess", agrees_with_itself_about_host_access},
    {"TakesNoMemoryUntilFirstUse", takes_no_memory_until_first_use},
    {"AllocatesOnceForSixteenThreads", allocates_once_for_sixteen_threads},
    {"SurvivesThreadsThatAllocateAtOnce", survives_threads_that_allocate_at_once},
    {"RefusesWhatNoMemoryCanHold", refuses_what_no_memory_can_hold},
    {"KnowsTheFlagsOfABlockBeforeItExists", knows_the_flags_of_a_block_before_it_exists},
};

}  // namespace

std::span<const Check> memory_checks() {
  return kChecks;
}

}  // namespace berth::conformance
