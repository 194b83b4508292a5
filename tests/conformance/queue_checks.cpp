// What a device's queues must do: transfers at any byte, order, moments, refusals.
#include <algorithm>
#include <atomic>
#include <thread>

#include "conformance/device_conformance.h"

namespace berth::conformance {
namespace {

using Bytes = std::vector<std::byte>;

// A window of a buffer's own window.
Window part(const Window& window, std::size_t offset, std::size_t bytes) {
  Window result = window;
  result.offset += offset;
  result.bytes = bytes;
  return result;
}

void reads_what_is_there(Bed& bed) {
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 100'003));
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Window window, bed, buffer.window());
  Bytes seen(100'003);
  BED_TRY(bed, queue->read(window, seen));
  BED_TRY(bed, queue->finish());
  EXPECT_EQ(seen, pattern_bytes(100'003));
}

void reads_at_any_byte(Bed& bed) {
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 256));
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Window window, bed, buffer.window());
  for (std::size_t offset = 0; offset < 9; ++offset)
    for (const std::size_t bytes : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 13u, 247u}) {
      Bytes seen(bytes + 2, std::byte{0x5a});
      BED_TRY(bed, queue->read(part(window, offset, bytes), std::span(seen).subspan(1, bytes)));
      BED_TRY(bed, queue->finish());
      Bytes expected(bytes + 2, std::byte{0x5a});
      std::ranges::copy(pattern_bytes(bytes, offset), expected.begin() + 1);
      ASSERT_EQ(seen, expected) << "offset " << offset << ", " << bytes << " bytes";
    }
}

void writes_at_any_byte_and_nothing_else(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  for (std::size_t offset = 0; offset < 9; ++offset)
    for (const std::size_t bytes : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 13u, 55u}) {
      BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 64));
      BED_TRY_ASSIGN(const Window window, bed, buffer.window());
      const Bytes source(bytes, std::byte{0xc3});
      BED_TRY(bed, queue->write(part(window, offset, bytes), source));
      BED_TRY(bed, queue->finish());
      Bytes expected = pattern_bytes(64);
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(offset), bytes, std::byte{0xc3});
      BED_TRY_ASSIGN(const Bytes seen, bed, contents(buffer));
      ASSERT_EQ(seen, expected) << "offset " << offset << ", " << bytes << " bytes";
    }
}

void copies_between_any_bytes(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Buffer source, bed, patterned(bed, 128, 1000));
  for (std::size_t from = 0; from < 5; ++from)
    for (std::size_t to = 0; to < 5; ++to)
      for (const std::size_t bytes : {1u, 3u, 4u, 6u, 8u, 61u}) {
        BED_TRY_ASSIGN(const Buffer target, bed, patterned(bed, 72));
        BED_TRY_ASSIGN(const Window source_window, bed, source.window());
        BED_TRY_ASSIGN(const Window target_window, bed, target.window());
        BED_TRY(bed, queue->copy(part(source_window, from, bytes), part(target_window, to, bytes)));
        BED_TRY(bed, queue->finish());
        Bytes expected = pattern_bytes(72);
        std::ranges::copy(pattern_bytes(bytes, 1000 + from), expected.begin() + static_cast<std::ptrdiff_t>(to));
        BED_TRY_ASSIGN(const Bytes seen, bed, contents(target));
        ASSERT_EQ(seen, expected) << "from " << from << " to " << to << ", " << bytes << " bytes";
      }
}

void copies_inside_one_block_as_memmove(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  for (const auto& [from, to, bytes] : {std::array<std::size_t, 3>{0, 64, 4096},
                                        {64, 0, 4096},
                                        {3, 10, 5000},
                                        {10, 3, 5000},
                                        {0, 1, 8191},
                                        {4096, 0, 4096},
                                        {7, 7, 100}}) {
    BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 8192));
    BED_TRY_ASSIGN(const Window window, bed, buffer.window());
    BED_TRY(bed, queue->copy(part(window, from, bytes), part(window, to, bytes)));
    BED_TRY(bed, queue->finish());
    Bytes expected = pattern_bytes(8192);
    std::ranges::copy(pattern_bytes(bytes, from), expected.begin() + static_cast<std::ptrdiff_t>(to));
    BED_TRY_ASSIGN(const Bytes seen, bed, contents(buffer));
    ASSERT_EQ(seen, expected) << "from " << from << " to " << to << ", " << bytes << " bytes";
  }
}

