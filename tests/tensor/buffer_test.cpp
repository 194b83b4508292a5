#include "berth/tensor/buffer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "berth/memory/registry.h"
#include "doubles/opaque_device.h"
#include "support/support.h"

namespace berth {
namespace {

using test::counting_bytes;
using test::fails_with;

DevicePtr cpu() {
  return device("CPU").value();
}

// Counts and can refuse: what lazy allocation is tested with.
class CountingAllocator final : public Allocator {
 public:
  explicit CountingAllocator(DevicePtr device) : device_(std::move(device)) {}
  Result<Block> allocate(const BlockSpec& spec) override {
    ++allocations;
    std::this_thread::yield();
    if (refuse) return Error(Code::kOutOfMemory, Layer::kAllocator, "refused");
    return device_->allocate(spec);
  }
  void release(const Block& block, Timepoint last_use) noexcept override {
    ++releases;
    device_->release(block, last_use);
  }
  Device& device() noexcept override { return *device_; }
  std::string_view name() const noexcept override { return "counting"; }

  std::atomic<int> allocations{0}, releases{0};
  std::atomic<bool> refuse{false};

 private:
  DevicePtr device_;
};

// Hides the host pointer: host memory that behaves as a device's own.
class DeviceOnlyAllocator final : public Allocator {
 public:
  Result<Block> allocate(const BlockSpec& spec) override {
    auto block = device_->allocate(spec);
    if (block) block->flags = BlockFlags::kNone;
    return block;
  }
  void release(const Block& block, Timepoint last_use) noexcept override { device_->release(block, last_use); }
  Device& device() noexcept override { return *device_; }
  std::string_view name() const noexcept override { return "device only"; }

 private:
  DevicePtr device_ = cpu();
};

// --- Identity ---

TEST(Buffer, GivesAViewItsOwnIdAndSharesTheStorageId) {
  const Buffer buffer = Buffer::allocate(cpu(), f32, {4, 4}).value();
  const Buffer copy = buffer;
  const Buffer view = buffer.view(16, 16).value();
  EXPECT_EQ(copy.id(), buffer.id());
  EXPECT_NE(view.id(), buffer.id());
  EXPECT_EQ(view.storage_id(), buffer.storage_id());
  EXPECT_NE(Buffer::allocate(cpu(), f32, {1}).value().storage_id(), buffer.storage_id());
}

TEST(Buffer, NeverReusesAnIdFromAnyThread) {
  std::vector<std::vector<std::uint64_t>> ids(4);
  {
    std::vector<std::jthread> threads;
    for (auto& mine : ids)
      threads.emplace_back([&mine] {
        for (int i = 0; i < 1000; ++i) {
          const Buffer buffer = Buffer::lazy(cpu(), u8, {1}).value();
          mine.push_back(buffer.id());
          mine.push_back(buffer.storage_id());
        }
      });
  }
  std::set<std::uint64_t> all;
  for (const auto& mine : ids) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), 8000u);
  EXPECT_FALSE(all.contains(0));
}

TEST(Buffer, KnowsWhetherItsStorageIsShared) {
  Buffer buffer = Buffer::allocate(cpu(), f32, {4}).value();
  EXPECT_TRUE(buffer.is_unique());
  {
    const Buffer view = buffer.view(0, 4).value();
    EXPECT_FALSE(buffer.is_unique());
  }
  EXPECT_TRUE(buffer.is_unique());
  const Buffer moved = std::move(buffer);
  EXPECT_TRUE(moved.is_unique());
}

TEST(Buffer, IsEmptyAfterBeingMovedFrom) {
  Buffer buffer = Buffer::allocate(cpu(), f32, {4}).value();
  const Buffer moved = std::move(buffer);
  EXPECT_EQ(buffer.id(), 0u);
  EXPECT_EQ(buffer.size(), 0u);
  EXPECT_FALSE(buffer.is_allocated());
  EXPECT_EQ(buffer.storage_id(), 0u);
  EXPECT_EQ(buffer.total_size(), 0u);
  EXPECT_EQ(buffer.allocator(), nullptr);
  EXPECT_FALSE(buffer.label());
  EXPECT_TRUE(buffer.synchronize());
  EXPECT_TRUE(fails_with(buffer.ensure_allocated(), Code::kNotAllocated));
  EXPECT_TRUE(fails_with(buffer.view(0, 0), Code::kInvalidView));
}

