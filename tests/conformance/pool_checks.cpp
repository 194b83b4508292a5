// What a StepBuffers, a caching pool and growable memory must do on every device.
#include <algorithm>

#include "berth/alloc/caching_pool.h"
#include "berth/alloc/growable.h"
#include "berth/memory/registry.h"
#include "berth/tensor/step_buffers.h"
#include "conformance/device_conformance.h"

namespace berth::conformance {
namespace {

using Bytes = std::vector<std::byte>;

void hands_out_the_buffer_returned_last(Bed& bed) {
  StepBuffers pool(bed.device());
  BED_TRY_ASSIGN(const Buffer a, bed, pool.allocate(u8, {1000}));
  BED_TRY_ASSIGN(const Buffer b, bed, pool.allocate(u8, {600}));
  BED_TRY(bed, pool.release(a));
  BED_TRY(bed, pool.release(b));
  BED_TRY_ASSIGN(const Buffer larger, bed, pool.allocate(u8, {1025}));
  BED_TRY_ASSIGN(const Buffer first, bed, pool.allocate(f32, {200}));
  BED_TRY_ASSIGN(const Buffer second, bed, pool.allocate(u8, {513}));
  EXPECT_EQ(first.storage_id(), b.storage_id());
  EXPECT_EQ(second.storage_id(), a.storage_id());
  EXPECT_EQ(first.total_size(), 1024u);
  EXPECT_EQ(larger.total_size(), 2048u) << "only the exact power of two is looked at";
  EXPECT_EQ(pool.counters().fresh, 3u);
  EXPECT_EQ(pool.counters().reused, 2u);
}

void zeroes_fresh_memory_and_reused_only_when_asked(Bed& bed) {
  // Memory that was used before and went back is what an allocator likes to hand out as fresh.
  for (int i = 0; i < 3; ++i) {
    BED_TRY_ASSIGN(const Buffer used, bed, Buffer::allocate(bed.device(), u8, {4096}, {.zero = true}));
    BED_TRY(bed, used.copyin(pattern_bytes(4096)));
  }
  StepBuffers pool(bed.device());
  BED_TRY_ASSIGN(const Buffer fresh, bed, pool.allocate(u8, {3001}));
  BED_TRY_ASSIGN(const Bytes zeroes, bed, contents(fresh));
  EXPECT_EQ(zeroes, Bytes(3001));
  BED_TRY(bed, fresh.copyin(pattern_bytes(3001)));
  BED_TRY(bed, pool.release(fresh));
  BED_TRY_ASSIGN(const Buffer reused, bed, pool.allocate(u8, {3001}));
  BED_TRY_ASSIGN(const Bytes kept, bed, contents(reused));
  EXPECT_EQ(kept, pattern_bytes(3001));
  BED_TRY(bed, pool.release(reused));
  BED_TRY_ASSIGN(const Buffer asked, bed, pool.allocate(u8, {3001}, {.zero = true}));
  BED_TRY_ASSIGN(const Bytes again, bed, contents(asked));
  EXPECT_EQ(again, Bytes(3001));
  EXPECT_EQ(asked.storage_id(), fresh.storage_id());
}

void refuses_what_was_returned_or_is_not_its_own(Bed& bed) {
  StepBuffers pool(bed.device());
  BED_TRY_ASSIGN(const Buffer buffer, bed, pool.allocate(u8, {100}));
  BED_TRY_ASSIGN(const Buffer view, bed, buffer.view(4, 8));
  const auto of_view = pool.release(view);
  ASSERT_FALSE(of_view.has_value());
  EXPECT_EQ(of_view.error().code(), Code::kNotOwned);
  BED_TRY(bed, pool.release(buffer));
  BED_TRY_ASSIGN(const Buffer next, bed, pool.allocate(u8, {100}));
  EXPECT_EQ(next.storage_id(), buffer.storage_id());
  const auto twice = pool.release(buffer);  // its memory has another user now
  ASSERT_FALSE(twice.has_value());
  EXPECT_EQ(twice.error().code(), Code::kNotOwned);
  BED_TRY(bed, pool.release(next));
  BED_TRY_ASSIGN(const Buffer stranger, bed, Buffer::allocate(bed.device(), u8, {100}));
  const auto foreign = pool.release(stranger);
  ASSERT_FALSE(foreign.has_value());
  EXPECT_EQ(foreign.error().code(), Code::kNotOwned);
  EXPECT_EQ(pool.counters().free, 1u);
}

void gives_batches_and_takes_a_step_back(Bed& bed) {
  StepBuffers pool(bed.device());
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  const auto commits = [&] {
    Residency* const set = bed.device()->residency();
    return set == nullptr ? 0 : set->counters().commits;
  };
  BED_TRY(bed, queue->submit());
  const std::uint64_t before = commits();
  BED_TRY(bed, pool.allocate_batch({}));
  BED_TRY(bed, queue->submit());
  EXPECT_EQ(commits(), before) << "an empty batch";
  std::vector<BufferRequest> batch(40, {u8, {1000}, {}});
  for (std::size_t i = 0; i < batch.size(); ++i) batch[i].shape = Shape{16u << i % 8};
  for (int step = 0; step < 3; ++step) {
    BED_TRY_ASSIGN(const std::vector<Buffer> buffers, bed, pool.allocate_batch(batch));
    BED_TRY(bed, queue->submit());
    EXPECT_LE(commits(), before + 1) << "one batch, and the same memory again";
    EXPECT_EQ(buffers.size(), 40u);
    EXPECT_EQ(pool.counters().used, 40u);
    pool.reset();
    EXPECT_EQ(pool.counters().used, 0u);
    EXPECT_EQ(pool.counters().free, 40u);
  }
  EXPECT_EQ(pool.counters().fresh, 40u);
  pool.clear();
  EXPECT_EQ(pool.counters().bytes, 0u);
}

void keeps_a_registered_buffer(Bed& bed) {
  StepBuffers pool(bed.device());
  BED_TRY_ASSIGN(const Buffer own, bed, pool.allocate(u8, {16}));
  const auto members = [&] {
    Residency* const set = bed.device()->residency();
    return set == nullptr ? 0 : set->counters().members;
  };
  BED_TRY_ASSIGN(const Buffer ours, bed, Buffer::allocate(bed.device(), u8, {4096}));
  Buffer theirs = ours;
  if (bed.described().foreign) {
    BED_TRY_ASSIGN(ForeignMemory memory, bed, bed.described().foreign(*bed.device(), pattern_bytes(4096)));
    BED_TRY_ASSIGN(theirs, bed, Buffer::import(bed.device(), std::move(memory), u8, {4096}));
  }
  const bool counts = bed.device()->residency() != nullptr && theirs.is_foreign();
  const std::size_t before = members();
  for (int i = 0; i < 3; ++i) {
    BED_TRY(bed, pool.register_existing(theirs));
    BED_TRY(bed, pool.register_existing(ours));
  }
  EXPECT_EQ(members(), before + (counts ? 1 : 0)) << "an import joins, and a member is not added again";
  EXPECT_EQ(pool.counters().registered, theirs.is_foreign() ? 2u : 1u);
  EXPECT_FALSE(pool.release(theirs).has_value());
  pool.reset();
  BED_TRY_ASSIGN(const Buffer other, bed, pool.allocate(u8, {4096}));
  EXPECT_NE(other.storage_id(), theirs.storage_id());
  EXPECT_NE(other.storage_id(), ours.storage_id());
  pool.clear();
  // What the device itself allocated stays a member as long as it lives.
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Window window, bed, ours.window());
  BED_TRY(bed, queue->fill(window, 7));
  BED_TRY(bed, queue->finish());
  BED_TRY_ASSIGN(const Bytes sevens, bed, contents(ours));
  EXPECT_EQ(sevens, Bytes(4096, std::byte{7}));
}

void refuses_to_register_another_devices_buffer(Bed& bed) {
  StepBuffers pool(bed.device());
  BED_TRY(bed, pool.allocate(u8, {16}));
  BED_TRY_ASSIGN(const DevicePtr cpu, bed, device("CPU"));
  BED_TRY_ASSIGN(const Buffer here, bed, Buffer::allocate(cpu, u8, {16}));
  StepBuffers of_cpu(cpu);
  BED_TRY_ASSIGN(const Buffer there, bed, Buffer::allocate(bed.device(), u8, {16}));
  const bool same = cpu == bed.device();
  EXPECT_EQ(pool.register_existing(here).has_value(), same);
  EXPECT_EQ(of_cpu.register_existing(there).has_value(), same);
}

void keeps_kinds_of_memory_apart(Bed& bed) {
  StepBuffers pool(bed.device());
  BED_TRY_ASSIGN(const Buffer hidden, bed, pool.allocate(u8, {1024}, {.host = HostAccess::kNone}));
  BED_TRY(bed, pool.release(hidden));
  BED_TRY_ASSIGN(const Buffer plain, bed, pool.allocate(u8, {1024}));
  EXPECT_NE(plain.storage_id(), hidden.storage_id());
  BED_TRY_ASSIGN(const Buffer again, bed, pool.allocate(u8, {1024}, {.host = HostAccess::kNone}));
  EXPECT_EQ(again.storage_id(), hidden.storage_id());
}

void reports_a_forgotten_reset(Bed& bed) {
  StepBuffers pool(bed.device(), 8);
  std::vector<Buffer> held;
  for (int i = 0; i < 8; ++i) {
    BED_TRY_ASSIGN(Buffer buffer, bed, pool.allocate(u8, {64}));
    held.push_back(std::move(buffer));
  }
  const auto refused = pool.allocate(u8, {64});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kOutOfMemory);
  EXPECT_NE(refused.error().message().find("reset()"), std::string::npos);
  held.clear();
  BED_TRY(bed, pool.allocate(u8, {64}));
  EXPECT_EQ(pool.counters().reclaimed, 8u);
}

