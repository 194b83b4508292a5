// Command buffers: when they run, in which order messages may come, and what becomes of them.
#include <atomic>
#include <utility>

#include "double_fixture.h"

namespace berth::metal_test {
namespace {

using MetalQueues = MetalDouble;

TEST_F(MetalQueues, RunNothingBeforeSomebodyWaits) {
  run_only_when_asked();
  MTL::Buffer* one = buffer(64);
  MTL::CommandBuffer* commands =
      blit([&](MTL::BlitCommandEncoder* encoder) { encoder->fillBuffer(one, NS::Range(0, 64), 7); });
  // Another queue's work, as a clock: in this time the first would have run.
  MTL::CommandQueue* const first = std::exchange(queue_, device_->newCommandQueue());
  for (int i = 0; i < 20; ++i) blit_and_wait([](MTL::BlitCommandEncoder*) {});
  std::exchange(queue_, first)->release();
  EXPECT_EQ(commands->status(), MTL::CommandBufferStatusCommitted);
  EXPECT_EQ(bytes(one)[0], 0);
  commands->waitUntilCompleted();
  EXPECT_EQ(commands->status(), MTL::CommandBufferStatusCompleted);
  EXPECT_EQ(commands->error(), nullptr);
  EXPECT_EQ(bytes(one)[0], 7);
  commands->release();
  one->release();
}

TEST_F(MetalQueues, HoldCommittedWorkBackWhileTheyAreTold) {
  MTL::Buffer* one = buffer(64);
  metal_double().set_pace(kMetalHeld);
  MTL::CommandBuffer* commands =
      blit([&](MTL::BlitCommandEncoder* encoder) { encoder->fillBuffer(one, NS::Range(0, 64), 7); });
  // Who keeps asking is waiting, and is held too. The time is for a thread that should not run to do so.
  for (int i = 0; i < 10; ++i) EXPECT_EQ(commands->status(), MTL::CommandBufferStatusCommitted);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(commands->status(), MTL::CommandBufferStatusCommitted);
  EXPECT_EQ(bytes(one)[0], 0);
  metal_double().set_pace(kMetalEager);
  commands->waitUntilCompleted();
  EXPECT_EQ(bytes(one)[0], 7);
  commands->release();
  one->release();
}

TEST_F(MetalQueues, RunWhatSomebodyKeepsAskingFor) {
  run_only_when_asked();
  MTL::CommandBuffer* commands = blit([](MTL::BlitCommandEncoder*) {});
  while (commands->status() < MTL::CommandBufferStatusCompleted) std::this_thread::yield();
  commands->release();
}

TEST_F(MetalQueues, RunCommittedWorkInTheEndEvenIfNobodyWaits) {
  std::atomic<bool> called{false};
  {
    const Pool pool;
    MTL::CommandBuffer* commands = queue_->commandBuffer();
    commands->addCompletedHandler([&](MTL::CommandBuffer*) {
      called = true;
      called.notify_all();
    });
    commands->commit();
  }
  called.wait(false);
  EXPECT_TRUE(called);
}

TEST_F(MetalQueues, RunOnAThreadOfTheirOwnAndInOrder) {
  std::vector<int> order;
  std::thread::id thread = std::this_thread::get_id();
  MTL::CommandBuffer* last = nullptr;
  {
    const Pool pool;
    for (int i = 0; i < 3; ++i) {
      last = queue_->commandBuffer();
      last->addScheduledHandler([&order, i](MTL::CommandBuffer*) { order.push_back(10 + i); });
      last->addCompletedHandler([&, i](MTL::CommandBuffer* done) {
        EXPECT_EQ(done->status(), MTL::CommandBufferStatusCompleted);
        order.push_back(i);
        thread = std::this_thread::get_id();
      });
      last->commit();
    }
    last->waitUntilCompleted();
  }
  EXPECT_THAT(order, ElementsAre(10, 0, 11, 1, 12, 2));
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST_F(MetalQueues, FollowTheOrderInWhichCommandBuffersWereEnqueued) {
  std::vector<int> order;
  const Pool pool;
  MTL::CommandBuffer* first = queue_->commandBuffer();
  MTL::CommandBuffer* second = queue_->commandBuffer();
  first->addCompletedHandler([&](MTL::CommandBuffer*) { order.push_back(1); });
  second->addCompletedHandler([&](MTL::CommandBuffer*) { order.push_back(2); });
  first->enqueue();
  second->commit();
  first->commit();
  // Both, so that neither order is over before the other would show.
  first->waitUntilCompleted();
  second->waitUntilCompleted();
  EXPECT_THAT(order, ElementsAre(1, 2)) << "the first in line was committed last";
}

TEST_F(MetalQueues, NoticeAnEnqueuedCommandBufferThatIsLetGo) {
  {
    const Pool pool;
    queue_->commandBuffer()->enqueue();
  }
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("enqueued and released without a commit")));
}

TEST_F(MetalQueues, ForgetACommandBufferThatIsNeverCommitted) {
  MTL::Buffer* one = buffer(64);
  {
    const Pool pool;
    MTL::BlitCommandEncoder* encoder = queue_->commandBuffer()->blitCommandEncoder();
    encoder->fillBuffer(one, NS::Range(0, 4), 1);
    encoder->endEncoding();
  }
  EXPECT_EQ(metal_double().live_objects("MTLCommandBuffer"), 0u);
  EXPECT_EQ(bytes(one)[0], 0);
  one->release();
}

TEST_F(MetalQueues, RefuseASecondCommit) {
  const Pool pool;
  MTL::CommandBuffer* commands = queue_->commandBuffer();
  commands->commit();
  commands->commit();
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("was sent commit when it was already committed")));
  commands->waitUntilCompleted();
}