TEST(Buffer, CopyAssignsOverItselfWithoutHarm) {
  Buffer buffer = Buffer::allocate(cpu(), u8, {3}).value();
  const Buffer& same = buffer;
  buffer = same;
  EXPECT_TRUE(buffer.is_unique());
  EXPECT_EQ(buffer.size(), 3u);
}

// --- Lazy and immediate ---

TEST(Buffer, TakesNoMemoryUntilFirstUseWhenLazy) {
  auto allocator = std::make_shared<CountingAllocator>(cpu());
  const Buffer buffer = Buffer::lazy(allocator, f32, {8}).value();
  EXPECT_FALSE(buffer.is_allocated());
  EXPECT_EQ(allocator->allocations, 0);
  ASSERT_TRUE(buffer.ensure_allocated());
  EXPECT_TRUE(buffer.is_allocated());
  ASSERT_TRUE(buffer.ensure_allocated());
  EXPECT_EQ(allocator->allocations, 1);
}

TEST(Buffer, FailsAtOnceWhenImmediate) {
  auto allocator = std::make_shared<CountingAllocator>(cpu());
  allocator->refuse = true;
  EXPECT_TRUE(fails_with(Buffer::allocate(allocator, f32, {8}), Code::kOutOfMemory));
  EXPECT_EQ(allocator->releases, 0);
}

TEST(Buffer, StaysLazyAfterAFailedAllocationAndCanTryAgain) {
  auto allocator = std::make_shared<CountingAllocator>(cpu());
  allocator->refuse = true;
  const Buffer buffer = Buffer::lazy(allocator, f32, {8}).value();
  EXPECT_TRUE(fails_with(buffer.ensure_allocated(), Code::kOutOfMemory));
  EXPECT_FALSE(buffer.is_allocated());
  allocator->refuse = false;
  EXPECT_TRUE(buffer.ensure_allocated());
}

TEST(Buffer, AllocatesExactlyOnceWhenSixteenThreadsRaceToUseIt) {
  for (int round = 0; round < 50; ++round) {
    auto allocator = std::make_shared<CountingAllocator>(cpu());
    const Buffer buffer = Buffer::lazy(allocator, f32, {1024}).value();
    std::barrier start(16);
    std::atomic<void*> seen{nullptr};
    std::atomic<int> wrong{0};
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < 16; ++t)
        threads.emplace_back([&] {
          start.arrive_and_wait();
          if (!buffer.ensure_allocated()) ++wrong;
          void* mine = buffer.as_raw_ptr();
          void* expected = nullptr;
          if (!seen.compare_exchange_strong(expected, mine) && expected != mine) ++wrong;
        });
    }
    EXPECT_EQ(allocator->allocations, 1);
    EXPECT_EQ(wrong, 0);
  }
}

TEST(Buffer, LetsEveryRacingThreadFailWhenMemoryIsRefused) {
  auto allocator = std::make_shared<CountingAllocator>(cpu());
  allocator->refuse = true;
  const Buffer buffer = Buffer::lazy(allocator, f32, {1024}).value();
  std::atomic<int> failures{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&] {
        if (!buffer.ensure_allocated()) ++failures;
      });
  }
  EXPECT_EQ(failures, 8);
  EXPECT_FALSE(buffer.is_allocated());
}

TEST(Buffer, ReturnsItsBlockWhenTheLastHandleGoes) {
  auto allocator = std::make_shared<CountingAllocator>(cpu());
  {
    Buffer view;
    {
      const Buffer buffer = Buffer::allocate(allocator, f32, {8}).value();
      view = buffer.view(0, 4).value();
    }
    EXPECT_EQ(allocator->releases, 0);
  }
  EXPECT_EQ(allocator->releases, 1);
}

TEST(Buffer, ReturnsNothingWhenItWasNeverAllocated) {
  auto allocator = std::make_shared<CountingAllocator>(cpu());
  { const Buffer buffer = Buffer::lazy(allocator, f32, {8}).value(); }
  EXPECT_EQ(allocator->releases, 0);
}