void fills_a_window_and_nothing_else(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  for (std::size_t offset = 0; offset < 6; ++offset)
    for (const std::size_t bytes : {1u, 2u, 4u, 5u, 16u, 4001u}) {
      BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 4096));
      BED_TRY_ASSIGN(const Window window, bed, buffer.window());
      BED_TRY(bed, queue->fill(part(window, offset, bytes), 0xa7));
      BED_TRY(bed, queue->finish());
      Bytes expected = pattern_bytes(4096);
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(offset), bytes, std::byte{0xa7});
      BED_TRY_ASSIGN(const Bytes seen, bed, contents(buffer));
      ASSERT_EQ(seen, expected) << "offset " << offset << ", " << bytes << " bytes";
    }
}

void copies_rows_with_pitches(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  for (const std::size_t row : {4u, 5u, 12u}) {
    BED_TRY_ASSIGN(const Buffer source, bed, patterned(bed, 200, 500));
    BED_TRY_ASSIGN(const Buffer target, bed, patterned(bed, 200));
    BED_TRY_ASSIGN(const Window from, bed, source.window());
    BED_TRY_ASSIGN(const Window to, bed, target.window());
    BED_TRY(bed, queue->copy_rows(part(from, 3, 150), 16, part(to, 5, 180), 19, row, 7));
    BED_TRY(bed, queue->finish());
    Bytes expected = pattern_bytes(200);
    for (std::size_t i = 0; i < 7; ++i)
      std::ranges::copy(pattern_bytes(row, 503 + i * 16), expected.begin() + static_cast<std::ptrdiff_t>(5 + i * 19));
    BED_TRY_ASSIGN(const Bytes seen, bed, contents(target));
    ASSERT_EQ(seen, expected) << "rows of " << row;
  }
}

void keeps_the_order_recorded(Bed& bed) {
  // One submit: each step must see what the step before left, and none may overtake.
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Buffer a, bed, Buffer::allocate(bed.device(), u8, {1024}));
  BED_TRY_ASSIGN(const Buffer b, bed, Buffer::allocate(bed.device(), u8, {1024}));
  BED_TRY_ASSIGN(const Window wa, bed, a.window());
  BED_TRY_ASSIGN(const Window wb, bed, b.window());
  Bytes first(1024), second(1024), third(1024);
  BED_TRY(bed, queue->write(wa, Bytes(1024, std::byte{1})));
  BED_TRY(bed, queue->copy(wa, wb));
  BED_TRY(bed, queue->write(wa, Bytes(1024, std::byte{2})));
  BED_TRY(bed, queue->read(wb, first));
  BED_TRY(bed, queue->copy(wa, wb));
  BED_TRY(bed, queue->read(wb, second));
  BED_TRY(bed, queue->fill(wb, 3));
  BED_TRY(bed, queue->read(wb, third));
  BED_TRY(bed, queue->finish());
  EXPECT_EQ(first, Bytes(1024, std::byte{1}));
  EXPECT_EQ(second, Bytes(1024, std::byte{2}));
  EXPECT_EQ(third, Bytes(1024, std::byte{3}));
}

