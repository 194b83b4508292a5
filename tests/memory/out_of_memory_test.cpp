#include "berth/memory/out_of_memory.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "berth/alloc/caching_pool.h"
#include "berth/alloc/limit.h"
#include "berth/alloc/statistics.h"
#include "berth/berth.h"
#include "doubles/lagging_device.h"

namespace berth {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kTenth = kMiB / 10;

// 61 buffers that hold 470.2 MiB, after a peak of 498.0 MiB.
std::vector<Buffer> fill_up(const AllocatorPtr& allocator) {
  std::vector<Buffer> held;
  const auto hold = [&](std::string_view label, std::size_t bytes) {
    held.push_back(Buffer::allocate(allocator, u8, {bytes}, {.label = label}).value());
  };
  for (int i = 0; i < 12; ++i) hold("kv-cache " + std::to_string(i), 32 * kMiB);
  hold("logits", 61 * kMiB + 3 * kTenth);
  hold("scratch", 16 * kMiB);
  for (int i = 0; i < 47; ++i) hold("", (8 * kMiB + 9 * kTenth) / 47);
  hold("", 27 * kMiB + 8 * kTenth);
  held.pop_back();
  return held;
}

constexpr const char* kText =
    "out of memory: asked for 64.0 MiB (label \"kv-cache 12\"), budget 512.0 MiB on CPU\n"
    "  live 470.2 MiB in 61 buffers, cached 0 B, peak 498.0 MiB; it is the budget, not fragmentation\n"
    "  largest: \"kv-cache 0..11\" 384.0 MiB (12), \"logits\" 61.3 MiB, \"scratch\" 16.0 MiB\n"
    "  would fit with: budget 535 MiB, or freeing \"logits\"";

TEST(OutOfMemory, ExplainsItselfInFourLines) {
  const auto capped = make_limit(device("CPU").value(), 512 * kMiB);
  const std::vector<Buffer> held = fill_up(capped);
  const auto refused = Buffer::allocate(capped, u8, {64 * kMiB}, {.label = "kv-cache 12"});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message(), kText);
}

TEST(OutOfMemory, NamesNoBudgetWhereThereIsNone) {
  OutOfMemory report;
  report.asked = 1024;
  report.device = "CPU";
  EXPECT_EQ(report.to_string().find("budget"), std::string::npos) << report.to_string();
  EXPECT_EQ(report.to_string().find("foreign"), std::string::npos);
  EXPECT_EQ(report.to_string().find("largest"), std::string::npos);
  EXPECT_NE(report.to_string().find("in 0 buffers"), std::string::npos);
  report.live_count = report.foreign_count = 1;
  report.budget = 1;
  EXPECT_NE(report.to_string().find(", budget 1 B on CPU"), std::string::npos) << report.to_string();
  EXPECT_NE(report.to_string().find("in 1 buffer, "), std::string::npos) << report.to_string();
  EXPECT_NE(report.to_string().find("in 1 foreign buffer"), std::string::npos) << report.to_string();
}

TEST(OutOfMemory, NamesABudgetThatIsEnoughAndNotMuchMore) {
  const auto enough = [](std::size_t bytes) {
    OutOfMemory report;
    report.budget_needed = bytes;
    const std::string text = report.to_string();
    const std::string_view before = "would fit with: budget ";
    const std::size_t at = text.find(before);
    return at == std::string::npos ? text : text.substr(at + before.size());
  };
  EXPECT_EQ(enough(1), "1 B");
  EXPECT_EQ(enough(1023), "1023 B");
  EXPECT_EQ(enough(1024), "1 KiB");
  EXPECT_EQ(enough(1025), "1025 B");
  EXPECT_EQ(enough(100 * 1024 - 1), "102399 B");
  EXPECT_EQ(enough(100 * 1024 + 1), "101 KiB") << "rounded up, by less than one percent";
  EXPECT_EQ(enough(3 * kMiB), "3 MiB");
  EXPECT_EQ(enough(100 * kMiB + 1), "101 MiB");
  EXPECT_EQ(enough(7 * 1024 * kMiB), "7 GiB");
  EXPECT_EQ(enough(std::size_t{5} << 50), "5120 TiB") << "there is no larger unit";
}

TEST(OutOfMemory, SaysTheSameWhateverStandsBetween) {
  const auto capped =
      make_statistics(make_limit(make_caching_pool(device("CPU").value(), {.max_block_bytes = 1}), 512 * kMiB));
  const std::vector<Buffer> held = fill_up(capped);
  const auto refused = Buffer::allocate(capped, u8, {64 * kMiB}, {.label = "kv-cache 12"});
  ASSERT_FALSE(refused.has_value());
  const OutOfMemory& report = *refused.error().out_of_memory();
  EXPECT_EQ(report.cause, OutOfMemory::Cause::kBudget);
  EXPECT_EQ(report.device, "CPU");
  EXPECT_EQ(report.live_count, 61u);
  EXPECT_EQ(report.holders.front().label, "kv-cache 0..11");
  EXPECT_EQ(report.holders.front().count, 12u);
  EXPECT_EQ(report.holder_to_free, "logits");
}

TEST(OutOfMemory, TellsFreesThatAreStillPending) {
  const auto lagging = doubles::LaggingDevice::make();
  const auto queue = lagging->lagging_queue();
  lagging->set_budget(100'000);
  {
    const Buffer used = Buffer::allocate(lagging, u8, {90'000}, {.label = "in flight"}).value();
    ASSERT_TRUE(queue->fill(used.window().value(), 1).has_value());
    ASSERT_TRUE(queue->submit().has_value());
  }
  const auto refused = Buffer::allocate(lagging, u8, {50'000});
  ASSERT_FALSE(refused.has_value());
  const OutOfMemory& report = *refused.error().out_of_memory();
  EXPECT_EQ(report.cause, OutOfMemory::Cause::kPendingFrees);
  EXPECT_EQ(report.pending_bytes, 90'000u);
  EXPECT_NE(refused.error().message().find("waiting for the queue"), std::string::npos);
  queue->reach_all();
  EXPECT_TRUE(Buffer::allocate(lagging, u8, {50'000}).has_value()) << "the work is done, so the memory is free";
}

TEST(OutOfMemory, SaysWhenThePieceIsTooSmallAndNotTheWhole) {
  OutOfMemory report;
  report.cause = OutOfMemory::Cause::kFragmentation;
  report.asked = 64 * kMiB;
  report.device = "CPU";
  report.largest_free = 10 * kMiB;
  EXPECT_NE(report.to_string().find("it is fragmentation: the largest free piece is 10.0 MiB"), std::string::npos);
}

TEST(OutOfMemory, AdvisesABudgetThatIsEnough) {
  OutOfMemory report;
  report.cause = OutOfMemory::Cause::kBudget;
  report.device = "CPU";
  for (const auto& [bytes, text] : {std::pair<std::size_t, const char*>{65'537, "budget 65537 B"},
                                    {102'400, "budget 100 KiB"},
                                    {534 * kMiB + 1, "budget 535 MiB"},
                                    {1229 * kMiB, "budget 1229 MiB"}}) {
    report.budget_needed = bytes;
    EXPECT_NE(report.to_string().find(text), std::string::npos) << report.to_string();
  }
}

}  // namespace
}  // namespace berth