TEST(Buffer, RefusesShapesThatOverflow) {
  const std::size_t huge = std::size_t{1} << 40;
  EXPECT_TRUE(fails_with(Buffer::lazy(cpu(), f32, {huge, huge}), Code::kInvalidArgument));
  EXPECT_TRUE(
      fails_with(Buffer::lazy(cpu(), f32, {std::numeric_limits<std::size_t>::max() / 2}), Code::kInvalidArgument));
  EXPECT_TRUE(Buffer::lazy(cpu(), f32, {huge, huge, 0}));
}

TEST(Buffer, RefusesAnAlignmentThatIsNoPowerOfTwo) {
  EXPECT_TRUE(fails_with(Buffer::lazy(cpu(), f32, {4}, {.alignment = 48}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(cpu()->allocate({.bytes = 64, .alignment = 48}), Code::kInvalidArgument));
}

TEST(Buffer, RefusesToBeMadeWithoutAnAllocator) {
  EXPECT_TRUE(fails_with(Buffer::lazy(nullptr, f32, {4}), Code::kInvalidArgument));
}

TEST(Buffer, SizesBlockQuantisedTypesInBlocks) {
  EXPECT_EQ(Buffer::lazy(cpu(), DType::kQ4_0, {32}).value().size(), 18u);
  EXPECT_EQ(Buffer::lazy(cpu(), DType::kQ6_K, {2, 256}).value().size(), 420u);
  EXPECT_EQ(Buffer::lazy(cpu(), DType::kQ4_0, {64}).value().element_count(), 64u);
  EXPECT_TRUE(fails_with(Buffer::lazy(cpu(), DType::kQ4_0, {33}), Code::kInvalidArgument));
}

TEST(Buffer, ZeroesFreshMemoryWhenAsked) {
  for (const std::size_t bytes : {std::size_t{1000}, std::size_t{3} << 20}) {
    {
      const Buffer dirty = Buffer::allocate(cpu(), u8, {bytes}).value();
      std::memset(dirty.as_raw_ptr(), 0xff, bytes);
    }
    const Buffer buffer = Buffer::allocate(cpu(), u8, {bytes}, {.zero = true}).value();
    for (const std::uint8_t byte : buffer.as_slice<std::uint8_t>().value()) ASSERT_EQ(byte, 0);
  }
}

TEST(Buffer, StartsAtTheAlignmentAskedFor) {
  for (const std::size_t alignment : {std::size_t{1}, std::size_t{64}, std::size_t{4096}, std::size_t{4} << 20})
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{100'000}, std::size_t{3} << 20}) {
      const Buffer buffer = Buffer::allocate(cpu(), u8, {bytes}, {.alignment = alignment}).value();
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.as_raw_ptr()) % std::max<std::size_t>(alignment, 64), 0u);
    }
}

// --- Views ---

TEST(Buffer, ComposesTheOffsetsOfAViewOfAView) {
  const Buffer buffer = Buffer::allocate(cpu(), u8, {100}).value();
  ASSERT_TRUE(buffer.copyin(counting_bytes(100)));
  const Buffer inner = buffer.view(10, 50).value().view(5, 20).value();
  EXPECT_EQ(inner.byte_offset(), 15u);
  EXPECT_EQ(inner.size(), 20u);
  EXPECT_EQ(inner.total_size(), 100u);
  EXPECT_EQ(inner.as_slice<std::uint8_t>().value()[0], 15);
}

TEST(Buffer, BoundsAViewByItsParentView) {
  const Buffer parent = Buffer::allocate(cpu(), u8, {100}).value().view(10, 50).value();
  EXPECT_TRUE(parent.view(0, 50));
  EXPECT_TRUE(fails_with(parent.view(0, 51), Code::kInvalidView));
  EXPECT_TRUE(fails_with(parent.view(51, 0), Code::kInvalidView));
  EXPECT_TRUE(parent.view(50, 0));
}

