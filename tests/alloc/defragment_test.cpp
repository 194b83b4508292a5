// Live defragmentation of growable memory: what moves, what does not, and that nothing is ever lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "berth/alloc/caching_pool.h"
#include "berth/alloc/growable.h"
#include "berth/alloc/offset_allocator.h"
#include "berth/berth.h"
#include "berth/interop/dlpack.h"
#include "doubles/cuda/cuda_testing.h"
#include "doubles/lagging_device.h"
#include "support/seed.h"
#include "support/support.h"

namespace berth {
namespace {

using cuda_test::cuda_double;
using test::fails_with;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kStep = std::size_t{2} << 20;
constexpr std::size_t kPart = kStep / 8;

// No part of it is like another, so that bytes in the wrong place are seen.
Bytes pattern(std::size_t count, std::uint8_t id) {
  Bytes bytes(count);
  std::mt19937_64 words(id);
  for (std::size_t at = 0; at < count; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = words();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, count - at));
  }
  return bytes;
}

Buffer filled(const AllocatorPtr& memory, std::size_t bytes, std::uint8_t id) {
  const Buffer buffer = Buffer::allocate(memory, u8, {bytes}).value();
  buffer.copyin(pattern(bytes, id)).value();
  return buffer;
}

::testing::AssertionResult holds(const Buffer& buffer, std::uint8_t id) {
  Bytes seen(buffer.size());
  if (auto copied = buffer.copyout(seen); !copied) return ::testing::AssertionFailure() << copied.error().message();
  if (std::memcmp(seen.data(), pattern(buffer.size(), id).data(), seen.size()) != 0)
    return ::testing::AssertionFailure() << "other contents in a buffer of " << buffer.size() << " bytes";
  return ::testing::AssertionSuccess();
}

class DefragmentTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!is("WEBGPU")) return;
    if (auto opened = device("WEBGPU"); !opened) GTEST_SKIP() << "skipped: no WEBGPU: " << opened.error().message();
  }
  bool is(std::string_view name) const { return GetParam() == name; }
  DevicePtr open() {
    if (is("LAGGING")) {
      if (lagging_ == nullptr) lagging_ = doubles::LaggingDevice::make(false);
      return lagging_;
    }
    if (is("CUDA") && !choice_) choice_.emplace();
    return device(GetParam()).value();
  }
  std::shared_ptr<GrowableMemory> make(std::size_t steps) {
    return make_growable(open(), {.reserve_bytes = steps * kStep, .step_bytes = kStep}).value();
  }
  // One part at the start of each of `steps` steps, and nothing else in them.
  std::vector<Buffer> one_in_each(const AllocatorPtr& memory, std::size_t steps) {
    std::vector<Buffer> all, kept;
    for (std::size_t i = 0; i < steps * 8; ++i) all.push_back(filled(memory, kPart, static_cast<std::uint8_t>(i)));
    for (std::size_t i = 0; i < steps; ++i) kept.push_back(all[i * 8]);
    return kept;
  }
  void TearDown() override {
    if (!choice_ || cuda_test::on_real_gpu()) return;
    cuda_test::expect_nothing_left();
  }

 private:
  std::optional<cuda_test::CudaChoice> choice_;
  DevicePtr lagging_;
};

// On devices where recorded work is not over at once.
class DefragmentInFlight : public DefragmentTest {};
// On devices whose memory is addresses.
class DefragmentAddresses : public DefragmentTest {};

