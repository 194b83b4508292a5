#include "berth/alloc/offset_allocator.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace berth {
namespace {

OffsetAllocator heap_of(std::uint64_t capacity, std::uint64_t granule = 64) {
  return OffsetAllocator::make(capacity, granule).value();
}

TEST(OffsetAllocator, HandsOutTheWholeCapacityInOnePiece) {
  for (const std::uint64_t capacity : {64u, 128u, 2112u, 6400u, 1000000u, 1u << 30}) {
    OffsetAllocator heap = heap_of(capacity);
    EXPECT_EQ(heap.allocate(heap.capacity()).value(), 0u) << capacity;
    EXPECT_EQ(heap.used(), heap.capacity());
    EXPECT_EQ(heap.counters().largest_free, 0u);
    EXPECT_TRUE(heap.check());
  }
}

TEST(OffsetAllocator, NeverHandsOutATailShorterThanItsGranule) {
  OffsetAllocator heap = heap_of(1000, 256);
  EXPECT_EQ(heap.capacity(), 768u);
  EXPECT_EQ(heap.allocate(769).error().code(), Code::kOutOfMemory);
  EXPECT_TRUE(heap.allocate(768));
}

TEST(OffsetAllocator, GivesAZeroByteAllocationAnOffsetOfItsOwn) {
  OffsetAllocator heap = heap_of(1024);
  const auto a = heap.allocate(0).value();
  const auto b = heap.allocate(0).value();
  EXPECT_NE(a, b);
  EXPECT_TRUE(heap.release(a));
  EXPECT_TRUE(heap.release(b));
  EXPECT_EQ(heap.used(), 0u);
}

TEST(OffsetAllocator, RefusesAGranuleThatIsNotAPowerOfTwo) {
  EXPECT_EQ(OffsetAllocator::make(1024, 48).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(OffsetAllocator::make(1024, 0).error().code(), Code::kInvalidArgument);
}

TEST(OffsetAllocator, RefusesMoreGranulesThanItHasClassesFor) {
  EXPECT_EQ(OffsetAllocator::make(std::uint64_t{1} << 37, 1).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(OffsetAllocator::make((std::uint64_t{1} << 37) - 1, 1));
}

TEST(OffsetAllocator, RefusesAnAlignmentThatIsNotAPowerOfTwoAndChangesNothing) {
  OffsetAllocator heap = heap_of(1024);
  EXPECT_EQ(heap.allocate(64, 96).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(heap.allocate(64, 0).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(heap.used(), 0u);
}

TEST(OffsetAllocator, SaysHowMuchWasFreeWhenItRefuses) {
  OffsetAllocator heap = heap_of(4096);
  const auto a = heap.allocate(1024).value();
  ASSERT_TRUE(heap.allocate(1024));
  ASSERT_TRUE(heap.allocate(2048));
  ASSERT_TRUE(heap.release(a));
  const auto refused = heap.allocate(2048, 128);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kOutOfMemory);
  EXPECT_EQ(refused.error().message(),
            "asked for 2.0 KiB aligned to 128, but of 1.0 KiB free bytes the longest range has 1.0 KiB");
}

TEST(OffsetAllocator, RefusesSizesNearTheEndOfTheNumberRange) {
  OffsetAllocator heap = heap_of(1 << 20);
  EXPECT_EQ(heap.allocate(~std::uint64_t{0}).error().code(), Code::kOutOfMemory);
  EXPECT_EQ(heap.allocate(64, std::uint64_t{1} << 63).value(), 0u);
  EXPECT_EQ(heap.allocate(64, std::uint64_t{1} << 63).error().code(), Code::kOutOfMemory);
  EXPECT_EQ(heap.padded(~std::uint64_t{0}), ~std::uint64_t{0});
  EXPECT_TRUE(heap.check());
}

TEST(OffsetAllocator, RefusesASecondReleaseOfTheSameOffset) {
  OffsetAllocator heap = heap_of(4096);
  const auto a = heap.allocate(100).value();
  ASSERT_TRUE(heap.release(a));
  const auto again = heap.release(a);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), Code::kNotOwned);
  EXPECT_NE(again.error().message().find("released twice"), std::string::npos);
  EXPECT_TRUE(heap.check());
}

TEST(OffsetAllocator, RefusesAnOffsetThatIsNotTheStartOfAnAllocation) {
  OffsetAllocator heap = heap_of(4096);
  ASSERT_EQ(heap.allocate(256).value(), 0u);
  EXPECT_EQ(heap.release(64).error().code(), Code::kNotFound);
  EXPECT_EQ(heap.release(3).error().code(), Code::kNotFound);
  EXPECT_EQ(heap.release(1 << 20).error().code(), Code::kNotFound);
  EXPECT_EQ(heap.size_of(64).error().code(), Code::kNotFound);
  EXPECT_EQ(heap.size_of(0).value(), 256u);
  EXPECT_EQ(heap.used(), 256u);
}

TEST(OffsetAllocator, MergesWithBothNeighboursInEveryOrderOfRelease) {
  std::vector<int> order = {0, 1, 2};
  do {
    OffsetAllocator heap = heap_of(3 * 640);
    std::vector<std::uint64_t> offsets;
    for (int i = 0; i < 3; ++i) offsets.push_back(heap.allocate(640).value());
    for (const int i : order) ASSERT_TRUE(heap.release(offsets[static_cast<std::size_t>(i)]));
    EXPECT_EQ(heap.counters().free_ranges, 1u);
    EXPECT_EQ(heap.counters().largest_free, 3u * 640);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(OffsetAllocator, KeepsWhatAlignmentSkipsForLater) {
  OffsetAllocator heap = heap_of(8192);
  ASSERT_EQ(heap.allocate(64).value(), 0u);
  EXPECT_EQ(heap.allocate(4096, 4096).value(), 4096u);
  EXPECT_EQ(heap.allocate(4096 - 64).value(), 64u);
  EXPECT_EQ(heap.used(), 8192u);
}

TEST(OffsetAllocator, StartsAnewAfterReset) {
  OffsetAllocator heap = heap_of(4096);
  const auto a = heap.allocate(128).value();
  heap.reset();
  EXPECT_EQ(heap.release(a).error().code(), Code::kNotOwned);
  EXPECT_EQ(heap.allocate(4096).value(), 0u);
}

TEST(OffsetAllocator, ManagesNothingWhenTheCapacityIsZero) {
  OffsetAllocator heap = heap_of(0);
  EXPECT_EQ(heap.allocate(0).error().code(), Code::kOutOfMemory);
  EXPECT_EQ(heap.release(0).error().code(), Code::kNotFound);
  EXPECT_TRUE(heap.check());
}

// The model: a sorted list of live ranges. It knows what is free, and nothing of classes.
class Model {
 public:
  explicit Model(std::uint64_t capacity) : capacity_(capacity) {}
  bool is_free(std::uint64_t offset, std::uint64_t bytes) const {
    if (offset + bytes > capacity_) return false;
    const auto after = live_.lower_bound(offset);
    if (after != live_.end() && after->first < offset + bytes) return false;
    return after == live_.begin() || std::prev(after)->first + std::prev(after)->second <= offset;
  }
  std::uint64_t longest_free() const {
    std::uint64_t end = 0, longest = 0;
    for (const auto& [offset, bytes] : live_) {
      longest = std::max(longest, offset - end);
      end = offset + bytes;
    }
    return std::max(longest, capacity_ - end);
  }
  std::uint64_t used() const {
    std::uint64_t sum = 0;
    for (const auto& [offset, bytes] : live_) sum += bytes;
    return sum;
  }
  std::map<std::uint64_t, std::uint64_t> live_;
  std::uint64_t capacity_;
};

struct Call {
  bool release;
  std::uint64_t a;  // size, or which live allocation
  unsigned align_bits;
};

RC_GTEST_PROP(TlsfProperty, AgreesWithASimpleModel, ()) {
  const std::uint64_t granule = std::uint64_t{1} << *rc::gen::inRange(0, 9);
  const std::uint64_t capacity = *rc::gen::inRange<std::uint64_t>(0, 1 << 16) * granule;
  const auto calls = *rc::gen::container<std::vector<Call>>(rc::gen::build<Call>(
      rc::gen::set(&Call::release), rc::gen::set(&Call::a, rc::gen::inRange<std::uint64_t>(0, 1 << 14)),
      rc::gen::set(&Call::align_bits, rc::gen::inRange(0u, 15u))));
  OffsetAllocator heap = OffsetAllocator::make(capacity, granule).value();
  OffsetAllocator twin = heap;
  Model model(heap.capacity());
  for (const Call& call : calls) {
    if (call.release) {
      if (model.live_.empty() || call.a % 7 == 0) {
        // An offset out of thin air: refused with the code that the model expects.
        const std::uint64_t offset = call.a * granule / 2;
        if (model.live_.contains(offset)) continue;
        const auto refused = heap.release(offset);
        RC_ASSERT(!refused);
        const bool free_now = offset < heap.capacity() && model.is_free(offset, 1);
        RC_ASSERT(refused.error().code() == (free_now ? Code::kNotOwned : Code::kNotFound));
      } else {
        const auto chosen = std::next(model.live_.begin(), static_cast<long>(call.a % model.live_.size()));
        RC_ASSERT(heap.size_of(chosen->first).value() == chosen->second);
        RC_ASSERT(heap.release(chosen->first).has_value());
        RC_ASSERT(twin.release(chosen->first).has_value());
        model.live_.erase(chosen);
      }
    } else {
      const std::uint64_t bytes = call.a * granule / 8;
      const std::uint64_t alignment = std::uint64_t{1} << call.align_bits;
      const std::uint64_t longest = model.longest_free();
      const auto offset = heap.allocate(bytes, alignment);
      const auto same = twin.allocate(bytes, alignment);
      RC_ASSERT(offset.has_value() == same.has_value());
      if (offset) {
        RC_ASSERT(*offset == *same);
        RC_ASSERT(*offset % alignment == 0u);
        const std::uint64_t held = heap.size_of(*offset).value();
        RC_ASSERT(held >= bytes);
        RC_ASSERT(held < bytes + 2 * granule);
        RC_ASSERT(model.is_free(*offset, held));
        model.live_[*offset] = held;
      } else {
        RC_ASSERT(offset.error().code() == Code::kOutOfMemory);
        RC_ASSERT(longest < heap.padded(bytes, alignment));
      }
    }
    RC_ASSERT(heap.check().has_value());
    RC_ASSERT(heap.used() == model.used());
    RC_ASSERT(heap.allocations() == model.live_.size());
    RC_ASSERT(heap.counters().largest_free == model.longest_free());
  }
  for (const auto& [offset, bytes] : model.live_) RC_ASSERT(heap.release(offset).has_value());
  RC_ASSERT(heap.counters().free_ranges == (heap.capacity() == 0 ? 0u : 1u));
}

RC_GTEST_PROP(TlsfProperty, ExtendsAndCutsLikeASimpleModel, (std::uint32_t seed)) {
  std::mt19937 random(seed);
  const std::uint64_t granule = std::uint64_t{1} << random() % 9;
  OffsetAllocator heap = OffsetAllocator::make(4096 * granule, granule).value();
  Model model(heap.capacity());
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t bytes = (1 + random() % 64) * granule;
    if (model.live_.empty() || random() % 3 == 0) {
      if (const auto offset = heap.allocate(bytes)) model.live_[*offset] = bytes;
    } else {
      const auto chosen = std::next(model.live_.begin(), static_cast<long>(random() % model.live_.size()));
      const auto [offset, size] = *chosen;
      if (random() % 3 == 0) {
        RC_ASSERT(heap.release(offset).has_value());
        model.live_.erase(chosen);
      } else if (random() % 2 == 0) {
        const std::uint64_t end =
            chosen == model.live_.begin() ? 0 : std::prev(chosen)->first + std::prev(chosen)->second;
        RC_ASSERT(heap.free_before(offset).value() == offset - end);
        const auto extended = heap.extend_down(offset, bytes);
        RC_ASSERT(extended.has_value() == (bytes <= offset - end));
        if (extended) {
          RC_ASSERT(*extended == offset - bytes);
          model.live_.erase(chosen);
          model.live_[*extended] = size + bytes;
        }
      } else {
        const std::uint64_t front = random() % 32 * granule, back = random() % 32 * granule;
        const auto rest = heap.cut(offset, front, back);
        RC_ASSERT(rest.has_value() == (front + back < size));
        if (rest) {
          RC_ASSERT(*rest == offset + front);
          model.live_.erase(chosen);
          model.live_[*rest] = size - front - back;
        }
      }
    }
    RC_ASSERT(heap.check().has_value());
    RC_ASSERT(heap.used() == model.used());
    RC_ASSERT(heap.allocations() == model.live_.size());
    RC_ASSERT(heap.counters().largest_free == model.longest_free());
  }
  RC_ASSERT(!heap.free_before(heap.capacity()).has_value());
  RC_ASSERT(!heap.extend_down(heap.capacity(), 0).has_value());
  RC_ASSERT(!heap.cut(heap.capacity(), 0, 0).has_value());
}

TEST(OffsetAllocator, StaysSoundOverALongMixedRun) {
  OffsetAllocator heap = heap_of(std::uint64_t{64} << 20);
  std::vector<std::uint64_t> live;
  std::uint64_t state = 7;
  const auto next = [&state] { return state = state * 6364136223846793005ull + 1442695040888963407ull, state >> 33; };
  for (int i = 0; i < 20000; ++i) {
    if (live.size() > 700 || (!live.empty() && next() % 3 == 0)) {
      const std::size_t at = next() % live.size();
      ASSERT_TRUE(heap.release(live[at]));
      live[at] = live.back();
      live.pop_back();
    } else if (const auto offset = heap.allocate(next() % 200000, std::uint64_t{1} << (next() % 13))) {
      live.push_back(*offset);
    }
  }
  ASSERT_TRUE(heap.check());
  EXPECT_GE(heap.counters().peak, heap.used());
  for (const auto offset : live) ASSERT_TRUE(heap.release(offset));
  EXPECT_EQ(heap.counters().largest_free, heap.capacity());
}

}  // namespace
}  // namespace berth
