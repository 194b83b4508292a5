#include "berth/memory/queue.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <thread>

#include "berth/memory/registry.h"
#include "berth/tensor/buffer.h"
#include "doubles/lagging_device.h"
#include "memory/uses.h"
#include "support/support.h"

namespace berth {
namespace {

using test::counting_bytes;
using test::fails_with;

// A device that finishes submitted work only when the test says so: what in-flight memory is tested with.
class LateQueue;

class LateDevice final : public Device {
 public:
  LateDevice() : Device("LATE", {}) {}
  LateQueue* last = nullptr;
  int freed = 0;

 protected:
  Result<Block> allocate_block(const BlockSpec& spec) override {
    auto* memory = new std::byte[spec.bytes]();
    return Block{.handle = reinterpret_cast<std::uint64_t>(memory), .bytes = spec.bytes};
  }
  void free_block(const Block& block, Timepoint last_use) noexcept override {
    EXPECT_TRUE(is_reached(last_use));
    ++freed;
    delete[] reinterpret_cast<std::byte*>(block.handle);
  }
  Result<std::unique_ptr<Queue>> create_queue() override;
};

class LateQueue final : public Queue {
 public:
  explicit LateQueue(LateDevice& device) : Queue(device) { device.last = this; }
  ~LateQueue() override {
    finish_all();
    close();
  }

  void finish_up_to(std::uint64_t value) {
    const std::lock_guard lock(mutex_);
    while (!work_.empty() && work_.front().first <= value) {
      for (auto& step : work_.front().second) step();
      done_ = work_.front().first;
      work_.pop_front();
    }
    changed_.notify_all();
  }
  void finish_all() { finish_up_to(~0ull); }
  bool refuse_submit = false;
  bool refuse_work = false;

 protected:
  static std::byte* at(const Window& window) {
    return reinterpret_cast<std::byte*>(window.block.handle) + window.offset;
  }
  Result<void> do_write(const Window& target, std::span<const std::byte> source) override {
    recorded_.push_back([to = at(target), bytes = std::vector(source.begin(), source.end())] {
      std::memcpy(to, bytes.data(), bytes.size());
    });
    return {};
  }
  Result<void> do_read(const Window& source, std::span<std::byte> target) override {
    recorded_.push_back([from = at(source), target] { std::memcpy(target.data(), from, target.size()); });
    return {};
  }
  Result<void> do_copy(const Window& source, const Window& target) override {
    if (refuse_work) return Error(Code::kDriver, Layer::kDevice, "refused");
    recorded_.push_back([from = at(source), to = at(target), bytes = source.bytes] { std::memmove(to, from, bytes); });
    return {};
  }
  Result<void> do_fill(const Window& target, std::uint8_t value) override {
    if (refuse_work) return Error(Code::kDriver, Layer::kDevice, "refused");
    recorded_.push_back([to = at(target), value, bytes = target.bytes] { std::memset(to, value, bytes); });
    return {};
  }
  Result<void> do_submit(std::uint64_t value) override {
    if (refuse_submit) return Error(Code::kDeviceLost, Layer::kDevice, "lost");
    const std::lock_guard lock(mutex_);
    work_.emplace_back(value, std::move(recorded_));
    recorded_.clear();
    return {};
  }
  Result<void> do_wait(std::uint64_t value) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= value; });
    return {};
  }
  std::uint64_t poll() noexcept override {
    const std::lock_guard lock(mutex_);
    return done_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> recorded_;
  std::deque<std::pair<std::uint64_t, std::vector<std::function<void()>>>> work_;
  std::uint64_t done_ = next().value() - 1;
};

Result<std::unique_ptr<Queue>> LateDevice::create_queue() {
  return std::unique_ptr<Queue>(new LateQueue(*this));
}

struct Late {
  std::shared_ptr<Device> device = share_device(std::make_unique<LateDevice>());
  LateDevice& itself = static_cast<LateDevice&>(*device);
  QueuePtr queue = device->make_queue().value();
  LateQueue& work = *itself.last;
};