TEST_P(DefragmentTest, MovesBuffersTogetherAndGivesStepsBack) {
  const auto memory = make(16);
  const std::size_t before = memory->device().counters().live_bytes;
  const std::vector<Buffer> kept = one_in_each(memory, 4);
  const Buffer view = kept[3].view(1000, 500).value();
  ASSERT_EQ(memory->counters().mapped_bytes, 4 * kStep);
  ASSERT_EQ(memory->trim(), 0u) << "no step is empty";

  const DefragmentResult result = memory->defragment();
  EXPECT_EQ(result.moved_count, 3u) << to_string(result);
  EXPECT_EQ(result.moved_bytes, 3 * kPart);
  EXPECT_EQ(result.returned_bytes, 3 * kStep);
  EXPECT_TRUE(result.finished);
  EXPECT_FALSE(result.error.has_value());
  EXPECT_EQ(memory->counters().mapped_bytes, kStep);
  EXPECT_EQ(memory->counters().used_bytes, 4 * kPart);
  EXPECT_EQ(memory->device().counters().live_bytes, before + kStep);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(holds(kept[i], static_cast<std::uint8_t>(i * 8)));
  Bytes seen(500);
  ASSERT_TRUE(view.copyout(seen));
  const Bytes whole = pattern(kPart, 24);
  EXPECT_TRUE(std::equal(seen.begin(), seen.end(), whole.begin() + 1000));
  EXPECT_EQ(memory->defragment().moved_count, 0u) << "there is nothing left to gain";
}

TEST_P(DefragmentAddresses, MovesABufferThatOverlapsItsNewPlace) {
  const auto memory = make(16);
  std::vector<Buffer> large, holes;
  for (std::uint8_t i = 0; i < 4; ++i) {
    holes.push_back(filled(memory, kStep / 4, 200));
    large.push_back(filled(memory, 2 * kStep - 77, i));
  }
  holes.clear();
  ASSERT_EQ(memory->counters().mapped_bytes, 9 * kStep);
  const DefragmentResult result = memory->defragment();
  EXPECT_EQ(result.moved_count, 3u) << "the last one starts a step of its own, and the hole before it is a step: "
                                    << to_string(result);
  EXPECT_EQ(memory->counters().mapped_bytes, 8 * kStep);
  for (std::uint8_t i = 0; i < 4; ++i) EXPECT_TRUE(holds(large[i], i));
}

// A move may fill up memory that is there. Memory for addresses that have none is made only to pack addresses.
TEST_P(DefragmentAddresses, MapsNoStepUnlessItPacksAddresses) {
  const auto memory = make(16);
  const Buffer first = filled(memory, kPart, 1);
  std::vector<Buffer> between;
  between.push_back(filled(memory, kStep - kPart, 0));
  between.push_back(filled(memory, kStep, 0));
  between.push_back(filled(memory, kPart / 2, 0));
  const Buffer second = filled(memory, kStep - kPart / 2, 2);  // longer than what is free in the first step
  between.push_back(filled(memory, kStep / 2, 0));
  const Buffer third = filled(memory, kStep / 2, 3);
  between.clear();
  ASSERT_EQ(memory->trim(), kStep);
  ASSERT_EQ(memory->counters().mapped_bytes, 3 * kStep);

  const DefragmentResult close = memory->defragment();
  EXPECT_EQ(close.moved_count, 2u) << to_string(close);
  EXPECT_EQ(close.returned_bytes, 0u) << "both stay in the steps that have memory";
  EXPECT_EQ(memory->counters().mapped_bytes, 3 * kStep);
  const DefragmentResult packed = memory->defragment({.pack_addresses = true});
  EXPECT_EQ(packed.moved_count, 2u) << to_string(packed);
  EXPECT_EQ(memory->counters().mapped_bytes, 2 * kStep);
  EXPECT_TRUE(holds(first, 1));
  EXPECT_TRUE(holds(second, 2));
  EXPECT_TRUE(holds(third, 3));
}

TEST_P(DefragmentTest, LeavesABufferWhoseHandleWasGivenOut) {
  const auto memory = make(16);
  const std::vector<Buffer> kept = one_in_each(memory, 3);
  const std::uint64_t address = kept[1].native_handle();
  const DefragmentResult result = memory->defragment();
  EXPECT_EQ(result.moved_count, 1u);
  EXPECT_EQ(result.held.count, 1u);
  EXPECT_EQ(result.held.bytes, kPart);
  EXPECT_EQ(kept[1].native_handle(), address);
  EXPECT_EQ(memory->defragment().held.count, 1u) << "it was given out for good";
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(holds(kept[i], static_cast<std::uint8_t>(i * 8)));
}

