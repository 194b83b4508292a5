#include "berth/run/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "berth/memory/registry.h"
#include "berth/tensor/f16.h"
#include "doubles/opaque_device.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Place {
  std::uint64_t offset, bytes;
};

// One block with nodes at these places; a place of zero bytes has no slot.
MemoryPlan plan_of(std::vector<Place> places) {
  MemoryPlan plan;
  PlanBlock block;
  for (const Place& place : places) {
    plan.slots.push_back({place.offset, place.bytes, place.bytes == 0 ? kNoBlock : 0});
    block.bytes = std::max(block.bytes, place.offset + place.bytes);
  }
  if (block.bytes > 0) plan.blocks.push_back(block);
  plan.size = block.bytes;
  return plan;
}

// Every rule holds on memory the host reaches and on memory it does not.
class ArenaOn : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "WEBGPU") {
      auto opened = device("WEBGPU");
      if (!opened) GTEST_SKIP() << "skipped: no WEBGPU: " << opened.error().message();
      device_ = *opened;
    } else {
      device_ = GetParam() == "CPU" ? device("CPU").value() : opaque_device({.f16_kernels = true});
    }
    queue_ = device_->make_queue().value();
  }
  Arena make(const MemoryPlan& plan, ArenaOptions options = {.f16_shadow = Shadow::kOn}) {
    return Arena::from_plan(device_, plan, options).value();
  }
  std::vector<std::uint16_t> halves(const Buffer& buffer) {
    std::vector<std::uint16_t> bits(buffer.size() / 2);
    EXPECT_TRUE(queue_->finish());
    EXPECT_TRUE(buffer.copyout(std::as_writable_bytes(std::span(bits))));
    return bits;
  }
  Code refusal(const auto& result) { return result ? Code{255} : result.error().code(); }

  DevicePtr device_;
  QueuePtr queue_;
};

INSTANTIATE_TEST_SUITE_P(Devices, ArenaOn, ::testing::Values("CPU", "OPAQUE", "WEBGPU"),
                         [](const auto& test) { return test.param; });

TEST_P(ArenaOn, GivesEachNodeTheSlotOfItsPlan) {
  const Arena arena = make(plan_of({{0, 64}, {64, 32}, {0, 0}}));
  EXPECT_TRUE(arena.has(0));
  EXPECT_TRUE(arena.has(1));
  EXPECT_FALSE(arena.has(2)) << "a node of zero bytes has no slot";
  EXPECT_FALSE(arena.has(3));
  EXPECT_EQ(arena.offset(1).value(), 64u);
  EXPECT_EQ(arena.len_of(1).value(), 32u);
  EXPECT_EQ(arena.slot_len(1).value(), 32u);
  EXPECT_EQ(arena.block_of(1).value(), 0u);
  EXPECT_EQ(arena.total_size(), 96u);
  EXPECT_EQ(arena.node_count(), 3u);
  EXPECT_EQ(arena.block_count(), 1u);
  EXPECT_EQ(arena.slots()[1].offset, 64u);
  EXPECT_EQ(arena.whole().value().size(), 96u);
}