// A block that goes from one user of a timeline to the next while work is pending, and is to be zeroed in between. The
// work may be submitted or only recorded.
void zeroes_memory_that_is_still_in_use(Bed& bed) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  std::vector<AllocatorPtr> allocators{make_caching_pool(bed.device())};
  if (auto growable = make_growable(bed.device(), {.reserve_bytes = 2 * kBytes, .step_bytes = kBytes}))
    allocators.push_back(*growable);
  for (const AllocatorPtr& allocator : allocators)
    for (const bool submits : {true, false}) {
      BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
      {
        BED_TRY_ASSIGN(const Buffer used, bed, Buffer::allocate(allocator, u8, {kBytes}, {.on = queue->timeline()}));
        BED_TRY_ASSIGN(const Window window, bed, used.window());
        BED_TRY(bed, queue->fill(window, 0xff));
        if (submits) BED_TRY(bed, queue->submit());
      }
      BED_TRY_ASSIGN(const Buffer buffer, bed,
                     Buffer::allocate(allocator, u8, {kBytes}, {.zero = true, .on = queue->timeline()}));
      BED_TRY_ASSIGN(const Window window, bed, buffer.window());
      Bytes seen(kBytes, std::byte{1});
      BED_TRY(bed, queue->read(window, seen));
      BED_TRY(bed, queue->finish());
      const auto stale = std::count_if(seen.begin(), seen.end(), [](std::byte byte) { return byte != std::byte{0}; });
      EXPECT_EQ(stale, 0) << allocator->name() << (submits ? ", submitted" : ", recorded");
    }
}

constexpr Check kChecks[] = {
    {"PoolZeroesMemoryThatIsStillInUse", zeroes_memory_that_is_still_in_use},
    {"PoolHandsOutTheBufferReturnedLast", hands_out_the_buffer_returned_last},
    {"PoolZeroesFreshMemoryAndReusedOnlyWhenAsked", zeroes_fresh_memory_and_reused_only_when_asked},
    {"PoolRefusesWhatWasReturnedOrIsNotItsOwn", refuses_what_was_returned_or_is_not_its_own},
    {"PoolGivesBatchesAndTakesAStepBack", gives_batches_and_takes_a_step_back},
    {"PoolKeepsARegisteredBuffer", keeps_a_registered_buffer},
    {"PoolRefusesToRegisterAnotherDevicesBuffer", refuses_to_register_another_devices_buffer},
    {"PoolKeepsKindsOfMemoryApart", keeps_kinds_of_memory_apart},
    {"PoolReportsAForgottenReset", reports_a_forgotten_reset},
};

}  // namespace

std::span<const Check> pool_checks() {
  return kChecks;
}

}  // namespace berth::conformance