// A buffer that is used by one queue and then by a second, and dropped.
struct DroppedAfterTwoQueues : Late {
  QueuePtr second = device->make_queue().value();
  LateQueue& second_work = *itself.last;
  Timepoint moment{};  // of the second

  DroppedAfterTwoQueues() {
    const Buffer buffer = Buffer::allocate(device, u8, {64}).value();
    queue->fill(buffer.window().value(), 1).value();
    queue->submit().value();
    second->fill(buffer.window().value(), 2).value();
    moment = second->submit().value();
  }
};

TEST(Queue, FreesMemoryOnlyAfterItsLastUseIsReached) {
  Late late;
  {
    const Buffer buffer = Buffer::allocate(late.device, u8, {64}).value();
    ASSERT_TRUE(late.queue->fill(buffer.window().value(), 7));
    ASSERT_TRUE(late.queue->submit());
  }
  EXPECT_EQ(late.itself.freed, 0);
  EXPECT_EQ(late.device->counters().pending_bytes, 64u);
  late.work.finish_all();
  ASSERT_TRUE(late.device->synchronize());
  EXPECT_EQ(late.itself.freed, 1);
  EXPECT_EQ(late.device->counters().pending_bytes, 0u);
}

TEST(Queue, FreesAtTheNextAllocationWhatWasReachedInBetween) {
  Late late;
  {
    const Buffer buffer = Buffer::allocate(late.device, u8, {64}).value();
    ASSERT_TRUE(late.queue->fill(buffer.window().value(), 7));
    ASSERT_TRUE(late.queue->submit());
  }
  late.work.finish_all();
  EXPECT_TRUE(Buffer::allocate(late.device, u8, {1}));
  EXPECT_GE(late.itself.freed, 1);
}

TEST(Queue, NamesPendingFreesWhenTheyAreWhyABudgetIsFull) {
  Late late;
  late.device->set_budget(100);
  {
    const Buffer buffer = Buffer::allocate(late.device, u8, {80}).value();
    ASSERT_TRUE(late.queue->fill(buffer.window().value(), 7));
    ASSERT_TRUE(late.queue->submit());
  }
  const auto refused = Buffer::allocate(late.device, u8, {50});
  ASSERT_TRUE(fails_with(refused, Code::kOutOfMemory));
  EXPECT_EQ(refused.error().out_of_memory()->cause, OutOfMemory::Cause::kPendingFrees);
  EXPECT_NE(refused.error().message().find("waiting for the queue"), std::string::npos);
  late.work.finish_all();
  EXPECT_TRUE(Buffer::allocate(late.device, u8, {50}));
}

TEST(Queue, KeepsABufferAliveForASecondQueueThatUsesIt) {
  DroppedAfterTwoQueues late;
  late.work.finish_all();
  ASSERT_TRUE(late.device->counters().live_count == 1);
  EXPECT_EQ(late.itself.freed, 0);
  late.second_work.finish_all();
  ASSERT_TRUE(late.second->wait(late.moment));
  EXPECT_EQ(late.itself.freed, 1);
}

TEST(Queue, KnowsTwiceThatABufferIsStillUsed) {
  const auto lagging = doubles::LaggingDevice::make();
  const auto first = lagging->lagging_queue(), second = lagging->lagging_queue();
  const Buffer buffer = Buffer::allocate(lagging, u8, {64}).value();
  const Window window = buffer.window().value();
  ASSERT_TRUE(first->fill(window, 1));
  ASSERT_TRUE(first->submit());
  ASSERT_TRUE(second->fill(window, 2));
  ASSERT_TRUE(second->submit());
  ASSERT_NE(window.owner, nullptr);
  first->reach_all();
  EXPECT_TRUE(internal::is_used(*window.owner)) << "the second queue keeps it";
  EXPECT_TRUE(internal::is_used(*window.owner)) << "being asked does not change the answer";
  second->reach_all();
  EXPECT_FALSE(internal::is_used(*window.owner));
}

