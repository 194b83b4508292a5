// The linear allocator: what it adds to what the conformance suite checks of all.
#include "berth/alloc/linear.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <latch>
#include <thread>

#include "berth/alloc/caching_pool.h"
#include "berth/alloc/limit.h"
#include "berth/alloc/statistics.h"
#include "berth/berth.h"
#include "doubles/cuda/cuda_testing.h"
#include "doubles/lagging_device.h"
#include "support/support.h"

namespace berth {
namespace {

using test::counting_bytes;
using test::fails_with;

constexpr std::size_t kSlab = 4096;

std::shared_ptr<LinearMemory> linear_on_cpu() {
  return make_linear(device("CPU").value(), {.slab_bytes = kSlab});
}

// A timepoint of work that uses the block.
Timepoint use_of(Queue& queue, const Block& block) {
  EXPECT_TRUE(queue.fill({.block = block, .bytes = block.bytes, .device = &queue.device()}, 1));
  return queue.submit().value();
}

TEST(Linear, HandsOutTheBytesOfASlabOneAfterAnother) {
  const auto linear = linear_on_cpu();
  const Block a = linear->allocate({.bytes = 100, .alignment = 1}).value();
  const Block b = linear->allocate({.bytes = 10, .alignment = 1}).value();
  const Block c = linear->allocate({.bytes = 1, .alignment = 512}).value();
  EXPECT_EQ(b.handle, a.handle + 128) << "the next multiple of 64";
  EXPECT_EQ(c.handle % 512, 0u);
  EXPECT_GE(c.handle, b.handle + 64);
  EXPECT_LT(c.handle, b.handle + 64 + 512);
  EXPECT_EQ(linear->counters().live_bytes, 111u);
  EXPECT_EQ(linear->counters().live_count, 3u);
  EXPECT_EQ(linear->counters().slabs, 1u);
  EXPECT_EQ(linear->counters().held_bytes, kSlab);
  for (const Block& block : {c, b, a}) linear->release(block);
}

TEST(Linear, UsesTheLastBytesOfASlabOfAnySize) {
  for (const std::size_t slab : {64, 192, 320, 4032}) {
    const auto linear = make_linear(device("CPU").value(), {.slab_bytes = slab});
    for (int round = 0; round < 3; ++round) {
      linear->release(linear->allocate({.bytes = slab, .alignment = 1}).value());
      EXPECT_TRUE(linear->reset().has_value());
      EXPECT_EQ(linear->counters().held_bytes, slab) << "round " << round;
    }
  }
}

TEST(Linear, MovesBackWhenTheNewestBlockIsReleased) {
  const auto linear = linear_on_cpu();
  const Block kept = linear->allocate({.bytes = 64}).value();
  const Block a = linear->allocate({.bytes = 64}).value();
  linear->release(a);
  const Block b = linear->allocate({.bytes = 64}).value();
  EXPECT_EQ(b.handle, a.handle);
  EXPECT_EQ(linear->counters().out_of_order, 0u);
  linear->release(b);
  linear->release(kept);
}

TEST(Linear, CountsReleasesOutOfOrderAndGivesTheirBytesBackAtTheReset) {
  const auto linear = linear_on_cpu();
  const Block kept = linear->allocate({.bytes = 64}).value();
  const LinearMemory::Mark mark = linear->mark();
  const Block a = linear->allocate({.bytes = 100}).value();
  const Block b = linear->allocate({.bytes = 200}).value();
  linear->release(a);
  EXPECT_EQ(linear->counters().waiting_count, 1u);
  EXPECT_EQ(linear->counters().waiting_bytes, 100u);
  EXPECT_EQ(linear->counters().out_of_order, 1u);
  const Block c = linear->allocate({.bytes = 8}).value();
  EXPECT_GT(c.handle, b.handle) << "the bytes of a wait";
  linear->release(c);
  linear->release(b);
  ASSERT_TRUE(linear->reset(mark));
  EXPECT_EQ(linear->counters().waiting_count, 0u);
  EXPECT_EQ(linear->counters().waiting_bytes, 0u);
  EXPECT_EQ(linear->counters().out_of_order, 1u);
  EXPECT_EQ(linear->counters().peak_bytes, 64u + 300u);
  const Block d = linear->allocate({.bytes = 100}).value();
  EXPECT_EQ(d.handle, a.handle);
  linear->release(d);
  linear->release(kept);
}

TEST(Linear, GoesBackByItselfWhenTheLastBlockSinceTheMarkIsReleased) {
  const auto linear = linear_on_cpu();
  const Block a = linear->allocate({.bytes = 100}).value();
  const Block b = linear->allocate({.bytes = 100}).value();
  linear->release(a);
  linear->release(b);
  const Block c = linear->allocate({.bytes = 100}).value();
  EXPECT_EQ(c.handle, a.handle);
  linear->release(c);
}

TEST(Linear, RefusesAResetWhileABlockAfterTheMarkIsLive) {
  const auto linear = linear_on_cpu();
  const Block before = linear->allocate({.bytes = 64}).value();
  const LinearMemory::Mark mark = linear->mark();
  const Block after = linear->allocate({.bytes = 64}).value();
  const LinearMemory::Mark later = linear->mark();
  ASSERT_TRUE(fails_with(linear->reset(mark), Code::kInvalidUsage));
  EXPECT_NE(linear->reset(mark).error().message().find("1 blocks"), std::string::npos);
  EXPECT_TRUE(linear->reset(later)) << "a refused reset passes no mark";
  linear->release(after);
  EXPECT_TRUE(linear->reset(mark)) << "a block before the mark may live";
  EXPECT_TRUE(fails_with(linear->reset(), Code::kInvalidUsage));
  linear->release(before);
  EXPECT_TRUE(linear->reset());
}

TEST(Linear, RefusesAMarkThatAResetHasPassed) {
  const auto linear = linear_on_cpu();
  const Block a = linear->allocate({.bytes = 64}).value();
  const LinearMemory::Mark early = linear->mark();
  const Block b = linear->allocate({.bytes = 64}).value();
  const LinearMemory::Mark late = linear->mark();
  linear->release(b);
  ASSERT_TRUE(linear->reset(early));
  EXPECT_TRUE(fails_with(linear->reset(late), Code::kInvalidUsage));
  // Another mark at the same depth is another mark.
  const Block c = linear->allocate({.bytes = 64}).value();
  const LinearMemory::Mark again = linear->mark();
  EXPECT_EQ(again.level, late.level);
  EXPECT_TRUE(fails_with(linear->reset(late), Code::kInvalidUsage));
  EXPECT_TRUE(linear->reset(again));
  linear->release(c);
  linear->release(a);
}

TEST(Linear, NeedsNoNewMemoryForTheSameRequestsAfterAReset) {
  const auto below = make_statistics(device("CPU").value());
  const auto linear = make_linear(below, {.slab_bytes = kSlab});
  std::vector<std::uint64_t> first;
  for (int round = 0; round < 5; ++round) {
    const LinearMemory::Mark mark = linear->mark();
    EXPECT_EQ(mark.level, 0u) << "marks of one position are one";
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < 40; ++i) {
      blocks.push_back(linear->allocate({.bytes = 100 + i * 50}).value());
      if (round == 0)
        first.push_back(blocks.back().handle);
      else
        EXPECT_EQ(blocks.back().handle, first[i]);
    }
    for (const Block& block : blocks) linear->release(block);
    ASSERT_TRUE(linear->reset(mark));
    if (round > 0) {
      EXPECT_EQ(below->counters().allocations, linear->counters().slabs);
    }
  }
  EXPECT_GT(linear->counters().slabs, 5u);
}

TEST(Linear, GivesALargeRequestASlabOfItsOwnSize) {
  const auto linear = linear_on_cpu();
  const Block small = linear->allocate({.bytes = 10}).value();
  const Block large = linear->allocate({.bytes = 10 * kSlab, .alignment = 4096}).value();
  EXPECT_EQ(large.bytes, 10 * kSlab);
  EXPECT_EQ(linear->counters().held_bytes, 11 * kSlab);
  linear->release(large);
  linear->release(small);
}

TEST(Linear, AsksForTheRequestAloneWhereASlabDoesNotFit) {
  const auto capped = make_limit(device("CPU").value(), 5000);
  const auto linear = make_linear(capped, {.slab_bytes = 4096});
  const Block first = linear->allocate({.bytes = 4000}).value();
  const auto second = linear->allocate({.bytes = 800});
  ASSERT_TRUE(second.has_value()) << second.error().message();
  const auto third = linear->allocate({.bytes = 800});
  ASSERT_TRUE(fails_with(third, Code::kOutOfMemory));
  EXPECT_EQ(linear->counters().live_count, 2u) << "a refusal changes nothing";
  linear->release(*second);
  linear->release(first);
}

TEST(Linear, DoesNotReuseBytesThatSubmittedWorkUses) {
  const auto lagging = doubles::LaggingDevice::make();
  const auto queue = lagging->lagging_queue();
  const auto linear = make_linear(lagging, {.slab_bytes = kSlab});
  const Block kept = linear->allocate({.bytes = 64}).value();
  const LinearMemory::Mark mark = linear->mark();
  const Block in_first = linear->allocate({.bytes = 64}).value();
  const Block in_second = linear->allocate({.bytes = kSlab}).value();
  const Timepoint use = use_of(*queue, in_second);
  linear->release(in_second, use);
  linear->release(in_first, use);
  ASSERT_TRUE(linear->reset(mark));
  EXPECT_EQ(linear->counters().set_aside_bytes, kSlab);
  EXPECT_EQ(linear->counters().waiting_bytes, 64 + kSlab) << "each once";
  EXPECT_EQ(linear->counters().waiting_count, 2u);
  const Block other = linear->allocate({.bytes = 64}).value();
  const Block another = linear->allocate({.bytes = kSlab}).value();
  for (const Block& block : {other, another})
    for (const Block& used : {in_first, in_second})
      EXPECT_TRUE(block.handle + block.bytes <= used.handle || used.handle + used.bytes <= block.handle);
  linear->release(another);
  linear->release(other);
  queue->reach(use);
  ASSERT_TRUE(linear->reset(mark));
  const Block again = linear->allocate({.bytes = 64}).value();
  EXPECT_EQ(again.handle, in_first.handle);
  linear->release(again);
  linear->release(kept);
  linear->trim();
  EXPECT_EQ(linear->counters().held_bytes, 0u);
}

TEST(Linear, KeepsSlabsUntilTheWorkOfSeveralQueuesIsOver) {
  const auto lagging = doubles::LaggingDevice::make();
  const auto one = lagging->lagging_queue();
  const auto two = lagging->lagging_queue();
  {
    const auto linear = make_linear(lagging, {.slab_bytes = kSlab});
    const Block a = linear->allocate({.bytes = 64}).value();
    const Block b = linear->allocate({.bytes = 64}).value();
    const Timepoint first = use_of(*one, a);
    const Timepoint second = use_of(*two, b);
    linear->release(a, first);
    linear->release(b, second);
    ASSERT_TRUE(linear->reset());
    one->reach(first);
    linear->trim();
    EXPECT_EQ(linear->counters().held_bytes, kSlab) << "the other queue still uses it";
    two->reach(second);
    linear->trim();
    EXPECT_EQ(linear->counters().held_bytes, 0u);
    // And once more, for the destructor.
    const Block c = linear->allocate({.bytes = 64}).value();
    linear->release(c, use_of(*one, c));
  }
  EXPECT_GT(lagging->counters().live_bytes, 0u) << "the device frees it when the work is over";
  one->reach_all();
  ASSERT_TRUE(lagging->synchronize());
  EXPECT_EQ(lagging->counters().live_bytes, 0u);
}

TEST(Linear, KeepsMemoryOfEachHostAccessApartOnCuda) {
  const cuda_test::CudaChoice choice;
  {
    const auto linear = make_linear(device("CUDA").value(), {.slab_bytes = std::size_t{1} << 20});
    std::vector<Buffer> buffers;
    for (int i = 0; i < 6; ++i) {
      const HostAccess host = i % 2 == 0 ? HostAccess::kNone : HostAccess::kRequired;
      auto buffer = Buffer::allocate(linear, u8, {1000}, {.host = host});
      ASSERT_TRUE(buffer) << buffer.error().message();
      ASSERT_TRUE(buffer->copyin(counting_bytes(1000, static_cast<std::size_t>(i))));
      buffers.push_back(*std::move(buffer));
    }
    EXPECT_EQ(linear->counters().slabs, 2u);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      std::vector<std::byte> seen(1000);
      ASSERT_TRUE(buffers[i].copyout(seen));
      EXPECT_EQ(seen, counting_bytes(1000, i));
      EXPECT_EQ(buffers[i].as_host_bytes().has_value(), i % 2 == 1);
    }
  }
  if (cuda_test::on_real_gpu()) return;
  for (const std::string& text : cuda_test::cuda_violations()) ADD_FAILURE() << text;
  EXPECT_EQ(cuda_test::cuda_double().live_objects(), 0u);
}