TEST_P(DefragmentTest, LeavesABufferWhileAWindowOfItExists) {
  const auto memory = make(16);
  const std::vector<Buffer> kept = one_in_each(memory, 2);
  {
    std::optional<Window> first = kept[1].window().value();
    const Window copy = *first;
    first.reset();
    EXPECT_EQ(memory->defragment().held.count, 1u);
    EXPECT_EQ(kept[1].window()->block.handle, copy.block.handle);
  }
  EXPECT_EQ(memory->defragment().moved_count, 1u) << "nobody has the address any more";
  EXPECT_TRUE(holds(kept[1], 8));
}

TEST_P(DefragmentTest, AWindowKeepsTheMemoryAlive) {
  const auto memory = make(4);
  std::optional<Buffer> buffer = filled(memory, kPart, 1);
  std::optional<Window> window = buffer->window().value();
  buffer.reset();
  EXPECT_EQ(memory->counters().used_bytes, kPart);
  window.reset();
  EXPECT_EQ(memory->counters().used_bytes, 0u);
}

TEST_P(DefragmentTest, LeavesABufferWhileADlpackTensorOfItExists) {
  const auto memory = make(16);
  const std::vector<Buffer> kept = one_in_each(memory, 2);
  auto* const tensor = dlpack::export_buffer(kept[1]).value();
  EXPECT_EQ(memory->defragment().held.count, 1u);
  tensor->deleter(tensor);
  EXPECT_EQ(memory->defragment().moved_count, 1u);
  EXPECT_TRUE(holds(kept[1], 8));
}

TEST_P(DefragmentInFlight, LeavesABufferThatWorkUses) {
  const auto memory = make(16);
  const std::vector<Buffer> kept = one_in_each(memory, 2);
  const QueuePtr queue = open()->make_queue().value();
  ASSERT_TRUE(queue->fill(kept[1].window().value(), 7));
  EXPECT_EQ(memory->defragment().in_use.count, 1u) << "recorded";
  const Timepoint submitted = queue->submit().value();
  // A real driver may be done already.
  if (!is("WEBGPU")) {
    EXPECT_EQ(memory->defragment().in_use.count, 1u) << "submitted";
  }
  ASSERT_TRUE(wait(submitted));
  EXPECT_EQ(memory->defragment().moved_count, 1u);
  Bytes seen(kPart);
  ASSERT_TRUE(kept[1].copyout(seen));
  EXPECT_EQ(seen, Bytes(kPart, std::byte{7}));
}

TEST_P(DefragmentInFlight, LeavesABufferThatASecondQueueUses) {
  const auto memory = make(16);
  const std::vector<Buffer> kept = one_in_each(memory, 2);
  const QueuePtr first = open()->make_queue().value();
  const QueuePtr second = open()->make_queue().value();
  Bytes seen(kPart), other(kPart);
  ASSERT_TRUE(first->read(kept[1].window().value(), seen));
  ASSERT_TRUE(second->read(kept[1].window().value(), other));  // one word cannot remember both
  ASSERT_TRUE(first->finish());
  EXPECT_EQ(memory->defragment().in_use.count, 1u);
  ASSERT_TRUE(second->finish());
  EXPECT_EQ(memory->defragment().moved_count, 1u);
  EXPECT_EQ(seen, other);
  EXPECT_EQ(seen, pattern(kPart, 8));
}