TEST_F(MetalQueues, RefuseEncodingAfterTheCommit) {
  const Pool pool;
  MTL::CommandBuffer* commands = queue_->commandBuffer();
  commands->commit();
  EXPECT_EQ(commands->blitCommandEncoder(), nullptr);
  EXPECT_EQ(commands->computeCommandEncoder(), nullptr);
  commands->addCompletedHandler([](MTL::CommandBuffer*) { ADD_FAILURE(); });
  EXPECT_EQ(take_metal_violations().size(), 3u);
  commands->waitUntilCompleted();
}

TEST_F(MetalQueues, RefuseTwoOpenEncoders) {
  const Pool pool;
  MTL::CommandBuffer* commands = queue_->commandBuffer();
  commands->blitCommandEncoder();
  commands->blitCommandEncoder()->endEncoding();
  EXPECT_THAT(take_metal_violations(),
              ElementsAre(HasSubstr("was sent blitCommandEncoder while MTLBlitCommandEncoder")));
}

TEST_F(MetalQueues, RefuseACommitWithAnOpenEncoder) {
  const Pool pool;
  MTL::CommandBuffer* commands = queue_->commandBuffer();
  commands->blitCommandEncoder();
  commands->commit();
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("was committed while MTLBlitCommandEncoder")));
  commands->waitUntilCompleted();
}

TEST_F(MetalQueues, RefuseCommandsAfterTheEndOfTheirEncoder) {
  MTL::Buffer* one = buffer(64);
  {
    const Pool pool;
    MTL::BlitCommandEncoder* encoder = queue_->commandBuffer()->blitCommandEncoder();
    encoder->endEncoding();
    encoder->fillBuffer(one, NS::Range(0, 4), 1);
    encoder->endEncoding();
  }
  EXPECT_THAT(take_metal_violations(),
              ElementsAre(StartsWith("after endEncoding: MTLBlitCommandEncoder"), HasSubstr("was sent endEncoding")));
  one->release();
}

TEST_F(MetalQueues, NoticeAnEncoderReleasedBeforeItsEnd) {
  {
    const Pool pool;
    queue_->commandBuffer()->blitCommandEncoder();
  }
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("was released before it ended its encoding")));
}

TEST_F(MetalQueues, RefuseAWaitThatWouldNeverEnd) {
  const Pool pool;
  queue_->commandBuffer()->waitUntilCompleted();
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("was never committed")));
}

TEST_F(MetalQueues, RefuseMoreCommandBuffersThanTheyHavePlacesFor) {
  MTL::CommandQueue* small = device_->newCommandQueue(2);
  {
    const Pool pool;
    small->commandBuffer();
    small->commandBuffer();
    EXPECT_EQ(small->commandBuffer(), nullptr);
  }
  EXPECT_THAT(take_metal_violations(), ElementsAre(StartsWith("would block for ever: MTLCommandQueue")));
  for (int i = 0; i < 10; ++i) {
    const Pool pool;
    small->commandBuffer()->commit();  // waits for a place
  }
  small->release();
}