TEST(Linear, GivesWholeBlocksWhereBlocksAreObjects) {
  auto webgpu = device("WEBGPU");
  if (!webgpu) GTEST_SKIP() << webgpu.error().message();
  const auto pool = make_caching_pool(*webgpu);
  const auto linear = make_linear(pool);
  const Block kept = linear->allocate({.bytes = 64}).value();
  const LinearMemory::Mark mark = linear->mark();
  const Block a = linear->allocate({.bytes = 1000}).value();
  EXPECT_TRUE(fails_with(linear->reset(mark), Code::kInvalidUsage));
  linear->release(a);
  ASSERT_TRUE(linear->reset(mark));
  EXPECT_EQ(linear->counters().live_bytes, 64u);
  EXPECT_EQ(linear->counters().peak_bytes, 1064u);
  EXPECT_EQ(linear->counters().slabs, 0u);
  const Block b = linear->allocate({.bytes = 1000}).value();
  EXPECT_EQ(b.handle, a.handle) << "the pool below keeps it";
  linear->release(b);
  linear->release(kept);
}

TEST(Linear, HandsOutPartsOfObjectsToBuffers) {
  auto webgpu = device("WEBGPU");
  if (!webgpu) GTEST_SKIP() << webgpu.error().message();
  const std::size_t before = (*webgpu)->counters().live_count;
  {
    const auto linear = make_linear(*webgpu, {.slab_bytes = 1 << 16});
    const auto place = [](const Buffer& buffer) {
      const Window window = buffer.window().value();
      return std::pair(window.block.handle, window.offset);
    };
    const Buffer kept = Buffer::allocate(linear, u8, {100}, {.zero = true}).value();
    const auto [object, begin] = place(kept);
    EXPECT_EQ(begin, 0u);
    EXPECT_EQ(kept.native_handle(), 0u) << "the object has other buffers too";
    const LinearMemory::Mark mark = linear->mark();
    for (int round = 0; round < 3; ++round) {
      std::vector<Buffer> parts;
      for (std::size_t i = 0; i < 20; ++i) {
        parts.push_back(Buffer::allocate(linear, u8, {100 + i}).value());
        EXPECT_EQ(place(parts.back()), std::pair(object, 256 * (i + 1))) << "one after another, in every round";
        parts.back().copyin(std::vector<std::byte>(100 + i, std::byte(i + 1))).value();
      }
      for (std::size_t i = 0; i < parts.size(); ++i) {
        std::vector<std::byte> seen(100 + i);
        parts[i].copyout(seen).value();
        EXPECT_EQ(seen, std::vector<std::byte>(100 + i, std::byte(i + 1)));
      }
      EXPECT_TRUE(fails_with(linear->reset(mark), Code::kInvalidUsage)) << "live";
      EXPECT_EQ(linear->counters().slabs, 1u);
      EXPECT_EQ(linear->counters().live_count, 21u);
      parts.erase(parts.begin(), parts.begin() + 3);
      EXPECT_EQ(linear->counters().waiting_count, 3u) << "out of order";
      parts.clear();
      ASSERT_TRUE((*webgpu)->synchronize());
      ASSERT_TRUE(linear->reset(mark));
    }
    EXPECT_EQ((*webgpu)->counters().live_count, before + 1) << "one object serves them all";
    const Buffer large = Buffer::allocate(linear, u8, {std::size_t{1} << 20}).value();
    EXPECT_NE(place(large).first, object);
    const Buffer strict = Buffer::allocate(linear, u8, {100}, {.alignment = 4096}).value();
    EXPECT_NE(strict.native_handle(), 0u) << "an object of its own";
    std::vector<std::byte> zeros(100, std::byte{1});
    kept.copyout(zeros).value();
    EXPECT_EQ(zeros, std::vector<std::byte>(100));
  }
  EXPECT_EQ((*webgpu)->counters().live_count, before);
}