TEST_P(ArenaOn, RefusesAnUnknownNodeEverywhere) {
  Arena arena = make(plan_of({{0, 64}, {0, 0}}));
  float value = 1;
  std::byte byte{};
  for (const NodeId node : {1u, 2u}) {
    EXPECT_EQ(refusal(arena.offset(node)), Code::kNotFound);
    EXPECT_EQ(refusal(arena.len_of(node)), Code::kNotFound);
    EXPECT_EQ(refusal(arena.slot_len(node)), Code::kNotFound);
    EXPECT_EQ(refusal(arena.block_of(node)), Code::kNotFound);
    EXPECT_EQ(refusal(arena.set_actual_len(node, 0)), Code::kNotFound);
    EXPECT_EQ(refusal(arena.buffer(node)), Code::kNotFound);
    EXPECT_EQ(refusal(arena.mark_written(node)), Code::kNotFound);
    EXPECT_EQ(refusal(arena.write_f32(*queue_, node, {&value, 1})), Code::kNotFound);
    EXPECT_EQ(refusal(arena.read_f32(*queue_, node)), Code::kNotFound);
    EXPECT_EQ(refusal(arena.read_f32(*queue_, node, {&value, 1})), Code::kNotFound);
    EXPECT_EQ(refusal(arena.write_bytes(*queue_, node, 0, {&byte, 1})), Code::kNotFound);
    EXPECT_EQ(refusal(arena.read_bytes(*queue_, node, 0, {&byte, 1})), Code::kNotFound);
    EXPECT_EQ(refusal(arena.shadow(*queue_, node)), Code::kNotFound);
    EXPECT_EQ(refusal(arena.shadow_is_fresh(node)), Code::kNotFound);
  }
  EXPECT_THAT(arena.offset(2).error().message(), HasSubstr("node 2 is not in the plan, which has 2 nodes"));
  EXPECT_THAT(arena.offset(1).error().message(), HasSubstr("no bytes"));
}

TEST_P(ArenaOn, HandsOutANodeAsAViewWithItsOwnId) {
  const Arena arena = make(plan_of({{0, 64}, {64, 32}}));
  const Buffer first = arena.buffer(0).value(), second = arena.buffer(1).value();
  EXPECT_NE(first.id(), second.id());
  EXPECT_EQ(first.storage_id(), second.storage_id());
  EXPECT_EQ(second.byte_offset(), 64u);
  EXPECT_EQ(second.size(), 32u);
  EXPECT_EQ(second.dtype(), f32);
}

TEST_P(ArenaOn, KeepsTheMemoryForAViewThatOutlivesIt) {
  Buffer view;
  {
    const Arena arena = make(plan_of({{0, 8}}));
    view = arena.buffer(0).value();
  }
  const std::array<float, 2> in{1, 2};
  std::array<float, 2> out{};
  ASSERT_TRUE(view.copyin(std::as_bytes(std::span(in))));
  ASSERT_TRUE(view.copyout(std::as_writable_bytes(std::span(out))));
  EXPECT_EQ(in, out);
}

TEST_P(ArenaOn, ReadsBackTheFloatsThatWereWritten) {
  const Arena arena = make(plan_of({{0, 64}, {64, 12}}));
  const std::vector<float> data{1.5f, -2.25f, 1e-30f};
  ASSERT_TRUE(arena.write_f32(*queue_, 1, data));
  EXPECT_EQ(arena.read_f32(*queue_, 1).value(), data);
  std::vector<float> two(2);
  EXPECT_EQ(refusal(arena.read_f32(*queue_, 1, two)), Code::kSizeMismatch);
}

TEST_P(ArenaOn, WritesNothingWhenTheFloatsAreLongerThanTheSlot) {
  const Arena arena = make(plan_of({{0, 8}, {8, 8}}));
  ASSERT_TRUE(arena.write_f32(*queue_, 0, std::vector<float>{1, 2}));
  ASSERT_TRUE(arena.write_f32(*queue_, 1, std::vector<float>{3, 4}));
  const auto refused = arena.write_f32(*queue_, 0, std::vector<float>{7, 8, 9});
  ASSERT_EQ(refusal(refused), Code::kSizeMismatch);
  EXPECT_THAT(refused.error().message(), HasSubstr("3 floats (12 bytes) to write into node 0, whose slot has 8"));
  EXPECT_THAT(arena.read_f32(*queue_, 0).value(), ElementsAre(1, 2));
  EXPECT_THAT(arena.read_f32(*queue_, 1).value(), ElementsAre(3, 4));
  EXPECT_TRUE(arena.shadow_is_fresh(0).value());
}