void lets_the_source_of_a_write_be_reused(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  for (const std::size_t bytes : {64u, 100'000u, 5'000'003u}) {
    BED_TRY_ASSIGN(const Buffer buffer, bed, Buffer::allocate(bed.device(), u8, {bytes}));
    BED_TRY_ASSIGN(const Window window, bed, buffer.window());
    Bytes source = pattern_bytes(bytes);
    BED_TRY(bed, queue->write(window, source));
    std::ranges::fill(source, std::byte{0xff});
    BED_TRY(bed, queue->finish());
    BED_TRY_ASSIGN(const Bytes seen, bed, contents(buffer));
    EXPECT_TRUE(seen == pattern_bytes(bytes)) << bytes << " bytes";
  }
}

void moves_large_transfers(Bed& bed) {
  const std::size_t bytes = (std::size_t{17} << 20) + 3;
  BED_TRY_ASSIGN(const Buffer a, bed, patterned(bed, bytes));
  BED_TRY_ASSIGN(const Buffer b, bed, Buffer::allocate(bed.device(), u8, {bytes}));
  BED_TRY(bed, b.copy_from(a));
  BED_TRY_ASSIGN(const Bytes seen, bed, contents(b));
  EXPECT_TRUE(seen == pattern_bytes(bytes));
}

void names_rising_moments_and_reaches_them(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 64));
  BED_TRY_ASSIGN(const Window window, bed, buffer.window());
  BED_TRY_ASSIGN(const Timepoint idle, bed, queue->submit());
  Bytes seen(64);
  BED_TRY(bed, queue->read(window, seen));
  EXPECT_EQ(queue->next(), Timepoint::at(queue->timeline(), idle.value() + 1));
  BED_TRY_ASSIGN(const Timepoint one, bed, queue->submit());
  BED_TRY(bed, queue->read(window, seen));
  BED_TRY_ASSIGN(const Timepoint two, bed, queue->submit());
  BED_TRY_ASSIGN(const Timepoint again, bed, queue->submit());
  EXPECT_EQ(one.timeline(), queue->timeline());
  EXPECT_EQ(one.value(), idle.value() + 1);
  EXPECT_EQ(two.value(), one.value() + 1);
  EXPECT_EQ(again, two) << "an idle submit makes no moment";
  BED_TRY(bed, queue->wait(two));
  EXPECT_TRUE(is_reached(two));
  EXPECT_TRUE(is_reached(one)) << "a line is in order";
  BED_TRY(bed, queue->wait(one));
}

void refuses_to_wait_for_what_nobody_submitted(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  const auto waited = queue->wait(Timepoint::at(queue->timeline(), queue->next().value() + 5));
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().code(), Code::kInvalidArgument);
}

void holds_the_moments_of_a_queue_that_is_gone_for_reached(Bed& bed) {
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 4096));
  BED_TRY_ASSIGN(const Window window, bed, buffer.window());
  Timepoint last;
  Bytes seen(4096);
  {
    BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
    BED_TRY(bed, queue->read(window, seen));
    BED_TRY_ASSIGN(last, bed, queue->submit());
  }
  EXPECT_TRUE(is_reached(last));
  BED_TRY(bed, wait(last));
  EXPECT_EQ(seen, pattern_bytes(4096)) << "closing a queue waits for its work";
}

void orders_two_queues_by_wait_for(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr first, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const QueuePtr second, bed, bed.device()->make_queue());
  EXPECT_NE(first->timeline(), second->timeline());
  BED_TRY_ASSIGN(const Buffer a, bed, patterned(bed, 1'000'000));
  BED_TRY_ASSIGN(const Buffer b, bed, Buffer::allocate(bed.device(), u8, {1'000'000}));
  BED_TRY_ASSIGN(const Window wa, bed, a.window());
  BED_TRY_ASSIGN(const Window wb, bed, b.window());
  BED_TRY(bed, first->copy(wa, wb));
  BED_TRY_ASSIGN(const Timepoint copied, bed, first->submit());
  BED_TRY(bed, second->wait_for(copied));
  Bytes seen(1'000'000);
  BED_TRY(bed, second->read(wb, seen));
  BED_TRY(bed, second->finish());
  EXPECT_TRUE(seen == pattern_bytes(1'000'000));
}

void allows_work_of_zero_bytes(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 64));
  BED_TRY_ASSIGN(const Window whole, bed, buffer.window());
  const Window none = part(whole, 64, 0);
  BED_TRY(bed, queue->read(none, {}));
  BED_TRY_ASSIGN(const Timepoint before, bed, queue->submit());
  EXPECT_EQ(before.value() + 1, queue->next().value()) << "nothing was recorded";
  BED_TRY_ASSIGN(const Buffer empty, bed, Buffer::allocate(bed.device(), u8, {0}));
  BED_TRY(bed, empty.copyin({}));
  BED_TRY(bed, empty.copyout({}));
  BED_TRY_ASSIGN(const Window window, bed, empty.window());
  BED_TRY(bed, queue->write(window, {}));
  BED_TRY(bed, queue->fill(window, 1));
  BED_TRY(bed, queue->copy(window, window));
  BED_TRY(bed, queue->finish());
}