TEST(Linear, ServesOtherThreadsAfterItsOwner) {
  const auto linear = linear_on_cpu();
  const Block mine = linear->allocate({.bytes = 64}).value();
  std::vector<Block> theirs(4);
  // Whether nobody else wrote to a block while this thread had it.
  const auto is_own = [&](std::size_t bytes, unsigned char mark) {
    const Block block = linear->allocate({.bytes = bytes}).value();
    std::memset(block.host, mark, bytes);
    const bool own = std::all_of(block.host, block.host + bytes, [&](std::byte b) { return b == std::byte{mark}; });
    linear->release(block);
    return own;
  };
  std::latch all(static_cast<std::ptrdiff_t>(theirs.size()) + 1);
  std::atomic<std::size_t> at_work{theirs.size()};
  std::atomic<bool> apart{true};
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < theirs.size(); ++i)
      threads.emplace_back([&, i] {
        all.arrive_and_wait();
        for (int round = 0; round < 5000; ++round)
          if (!is_own(32, static_cast<unsigned char>(i + 1))) apart = false;
        theirs[i] = linear->allocate({.bytes = 32}).value();
        --at_work;
      });
    all.arrive_and_wait();
    // The owner does not stop before the others do.
    while (at_work.load() > 0)
      if (!is_own(48, 100)) apart = false;
  }
  EXPECT_TRUE(apart);
  EXPECT_EQ(linear->counters().live_count, 5u);
  for (const Block& block : theirs) linear->release(block);
  linear->release(mine);
  EXPECT_EQ(linear->counters().live_bytes, 0u);
  EXPECT_TRUE(linear->reset());
}