TEST(Queue, LetsGoOfWhatItKeptAtTheNextSubmitWithoutAnyWait) {
  DroppedAfterTwoQueues late;
  late.work.finish_all();
  late.second_work.finish_all();
  EXPECT_EQ(late.itself.freed, 0);
  ASSERT_TRUE(late.second->submit());
  EXPECT_EQ(late.itself.freed, 1);
}

TEST(Queue, GivesMomentsThatAreReachedInOrder) {
  Late late;
  const Buffer buffer = Buffer::allocate(late.device, u8, {64}).value();
  ASSERT_TRUE(late.queue->fill(buffer.window().value(), 1));
  const Timepoint first = late.queue->submit().value();
  ASSERT_TRUE(late.queue->fill(buffer.window().value(), 2));
  const Timepoint second = late.queue->submit().value();
  EXPECT_FALSE(is_reached(first));
  late.work.finish_up_to(first.value());
  EXPECT_TRUE(is_reached(first));
  EXPECT_FALSE(is_reached(second));
  late.work.finish_all();
  EXPECT_TRUE(wait(second));
  EXPECT_TRUE(is_reached(Timepoint{}));
}

TEST(Queue, GivesTheLastMomentAgainWhenNothingWasRecorded) {
  const QueuePtr queue = device("CPU").value()->make_queue().value();
  const Buffer buffer = Buffer::allocate(device("CPU").value(), u8, {4}).value();
  ASSERT_TRUE(queue->fill(buffer.window().value(), 1));
  const Timepoint first = queue->submit().value();
  EXPECT_EQ(queue->submit().value(), first);
}

TEST(Queue, RefusesToWaitForAMomentNobodySubmitted) {
  Late late;
  EXPECT_TRUE(fails_with(late.queue->wait(late.queue->next()), Code::kInvalidArgument));
}

TEST(Queue, LeavesAllItsMomentsReachedWhenItGoesAway) {
  Late late;
  Timepoint submitted, recorded;
  {
    const Buffer buffer = Buffer::allocate(late.device, u8, {64}).value();
    ASSERT_TRUE(late.queue->fill(buffer.window().value(), 1));
    submitted = late.queue->submit().value();
    ASSERT_TRUE(late.queue->fill(buffer.window().value(), 1));
    recorded = late.queue->next();
  }
  EXPECT_FALSE(is_reached(recorded));
  late.queue.reset();
  EXPECT_TRUE(is_reached(submitted));
  EXPECT_TRUE(is_reached(recorded));
  EXPECT_TRUE(wait(recorded));
  // A queue that takes the same line counts on, so the old moments stay reached.
  const QueuePtr again = late.device->make_queue().value();
  EXPECT_TRUE(is_reached(recorded));
}

TEST(Queue, KeepsWhatWasRecordedWhenASubmitFails) {
  Late late;
  const Buffer buffer = Buffer::allocate(late.device, u8, {4}).value();
  ASSERT_TRUE(late.queue->fill(buffer.window().value(), 5));
  late.work.refuse_submit = true;
  EXPECT_TRUE(fails_with(late.queue->submit(), Code::kDeviceLost));
  late.work.refuse_submit = false;
  std::vector<std::byte> out(4);
  ASSERT_TRUE(late.queue->read(buffer.window().value(), out));
  const Timepoint moment = late.queue->submit().value();
  late.work.finish_all();
  ASSERT_TRUE(late.queue->wait(moment));
  EXPECT_EQ(out, std::vector<std::byte>(4, std::byte{5}));
}

