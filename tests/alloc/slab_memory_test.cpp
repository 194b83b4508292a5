// Growable memory where memory is objects of the driver: parts of slabs move between slabs and inside one, and whatever
// fails, every buffer has its contents. What all growable memory does is in the conformance suite and in
// defragment_test.cpp.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <random>

#include "berth/alloc/growable.h"
#include "berth/berth.h"
#include "devices/webgpu/webgpu_device.h"
#include "doubles/webgpu_shim.h"
#include "support/seed.h"
#include "support/support.h"

namespace berth {
namespace {

using namespace internal;
using test::fails_with;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kSlab = std::size_t{64} << 10;

Bytes pattern(std::size_t count, std::uint64_t id) {
  std::mt19937_64 random(id);
  Bytes bytes(count);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

Buffer filled(const AllocatorPtr& memory, std::size_t bytes, std::uint64_t id) {
  const Buffer buffer = Buffer::allocate(memory, u8, {bytes}).value();
  buffer.copyin(pattern(bytes, id)).value();
  return buffer;
}

::testing::AssertionResult holds(const Buffer& buffer, std::uint64_t id) {
  Bytes seen(buffer.size());
  if (auto copied = buffer.copyout(seen); !copied) return ::testing::AssertionFailure() << copied.error().message();
  if (seen != pattern(buffer.size(), id))
    return ::testing::AssertionFailure() << "other contents in a buffer of " << buffer.size() << " bytes";
  return ::testing::AssertionSuccess();
}

class Slabs : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = device("WEBGPU");
    if (!opened) GTEST_SKIP() << "skipped: no WEBGPU: " << opened.error().message();
    device_ = *opened;
  }
  std::shared_ptr<GrowableMemory> make(std::size_t slabs = 64) {
    return make_growable(device_, {.reserve_bytes = slabs * kSlab, .step_bytes = kSlab}).value();
  }
  DevicePtr device_;
};

TEST_F(Slabs, DivideAnObjectOfTheDriverBetweenBuffers) {
  const std::size_t before = device_->counters().live_bytes;
  const auto memory = make();
  const Buffer a = filled(memory, 1000, 1), b = filled(memory, 3, 2), c = filled(memory, kSlab / 8, 3);
  EXPECT_EQ(device_->counters().live_bytes, before + kSlab);
  const Window at_a = a.window().value(), at_b = b.window().value();
  EXPECT_EQ(at_a.block.handle, at_b.block.handle);
  EXPECT_NE(at_a.offset, at_b.offset);
  EXPECT_EQ(at_b.offset % 256, 0u) << "kernels can bind it";
  EXPECT_EQ(b.native_handle(), 0u) << "the object is not this buffer's alone";
  EXPECT_TRUE(holds(a, 1));
  EXPECT_TRUE(holds(b, 2));
  EXPECT_TRUE(holds(c, 3));
  EXPECT_EQ(memory->counters().used_bytes, 1024u + 256u + kSlab / 8);
}

TEST_F(Slabs, KeepAWindowInsideItsBuffer) {
  const auto memory = make();
  const Buffer a = filled(memory, 1000, 1), b = filled(memory, 1000, 2);
  const QueuePtr queue = device_->make_queue().value();
  Window window = a.window().value();
  window.bytes = 1001;
  EXPECT_TRUE(fails_with(queue->fill(window, 0), Code::kInvalidView)) << "the next buffer of the slab is there";
  EXPECT_TRUE(holds(b, 2));
}

TEST_F(Slabs, GiveALargeBufferAnObjectOfItsOwn) {
  const std::size_t before = device_->counters().live_bytes;
  const auto memory = make();
  {
    const Buffer large = filled(memory, kSlab / 8 + 1, 1);
    EXPECT_NE(large.native_handle(), 0u);
    EXPECT_EQ(memory->counters().mapped_bytes, large.size());
    const Buffer aligned = Buffer::allocate(memory, u8, {16}, {.alignment = 4096}).value();
    EXPECT_NE(aligned.native_handle(), 0u) << "a slab aligns to 256 bytes";
    EXPECT_TRUE(holds(large, 1));
  }
  EXPECT_EQ(memory->counters().mapped_bytes, 0u) << "it goes back with the buffer";
  EXPECT_EQ(device_->counters().live_bytes, before);
}

TEST_F(Slabs, ZeroMemoryThatWasUsed) {
  const auto memory = make();
  { const Buffer used = filled(memory, 5000, 1); }
  const Buffer fresh = Buffer::allocate(memory, u8, {5000}, {.zero = true}).value();
  Bytes seen(5000, std::byte{1});
  ASSERT_TRUE(fresh.copyout(seen));
  EXPECT_EQ(seen, Bytes(5000));
}

TEST_F(Slabs, RefuseMoreThanTheyMayHold) {
  const auto memory = make(2);
  std::vector<Buffer> all;
  Result<Buffer> next = Buffer::allocate(memory, u8, {kSlab / 8});
  while (next) {
    all.push_back(*next);
    ASSERT_LE(all.size(), 16u);
    next = Buffer::allocate(memory, u8, {kSlab / 8});
  }
  EXPECT_EQ(all.size(), 16u);
  EXPECT_TRUE(fails_with(next, Code::kOutOfMemory));
  EXPECT_TRUE(fails_with(memory->allocate({.bytes = 1}), Code::kOutOfMemory));
  EXPECT_TRUE(fails_with(memory->allocate({.bytes = 1, .alignment = 3}), Code::kInvalidArgument));
  EXPECT_EQ(memory->allocate({.bytes = 0})->bytes, 0u);
  all.clear();
  const Block whole = memory->allocate({.bytes = 2 * kSlab}).value();
  memory->release(whole);
  EXPECT_EQ(memory->counters().mapped_bytes, 0u) << "empty slabs made room";
}

TEST_F(Slabs, TakeALargeBufferIfTheDeviceDoesNot) {
  const auto memory = make(1);
  const Buffer small = filled(memory, 256, 1);
  const Buffer large = filled(memory, kSlab / 2, 2);
  EXPECT_EQ(memory->counters().mapped_bytes, kSlab);
  EXPECT_TRUE(fails_with(Buffer::allocate(memory, u8, {kSlab / 2}), Code::kOutOfMemory));
  EXPECT_TRUE(holds(small, 1));
  EXPECT_TRUE(holds(large, 2));
}

TEST_F(Slabs, GoBackWhenTheyAreEmpty) {
  const auto memory = make();
  std::vector<Buffer> all;
  for (std::uint64_t i = 0; i < 24; ++i) all.push_back(filled(memory, kSlab / 8, i));
  EXPECT_EQ(memory->counters().mapped_bytes, 3 * kSlab);
  all.resize(8);
  EXPECT_EQ(memory->trim(kSlab), kSlab);
  EXPECT_EQ(memory->trim(), kSlab);
  EXPECT_EQ(memory->trim(), 0u);
  EXPECT_EQ(memory->counters().mapped_bytes, kSlab);
}

TEST_F(Slabs, KeepMemoryThatWorkStillUses) {
  const auto memory = make();
  const QueuePtr queue = device_->make_queue().value();
  Buffer used = filled(memory, 8192, 1);
  ASSERT_TRUE(queue->fill(used.window().value(), 7));  // recorded
  used = Buffer();
  EXPECT_EQ(memory->counters().pending_bytes, 8192u);
  const Buffer next = filled(memory, 8192, 2);
  ASSERT_TRUE(queue->finish());
  EXPECT_TRUE(holds(next, 2)) << "the fill went into memory of its own";
  memory->trim();
  EXPECT_EQ(memory->counters().pending_bytes, 0u);
}

// Holes that no buffer fits into: each buffer goes down over its own bytes, in pieces.
TEST_F(Slabs, SlideABufferOverItsOwnBytes) {
  const auto memory = make();
  std::vector<Buffer> kept, holes;
  for (std::uint64_t i = 0; i < 7; ++i) {
    holes.push_back(filled(memory, 256, 100));
    kept.push_back(filled(memory, kSlab / 8 - 7 * i, i));
  }
  holes.clear();
  const DefragmentResult result = memory->defragment();
  EXPECT_EQ(result.moved_count, 7u) << to_string(result);
  EXPECT_EQ(memory->defragment().moved_count, 0u) << "nothing is left to gain";
  for (std::uint64_t i = 0; i < 7; ++i) EXPECT_TRUE(holds(kept[i], i));
  const Buffer last = filled(memory, kSlab / 8 - 512, 50);
  EXPECT_EQ(memory->counters().mapped_bytes, kSlab) << "the holes are one";
  EXPECT_TRUE(holds(last, 50));
}

// 95 % of the memory is in use, and no free range holds a buffer.
TEST_F(Slabs, ServeARequestThatIsRefusedWithoutAMove) {
  constexpr std::size_t kSlabs = 24, kBlock = 19 * 256, kHole = 256, kLarge = 64 * (kBlock + kHole);
  const auto memory = make_growable(device_, {.reserve_bytes = kSlabs * kLarge, .step_bytes = kLarge}).value();
  device_->set_budget(device_->counters().live_bytes + kSlabs * kLarge);
  std::vector<Buffer> kept, holes;
  for (std::size_t i = 0; i < 64 * kSlabs; ++i) {
    holes.push_back(Buffer::allocate(memory, u8, {kHole}).value());
    kept.push_back(filled(memory, kBlock, i));
  }
  EXPECT_EQ(kept.size() * kBlock, kSlabs * kLarge * 95 / 100);
  holes.clear();
  const std::size_t wanted = kLarge;
  EXPECT_TRUE(fails_with(Buffer::allocate(memory, u8, {wanted}), Code::kOutOfMemory));
  std::size_t passes = 0;
  DefragmentResult result;
  do {
    result = memory->defragment({.max_bytes = 20 * kBlock});
    ++passes;
  } while (!result.finished);
  EXPECT_GT(passes, 3u);
  EXPECT_TRUE(Buffer::allocate(memory, u8, {wanted}).has_value());
  device_->set_budget(0);
  for (std::size_t i = 0; i < kept.size(); ++i) ASSERT_TRUE(holds(kept[i], i));
}

// Random requests, drops, work on two queues and passes with random budgets, against what the bytes must be.
void move_whatever_may_move(const DevicePtr& device) {
  const auto memory = make_growable(device, {.reserve_bytes = 64 * kSlab, .step_bytes = kSlab}).value();
  const std::vector<QueuePtr> queues{device->make_queue().value(), device->make_queue().value()};
  struct Live {
    Buffer buffer;
    Bytes contents;
    std::optional<Window> window;
  };
  std::vector<Live> live;
  std::uint64_t id = 0;
  const auto choose = [&] { return *rc::gen::inRange<std::size_t>(0, live.size()); };
  for (int i = 0; i < 60; ++i) {
    const int what = *rc::gen::inRange(0, 10);
    if (live.size() < 3 || what < 4) {
      const std::size_t bytes = *rc::gen::inRange<std::size_t>(1, kSlab / 6);
      Bytes contents = pattern(bytes, ++id);
      live.push_back({Buffer::allocate(memory, u8, {bytes}).value(), {}, {}});
      RC_ASSERT(live.back().buffer.copyin(contents).has_value());
      live.back().contents = std::move(contents);
    } else if (what < 6) {
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(choose()));
    } else if (what < 8) {
      // Recorded, perhaps submitted, never waited for.
      Live& from = live[choose()];
      Live& to = live[choose()];
      const std::size_t bytes = std::min(from.contents.size(), to.contents.size());
      Queue& queue = *queues[*rc::gen::inRange<std::size_t>(0, 2)];
      // One queue comes after the other, as a program must order them.
      for (const QueuePtr& other : queues)
        if (other.get() != &queue) RC_ASSERT(queue.wait_for(other->submit().value()).has_value());
      if (&from != &to)
        RC_ASSERT(queue
                      .copy(from.buffer.view(0, bytes).value().window().value(),
                            to.buffer.view(0, bytes).value().window().value())
                      .has_value());
      if (&from != &to) std::copy_n(from.contents.begin(), bytes, to.contents.begin());
      if (*rc::gen::arbitrary<bool>()) RC_ASSERT(queue.submit().has_value());
    } else if (what == 8) {
      Live& one = live[choose()];
      if (one.window)
        one.window.reset();
      else
        one.window = one.buffer.window().value();
    } else {
      static_cast<void>(memory->defragment({.max_bytes = *rc::gen::inRange<std::size_t>(1, 2 * kSlab)}));
    }
  }
  static_cast<void>(memory->defragment());
  for (const Live& one : live) {
    if (one.window) {
      const Window now = one.buffer.window().value();
      RC_ASSERT(now.block.handle == one.window->block.handle && now.offset == one.window->offset);
    }
    Bytes seen(one.contents.size());
    RC_ASSERT(one.buffer.copyout(seen).has_value());
    RC_ASSERT(seen == one.contents);
  }
  live.clear();
  for (const QueuePtr& queue : queues) RC_ASSERT(queue->finish().has_value());
  static_cast<void>(memory->defragment());
  RC_ASSERT(memory->counters().mapped_bytes == 0u);
}