// Random calls against the definition: live blocks never overlap and keep their bytes, and a reset succeeds exactly if
// no block made after the mark is live.
RC_GTEST_PROP(LinearProperty, KeepsBlocksApartAndRefusesExactlyTheWrongResets, ()) {
  const auto lagging = doubles::LaggingDevice::make();
  const auto queue = lagging->lagging_queue();
  const auto linear = make_linear(lagging, {.slab_bytes = *rc::gen::inRange<std::size_t>(1, 3000)});
  struct Held {
    Block block;
    std::uint64_t order;
    std::byte fill;
  };
  struct Marked {
    LinearMemory::Mark mark;
    std::uint64_t order;
  };
  std::vector<Held> held;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> in_flight;  // bytes that the queue may still use
  std::vector<Marked> marks{{{}, 0}};
  std::uint64_t clock = 0;
  const auto calls = *rc::gen::container<std::vector<std::pair<int, std::uint32_t>>>(
      rc::gen::pair(rc::gen::inRange(0, 10), rc::gen::arbitrary<std::uint32_t>()));
  for (const auto& [kind, value] : calls) {
    ++clock;
    if (kind <= 3) {
      const auto made =
          linear->allocate({.bytes = value % 1500, .alignment = std::size_t{1} << value % 9, .zero = value % 7 == 0});
      RC_ASSERT(made.has_value());
      if (made->bytes == 0) continue;
      RC_ASSERT(made->handle % (std::size_t{1} << value % 9) == 0u);
      const std::uint64_t begin = made->handle, end = begin + made->bytes;
      for (const Held& each : held)
        RC_ASSERT(end <= each.block.handle || each.block.handle + each.block.bytes <= begin);
      for (const auto& [used, used_end] : in_flight) RC_ASSERT(end <= used || used_end <= begin);
      if (value % 7 == 0)
        RC_ASSERT(std::all_of(made->host, made->host + made->bytes, [](std::byte b) { return b == std::byte{0}; }));
      const auto fill = static_cast<std::byte>(value >> 8);
      std::memset(made->host, static_cast<int>(fill), made->bytes);
      held.push_back({*made, clock, fill});
    } else if (kind <= 6 && !held.empty()) {
      const std::size_t at = value % held.size();
      const Held gone = held[at];
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
      RC_ASSERT(std::all_of(gone.block.host, gone.block.host + gone.block.bytes,
                            [&](std::byte b) { return b == gone.fill; }));
      if (kind == 6) {
        in_flight.emplace_back(gone.block.handle, gone.block.handle + gone.block.bytes);
        linear->release(gone.block, use_of(*queue, gone.block));
      } else {
        linear->release(gone.block);
      }
    } else if (kind == 7) {
      marks.push_back({linear->mark(), clock});
    } else if (kind == 8) {
      const std::size_t at = value % marks.size();
      const bool is_free =
          std::none_of(held.begin(), held.end(), [&](const Held& each) { return each.order > marks[at].order; });
      const auto done = linear->reset(marks[at].mark);
      RC_ASSERT(done.has_value() == is_free);
      if (is_free) marks.resize(at + 1);
    } else if (kind == 9) {
      if (value % 3 == 0) {
        linear->trim(value % 5000);
      } else {
        queue->reach_all();
        in_flight.clear();
      }
    }
  }
  std::size_t live = 0;
  for (const Held& each : held) live += each.block.bytes;
  RC_ASSERT(linear->counters().live_bytes == live);
  RC_ASSERT(linear->counters().live_count == held.size());
  for (const Held& each : held) linear->release(each.block);
}

}  // namespace
}  // namespace berth