TEST(Queue, DoesNotUseTheBuffersOfWorkThatTheDeviceRefused) {
  Late late;
  late.work.refuse_work = true;
  const Buffer a = Buffer::allocate(late.device, u8, {16}).value(), b = Buffer::allocate(late.device, u8, {16}).value();
  const Window from = a.window().value(), to = b.window().value();
  EXPECT_TRUE(fails_with(late.queue->fill(to, 1), Code::kDriver));
  EXPECT_TRUE(fails_with(late.queue->copy(from, to), Code::kDriver));
  EXPECT_TRUE(fails_with(late.queue->copy_rows(from, 4, to, 4, 2, 4), Code::kDriver));
  EXPECT_FALSE(internal::is_used(*from.owner));
  EXPECT_FALSE(internal::is_used(*to.owner));
}

TEST(Queue, WaitsOnTheHostForAnotherQueuesMomentWhereTheDeviceCannot) {
  Late late;
  const Buffer buffer = Buffer::allocate(late.device, u8, {4}).value();
  ASSERT_TRUE(late.queue->fill(buffer.window().value(), 5));
  const Timepoint moment = late.queue->submit().value();
  const QueuePtr second = late.device->make_queue().value();
  std::jthread finisher([&] { late.work.finish_all(); });
  EXPECT_TRUE(second->wait_for(moment));
  EXPECT_TRUE(is_reached(moment));
  EXPECT_TRUE(second->wait_for(second->next()));
}

TEST(Queue, RefusesWindowsOutsideTheirBlock) {
  const QueuePtr queue = device("CPU").value()->make_queue().value();
  const Buffer buffer = Buffer::allocate(device("CPU").value(), u8, {16}).value();
  Window window = buffer.window().value();
  window.offset = 10;
  EXPECT_TRUE(fails_with(queue->fill(window, 0), Code::kInvalidView));
  window.offset = ~std::size_t{0};
  EXPECT_TRUE(fails_with(queue->fill(window, 0), Code::kInvalidView));
}

TEST(Queue, RefusesSizesThatDoNotMatch) {
  const QueuePtr queue = device("CPU").value()->make_queue().value();
  const Buffer buffer = Buffer::allocate(device("CPU").value(), u8, {16}).value();
  const Window window = buffer.window().value();
  const Window half = buffer.view(0, 8).value().window().value();
  std::vector<std::byte> bytes(15);
  EXPECT_TRUE(fails_with(queue->write(window, bytes), Code::kSizeMismatch));
  EXPECT_TRUE(fails_with(queue->read(window, bytes), Code::kSizeMismatch));
  EXPECT_TRUE(fails_with(queue->copy(window, half), Code::kSizeMismatch));
}

TEST(Queue, ChecksUsageBitsWhereABufferIsUsed) {
  const DevicePtr cpu = device("CPU").value();
  const QueuePtr queue = cpu->make_queue().value();
  const Buffer source = Buffer::allocate(cpu, u8, {4}, {.usage = Usage::kCopySource, .zero = true}).value();
  const Buffer target = Buffer::allocate(cpu, u8, {4}, {.usage = Usage::kCopyTarget}).value();
  const Window from = source.window().value(), to = target.window().value();
  EXPECT_TRUE(queue->copy(from, to));
  EXPECT_TRUE(fails_with(queue->copy(to, from), Code::kInvalidUsage));
  EXPECT_TRUE(fails_with(queue->fill(from, 1), Code::kInvalidUsage));
  std::vector<std::byte> out(4);
  EXPECT_TRUE(fails_with(queue->read(to, out), Code::kInvalidUsage));
  const Kernel kernel = cpu->make_kernel({.host = [](const HostCall&) {}}).value();
  const KernelArgument argument{.window = from};
  EXPECT_TRUE(fails_with(queue->launch(kernel, {&argument, 1}, {}), Code::kInvalidUsage));
}