TEST_F(MetalQueues, NoticeABufferReleasedUnderWorkThatDoesNotRetainIt) {
  metal_double().set_pace(kMetalHeld);
  MTL::Buffer* one = buffer(64);
  MTL::CommandBuffer* commands = nullptr;
  {
    const Pool pool;
    commands = queue_->commandBufferWithUnretainedReferences()->retain();
    MTL::BlitCommandEncoder* encoder = commands->blitCommandEncoder();
    encoder->fillBuffer(one, NS::Range(0, 64), 1);
    encoder->endEncoding();
    commands->commit();
  }
  one->release();
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("was released while a command buffer")));
  metal_double().set_pace(kMetalLate);
  commands->waitUntilCompleted();
  commands->release();
}

TEST_F(MetalQueues, NoticeABufferReleasedBeforeTheCommitThatNeedsIt) {
  MTL::Buffer* one = buffer(64);
  const Pool pool;
  MTL::CommandBuffer* commands = queue_->commandBufferWithUnretainedReferences();
  MTL::BlitCommandEncoder* encoder = commands->blitCommandEncoder();
  encoder->fillBuffer(one, NS::Range(0, 64), 1);
  encoder->endEncoding();
  one->release();
  commands->commit();
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("was released before the commit")));
  commands->waitUntilCompleted();
}

TEST_F(MetalQueues, OutliveTheirLastReferenceUntilTheirWorkIsDone) {
  MTL::Buffer* one = buffer(64);
  MTL::CommandBuffer* commands =
      blit([&](MTL::BlitCommandEncoder* encoder) { encoder->fillBuffer(one, NS::Range(0, 64), 3); });
  queue_->release();
  queue_ = nullptr;
  commands->waitUntilCompleted();
  EXPECT_EQ(bytes(one)[63], 3);
  commands->release();
  one->release();
}

TEST_F(MetalQueues, EndInErrorWhenToldTo) {
  MTL::Buffer* one = buffer(64);
  metal_double().fail_execution(2, MTL::CommandBufferErrorOutOfMemory);
  for (int i = 0; i < 3; ++i) {
    MTL::CommandBuffer* commands = blit([&](MTL::BlitCommandEncoder* encoder) {
      encoder->fillBuffer(one, NS::Range(0, 4), static_cast<std::uint8_t>(i + 1));
    });
    commands->waitUntilCompleted();
    EXPECT_EQ(commands->status(), i == 1 ? MTL::CommandBufferStatusError : MTL::CommandBufferStatusCompleted);
    if (i == 1) {
      EXPECT_EQ(commands->error()->code(), MTL::CommandBufferErrorOutOfMemory);
      EXPECT_EQ(bytes(one)[0], 1) << "what failed has no effect";
    }
    commands->release();
  }
  EXPECT_EQ(metal_double().stop_failing(), 0);
  one->release();
}

TEST_F(MetalQueues, EndInErrorForGoodOnceTheDeviceIsLost) {
  metal_double().lose_device();
  for (int i = 0; i < 2; ++i) {
    MTL::CommandBuffer* commands = blit([](MTL::BlitCommandEncoder*) {});
    commands->waitUntilCompleted();
    EXPECT_EQ(commands->status(), MTL::CommandBufferStatusError);
    EXPECT_EQ(commands->error()->code(), MTL::CommandBufferErrorDeviceRemoved);
    EXPECT_STREQ(commands->error()->domain()->utf8String(), "MTLCommandBufferErrorDomain");
    commands->release();
  }
}

TEST_F(MetalQueues, AreSafeFromManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      MTL::Buffer* own = buffer(4096);
      for (int i = 0; i < 25; ++i) {
        blit_and_wait([&](MTL::BlitCommandEncoder* encoder) {
          encoder->fillBuffer(own, NS::Range(0, 4096), static_cast<std::uint8_t>(t * 32 + i));
        });
        EXPECT_EQ(bytes(own)[4095], t * 32 + i);
      }
      own->release();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace berth::metal_test