TEST(Buffer, RefusesViewsWhoseEndOverflows) {
  const Buffer buffer = Buffer::allocate(cpu(), u8, {100}).value();
  const std::size_t most = std::numeric_limits<std::size_t>::max();
  EXPECT_TRUE(fails_with(buffer.view(most, 2), Code::kInvalidView));
  EXPECT_TRUE(fails_with(buffer.view(2, most), Code::kInvalidView));
  EXPECT_TRUE(fails_with(buffer.view(most, most), Code::kInvalidView));
  EXPECT_TRUE(fails_with(buffer.slice_view(0, most), Code::kInvalidView));
  EXPECT_TRUE(fails_with(buffer.view(0, f32, {most / 2}), Code::kInvalidArgument));
}

TEST(Buffer, SaysWhichViewWasOutsideWhat) {
  const auto refused = Buffer::allocate(cpu(), u8, {6144}).value().view(4096, 4096);
  EXPECT_EQ(refused.error().message(), "view at 4096 of 4096 bytes is outside the buffer's 6144 bytes");
}

TEST(Buffer, AllocatesTheWholeStorageThroughALazyView) {
  const Buffer buffer = Buffer::lazy(cpu(), f32, {16}).value();
  const Buffer view = buffer.view(32, 16).value();
  EXPECT_FALSE(view.is_allocated());
  ASSERT_TRUE(view.ensure_allocated());
  EXPECT_TRUE(buffer.is_allocated());
}

TEST(Buffer, KeepsTheTypeOfAViewOfWholeElementsOnly) {
  const Buffer buffer = Buffer::allocate(cpu(), f32, {4}).value();
  EXPECT_EQ(buffer.view(4, 8).value().dtype(), f32);
  EXPECT_EQ(buffer.view(4, 8).value().shape(), Shape{2});
  EXPECT_EQ(buffer.view(4, 7).value().dtype(), u8);
  EXPECT_EQ(buffer.view(4, 7).value().shape(), Shape{7});
}

TEST(Buffer, SlicesAndReshapesWithoutCopying) {
  const Buffer buffer = Buffer::allocate(cpu(), i32, {2, 3}).value();
  const auto numbers = buffer.as_slice_mut<std::int32_t>().value();
  std::iota(numbers.begin(), numbers.end(), 0);
  const Buffer slice = buffer.slice_view(8, 2).value();
  EXPECT_EQ(slice.as_slice<std::int32_t>().value()[1], 3);
  const Buffer reshaped = buffer.with_shape({3, 2}).value();
  EXPECT_EQ(reshaped.as_array<std::int32_t>().value()(2, 0), 4);
  EXPECT_TRUE(fails_with(buffer.with_shape({7}), Code::kSizeMismatch));
  EXPECT_TRUE(fails_with(buffer.slice_view(8, 5), Code::kInvalidView));
  EXPECT_NE(reshaped.id(), buffer.id());
}

TEST(Buffer, ReinterpretsAWindowAsAnotherType) {
  const Buffer bytes = Buffer::allocate(cpu(), u8, {16}, {.zero = true}).value();
  const Buffer floats = bytes.view(4, f32, {3}).value();
  EXPECT_EQ(floats.as_slice<float>().value().size(), 3u);
  EXPECT_TRUE(fails_with(bytes.view(8, f32, {3}), Code::kInvalidView));
}

// --- Host access: one rule for all ---

template <class Call>
void expect_all_reads(const Buffer& buffer, Call expect) {
  expect(buffer.as_host_bytes());
  expect(buffer.as_slice<float>());
  expect(buffer.as_array<float>());
  expect(buffer.item<float>());
}

template <class Call>
void expect_all_writes(const Buffer& buffer, Call expect) {
  expect(buffer.as_host_bytes_mut());
  expect(buffer.as_slice_mut<float>());
  expect(buffer.as_array_mut<float>());
}

TEST(Buffer, GivesNotAllocatedToEveryReadOfALazyBuffer) {
  const Buffer buffer = Buffer::lazy(cpu(), f32, {1}).value();
  expect_all_reads(buffer, [](const auto& result) { EXPECT_TRUE(fails_with(result, Code::kNotAllocated)); });
  std::vector<std::byte> target(4);
  EXPECT_TRUE(fails_with(buffer.copyout(target), Code::kNotAllocated));
  EXPECT_TRUE(fails_with(Buffer::allocate(cpu(), f32, {1}).value().copy_from(buffer), Code::kNotAllocated));
  EXPECT_FALSE(buffer.is_allocated());
}