void refuses_windows_outside_the_block(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 64));
  BED_TRY_ASSIGN(const Window window, bed, buffer.window());
  const std::size_t end = window.block.bytes;
  Bytes target(32);
  for (const std::size_t offset : {end - 31, end, end + 1, ~std::size_t{0} - 3}) {
    const auto read = queue->read(part(window, offset, 32), target);
    ASSERT_FALSE(read.has_value()) << offset;
    EXPECT_EQ(read.error().code(), Code::kInvalidView);
  }
  const auto rows = queue->copy_rows(window, ~std::size_t{0} / 2, window, ~std::size_t{0} / 2, 8, 4);
  ASSERT_FALSE(rows.has_value());
}

void refuses_sizes_that_disagree(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 64));
  BED_TRY_ASSIGN(const Window window, bed, buffer.window());
  Bytes wrong(63);
  const auto read = queue->read(window, wrong);
  const auto write = queue->write(window, wrong);
  const auto copy = queue->copy(part(window, 0, 8), part(window, 16, 9));
  for (const auto* result : {&read, &write, &copy}) {
    ASSERT_FALSE(result->has_value());
    EXPECT_EQ(result->error().code(), Code::kSizeMismatch);
  }
}

void checks_usage_bits(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Buffer source, bed, Buffer::allocate(bed.device(), u8, {64}, {.usage = Usage::kCopySource}));
  BED_TRY_ASSIGN(const Buffer target, bed, Buffer::allocate(bed.device(), u8, {64}, {.usage = Usage::kCopyTarget}));
  BED_TRY_ASSIGN(const Window from, bed, source.window());
  BED_TRY_ASSIGN(const Window to, bed, target.window());
  Bytes host(64);
  BED_TRY(bed, queue->fill(to, 1));
  BED_TRY(bed, queue->copy(from, to));
  const auto read = queue->read(to, host);
  const auto write = queue->write(from, host);
  BED_TRY(bed, queue->finish());
  for (const auto* result : {&read, &write}) {
    ASSERT_FALSE(result->has_value());
    EXPECT_EQ(result->error().code(), Code::kInvalidUsage);
  }
}

void refuses_to_write_read_only_memory(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 64));
  BED_TRY_ASSIGN(Window window, bed, buffer.window());
  window.block.flags = window.block.flags | BlockFlags::kReadOnly;
  for (const auto& result : {queue->write(window, Bytes(64)), queue->fill(window, 1), queue->copy(window, window)}) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), Code::kReadOnly);
  }
}

void frees_memory_after_its_last_use(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY(bed, bed.device()->synchronize());
  const DeviceCounters before = bed.device()->counters();
  Bytes seen(1'000'000);
  {
    BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 1'000'000));
    BED_TRY_ASSIGN(const Window window, bed, buffer.window());
    BED_TRY(bed, queue->read(window, seen));
  }
  // The last handle is gone and the read is not even submitted.
  BED_TRY_ASSIGN(const Timepoint done, bed, queue->submit());
  BED_TRY(bed, queue->wait(done));
  EXPECT_TRUE(seen == pattern_bytes(1'000'000));
  BED_TRY(bed, bed.device()->synchronize());
  const DeviceCounters after = bed.device()->counters();
  EXPECT_EQ(after.pending_bytes, 0u);
  EXPECT_EQ(after.live_bytes, before.live_bytes);
}

