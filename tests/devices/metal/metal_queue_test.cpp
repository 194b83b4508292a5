#include <atomic>
#include <thread>

#include "berth/memory/registry.h"
#include "devices/metal/metal_support.h"
#include "support/support.h"

namespace berth::metal_test {
namespace {

using test::counting_bytes;
using test::fails_with;

class MetalQueue : public MetalTest {
 protected:
  void SetUp() override {
    gpu_ = device("METAL").value();
    queue_ = gpu_->make_queue().value();
  }
  void TearDown() override {
    metal_double().set_pace(kMetalEager);
    queue_.reset();
    gpu_.reset();
    MetalTest::TearDown();
  }
  Buffer make(std::size_t bytes, HostAccess host = HostAccess::kPreferred) {
    return Buffer::allocate(gpu_, u8, {bytes}, {.host = host}).value();
  }

  DevicePtr gpu_;
  QueuePtr queue_;
};

TEST_F(MetalQueue, MovesBytesOfSharedMemoryItselfWhileItIsIdle) {
  const Buffer buffer = make(5000);
  metal_double().clear_messages();
  ASSERT_TRUE(queue_->write(buffer.window().value(), counting_bytes(5000)));
  Bytes seen(5000);
  ASSERT_TRUE(queue_->read(buffer.window().value(), seen));
  ASSERT_TRUE(queue_->finish());
  EXPECT_EQ(seen, counting_bytes(5000));
  EXPECT_EQ(metal_double().messages("MTLCommandQueue commandBuffer"), 0u);
}

TEST_F(MetalQueue, DoesNotOvertakeRecordedOrSubmittedWork) {
  metal_double().set_pace(kMetalHeld);
  const Buffer a = make(256);
  const Buffer b = make(256);
  ASSERT_TRUE(queue_->fill(a.window().value(), 1));
  ASSERT_TRUE(queue_->copy(a.window().value(), b.window().value()));
  ASSERT_TRUE(queue_->write(a.window().value(), Bytes(256, std::byte{2})));
  ASSERT_TRUE(queue_->submit());
  ASSERT_TRUE(queue_->write(b.view(0, 8).value().window().value(), Bytes(8, std::byte{3})));
  Bytes seen(256);
  ASSERT_TRUE(queue_->read(b.window().value(), seen));
  const Timepoint last = queue_->submit().value();
  EXPECT_FALSE(is_reached(last));
  EXPECT_EQ(seen, Bytes(256)) << "nothing has run yet";
  metal_double().set_pace(kMetalEager);
  ASSERT_TRUE(queue_->wait(last));
  EXPECT_EQ(seen[7], std::byte{3});
  EXPECT_EQ(seen[8], std::byte{1});
  EXPECT_EQ(a.as_slice<std::uint8_t>().value()[0], 2);
}

TEST_F(MetalQueue, StillKnowsWhatWasDoneBeforeAFailure) {
  const Buffer a = make(64);
  const Buffer b = make(64);
  ASSERT_TRUE(queue_->copy(a.window().value(), b.window().value()));
  const Timepoint done = queue_->submit().value();
  ASSERT_TRUE(queue_->wait(done));
  metal_double().fail_execution(1, 2);
  ASSERT_TRUE(queue_->copy(a.window().value(), b.window().value()));
  const Timepoint failed = queue_->submit().value();
  EXPECT_FALSE(queue_->wait(failed).has_value());
  EXPECT_TRUE(queue_->wait(done)) << "the failure came after it";
}

TEST_F(MetalQueue, WaitsForAnotherQueueOnTheGpu) {
  const QueuePtr other = gpu_->make_queue().value();
  const Buffer a = make(64);
  const Buffer b = make(64);
  metal_double().set_pace(kMetalHeld);
  ASSERT_TRUE(queue_->fill(a.window().value(), 9));
  const Timepoint filled = queue_->submit().value();
  ASSERT_TRUE(other->wait_for(filled));  // would block for ever if the host waited
  ASSERT_TRUE(other->copy(a.window().value(), b.window().value()));
  const Timepoint copied = other->submit().value();
  metal_double().set_pace(kMetalEager);
  ASSERT_TRUE(other->wait(copied));
  EXPECT_EQ(b.as_slice<std::uint8_t>().value()[63], 9);
  EXPECT_TRUE(
      fails_with(other->wait_for(Timepoint::at(queue_->timeline(), queue_->next().value())), Code::kInvalidArgument));
}

TEST_F(MetalQueue, WaitsForAQueueOfAnotherGpu) {
  queue_.reset();
  gpu_.reset();
  restart({.devices = 2});
  const DevicePtr first = device("METAL:0").value();
  const DevicePtr second = device("METAL:1").value();
  const QueuePtr one = first->make_queue().value();
  const QueuePtr two = second->make_queue().value();
  const Buffer a = Buffer::allocate(first, u8, {64}).value();
  const Buffer b = Buffer::allocate(second, u8, {64}).value();
  ASSERT_TRUE(one->fill(a.window().value(), 4));
  ASSERT_TRUE(two->wait_for(one->submit().value()));
  ASSERT_TRUE(two->fill(b.window().value(), 5));
  ASSERT_TRUE(two->finish());
  EXPECT_EQ(a.as_slice<std::uint8_t>().value()[0], 4) << "the second queue's work came after the first's";
  EXPECT_TRUE(fails_with(two->copy(a.window().value(), b.window().value()), Code::kUnsupported));
}

TEST_F(MetalQueue, BindsWindowsAtTheirByteOffsets) {
  const Buffer buffer = Buffer::allocate(gpu_, u32, {1024}).value();
  const auto words = buffer.as_slice_mut<std::uint32_t>().value();
  for (std::uint32_t i = 0; i < 1024; ++i) words[i] = i;
  const Kernel add = make_add_kernel(*gpu_).value();
  const std::uint32_t constant = 100;
  const Window from = buffer.slice_view(12, 64).value().window().value();
  const Window to = buffer.slice_view(2048, 64).value().window().value();
  ASSERT_TRUE(queue_->launch(add, std::array{KernelArgument{from, Access::kRead}, KernelArgument{to, Access::kWrite}},
                             {.groups = {1, 1, 1}, .threads = {64, 1, 1}}, std::as_bytes(std::span(&constant, 1))));
  ASSERT_TRUE(queue_->finish());
  EXPECT_EQ(words[511], 511u);
  EXPECT_EQ(words[512], 103u);
  EXPECT_EQ(words[575], 166u);
  EXPECT_EQ(words[576], 576u);
}

TEST_F(MetalQueue, SetsAPipelineOnceForLaunchesThatFollowEachOther) {
  const Buffer buffer = make(4096);
  const Kernel add = make_add_kernel(*gpu_).value();
  const std::uint32_t constant = 1;
  const auto launch = [&] {
    return queue_->launch(add,
                          std::array{KernelArgument{buffer.view(0, 256).value().window().value(), Access::kRead},
                                     KernelArgument{buffer.view(256, 256).value().window().value(), Access::kWrite}},
                          {.groups = {1, 1, 1}, .threads = {64, 1, 1}}, std::as_bytes(std::span(&constant, 1)));
  };
  metal_double().clear_messages();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(launch());
  EXPECT_EQ(metal_double().messages("setComputePipelineState:"), 1u);
  // Another kernel in between, another encoder, and another command buffer each need it again.
  ASSERT_TRUE(queue_->fill(buffer.view(1025, 2).value().window().value(), 7));
  ASSERT_TRUE(launch());
  EXPECT_EQ(metal_double().messages("setComputePipelineState:"), 3u);
  ASSERT_TRUE(queue_->fill(buffer.view(2048, 64).value().window().value(), 7));
  ASSERT_TRUE(launch());
  EXPECT_EQ(metal_double().messages("setComputePipelineState:"), 4u);
  ASSERT_TRUE(queue_->finish());
  ASSERT_TRUE(launch());
  ASSERT_TRUE(queue_->finish());
  EXPECT_EQ(metal_double().messages("setComputePipelineState:"), 5u);
  EXPECT_EQ(buffer.as_slice<std::uint8_t>().value()[256], 1);
  EXPECT_EQ(buffer.as_slice<std::uint8_t>().value()[1026], 7);
}

TEST_F(MetalQueue, RefusesLaunchesThatMetalWouldStopTheProgramFor) {
  const Kernel add = make_add_kernel(*gpu_).value();
  const Buffer buffer = make(4096);
  const std::array<KernelArgument, 1> one = {KernelArgument{buffer.window().value(), Access::kRead}};
  EXPECT_TRUE(fails_with(queue_->launch(add, one, {.threads = {65'536, 65'536, 65'536}}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(queue_->launch(add, one, {.groups = {0, 1, 1}}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(queue_->launch(add, one, {}, Bytes(4097)), Code::kInvalidArgument));
  const std::vector<KernelArgument> many(32, one[0]);
  EXPECT_TRUE(fails_with(queue_->launch(add, many, {}), Code::kInvalidArgument));
  const Kernel host = device("CPU").value()->make_kernel({.host = [](const HostCall&) {}}).value();
  EXPECT_TRUE(fails_with(queue_->launch(host, one, {}), Code::kInvalidArgument));
}

TEST_F(MetalQueue, MovesMoreThanItsStagingHolds) {
  const std::size_t bytes = (std::size_t{11} << 20) + 3;
  const Buffer buffer = make(bytes, HostAccess::kNone);
  const Bytes source = counting_bytes(bytes);
  ASSERT_TRUE(queue_->write(buffer.window().value(), source));
  Bytes seen(bytes);
  ASSERT_TRUE(queue_->read(buffer.window().value(), seen));
  ASSERT_TRUE(queue_->finish());
  EXPECT_TRUE(seen == source);
}

TEST_F(MetalQueue, HandsOutTheCommandBuffer) {
  const Buffer buffer = make(64);
  const Window window = buffer.window().value();
  std::atomic<bool> told{false};
  ASSERT_TRUE(queue_->fill(window, 1));
  ASSERT_TRUE(queue_->record_native(std::span(&window, 1), [&](void* native) -> Result<void> {
    const internal::metal::AutoreleaseScope scope;
    auto* const commands = static_cast<MTL::CommandBuffer*>(native);
    MTL::BlitCommandEncoder* const encoder = commands->blitCommandEncoder();
    encoder->fillBuffer(internal::metal::buffer_of(window.block), NS::Range::Make(0, 32), 7);
    encoder->endEncoding();
    commands->addCompletedHandler([&told](MTL::CommandBuffer*) { told.store(true); });
    return {};
  }));
  ASSERT_TRUE(queue_->finish());
  EXPECT_TRUE(told.load());
  EXPECT_EQ(buffer.as_slice<std::uint8_t>().value()[31], 7);
  EXPECT_EQ(buffer.as_slice<std::uint8_t>().value()[32], 1);
}

TEST_F(MetalQueue, BreaksOffWithMetalsWordsWhenWorkFails) {
  const Buffer buffer = make(64, HostAccess::kNone);
  Bytes seen(64, std::byte{0x5a});
  metal_double().fail_execution(1, MTL::CommandBufferErrorTimeout);
  ASSERT_TRUE(queue_->read(buffer.window().value(), seen));
  const Timepoint moment = queue_->submit().value();
  const auto waited = queue_->wait(moment);
  ASSERT_TRUE(fails_with(waited, Code::kDriver));
  EXPECT_NE(waited.error().message().find("says: "), std::string::npos) << waited.error().message();
  EXPECT_EQ(seen, Bytes(64, std::byte{0x5a})) << "a read that failed leaves its target alone";
  EXPECT_FALSE(is_reached(moment));
  EXPECT_TRUE(fails_with(queue_->fill(buffer.window().value(), 1), Code::kDriver));
  // Another queue that waits for the broken one is told, and a fresh one works.
  const QueuePtr fresh = gpu_->make_queue().value();
  EXPECT_TRUE(fails_with(fresh->wait_for(moment), Code::kDriver));
  ASSERT_TRUE(fresh->fill(buffer.window().value(), 1));
  ASSERT_TRUE(fresh->finish());
}

TEST_F(MetalQueue, FailsWithTheWorkItWaitedForOnTheGpu) {
  const Buffer buffer = make(64);
  // Eagerly, any of the three may be the first to run and fail, also before what it waits for is over.
  for (int round = 0; round < 30; ++round) {
    const QueuePtr first = gpu_->make_queue().value();
    const QueuePtr second = gpu_->make_queue().value();
    const QueuePtr third = gpu_->make_queue().value();
    metal_double().set_pace(kMetalHeld);
    metal_double().fail_execution(1, MTL::CommandBufferErrorPageFault);
    ASSERT_TRUE(first->fill(buffer.window().value(), 1));
    ASSERT_TRUE(second->wait_for(first->submit().value()));
    ASSERT_TRUE(second->fill(buffer.window().value(), 2));
    ASSERT_TRUE(third->wait_for(second->submit().value()));
    Bytes seen(64, std::byte{0x5a});
    ASSERT_TRUE(third->read(buffer.window().value(), seen));
    const Timepoint last = third->submit().value();
    metal_double().set_pace(round % 2 == 0 ? kMetalLate : kMetalEager);
    EXPECT_TRUE(fails_with(third->wait(last), Code::kDriver));
    EXPECT_FALSE(is_reached(last));
    EXPECT_EQ(seen, Bytes(64, std::byte{0x5a}));
  }
}

TEST_F(MetalQueue, TellsOutOfMemoryAndALostDeviceApart) {
  const Buffer buffer = make(64);
  metal_double().fail_execution(1, MTL::CommandBufferErrorOutOfMemory);
  ASSERT_TRUE(queue_->fill(buffer.window().value(), 1));
  EXPECT_TRUE(fails_with(queue_->finish(), Code::kOutOfMemory));
  const QueuePtr other = gpu_->make_queue().value();
  metal_double().lose_device();
  ASSERT_TRUE(other->fill(buffer.window().value(), 1));
  EXPECT_TRUE(fails_with(other->finish(), Code::kDeviceLost));
}

TEST_F(MetalQueue, DropsWhatWasRecordedAndNeverSubmitted) {
  const Buffer buffer = make(64);
  ASSERT_TRUE(queue_->fill(buffer.window().value(), 1));
  ASSERT_TRUE(queue_->write(buffer.view(1, 5).value().window().value(), Bytes(5)));
  queue_.reset();
  EXPECT_EQ(buffer.as_slice<std::uint8_t>().value()[0], 0);
}

TEST_F(MetalQueue, KeepsDroppedBuffersUntilTheirWorkIsOver) {
  metal_double().set_pace(kMetalHeld);
  {
    const Buffer buffer = make(1 << 16);
    ASSERT_TRUE(queue_->fill(buffer.window().value(), 1));
    ASSERT_TRUE(queue_->submit());
  }
  EXPECT_EQ(gpu_->counters().pending_bytes, std::size_t{1} << 16);
  metal_double().set_pace(kMetalEager);
  ASSERT_TRUE(gpu_->synchronize());
  EXPECT_EQ(gpu_->counters().live_bytes, 0u);
}

TEST_F(MetalQueue, ServesThreadsThatRecordSubmitAndWaitAtOnce) {
  const Buffer buffer = make(64 * 4);
  std::atomic<int> failed{0};
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        const Window window = buffer.view(t * 64, 64).value().window().value();
        for (int i = 0; i < 50; ++i) {
          Bytes seen(64);
          if (!queue_->fill(window, static_cast<std::uint8_t>(t * 50 + static_cast<std::size_t>(i))) ||
              !queue_->read(window, seen) || !queue_->finish() ||
              seen != Bytes(64, static_cast<std::byte>(t * 50 + static_cast<std::size_t>(i))))
            failed.fetch_add(1);
        }
      });
  }
  EXPECT_EQ(failed.load(), 0);
}

}  // namespace
}  // namespace berth::metal_test