TEST(Queue, LaunchesHostKernelsOnWindowsWithConstants) {
  const DevicePtr cpu = device("CPU").value();
  const QueuePtr queue = cpu->make_queue().value();
  const Buffer buffer = Buffer::allocate(cpu, u8, {8}, {.zero = true}).value();
  const Kernel kernel = cpu->make_kernel({.host =
                                              [](const HostCall& call) {
                                                for (std::byte& byte : call.windows[0])
                                                  byte = static_cast<std::byte>(call.grid.groups[0]);
                                                call.windows[1][0] = call.constants[0];
                                              }})
                            .value();
  const KernelArgument arguments[] = {{buffer.view(0, 4).value().window().value()},
                                      {buffer.view(6, 1).value().window().value()}};
  const std::byte constant{9};
  ASSERT_TRUE(queue->launch(kernel, arguments, {.groups = {3, 1, 1}}, {&constant, 1}));
  ASSERT_TRUE(queue->finish());
  const auto bytes = buffer.as_slice<std::uint8_t>().value();
  EXPECT_EQ(std::vector(bytes.begin(), bytes.end()), (std::vector<std::uint8_t>{3, 3, 3, 3, 0, 0, 9, 0}));
}

TEST(Queue, RefusesALaunchWhoseWrittenWindowsOverlap) {
  const DevicePtr cpu = device("CPU").value();
  const QueuePtr queue = cpu->make_queue().value();
  const Buffer buffer = Buffer::allocate(cpu, u8, {8}, {.zero = true}).value();
  const Kernel kernel = cpu->make_kernel({.host = [](const HostCall&) {}}).value();
  KernelArgument arguments[] = {{buffer.view(0, 5).value().window().value(), Access::kRead},
                                {buffer.view(4, 4).value().window().value(), Access::kWrite}};
  EXPECT_TRUE(fails_with(queue->launch(kernel, arguments, {}), Code::kInvalidArgument));
  arguments[1].access = Access::kRead;
  EXPECT_TRUE(queue->launch(kernel, arguments, {}));
}

TEST(Queue, TurnsAThrowingKernelIntoAnError) {
  const DevicePtr cpu = device("CPU").value();
  const QueuePtr queue = cpu->make_queue().value();
  const Kernel kernel =
      cpu->make_kernel({.host = [](const HostCall&) { throw std::runtime_error("bad luck"); }}).value();
  const auto failed = queue->launch(kernel, {}, {});
  ASSERT_TRUE(fails_with(failed, Code::kDriver));
  EXPECT_NE(failed.error().message().find("bad luck"), std::string::npos);
}