// Memory that goes to the next user of a timeline is free for that timeline alone.
TEST(Defragment, HandsMemoryOfATimelineToNobodyElse) {
  const auto device = doubles::LaggingDevice::make(false);
  const auto memory = make_growable(device, {.reserve_bytes = kStep, .step_bytes = kStep}).value();
  const QueuePtr queue = device->make_queue().value();
  {
    const Buffer a = filled(memory, kStep / 2, 1), b = filled(memory, kStep / 2, 2);
    ASSERT_TRUE(queue->fill(a.window().value(), 7));
    ASSERT_TRUE(queue->fill(b.window().value(), 7));
    ASSERT_TRUE(queue->submit());
  }
  { const Buffer same = Buffer::allocate(memory, u8, {kStep / 2}, {.on = queue->timeline()}).value(); }
  EXPECT_TRUE(fails_with(memory->allocate({.bytes = kStep / 2}), Code::kOutOfMemory)) << "the queue still writes both";
  const Buffer next = Buffer::allocate(memory, u8, {kStep / 2}, {.on = queue->timeline()}).value();
  EXPECT_TRUE(fails_with(memory->allocate({.bytes = kStep / 2}), Code::kOutOfMemory));
  ASSERT_TRUE(queue->finish());
  const Buffer other = filled(memory, kStep / 2, 3);
  EXPECT_TRUE(holds(other, 3));
}

TEST_P(DefragmentTest, KeepsToItsBudgetAndGoesOnWhereItStopped) {
  const auto memory = make(16);
  const std::vector<Buffer> kept = one_in_each(memory, 5);
  std::size_t moved = 0, passes = 0;
  while (true) {
    const DefragmentResult result = memory->defragment({.max_bytes = 2 * kPart});
    EXPECT_LE(result.moved_bytes, 2 * kPart);
    moved += result.moved_count;
    ++passes;
    if (result.finished) break;
    ASSERT_LT(passes, 10u);
  }
  EXPECT_EQ(moved, 4u);
  EXPECT_GE(passes, 2u);
  EXPECT_EQ(memory->counters().mapped_bytes, kStep);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(holds(kept[i], static_cast<std::uint8_t>(i * 8)));
}

TEST_P(DefragmentTest, LeavesWhatIsLargerThanTheBudget) {
  const auto memory = make(16);
  const std::vector<Buffer> kept = one_in_each(memory, 3);
  const DefragmentResult result = memory->defragment({.max_bytes = kPart - 1});
  EXPECT_EQ(result.moved_count, 0u);
  EXPECT_EQ(result.too_large.count, 2u);
  EXPECT_TRUE(result.finished);
  EXPECT_FALSE(memory->defragment({.max_time = std::chrono::nanoseconds(0)}).finished) << "no time, no move";
  EXPECT_EQ(memory->counters().mapped_bytes, 3 * kStep);
}

TEST_P(DefragmentTest, LeavesBlocksThatNoBufferOwns) {
  const auto memory = make(16);
  const auto pool = make_caching_pool(memory);
  std::vector<Buffer> kept = one_in_each(memory, 2);
  const Buffer pooled = filled(pool, kPart, 50);
  const Block raw = memory->allocate({.bytes = kPart}).value();
  const DefragmentResult result = memory->defragment();
  EXPECT_EQ(result.not_buffers.count, 2u);
  EXPECT_GE(result.not_buffers.bytes, 2 * kPart);
  EXPECT_TRUE(holds(pooled, 50));
  EXPECT_TRUE(holds(kept[1], 8));
  memory->release(raw);
}