TEST_P(ArenaOn, TakesAnActualLengthUpToTheSlotAndNoLonger) {
  Arena arena = make(plan_of({{0, 64}}));
  ASSERT_TRUE(arena.set_actual_len(0, 12));
  EXPECT_EQ(arena.len_of(0).value(), 12u);
  EXPECT_EQ(arena.slot_len(0).value(), 64u);
  EXPECT_EQ(arena.buffer(0).value().size(), 12u);
  EXPECT_EQ(arena.read_f32(*queue_, 0).value().size(), 3u);
  EXPECT_EQ(refusal(arena.set_actual_len(0, 65)), Code::kSizeMismatch);
  EXPECT_EQ(arena.len_of(0).value(), 12u) << "a refused length changes nothing";
  ASSERT_TRUE(arena.write_f32(*queue_, 0, std::vector<float>(16, 1.0f))) << "the slot still has its room";
}

TEST_P(ArenaOn, MovesByteRangesOfAnyOffsetAndLength) {
  const Arena arena = make(plan_of({{0, 37}, {40, 23}}));
  std::vector<std::byte> bytes(63);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  ASSERT_TRUE(arena.write_bytes_range(*queue_, 0, bytes));
  for (std::size_t offset : {0u, 1u, 3u, 13u})
    for (std::size_t count : {0u, 1u, 2u, 5u, 31u}) {
      std::vector<std::byte> patch(count, std::byte{0xee});
      ASSERT_TRUE(arena.write_bytes_range(*queue_, offset, patch));
      std::copy(patch.begin(), patch.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset));
      ASSERT_EQ(arena.read_bytes_range(*queue_, 0, bytes.size()).value(), bytes);
    }
  std::vector<std::byte> part(3, std::byte{9}), seen(3);
  ASSERT_TRUE(arena.write_bytes(*queue_, 1, 20, part));
  ASSERT_TRUE(arena.read_bytes(*queue_, 1, 20, seen));
  EXPECT_EQ(seen, part);
  EXPECT_EQ(arena.read_bytes_range(*queue_, 60, 3).value(), part);
}

TEST_P(ArenaOn, RefusesByteRangesOutsideTheSlotOrBlock) {
  const Arena arena = make(plan_of({{0, 16}, {16, 16}}));
  const std::vector<std::byte> before = arena.read_bytes_range(*queue_, 0, 32).value();
  std::vector<std::byte> four(4, std::byte{1});
  const std::size_t huge = std::numeric_limits<std::size_t>::max() - 1;
  for (const std::size_t offset : {std::size_t{13}, std::size_t{17}, huge}) {
    EXPECT_EQ(refusal(arena.write_bytes(*queue_, 0, offset, four)), Code::kInvalidView);
    EXPECT_EQ(refusal(arena.read_bytes(*queue_, 0, offset, four)), Code::kInvalidView);
  }
  EXPECT_EQ(refusal(arena.write_bytes_range(*queue_, 29, four)), Code::kInvalidView);
  EXPECT_EQ(refusal(arena.write_bytes_range(*queue_, huge, four)), Code::kInvalidView);
  EXPECT_EQ(refusal(arena.read_bytes_range(*queue_, 29, 4)), Code::kInvalidView);
  EXPECT_EQ(refusal(arena.write_bytes_range(*queue_, 0, four, 1)), Code::kNotFound);
  EXPECT_EQ(refusal(arena.read_bytes_range(*queue_, 0, 4, 1)), Code::kNotFound);
  EXPECT_EQ(refusal(arena.whole(1)), Code::kNotFound);
  EXPECT_EQ(refusal(arena.shadow_whole(1)), Code::kNotFound);
  EXPECT_EQ(arena.read_bytes_range(*queue_, 0, 32).value(), before);
}