TEST_F(Slabs, KeepEveryContentsWhateverMoves) {
  EXPECT_TRUE(rc::check([this] { move_whatever_may_move(device_); }));
}

// Every call that the driver gets during a pass fails once, and once again together with the one after it.
class SlabFaults : public ::testing::TestWithParam<bool> {};

TEST_P(SlabFaults, LoseNothingWhicheverCallFails) {
  auto library = webgpu::open_library();
  if (!library) GTEST_SKIP() << "skipped: no WEBGPU: " << library.error().message();
  webgpu::AdapterChoice choice = webgpu::adapter_choice(0);
  choice.map_storage = false;
  bool swept = false;
  std::size_t failed_moves = 0;
  for (std::uint64_t nth = 1; !swept; ++nth) {
    SCOPED_TRACE(nth);
    ASSERT_LT(nth, 2000u);
    const webgpu::Library between = test::shimmed(*library);
    test::WebgpuShim& shim = test::webgpu_shim();
    shim.gives_null = GetParam();
    auto opened = webgpu::open_with(between, choice);
    if (!opened && nth == 1) GTEST_SKIP() << "skipped: no WEBGPU: " << opened.error().message();
    ASSERT_TRUE(opened.has_value());
    {
      const auto memory = make_growable(*opened, {.reserve_bytes = 64 * kSlab, .step_bytes = kSlab}).value();
      std::vector<Buffer> kept, holes;
      for (std::uint64_t i = 0; i < 12; ++i) {
        holes.push_back(filled(memory, i % 3 == 0 ? 4096 : 512, 100));
        kept.push_back(filled(memory, i % 2 == 0 ? 8000 : 1000, i));
      }
      holes.clear();
      shim.arm(nth);
      const DefragmentResult result = memory->defragment();
      swept = shim.failed.empty();
      shim.arm(0);
      failed_moves += result.failed.count;
      EXPECT_EQ(result.failed.count != 0, result.error.has_value());
      for (std::uint64_t i = 0; i < 12; ++i) ASSERT_TRUE(holds(kept[i], i)) << shim.failed;
      const DefragmentResult again = memory->defragment();
      EXPECT_FALSE(again.error.has_value()) << to_string(again);
      for (std::uint64_t i = 0; i < 12; ++i) ASSERT_TRUE(holds(kept[i], i)) << shim.failed;
    }
    EXPECT_TRUE((*opened)->synchronize().has_value());
    EXPECT_EQ((*opened)->counters().live_bytes, 0u);
  }
  SUCCEED() << failed_moves;
}

INSTANTIATE_TEST_SUITE_P(Drivers, SlabFaults, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "GiveNull" : "GiveObjectsThatErr"; });

}  // namespace
}  // namespace berth