TEST_P(DefragmentAddresses, MakesFreeAddressesContiguous) {
  const auto memory = make(6);  // of addresses: as many as the memory needs
  std::vector<Buffer> all;
  for (std::uint8_t i = 0; i < 6; ++i) all.push_back(filled(memory, kStep, i));
  for (const std::size_t gone : {4, 2, 0}) all.erase(all.begin() + static_cast<std::ptrdiff_t>(gone));
  EXPECT_EQ(memory->defragment().moved_count, 0u) << "memory goes back without a move";
  EXPECT_EQ(memory->counters().mapped_bytes, 3 * kStep);
  EXPECT_TRUE(fails_with(Buffer::allocate(memory, u8, {3 * kStep}), Code::kOutOfMemory));
  EXPECT_EQ(memory->defragment({.pack_addresses = true}).moved_count, 3u);
  const Buffer large = filled(memory, 3 * kStep, 9);
  for (std::uint8_t i = 0; i < 3; ++i) EXPECT_TRUE(holds(all[i], static_cast<std::uint8_t>(2 * i + 1)));
  EXPECT_TRUE(holds(large, 9));
}

// 95 % of the memory is in use, and what is free lies between the buffers in pieces smaller than a step and smaller
// than any buffer.
TEST_P(DefragmentAddresses, ServesARequestThatEveryPoolRefuses) {
  constexpr std::size_t kMemory = 32 * kStep, kBlock = 19 * (kStep / 20) / 256 * 256, kHole = kStep - kBlock,
                        kWanted = kStep;
  const DevicePtr device = open();
  const auto refuses = [&](const AllocatorPtr& memory) {
    std::vector<Buffer> kept, holes;
    device->set_budget(device->counters().live_bytes + kMemory);
    for (std::uint8_t i = 0; i < 32; ++i) {
      if (auto hole = Buffer::allocate(memory, u8, {kHole})) holes.push_back(*hole);
      if (auto one = Buffer::allocate(memory, u8, {kBlock})) {
        one->copyin(pattern(kBlock, i)).value();
        kept.push_back(*one);
      }
    }
    EXPECT_GE(kept.size(), 24u);
    holes.clear();
    const auto refused = Buffer::allocate(memory, u8, {kWanted});
    EXPECT_TRUE(fails_with(refused, Code::kOutOfMemory)) << memory->name();
    if (auto growable = std::dynamic_pointer_cast<GrowableMemory>(memory)) {
      EXPECT_EQ(kept.size(), 32u);
      const DefragmentResult result = growable->defragment();
      EXPECT_EQ(result.returned_bytes, kStep) << to_string(result);
      const auto served = Buffer::allocate(memory, u8, {kWanted});
      EXPECT_TRUE(served.has_value());
      for (std::uint8_t i = 0; i < 32; ++i) EXPECT_TRUE(holds(kept[i], i));
    }
    device->set_budget(0);
  };
  refuses(make(64));
  refuses(make_caching_pool(make(64)));
  OffsetAllocator best = OffsetAllocator::make(kMemory, 256).value();
  std::vector<std::uint64_t> holes;
  for (int i = 0; i < 32; ++i) {
    holes.push_back(best.allocate(kHole).value());
    ASSERT_TRUE(best.allocate(kBlock));
  }
  for (const std::uint64_t hole : holes) ASSERT_TRUE(best.release(hole));
  EXPECT_TRUE(fails_with(best.allocate(kWanted), Code::kOutOfMemory));
}