TEST(Buffer, AllocatesALazyBufferForMutableAccess) {
  EXPECT_TRUE(Buffer::lazy(cpu(), f32, {1}).value().as_host_bytes_mut());
  EXPECT_TRUE(Buffer::lazy(cpu(), f32, {1}).value().as_slice_mut<float>());
  EXPECT_TRUE(Buffer::lazy(cpu(), f32, {1}).value().as_array_mut<float>());
  EXPECT_TRUE(Buffer::lazy(cpu(), f32, {1}).value().copyin(counting_bytes(4)));
}

TEST(Buffer, GivesNotCpuAccessibleToEveryAccessOfDeviceOnlyMemory) {
  const Buffer buffer = Buffer::allocate(std::make_shared<DeviceOnlyAllocator>(), f32, {1}).value();
  const auto expect = [](const auto& result) { EXPECT_TRUE(fails_with(result, Code::kNotCpuAccessible)); };
  expect_all_reads(buffer, expect);
  expect_all_writes(buffer, expect);
}

TEST(Buffer, GivesReadOnlyToEveryMutableAccessOfReadOnlyMemory) {
  float value = 1.5f;
  const Buffer buffer =
      Buffer::import(cpu(), {.address = reinterpret_cast<std::uint64_t>(&value), .bytes = 4, .read_only = true}, f32,
                     {1})
          .value();
  expect_all_writes(buffer, [](const auto& result) { EXPECT_TRUE(fails_with(result, Code::kReadOnly)); });
  EXPECT_TRUE(fails_with(buffer.copyin(counting_bytes(4)), Code::kReadOnly));
  EXPECT_TRUE(fails_with(buffer.copy_from(Buffer::allocate(cpu(), f32, {1}, {.zero = true}).value()), Code::kReadOnly));
  EXPECT_EQ(buffer.item<float>().value(), 1.5f);
  EXPECT_TRUE(buffer.is_read_only());
}

// Every typed access of `buffer` as float gives this error, and its bytes can be read all the same.
void expect_no_floats(const Buffer& buffer, Code code) {
  const auto expect = [code](const auto& result) { EXPECT_TRUE(fails_with(result, code)); };
  expect(buffer.as_slice<float>());
  expect(buffer.as_slice_mut<float>());
  expect(buffer.as_array<float>());
  expect(buffer.as_array_mut<float>());
  expect(buffer.item<float>());
  EXPECT_TRUE(buffer.as_host_bytes());
}

TEST(Buffer, GivesTypeMismatchToTypedAccessOfAnotherType) {
  expect_no_floats(Buffer::allocate(cpu(), i32, {1}).value(), Code::kTypeMismatch);
}

TEST(Buffer, GivesMisalignedRatherThanUndefinedBehaviour) {
  expect_no_floats(Buffer::allocate(cpu(), u8, {16}).value().view(1, f32, {1}).value(), Code::kMisaligned);
}

TEST(Buffer, GivesItsOnlyElement) {
  const Buffer one = Buffer::allocate(cpu(), f64, {1, 1}).value();
  one.as_slice_mut<double>().value()[0] = 2.5;
  EXPECT_EQ(one.item<double>().value(), 2.5);
  EXPECT_TRUE(fails_with(Buffer::allocate(cpu(), f64, {2}).value().item<double>(), Code::kSizeMismatch));
  EXPECT_TRUE(fails_with(Buffer::allocate(cpu(), f64, {0}).value().item<double>(), Code::kSizeMismatch));
}

TEST(Buffer, HasAScalarShapeOfRankZeroWithOneElement) {
  const Buffer scalar = Buffer::allocate(cpu(), f32, {}).value();
  EXPECT_EQ(scalar.element_count(), 1u);
  scalar.as_slice_mut<float>().value()[0] = 3.0f;
  EXPECT_EQ(scalar.as_array<float>().value()(), 3.0f);
}