TEST(Queue, RefusesKernelsThatAreNotItsOwn) {
  struct OtherKernel final : KernelBody {};
  const DevicePtr cpu = device("CPU").value();
  const QueuePtr queue = cpu->make_queue().value();
  EXPECT_TRUE(fails_with(queue->launch(nullptr, {}, {}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(queue->launch(std::make_shared<const OtherKernel>(), {}, {}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(cpu->make_kernel({}), Code::kInvalidArgument));
  const std::vector<KernelArgument> many(17);
  const Kernel kernel = cpu->make_kernel({.host = [](const HostCall&) {}}).value();
  EXPECT_TRUE(fails_with(queue->launch(kernel, many, {}), Code::kInvalidArgument));
}

TEST(Queue, SaysWhatADeviceWithoutKernelsAndEncodersCannotDo) {
  Late late;
  EXPECT_TRUE(fails_with(late.device->make_kernel({}), Code::kUnsupported));
  EXPECT_TRUE(fails_with(late.device->import_block({}), Code::kUnsupported));
  EXPECT_TRUE(fails_with(late.queue->record_native({}, [](void*) { return Result<void>(); }), Code::kUnsupported));
  struct OtherKernel final : KernelBody {};
  EXPECT_TRUE(fails_with(late.queue->launch(std::make_shared<const OtherKernel>(), {}, {}), Code::kUnsupported));
}

TEST(Queue, CopiesRowsWithPitches) {
  const DevicePtr cpu = device("CPU").value();
  const QueuePtr queue = cpu->make_queue().value();
  const Buffer source = Buffer::allocate(cpu, u8, {12}).value();
  ASSERT_TRUE(source.copyin(counting_bytes(12)));
  const Buffer target = Buffer::allocate(cpu, u8, {9}, {.zero = true}).value();
  ASSERT_TRUE(queue->copy_rows(source.window().value(), 4, target.window().value(), 3, 2, 3));
  const auto bytes = target.as_slice<std::uint8_t>().value();
  EXPECT_EQ(std::vector(bytes.begin(), bytes.end()), (std::vector<std::uint8_t>{0, 1, 0, 4, 5, 0, 8, 9, 0}));
  EXPECT_TRUE(
      fails_with(queue->copy_rows(source.window().value(), 5, target.window().value(), 3, 3, 3), Code::kInvalidView));
  EXPECT_TRUE(
      fails_with(queue->copy_rows(source.window().value(), 1, target.window().value(), 3, 2, 3), Code::kInvalidView));
  EXPECT_TRUE(queue->copy_rows(source.window().value(), 4, target.window().value(), 3, 2, 0));
  // Rows without a gap between them.
  ASSERT_TRUE(queue->copy_rows(source.window().value(), 3, target.window().value(), 3, 3, 3));
  EXPECT_EQ(std::vector(bytes.begin(), bytes.end()), (std::vector<std::uint8_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(Queue, CopiesBetweenDevicesThatCannotReachEachOtherThroughTheHost) {
  Late a, b;
  // Work of the default queues is finished by another thread, late.
  std::atomic<bool> stop{false};
  const std::size_t bytes = (std::size_t{9} << 20) + 3;
  const Buffer source = Buffer::allocate(a.device, u8, {bytes}).value();
  const Buffer target = Buffer::allocate(b.device, u8, {bytes}).value();
  static_cast<void>(a.device->default_queue().value());
  static_cast<void>(b.device->default_queue().value());
  LateQueue& a_work = *a.itself.last;
  LateQueue& b_work = *b.itself.last;
  std::jthread finisher([&] {
    while (!stop) {
      a_work.finish_all();
      b_work.finish_all();
      std::this_thread::yield();
    }
  });
  const auto contents = counting_bytes(bytes);
  ASSERT_TRUE(source.copyin(contents));
  ASSERT_TRUE(target.copy_from(source));
  std::vector<std::byte> out(bytes);
  ASSERT_TRUE(target.copyout(out));
  EXPECT_EQ(out, contents);
  // Inside one device the copy stays there.
  const Buffer twin = Buffer::allocate(a.device, u8, {bytes}).value();
  ASSERT_TRUE(twin.copy_from(source));
  ASSERT_TRUE(twin.copyout(out));
  EXPECT_EQ(out, contents);
  // And from and to the host, one transfer each.
  const Buffer host = Buffer::allocate(device("CPU").value(), u8, {bytes}, {.zero = true}).value();
  ASSERT_TRUE(host.copy_from(source));
  EXPECT_EQ(std::memcmp(host.as_raw_ptr(), contents.data(), bytes), 0);
  ASSERT_TRUE(target.copy_from(host));
  stop = true;
}

TEST(Queue, LetsSeveralThreadsRecordAtOnce) {
  const DevicePtr cpu = device("CPU").value();
  const QueuePtr queue = cpu->make_queue().value();
  const Buffer buffer = Buffer::allocate(cpu, u8, {4000}).value();
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        const Window window = buffer.view(t * 1000, 1000).value().window().value();
        for (int i = 0; i < 100; ++i) {
          EXPECT_TRUE(queue->fill(window, static_cast<std::uint8_t>(t)));
          EXPECT_TRUE(queue->finish());
        }
      });
  }
  EXPECT_EQ(buffer.as_slice<std::uint8_t>().value()[3999], 3);
}

}  // namespace
}  // namespace berth