TEST_P(DefragmentTest, RunsBesideThreadsThatAllocateAndUse) {
  const auto memory = make(64);
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> wrong{0};
  const std::uint64_t seed = test::seed();
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 3; ++number)
    threads.emplace_back([&, number] {
      std::mt19937_64 random(seed + number);
      std::map<std::uint8_t, Buffer> mine;
      for (int i = 0; i < 400; ++i) {
        const auto id = static_cast<std::uint8_t>(random() % 24 + number * 64);
        if (const auto found = mine.find(id); found != mine.end()) {
          if (!holds(found->second, id)) ++wrong;
          if (random() % 2 == 0) mine.erase(found);
        } else {
          const std::size_t bytes = 1 + random() % (random() % 8 == 0 ? kStep : kPart);
          auto made = Buffer::allocate(memory, u8, {bytes});
          if (!made || !made->copyin(pattern(bytes, id))) continue;
          if (random() % 16 == 0) static_cast<void>(made->native_handle());
          mine.emplace(id, *std::move(made));
        }
      }
      for (const auto& [id, buffer] : mine)
        if (!holds(buffer, id)) ++wrong;
    });
  std::size_t moved = 0;
  std::thread mover([&] {
    while (!stop) moved += memory->defragment({.max_bytes = 4 * kStep}).moved_count;
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  mover.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(memory->counters().used_bytes, 0u);
  memory->defragment();
  EXPECT_EQ(memory->counters().mapped_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(Devices, DefragmentTest, ::testing::Values("CPU", "CUDA", "LAGGING", "WEBGPU"),
                         [](const auto& each) { return std::string(each.param); });
INSTANTIATE_TEST_SUITE_P(Devices, DefragmentAddresses, ::testing::Values("CPU", "CUDA", "LAGGING"),
                         [](const auto& each) { return std::string(each.param); });
INSTANTIATE_TEST_SUITE_P(Devices, DefragmentInFlight, ::testing::Values("CUDA", "LAGGING", "WEBGPU"),
                         [](const auto& each) { return std::string(each.param); });

TEST(Defragment, LeavesABufferWhoseHostPointerWasGivenOut) {
  const auto memory = make_growable(device("CPU").value(), {.reserve_bytes = 32 << 20, .step_bytes = 4096}).value();
  std::vector<Buffer> all;
  for (int i = 0; i < 48; ++i) all.push_back(filled(memory, 1024, static_cast<std::uint8_t>(i)));
  std::vector<Buffer> kept;
  for (std::size_t i = 1; i < all.size(); i += 4) kept.push_back(all[i]);
  const auto slice = kept[2].as_slice<std::uint8_t>().value();
  const auto bytes = kept[4].as_host_bytes_mut().value();
  void* const raw = kept[6].as_raw_ptr();
  ASSERT_TRUE(kept[8].view(0, 1).value().item<std::uint8_t>()) << "a copy of an element keeps nothing in place";
  {
    const Window scoped = kept[10].window().value();
    EXPECT_EQ(scoped.host_bytes().size(), 1024u);
  }
  all.clear();
  const DefragmentResult result = memory->defragment();
  EXPECT_EQ(result.held.count, 3u) << to_string(result);
  EXPECT_EQ(result.moved_count, kept.size() - 3);
  EXPECT_EQ(kept[2].as_slice<std::uint8_t>()->data(), slice.data());
  EXPECT_EQ(kept[4].as_host_bytes()->data(), bytes.data());
  EXPECT_EQ(kept[6].as_raw_ptr(), raw);
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(holds(kept[i], static_cast<std::uint8_t>(4 * i + 1)));
}

TEST(Defragment, KeepsTheAlignmentOfABuffer) {
  const auto memory = make_growable(device("CPU").value(), {.reserve_bytes = 32 << 20, .step_bytes = 4096}).value();
  std::vector<Buffer> kept, holes;
  for (std::uint8_t i = 0; i < 40; ++i) {
    holes.push_back(filled(memory, 700 + 300 * (i % 3), 0));
    kept.push_back(Buffer::allocate(memory, u8, {900}, {.alignment = std::size_t{64} << (i % 7)}).value());
    kept.back().copyin(pattern(900, i)).value();
  }
  holes.clear();
  EXPECT_GT(memory->defragment().moved_count, 10u);
  for (std::uint8_t i = 0; i < 40; ++i) {
    EXPECT_TRUE(holds(kept[i], i));
    EXPECT_EQ(kept[i].native_handle() % (std::size_t{64} << (i % 7)), 0u);
  }
}

class DefragmentOnDouble : public cuda_test::CudaDoubleTest {};

// Every call that the driver gets during a pass fails once.
TEST_F(DefragmentOnDouble, LosesNothingWhicheverCallFails) {
  std::uint64_t calls = 0, moved = 0;
  for (std::uint64_t nth = 0; nth <= calls; ++nth) {
    const DevicePtr gpu = device("CUDA").value();
    const auto memory = make_growable(gpu, {.reserve_bytes = 64 * kStep, .step_bytes = kStep}).value();
    std::vector<Buffer> kept, holes;
    for (std::uint8_t i = 0; i < 6; ++i) {
      holes.push_back(filled(memory, kStep / 3, 200));
      kept.push_back(filled(memory, i % 2 == 0 ? kStep : kPart, i));
    }
    holes.clear();
    cuda_double().clear_calls();
    if (nth > 0) cuda_double().fail(nullptr, nth, 999, 0);
    const DefragmentResult result = memory->defragment();
    cuda_double().stop_failing();
    if (nth == 0) calls = cuda_double().calls(nullptr);
    moved += result.moved_count;
    EXPECT_EQ(result.failed.count != 0, result.error.has_value());
    for (std::uint8_t i = 0; i < 6; ++i) ASSERT_TRUE(holds(kept[i], i)) << "call " << nth;
    const DefragmentResult again = memory->defragment();
    EXPECT_FALSE(again.error.has_value()) << to_string(again);
    for (std::uint8_t i = 0; i < 6; ++i) ASSERT_TRUE(holds(kept[i], i)) << "call " << nth;
    EXPECT_EQ(memory->counters().mapped_bytes, gpu->counters().live_bytes);
  }
  EXPECT_GT(calls, 10u);
  EXPECT_GT(moved, calls);
}

// A copy that overlaps its new place fails in the middle, and so does the second try.
TEST_F(DefragmentOnDouble, CompletesAMoveLaterIfTheDriverRefusesItTwice) {
  const DevicePtr gpu = device("CUDA").value();
  const auto memory = make_growable(gpu, {.reserve_bytes = 64 * kStep, .step_bytes = kStep}).value();
  std::optional<Buffer> hole = filled(memory, kStep, 200);
  const Buffer large = filled(memory, 4 * kStep, 1);
  std::optional<Buffer> dropped = filled(memory, kPart, 2);
  hole.reset();
  // The third call, and the two after it.
  for (int i = 0; i < 3; ++i) cuda_double().fail("cuMemcpyDtoDAsync", 3, 999, 0);
  const DefragmentResult result = memory->defragment({.pack_addresses = true});
  EXPECT_EQ(result.failed.count, 1u) << to_string(result);
  EXPECT_TRUE(result.error.has_value());
  Bytes seen(large.size());
  EXPECT_FALSE(large.copyout(seen).has_value()) << "the driver still refuses";
  cuda_double().stop_failing();
  EXPECT_TRUE(holds(large, 1)) << "the next use completes the move";
  EXPECT_TRUE(holds(*dropped, 2));
  dropped.reset();
  memory->defragment();
  EXPECT_EQ(memory->counters().used_bytes, 4 * kStep);
}

TEST_F(DefragmentOnDouble, FreesABufferWhoseMoveIsUnfinished) {
  const DevicePtr gpu = device("CUDA").value();
  const auto memory = make_growable(gpu, {.reserve_bytes = 64 * kStep, .step_bytes = kStep}).value();
  std::optional<Buffer> hole = filled(memory, kStep, 200);
  std::optional<Buffer> large = filled(memory, 4 * kStep, 1);
  hole.reset();
  for (int i = 0; i < 2; ++i) cuda_double().fail("cuMemcpyDtoDAsync", 2, 999, 0);
  EXPECT_EQ(memory->defragment({.pack_addresses = true}).failed.count, 1u);
  cuda_double().stop_failing();
  large.reset();
  EXPECT_EQ(memory->counters().used_bytes, 0u);
  memory->defragment();
  EXPECT_EQ(memory->counters().mapped_bytes, 0u);
}

}  // namespace
}  // namespace berth