TEST_P(ArenaOn, RefusesAQueueOfAnotherDevice) {
  const Arena arena = make(plan_of({{0, 16}}));
  const DevicePtr other = opaque_device();
  const QueuePtr queue = other->make_queue().value();
  float value = 1;
  EXPECT_EQ(refusal(arena.write_f32(*queue, 0, {&value, 1})), Code::kInvalidArgument);
  EXPECT_EQ(refusal(arena.read_f32(*queue, 0)), Code::kInvalidArgument);
  EXPECT_EQ(refusal(arena.shadow(*queue, 0)), Code::kInvalidArgument);
  EXPECT_EQ(refusal(arena.write_bytes_range(*queue, 0, std::as_bytes(std::span(&value, 1)))), Code::kInvalidArgument);
  EXPECT_EQ(refusal(arena.read_bytes_range(*queue, 0, 4)), Code::kInvalidArgument);
  ASSERT_TRUE(arena.write_f32(*queue_, 0, std::vector<float>(4)));
  ASSERT_TRUE(arena.shadow_is_fresh(0).value());
  EXPECT_EQ(refusal(arena.shadow(*queue, 0)), Code::kInvalidArgument) << "also where there is nothing to refresh";
}

TEST_P(ArenaOn, MirrorsFloatsAsHalvesAtHalfTheOffsetWithAZeroAfterAnOddCount) {
  const Arena arena = make(plan_of({{32, 12}}));
  EXPECT_EQ(arena.shadow_size(), 24u) << "the padded end of one slot at 32 with 12 bytes";
  ASSERT_TRUE(arena.write_f32(*queue_, 0, std::vector<float>{1.0f, 1e6f, std::nanf("")}));
  EXPECT_TRUE(arena.shadow_is_fresh(0).value());
  const Buffer shadow = arena.shadow(*queue_, 0).value();
  EXPECT_EQ(shadow.dtype(), f16);
  EXPECT_EQ(shadow.byte_offset(), 16u);
  EXPECT_EQ(shadow.size(), 8u);
  EXPECT_THAT(halves(shadow), ElementsAre(0x3c00, 0x7c00, 0x7e00, 0));
  const std::vector<std::uint16_t> whole = halves(arena.shadow_whole().value());
  EXPECT_EQ(whole.size(), 12u);
  EXPECT_EQ(whole[8], 0x3c00);
}

TEST_P(ArenaOn, RoundsTheShadowToNearestEven) {
  const Arena arena = make(plan_of({{0, 16}}));
  // Between 1 and 1 + 2^-10: the tie goes to the even 1; between the next two it goes up.
  ASSERT_TRUE(arena.write_f32(*queue_, 0, std::vector<float>{1.00048828125f, 1.00146484375f, 65519.0f, 65520.0f}));
  EXPECT_THAT(halves(arena.shadow(*queue_, 0).value()), ElementsAre(0x3c00, 0x3c02, 0x7bff, 0x7c00));
}

TEST_P(ArenaOn, ConvertsMoreThanOnePieceWithNoSeam) {
  const std::size_t count = 8192 * 3 + 1;
  const Arena arena = make(plan_of({{64, count * 4}}));
  std::vector<float> data(count);
  std::iota(data.begin(), data.end(), 0.25f);
  ASSERT_TRUE(arena.write_f32(*queue_, 0, data));
  const std::vector<std::uint16_t> written = halves(arena.shadow(*queue_, 0).value());
  ASSERT_TRUE(arena.mark_written(0));
  const std::vector<std::uint16_t> refreshed = halves(arena.shadow(*queue_, 0).value());
  ASSERT_EQ(written.size(), count + 1);
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(written[i], to_f16(data[i]).bits) << i;
  EXPECT_EQ(written.back(), 0);
  EXPECT_EQ(refreshed, written);
}

TEST_P(ArenaOn, RefreshesTheShadowAfterAWriteOfBytes) {
  const Arena arena = make(plan_of({{0, 8}}));
  ASSERT_TRUE(arena.write_f32(*queue_, 0, std::vector<float>{1, 2}));
  const float three = 3;
  ASSERT_TRUE(arena.write_bytes(*queue_, 0, 4, std::as_bytes(std::span(&three, 1))));
  EXPECT_FALSE(arena.shadow_is_fresh(0).value());
  EXPECT_THAT(halves(arena.shadow(*queue_, 0).value()), ElementsAre(0x3c00, 0x4200));
  EXPECT_TRUE(arena.shadow_is_fresh(0).value());
}