void frees_memory_that_two_queues_used(Bed& bed) {
  BED_TRY(bed, bed.device()->synchronize());
  const DeviceCounters before = bed.device()->counters();
  BED_TRY_ASSIGN(const QueuePtr first, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const QueuePtr second, bed, bed.device()->make_queue());
  Bytes one(200'000), two(200'000);
  {
    BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 200'000));
    BED_TRY_ASSIGN(const Window window, bed, buffer.window());
    BED_TRY(bed, first->read(window, one));
    BED_TRY(bed, second->read(window, two));
  }
  BED_TRY(bed, second->finish());
  BED_TRY(bed, first->finish());
  EXPECT_TRUE(one == pattern_bytes(200'000));
  EXPECT_TRUE(two == pattern_bytes(200'000));
  BED_TRY(bed, bed.device()->synchronize());
  EXPECT_EQ(bed.device()->counters().live_bytes, before.live_bytes);
}

void synchronizes_with_every_queue(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 500'000));
  BED_TRY_ASSIGN(const Window window, bed, buffer.window());
  Bytes seen(500'000);
  BED_TRY(bed, queue->read(window, seen));
  BED_TRY_ASSIGN(const Timepoint submitted, bed, queue->submit());
  BED_TRY(bed, bed.device()->synchronize());
  EXPECT_TRUE(is_reached(submitted));
  BED_TRY(bed, queue->wait(submitted));
  EXPECT_TRUE(seen == pattern_bytes(500'000));
}

void takes_records_of_several_threads(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 4096));
  BED_TRY_ASSIGN(const Window window, bed, buffer.window());
  std::atomic<int> failed{0};
  std::vector<Bytes> seen(4, Bytes(64));
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (std::size_t i = 0; i < 20; ++i)
          if (!queue->read(part(window, t * 64 + i, 64), seen[t]) || !queue->finish()) failed.fetch_add(1);
      });
  }
  EXPECT_EQ(failed.load(), 0);
  for (std::size_t t = 0; t < 4; ++t) EXPECT_EQ(seen[t], pattern_bytes(64, t * 64 + 19));
}

// Memory that one thread brings while another submits must be in place before any work that uses it.
void takes_fresh_memory_of_several_threads(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  std::atomic<int> failed{0};
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (std::size_t i = 0; i < 25; ++i) {
          const auto buffer = patterned(bed, 4096);
          Bytes seen(64);
          const bool arrived = buffer && buffer->window() &&
                               queue->read(part(buffer->window().value(), t * 64 + i, 64), seen) && queue->finish() &&
                               seen == pattern_bytes(64, t * 64 + i);
          if (!arrived) failed.fetch_add(1);
        }
      });
  }
  EXPECT_EQ(failed.load(), 0);
}