TEST(Buffer, ViewsItsElementsInNDimensionsWithStrides) {
  const Buffer buffer = Buffer::allocate(cpu(), i32, {2, 3, 4}).value();
  const auto numbers = buffer.as_slice_mut<std::int32_t>().value();
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto array = buffer.as_array<std::int32_t>().value();
  EXPECT_EQ(array(1, 2, 3), 23);
  EXPECT_EQ(array.stride(0), 12);
  const auto transposed = array.transposed(0, 2);
  EXPECT_EQ(transposed.shape(), (Shape{4, 3, 2}));
  EXPECT_EQ(transposed(3, 2, 1), 23);
  EXPECT_EQ(transposed(1, 0, 1), 13);
}

TEST(Buffer, IsLegalWithZeroBytesEverywhere) {
  auto allocator = std::make_shared<CountingAllocator>(cpu());
  const std::uint64_t before = cpu()->counters().allocations;
  const Buffer empty = Buffer::allocate(allocator, f32, {0, 7}).value();
  EXPECT_EQ(empty.size(), 0u);
  EXPECT_TRUE(empty.as_host_bytes().value().empty());
  EXPECT_TRUE(empty.as_slice_mut<float>().value().empty());
  EXPECT_TRUE(empty.copyin({}));
  EXPECT_TRUE(empty.copyout({}));
  EXPECT_TRUE(empty.copy_from(Buffer::allocate(allocator, f32, {0}).value()));
  EXPECT_EQ(empty.view(0, 0).value().size(), 0u);
  EXPECT_EQ(cpu()->counters().allocations, before);
}

TEST(BufferDeathTest, StopsTheProgramWithAMessageWhenARawPointerOfAnUnallocatedBufferIsAsked) {
  const Buffer buffer = Buffer::lazy(cpu(), f32, {1}).value();
  EXPECT_DEATH(static_cast<void>(buffer.as_raw_ptr()), "not allocated");
}

// --- Copies ---

TEST(Buffer, CopiesInAndOut) {
  const Buffer buffer = Buffer::lazy(cpu(), u8, {1000}).value();
  const auto bytes = counting_bytes(1000);
  ASSERT_TRUE(buffer.copyin(bytes));
  std::vector<std::byte> out(1000);
  ASSERT_TRUE(buffer.copyout(out));
  EXPECT_EQ(out, bytes);
}

TEST(Buffer, ChangesNothingWhenACopyHasTheWrongSize) {
  const Buffer lazy = Buffer::lazy(cpu(), u8, {10}).value();
  EXPECT_TRUE(fails_with(lazy.copyin(counting_bytes(9)), Code::kSizeMismatch));
  EXPECT_FALSE(lazy.is_allocated());
  const Buffer other = Buffer::allocate(cpu(), u8, {9}, {.zero = true}).value();
  EXPECT_TRUE(fails_with(lazy.copy_from(other), Code::kSizeMismatch));
  EXPECT_FALSE(lazy.is_allocated());
  std::vector<std::byte> out(11);
  EXPECT_TRUE(fails_with(other.copyout(out), Code::kSizeMismatch));
}

TEST(Buffer, CopiesBetweenOverlappingWindowsAsMemmove) {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{9} << 20})
    for (const bool forward : {true, false}) {
      const Buffer buffer = Buffer::allocate(cpu(), u8, {bytes + 7}).value();
      const auto original = counting_bytes(bytes + 7);
      ASSERT_TRUE(buffer.copyin(original));
      const Buffer from = buffer.view(forward ? 0 : 7, bytes).value();
      const Buffer to = buffer.view(forward ? 7 : 0, bytes).value();
      ASSERT_TRUE(to.copy_from(from));
      const auto now = to.as_host_bytes().value();
      EXPECT_EQ(std::memcmp(now.data(), original.data() + (forward ? 0 : 7), bytes), 0);
    }
}

TEST(Buffer, CopiesLargeBuffersOverAllThreadsWithoutLosingAByte) {
  const std::size_t bytes = (std::size_t{17} << 20) + 13;
  const Buffer source = Buffer::allocate(cpu(), u8, {bytes}).value();
  const auto numbers = source.as_slice_mut<std::uint8_t>().value();
  std::uint32_t state = 1;
  for (std::uint8_t& number : numbers) number = static_cast<std::uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  const Buffer target = Buffer::lazy(cpu(), u8, {bytes}).value();
  ASSERT_TRUE(target.copy_from(source));
  EXPECT_EQ(std::memcmp(target.as_raw_ptr(), source.as_raw_ptr(), bytes), 0);
}