TEST_P(ArenaOn, RefreshesTheShadowEachTimeOnceAViewWasHandedOutForWriting) {
  const Arena arena = make(plan_of({{0, 8}, {8, 8}}));
  const Buffer view = arena.buffer(0).value();
  ASSERT_TRUE(arena.write_f32(*queue_, 0, std::vector<float>{1, 2}));
  ASSERT_TRUE(arena.write_f32(*queue_, 1, std::vector<float>{1, 2}));
  EXPECT_FALSE(arena.shadow_is_fresh(0).value());
  EXPECT_TRUE(arena.shadow_is_fresh(1).value()) << "only the bytes handed out are in doubt";
  ASSERT_TRUE(queue_->finish());
  for (const float value : {4.0f, 8.0f}) {
    const std::array<float, 2> data{value, value};
    ASSERT_TRUE(view.copyin(std::as_bytes(std::span(data))));
    EXPECT_THAT(halves(arena.shadow(*queue_, 0).value()), ElementsAre(to_f16(value).bits, to_f16(value).bits));
  }
}

TEST_P(ArenaOn, TrustsTheShadowWhenViewsAreForReading) {
  const Arena arena = make(plan_of({{0, 8}}));
  ASSERT_TRUE(arena.buffer(0, Access::kRead));
  ASSERT_TRUE(arena.whole(0, Access::kRead));
  ASSERT_TRUE(arena.write_f32(*queue_, 0, std::vector<float>{1, 2}));
  EXPECT_TRUE(arena.shadow_is_fresh(0).value());
  ASSERT_TRUE(arena.whole(0, Access::kWrite));
  EXPECT_FALSE(arena.shadow_is_fresh(0).value());
}

TEST_P(ArenaOn, MarksTheShadowOfEveryNodeThatSharesTheBytesStale) {
  // Node 2 takes over bytes of 0 and 1 later in time; node 3 is a window of node 1.
  const Arena arena = make(plan_of({{0, 16}, {16, 16}, {8, 16}, {24, 8}}));
  ASSERT_TRUE(arena.write_f32(*queue_, 0, std::vector<float>{1, 1, 1, 1}));
  ASSERT_TRUE(arena.write_f32(*queue_, 1, std::vector<float>{2, 2, 2, 2}));
  ASSERT_TRUE(arena.write_f32(*queue_, 2, std::vector<float>{4, 4, 4, 4}));
  EXPECT_FALSE(arena.shadow_is_fresh(0).value());
  EXPECT_FALSE(arena.shadow_is_fresh(1).value());
  EXPECT_TRUE(arena.shadow_is_fresh(2).value());
  EXPECT_THAT(halves(arena.shadow(*queue_, 1).value()), ElementsAre(0x4400, 0x4400, 0x4000, 0x4000));
  ASSERT_TRUE(arena.write_f32(*queue_, 3, std::vector<float>{1, 1}));
  EXPECT_FALSE(arena.shadow_is_fresh(1).value());
  EXPECT_THAT(halves(arena.shadow(*queue_, 1).value()), ElementsAre(0x4400, 0x4400, 0x3c00, 0x3c00));
}

TEST_P(ArenaOn, NeverLetsThePaddingOfAShorterWindowStandInALongerOne) {
  // Node 1 is the first float of node 0; its pad falls on node 0's second half.
  const Arena arena = make(plan_of({{0, 8}, {0, 4}}));
  ASSERT_TRUE(arena.write_f32(*queue_, 0, std::vector<float>{1, 1}));
  EXPECT_THAT(halves(arena.shadow(*queue_, 1).value()), ElementsAre(0x3c00, 0));
  EXPECT_THAT(halves(arena.shadow(*queue_, 0).value()), ElementsAre(0x3c00, 0x3c00));
}

TEST_P(ArenaOn, ConvertsTheRestOfANodeThatWasWrittenInPart) {
  const Arena arena = make(plan_of({{0, 16}}));
  ASSERT_TRUE(arena.write_f32(*queue_, 0, std::vector<float>{1, 1, 1, 1}));
  ASSERT_TRUE(arena.write_f32(*queue_, 0, std::vector<float>{2}));
  EXPECT_THAT(halves(arena.shadow(*queue_, 0).value()), ElementsAre(0x4000, 0x3c00, 0x3c00, 0x3c00));
}