// A blocking copy comes after all work recorded before it that uses the buffer, submitted or not, on whatever queue.
void copies_after_work_that_nobody_submitted(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 70'000));
  BED_TRY_ASSIGN(const Window window, bed, buffer.window());
  BED_TRY(bed, queue->fill(window, 0x5a));
  BED_TRY_ASSIGN(const Bytes seen, bed, contents(buffer));
  EXPECT_TRUE(seen == Bytes(70'000, std::byte{0x5a})) << "copyout";
  BED_TRY(bed, queue->fill(part(window, 100, 50), 0x11));
  BED_TRY(bed, buffer.copyin(pattern_bytes(70'000, 3)));
  BED_TRY(bed, queue->finish());
  BED_TRY_ASSIGN(const Bytes written, bed, contents(buffer));
  EXPECT_TRUE(written == pattern_bytes(70'000, 3)) << "copyin";
  BED_TRY_ASSIGN(const Buffer other, bed, patterned(bed, 70'000, 9));
  BED_TRY_ASSIGN(const Window other_window, bed, other.window());
  BED_TRY(bed, queue->fill(other_window, 0x22));
  BED_TRY(bed, queue->fill(window, 0x33));
  BED_TRY(bed, buffer.copy_from(other));
  BED_TRY(bed, queue->finish());
  BED_TRY_ASSIGN(const Bytes copied, bed, contents(buffer));
  EXPECT_TRUE(copied == Bytes(70'000, std::byte{0x22})) << "copy_from";
}

void copies_after_the_work_of_several_queues(Bed& bed) {
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 30'000));
  BED_TRY_ASSIGN(const Window window, bed, buffer.window());
  std::vector<QueuePtr> queues;
  for (std::uint8_t i = 0; i < 3; ++i) {
    BED_TRY_ASSIGN(queues.emplace_back(), bed, bed.device()->make_queue());
    BED_TRY(bed, queues.back()->fill(part(window, i * 10'000u, 10'000), static_cast<std::uint8_t>(0x40 + i)));
    if (i == 1) BED_TRY(bed, queues.back()->submit());
  }
  BED_TRY_ASSIGN(const Bytes seen, bed, contents(buffer));
  for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], static_cast<std::byte>(0x40 + i / 10'000)) << i;
  for (const QueuePtr& queue : queues) BED_TRY(bed, queue->finish());
}

// Whether such work runs is not specified. It must not run later, in memory that has been freed since.
void may_be_closed_with_work_that_nobody_submitted(Bed& bed) {
  BED_TRY_ASSIGN(const Buffer beside, bed, patterned(bed, 70'000, 3));
  {
    BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 70'000));
    BED_TRY_ASSIGN(const Window window, bed, buffer.window());
    BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
    BED_TRY(bed, queue->fill(window, 0x5a));
  }
  BED_TRY_ASSIGN(const Buffer next, bed, patterned(bed, 70'000, 5));
  BED_TRY(bed, bed.device()->synchronize());
  BED_TRY_ASSIGN(const Bytes seen, bed, contents(next));
  EXPECT_TRUE(seen == pattern_bytes(70'000, 5));
  BED_TRY_ASSIGN(const Bytes untouched, bed, contents(beside));
  EXPECT_TRUE(untouched == pattern_bytes(70'000, 3));
}

constexpr Check kChecks[] = {
    {"ReadsWhatIsThere", reads_what_is_there},
    {"ReadsAtAnyByte", reads_at_any_byte},
    {"WritesAtAnyByteAndNothingElse", writes_at_any_byte_and_nothing_else},
    {"CopiesBetweenAnyBytes", copies_between_any_bytes},
    {"CopiesInsideOneBlockAsMemmove", copies_inside_one_block_as_memmove},
    {"FillsAWindowAndNothingElse", fills_a_window_and_nothing_else},
    {"CopiesRowsWithPitches", copies_rows_with_pitches},
    {"KeepsTheOrderRecorded", keeps_the_order_recorded},
    {"LetsTheSourceOfAWriteBeReused", lets_the_source_of_a_write_be_reused},
    {"MovesLargeTransfers", moves_large_transfers},
    {"NamesRisingMomentsAndReachesThem", names_rising_moments_and_reaches_them},
    {"RefusesToWaitForWhatNobodySubmitted", refuses_to_wait_for_what_nobody_submitted},
    {"HoldsTheMomentsOfAQueueThatIsGoneForReached", holds_the_moments_of_a_queue_that_is_gone_for_reached},
    {"OrdersTwoQueuesByWaitFor", orders_two_queues_by_wait_for},
    {"AllowsWorkOfZeroBytes", allows_work_of_zero_bytes},
    {"RefusesWindowsOutsideTheBlock", refuses_windows_outside_the_block},
    {"RefusesSizesThatDisagree", refuses_sizes_that_disagree},
    {"ChecksUsageBits", checks_usage_bits},
    {"RefusesToWriteReadOnlyMemory", refuses_to_write_read_only_memory},
    {"FreesMemoryAfterItsLastUse", frees_memory_after_its_last_use},
    {"FreesMemoryThatTwoQueuesUsed", frees_memory_that_two_queues_used},
    {"SynchronizesWithEveryQueue", synchronizes_with_every_queue},
    {"CopiesAfterWorkThatNobodySubmitted", copies_after_work_that_nobody_submitted},
    {"CopiesAfterTheWorkOfSeveralQueues", copies_after_the_work_of_several_queues},
    {"MayBeClosedWithWorkThatNobodySubmitted", may_be_closed_with_work_that_nobody_submitted},
    {"TakesRecordsOfSeveralThreads", takes_records_of_several_threads},
    {"TakesFreshMemoryOfSeveralThreads", takes_fresh_memory_of_several_threads},
};

}  // namespace

std::span<const Check> queue_checks() {
  return kChecks;
}

}  // namespace berth::conformance