// --- Import ---

TEST(Buffer, ImportsForeignMemoryWithoutCopyingAndReleasesItOnce) {
  std::vector<float> foreign = {1, 2, 3, 4};
  int released = 0;
  {
    Buffer view;
    {
      const Buffer buffer =
          Buffer::import(
              cpu(),
              {.address = reinterpret_cast<std::uint64_t>(foreign.data()), .bytes = 16, .release = [&] { ++released; }},
              f32, {2, 2}, {.label = "from elsewhere"})
              .value();
      EXPECT_EQ(buffer.as_raw_ptr(), foreign.data());
      EXPECT_TRUE(buffer.is_foreign());
      EXPECT_EQ(buffer.label().text(), "from elsewhere");
      view = buffer.view(8, 8).value();
    }
    EXPECT_EQ(released, 0);
    view.as_slice_mut<float>().value()[0] = 9;
  }
  EXPECT_EQ(released, 1);
  EXPECT_EQ(foreign[2], 9);
}

TEST(Buffer, ImportsWithoutAReleaseCallback) {
  float foreign = 1;
  EXPECT_TRUE(Buffer::import(cpu(), {.address = reinterpret_cast<std::uint64_t>(&foreign), .bytes = 4}, f32, {1}));
}

TEST(Buffer, ReleasesForeignMemoryAlsoWhenTheImportIsRefused) {
  float foreign = 1;
  int released = 0;
  const ForeignMemory memory{
      .address = reinterpret_cast<std::uint64_t>(&foreign), .bytes = 4, .release = [&] { ++released; }};
  EXPECT_TRUE(fails_with(Buffer::import(cpu(), memory, f32, {2}), Code::kSizeMismatch));
  EXPECT_EQ(released, 1);
  EXPECT_TRUE(
      fails_with(Buffer::import(cpu(), {.bytes = 4, .release = memory.release}, f32, {1}), Code::kInvalidArgument));
  EXPECT_EQ(released, 2);
  EXPECT_TRUE(fails_with(Buffer::import(cpu(), memory, DType::kQ4_0, {3}), Code::kInvalidArgument));
  EXPECT_EQ(released, 3);
}

// --- The rest ---

TEST(Buffer, GivesBackItsAllocatorSoThatOthersCanAllocateBesideIt) {
  auto allocator = std::make_shared<CountingAllocator>(cpu());
  const Buffer buffer = Buffer::allocate(allocator, f32, {4}).value();
  const Buffer beside = Buffer::allocate(buffer.allocator(), f32, {4}).value();
  EXPECT_EQ(allocator->allocations, 2);
  EXPECT_EQ(&beside.device(), &buffer.device());
}

TEST(Buffer, KeepsTheDeviceAliveAsLongAsItLives) {
  const Buffer buffer = Buffer::allocate(cpu(), f32, {4}).value();
  EXPECT_EQ(buffer.device().name(), "CPU");
  EXPECT_TRUE(buffer.synchronize());
  EXPECT_EQ(buffer.native_handle(), reinterpret_cast<std::uint64_t>(buffer.as_raw_ptr()));
}

TEST(Buffer, CopiesThroughTheHostBetweenDevicesThatDoNotReachEachOther) {
  const DevicePtr one = opaque_device(), other = opaque_device();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, (std::size_t{4} << 20) + 3}) {  // and in pieces
    const Buffer source = Buffer::allocate(one, u8, {bytes}).value();
    const Buffer target = Buffer::allocate(other, u8, {bytes}, {.zero = true}).value();
    const std::vector<std::byte> wanted = test::counting_bytes(bytes, 7);
    ASSERT_TRUE(source.copyin(wanted));
    ASSERT_TRUE(target.copy_from(source));
    std::vector<std::byte> seen(bytes);
    ASSERT_TRUE(target.copyout(seen));
    EXPECT_TRUE(seen == wanted) << bytes;
  }
}

}  // namespace
}  // namespace berth