TEST_P(ArenaOn, GivesNoShadowToANodeWhoseHalvesWouldFallOnAnothers) {
  const Arena arena = make(plan_of({{0, 12}, {12, 12}, {24, 8}}));
  ASSERT_TRUE(arena.write_f32(*queue_, 2, std::vector<float>{1, 1}));
  ASSERT_TRUE(arena.write_f32(*queue_, 1, std::vector<float>{5, 5, 5}));
  const auto refused = arena.shadow(*queue_, 1);
  ASSERT_EQ(refusal(refused), Code::kMisaligned);
  EXPECT_THAT(refused.error().message(), HasSubstr("plan with alignment = 8"));
  EXPECT_THAT(halves(arena.shadow(*queue_, 2).value()), ElementsAre(0x3c00, 0x3c00));
}

TEST_P(ArenaOn, HasAShadowOnlyWhereKernelsReadHalvesOrWhenAsked) {
  const MemoryPlan plan = plan_of({{0, 16}});
  EXPECT_EQ(make(plan, {}).has_shadow(), device_->limits().f16_kernels);
  const Arena without = make(plan, {.f16_shadow = Shadow::kOff});
  EXPECT_FALSE(without.has_shadow());
  EXPECT_EQ(without.shadow_size(), 0u);
  EXPECT_EQ(refusal(without.shadow(*queue_, 0)), Code::kUnsupported);
  EXPECT_EQ(refusal(without.shadow_whole()), Code::kUnsupported);
  ASSERT_TRUE(without.write_f32(*queue_, 0, std::vector<float>{1}));
}

TEST_P(ArenaOn, SplitsOverTheBlocksOfThePlanAndOverLanes) {
  MemoryPlan plan;
  plan.blocks = {
      {.bytes = 64, .bank = 0, .lane = 0}, {.bytes = 32, .bank = 0, .lane = 0}, {.bytes = 16, .bank = 0, .lane = 1}};
  plan.slots = {{0, 64, 0}, {8, 24, 1}, {0, 16, 2}};
  plan.size = 112;
  const Arena all = make(plan);
  EXPECT_EQ(all.total_size(), 112u);
  EXPECT_EQ(all.block_count(), 3u);
  EXPECT_EQ(all.block_of(1).value(), 1u);
  ASSERT_TRUE(all.write_f32(*queue_, 1, std::vector<float>{1, 2, 3}));
  ASSERT_TRUE(all.write_f32(*queue_, 2, std::vector<float>{4}));
  EXPECT_EQ(all.read_f32(*queue_, 1).value()[2], 3);
  EXPECT_EQ(all.read_f32(*queue_, 2).value()[0], 4);
  EXPECT_NE(all.buffer(0).value().storage_id(), all.buffer(1).value().storage_id());

  const std::size_t before = device_->counters().live_bytes;
  const Arena lane = make(plan, {.f16_shadow = Shadow::kOff, .lane = 1});
  EXPECT_EQ(device_->counters().live_bytes - before, 16u) << "an arena of one lane takes that lane's bytes alone";
  EXPECT_EQ(lane.total_size(), 16u);
  EXPECT_TRUE(lane.has(2));
  EXPECT_FALSE(lane.has(0));
  EXPECT_EQ(refusal(lane.buffer(0)), Code::kNotFound);
  EXPECT_THAT(lane.buffer(0).error().message(), HasSubstr("another lane"));
  EXPECT_EQ(refusal(lane.whole(0)), Code::kNotFound);
  EXPECT_EQ(refusal(Arena::from_plan(device_, plan, {.lane = 7})), Code::kNotFound);
}

