// Empty handles, moves, and arguments that are null.
#include <gtest/gtest.h>

#include "berth/memory/registry.h"
#include "berth/run/arena.h"
#include "berth/run/schedule.h"
#include "berth/tensor/buffer.h"
#include "berth/tensor/evictable.h"
#include "berth/tensor/step_buffers.h"
#include "devices/cpu/cpu_device.h"
#include "support/support.h"

namespace berth {
namespace {

using test::fails_with;

DevicePtr own_cpu() {
  return internal::cpu::open().value();
}

void expect_empty(const Buffer& buffer) {
  EXPECT_EQ(buffer.id(), 0u);
  EXPECT_EQ(buffer.storage_id(), 0u);
  EXPECT_EQ(buffer.size(), 0u);
  EXPECT_EQ(buffer.total_size(), 0u);
  EXPECT_EQ(buffer.byte_offset(), 0u);
  EXPECT_EQ(buffer.element_count(), 0u);
  EXPECT_EQ(buffer.shape(), Shape());
  EXPECT_EQ(buffer.dtype(), Buffer().dtype());
  EXPECT_EQ(buffer.native_handle(), 0u);
  EXPECT_EQ(buffer.allocator(), nullptr);
  EXPECT_EQ(buffer.device().name(), "NONE");
  EXPECT_FALSE(buffer.label());
  EXPECT_FALSE(buffer.is_allocated());
  EXPECT_FALSE(buffer.is_unique());
  EXPECT_FALSE(buffer.is_read_only());
  EXPECT_FALSE(buffer.is_foreign());
  EXPECT_TRUE(buffer.synchronize());
  EXPECT_TRUE(fails_with(buffer.ensure_allocated(), Code::kNotAllocated));
  EXPECT_TRUE(fails_with(buffer.window(), Code::kNotAllocated));
  EXPECT_TRUE(fails_with(buffer.as_host_bytes(), Code::kNotAllocated));
  EXPECT_TRUE(fails_with(buffer.as_host_bytes_mut(), Code::kNotAllocated));
  EXPECT_TRUE(fails_with(buffer.as_slice_mut<std::uint8_t>(), Code::kNotAllocated));
  EXPECT_TRUE(fails_with(buffer.item<std::uint8_t>(), Code::kNotAllocated));
  EXPECT_TRUE(fails_with(buffer.copyin({}), Code::kNotAllocated));
  EXPECT_TRUE(fails_with(buffer.copyout({}), Code::kNotAllocated));
  EXPECT_TRUE(fails_with(buffer.copy_from(buffer), Code::kNotAllocated));
  EXPECT_TRUE(fails_with(buffer.view(0, 0), Code::kInvalidView));
  EXPECT_TRUE(fails_with(buffer.with_shape({0}), Code::kInvalidView));
}

TEST(EmptyBuffer, AnswersEveryQuestion) {
  expect_empty(Buffer());
}

TEST(EmptyBuffer, HasADeviceThatHasNoMemory) {
  Device& none = Buffer().device();
  EXPECT_EQ(&none, &Buffer().device());
  EXPECT_TRUE(fails_with(none.allocate({.bytes = 1}), Code::kNotAllocated));
  EXPECT_TRUE(fails_with(none.make_queue(), Code::kNotAllocated));
  EXPECT_EQ(none.counters().live_bytes, 0u);
  EXPECT_TRUE(none.synchronize());
}

TEST(MovedBuffer, LeavesAnEmptyHandleBehind) {
  Buffer from = Buffer::allocate(own_cpu(), f32, {2, 3}, {.label = "moved"}).value();
  const Buffer to = std::move(from);
  expect_empty(from);
  EXPECT_EQ(to.shape(), (Shape{2, 3}));
  Buffer assigned;
  Buffer again = to;
  assigned = std::move(again);
  expect_empty(again);
  EXPECT_EQ(assigned.id(), to.id());
}

TEST(MovedBuffer, FreesTheOldMemoryOfTheTargetAtOnce) {
  const DevicePtr cpu = own_cpu();
  Buffer a = Buffer::allocate(cpu, u8, {1000}).value();
  Buffer b = Buffer::allocate(cpu, u8, {2000}).value();
  a = std::move(b);
  EXPECT_EQ(cpu->counters().live_count, 1u);
  EXPECT_EQ(a.size(), 2000u);
  expect_empty(b);
  a = Buffer();
  EXPECT_EQ(cpu->counters().live_count, 0u);
}

TEST(MovedBuffer, KeepsItsValueIfMovedToItself) {
  Buffer buffer = Buffer::allocate(own_cpu(), u8, {3}).value();
  const std::uint64_t id = buffer.id();
  Buffer& same = buffer;
  buffer = std::move(same);
  EXPECT_EQ(buffer.id(), id);
  EXPECT_TRUE(buffer.is_unique());
}

TEST(NullArguments, AreRefusedByAnImportWhichStillReleasesTheMemory) {
  float value = 1;
  int released = 0;
  EXPECT_TRUE(fails_with(
      Buffer::import(nullptr,
                     {.address = reinterpret_cast<std::uint64_t>(&value), .bytes = 4, .release = [&] { ++released; }},
                     f32, {1}),
      Code::kInvalidArgument));
  EXPECT_EQ(released, 1);
}

TEST(NullArguments, MakeStepBuffersThatRefuseEverything) {
  StepBuffers none(nullptr);
  EXPECT_TRUE(fails_with(none.allocate(f32, {4}), Code::kInvalidArgument));
  const std::vector<BufferRequest> batch(2, {u8, {8}, {}});
  EXPECT_TRUE(fails_with(none.allocate_batch(batch), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(none.register_existing(Buffer::allocate(own_cpu(), u8, {1}).value()), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(none.release(Buffer()), Code::kNotOwned));
  none.reset();
  none.clear();
  EXPECT_EQ(none.counters().used, 0u);
}

TEST(NullArguments, AreRefusedByEvictableMemory) {
  EXPECT_TRUE(fails_with(make_evictable(nullptr), Code::kInvalidArgument));
  const auto memory = make_evictable(own_cpu()).value();
  EXPECT_TRUE(fails_with(memory->is_evicted(Buffer()), Code::kNotOwned));
  EXPECT_TRUE(fails_with(memory->back_with(Buffer(), Buffer()), Code::kNotOwned));
}

TEST(MovedArena, HasNoNodes) {
  const DevicePtr cpu = own_cpu();
  const MemoryPlan two = plan({{.bytes = 64, .first = 0, .last = 1}, {.bytes = 64, .first = 0, .last = 1}}).value();
  Arena from = Arena::from_plan(cpu, two).value();
  const Arena to = std::move(from);
  EXPECT_EQ(to.node_count(), 2u);
  const QueuePtr queue = cpu->make_queue().value();
  EXPECT_FALSE(from.has(0));
  EXPECT_EQ(from.node_count(), 0u);
  EXPECT_EQ(from.block_count(), 0u);
  EXPECT_EQ(from.total_size(), 0u);
  EXPECT_EQ(from.shadow_size(), 0u);
  EXPECT_FALSE(from.has_shadow());
  EXPECT_TRUE(from.slots().empty());
  EXPECT_TRUE(fails_with(from.offset(0), Code::kNotFound));
  EXPECT_TRUE(fails_with(from.len_of(0), Code::kNotFound));
  EXPECT_TRUE(fails_with(from.set_actual_len(0, 0), Code::kNotFound));
  EXPECT_TRUE(fails_with(from.buffer(0), Code::kNotFound));
  EXPECT_TRUE(fails_with(from.whole(), Code::kNotFound));
  EXPECT_TRUE(fails_with(from.mark_written(0), Code::kNotFound));
  EXPECT_TRUE(fails_with(from.read_f32(*queue, 0), Code::kNotFound));
  EXPECT_TRUE(fails_with(from.write_f32(*queue, 0, {}), Code::kNotFound));
  EXPECT_TRUE(fails_with(from.read_bytes_range(*queue, 0, 0), Code::kNotFound));
  EXPECT_TRUE(fails_with(from.write_bytes_range(*queue, 0, {}), Code::kNotFound));
  EXPECT_TRUE(fails_with(from.shadow(*queue, 0), Code::kNotFound));
  EXPECT_TRUE(fails_with(from.shadow_whole(), Code::kUnsupported));
  from = Arena::from_plan(cpu, two).value();
  EXPECT_EQ(from.node_count(), 2u) << "it can be assigned to";
}

TEST(MovedSchedule, HasNoStepsAndCanBeRun) {
  ScheduleBuilder builder;
  builder.add_step({.label = "a"});
  Schedule from = builder.build().value();
  const Schedule to = std::move(from);
  EXPECT_EQ(to.step_count(), 1u);
  EXPECT_EQ(from.step_count(), 0u);
  EXPECT_EQ(from.node_count(), 0u);
  EXPECT_EQ(from.edge_count(), 0u);
  EXPECT_EQ(from.level_count(), 0u);
  EXPECT_TRUE(from.run());
  EXPECT_TRUE(lifetimes_from_schedule(from).empty());
  const Arena arena = Arena::from_plan(own_cpu(), MemoryPlan()).value();
  EXPECT_EQ(from.bind(arena).value().step_count(), 0u);
}

TEST(MovedSchedule, LeavesABuilderThatCanBeUsedAgain) {
  ScheduleBuilder from;
  from.add_step({.label = "a"});
  ScheduleBuilder to = std::move(from);
  EXPECT_EQ(from.add_step({.label = "b"}), 0u);
  EXPECT_EQ(from.build().value().label_of(0), "b");
  EXPECT_EQ(to.build().value().label_of(0), "a");
  ScheduleBuilder third = std::move(to);
  EXPECT_EQ(to.build().value().step_count(), 0u);
}

}  // namespace
}  // namespace berth
