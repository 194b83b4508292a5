// Events across queues, the host and listeners.
#include <dispatch/dispatch.h>

#include "double_fixture.h"

namespace berth::metal_test {
namespace {

class MetalEvents : public MetalDouble {
 protected:
  MetalEvents() : event_(device_->newSharedEvent()) {}
  void TearDown() override {
    event_->release();
    MetalDouble::TearDown();
  }

  void commit_signal(MTL::CommandQueue* queue, std::uint64_t value) {
    const Pool pool;
    MTL::CommandBuffer* commands = queue->commandBuffer();
    commands->encodeSignalEvent(event_, value);
    commands->commit();
  }

  MTL::SharedEvent* event_;
};

TEST_F(MetalEvents, AreSignalledByTheQueueAndWaitedForByTheHost) {
  metal_double().set_pace(kMetalHeld);
  commit_signal(queue_, 5);
  EXPECT_EQ(event_->signaledValue(), 0u);
  metal_double().set_pace(kMetalLate);
  EXPECT_TRUE(event_->waitUntilSignaledValue(5, ~std::uint64_t{0}));
  EXPECT_EQ(event_->signaledValue(), 5u);
}

TEST_F(MetalEvents, EndAWaitWhoseTimeIsOver) {
  EXPECT_FALSE(event_->waitUntilSignaledValue(1, 1));
}

TEST_F(MetalEvents, EndAWaitWhenTheDeviceIsLost) {
  std::thread waiting([this] { EXPECT_FALSE(event_->waitUntilSignaledValue(1, ~std::uint64_t{0})); });
  metal_double().lose_device();
  waiting.join();
}

TEST_F(MetalEvents, AreReachedByWhoKeepsAsking) {
  event_->release();
  run_only_when_asked();
  event_ = device_->newSharedEvent();
  commit_signal(queue_, 1);
  while (event_->signaledValue() < 1) std::this_thread::yield();
  EXPECT_EQ(event_->signaledValue(), 1u);
}

TEST_F(MetalEvents, OrderOneQueueAfterAnother) {
  MTL::CommandQueue* other = device_->newCommandQueue();
  MTL::Buffer* one = buffer(64);
  MTL::CommandBuffer* last = nullptr;
  {
    const Pool pool;
    last = other->commandBuffer()->retain();
    last->encodeWait(event_, 1);
    MTL::BlitCommandEncoder* encoder = last->blitCommandEncoder();
    encoder->fillBuffer(one, NS::Range(0, 4), 2);
    encoder->endEncoding();
    last->commit();
    MTL::CommandBuffer* first = queue_->commandBuffer();
    encoder = first->blitCommandEncoder();
    encoder->fillBuffer(one, NS::Range(0, 64), 1);
    encoder->endEncoding();
    first->encodeSignalEvent(event_, 1);
    first->commit();
  }
  last->waitUntilCompleted();
  EXPECT_EQ(bytes(one)[0], 2);
  EXPECT_EQ(bytes(one)[4], 1);
  last->release();
  one->release();
  other->release();
}

TEST_F(MetalEvents, AreSignalledByTheHost) {
  MTL::CommandBuffer* commands = nullptr;
  {
    const Pool pool;
    commands = queue_->commandBuffer()->retain();
    commands->encodeWait(event_, 3);
    commands->commit();
  }
  event_->setSignaledValue(3);
  commands->waitUntilCompleted();
  EXPECT_EQ(commands->status(), MTL::CommandBufferStatusCompleted);
  commands->release();
}

TEST_F(MetalEvents, NotifyAListenerOnce) {
  dispatch_queue_t dispatch = dispatch_queue_create("listener", nullptr);
  MTL::SharedEventListener* listener = MTL::SharedEventListener::alloc()->init(dispatch);
  std::vector<std::uint64_t> seen;
  event_->notifyListener(listener, 2, [&](MTL::SharedEvent* event, std::uint64_t value) {
    EXPECT_EQ(event, event_);
    seen.push_back(value);
  });
  for (const std::uint64_t value : {1, 4, 5}) {
    commit_signal(queue_, value);
    metal_double().drain();
  }
  EXPECT_THAT(seen, ElementsAre(4u));
  listener->release();
  dispatch_release(dispatch);
}

TEST_F(MetalEvents, DoNotFallBack) {
  event_->setSignaledValue(4);
  event_->setSignaledValue(3);
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("was signalled to 3 after 4")));
  EXPECT_EQ(event_->signaledValue(), 4u);
}

TEST_F(MetalEvents, AreNotSignalledByWorkThatFailed) {
  metal_double().fail_execution(1, MTL::CommandBufferErrorInternal);
  commit_signal(queue_, 1);
  metal_double().drain();
  EXPECT_EQ(event_->signaledValue(), 0u);
}

TEST_F(MetalEvents, AreNotEncodedInsideAnEncoder) {
  const Pool pool;
  MTL::CommandBuffer* commands = queue_->commandBuffer();
  commands->blitCommandEncoder();
  commands->encodeSignalEvent(event_, 1);
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("was sent encodeSignalEvent:value: while")));
  commands->encodeWait(nullptr, 1);
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("was given nil for an event")));
}

}  // namespace
}  // namespace berth::metal_test