TEST_P(ArenaOn, TakesThePlannedBytesAndNoMoreAndGivesThemBack) {
  const std::size_t before = device_->counters().live_bytes;
  {
    const Arena arena = make(plan_of({{0, 4096}, {4096, 100}}), {.f16_shadow = Shadow::kOff});
    EXPECT_EQ(device_->counters().live_bytes - before, 4196u);
  }
  EXPECT_EQ(device_->counters().live_bytes, before);
}

TEST(Arena, TakesBlocksOfABankFromThatBanksAllocator) {
  const DevicePtr sram = opaque_device(), dram = opaque_device();
  MemoryPlan plan;
  plan.blocks = {{.bytes = 64, .bank = 0, .lane = 0}, {.bytes = 32, .bank = 1, .lane = 0}};
  plan.slots = {{0, 64, 0}, {0, 32, 1}};
  const Arena arena = Arena::from_plan(dram, plan, {.banks = {sram}}).value();
  EXPECT_EQ(&arena.buffer(0).value().device(), sram.get());
  EXPECT_EQ(&arena.buffer(1).value().device(), dram.get());
}

TEST(Arena, FailsBeforeAllocatingWhenTheDeviceCannotHoldOrBindThePlan) {
  const DevicePtr small = opaque_device({.max_block_bytes = 100, .max_binding_bytes = 64, .binding_alignment = 32});
  const auto too_large = Arena::from_plan(small, plan_of({{0, 50}, {50, 70}}));
  ASSERT_FALSE(too_large);
  EXPECT_EQ(too_large.error().code(), Code::kInfeasible);
  EXPECT_THAT(too_large.error().message(), HasSubstr("needs 120 bytes, 20 more"));
  const auto too_wide = Arena::from_plan(small, plan_of({{0, 8}, {32, 66}}));
  ASSERT_FALSE(too_wide);
  EXPECT_EQ(too_wide.error().code(), Code::kInfeasible);
  EXPECT_THAT(too_wide.error().message(), HasSubstr("node 1 needs a binding of 66 bytes, 2 more"));
  EXPECT_FALSE(Arena::from_plan(small, plan_of({{8, 60}}))) << "a binding starts at 0, the multiple of 32 before it";
  EXPECT_EQ(small->counters().allocations, 0u);
  EXPECT_TRUE(Arena::from_plan(small, plan_of({{0, 40}, {64, 36}}))) << "each node binds alone";
}

TEST(Arena, RefusesAPlanThatContradictsItself) {
  const DevicePtr cpu = device("CPU").value();
  MemoryPlan outside = plan_of({{0, 64}});
  outside.slots[0].offset = 1;
  EXPECT_EQ(Arena::from_plan(cpu, outside).error().code(), Code::kInvalidArgument);
  outside.slots[0].offset = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(Arena::from_plan(cpu, outside).error().code(), Code::kInvalidArgument);
  MemoryPlan nowhere = plan_of({{0, 64}});
  nowhere.slots[0].block = 5;
  EXPECT_EQ(Arena::from_plan(cpu, nowhere).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Arena::from_plan(nullptr, plan_of({{0, 64}})).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Arena::from_plan(cpu, plan_of({{0, 64}}), {.alignment = 48}).error().code(), Code::kInvalidArgument);
}

TEST(Arena, FreesTheFirstBlocksWhenALaterOneDoesNotFit) {
  const DevicePtr tight = opaque_device();
  tight->set_budget(100);
  MemoryPlan plan;
  plan.blocks = {{.bytes = 64, .bank = 0, .lane = 0}, {.bytes = 64, .bank = 0, .lane = 0}};
  plan.slots = {{0, 64, 0}, {0, 64, 1}};
  const auto refused = Arena::from_plan(tight, plan);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kOutOfMemory);
  EXPECT_EQ(tight->counters().live_bytes, 0u);
}

TEST(Arena, OfAnEmptyPlanHoldsNothing) {
  const Arena arena = Arena::from_plan(device("CPU").value(), plan_of({{0, 0}})).value();
  EXPECT_EQ(arena.total_size(), 0u);
  EXPECT_EQ(arena.block_count(), 0u);
  EXPECT_FALSE(arena.has(0));
}

}  // namespace
}  // namespace berth
