// Residency sets, and the eviction of what is in none.
#include "double_fixture.h"

namespace berth::metal_test {
namespace {

class MetalResidency : public MetalDouble {
 protected:
  MetalResidency() : set_(residency_set()), one_(buffer(4096)) {}
  void TearDown() override {
    metal_double().drain();
    one_->release();
    set_->release();
    MetalDouble::TearDown();
  }

  MTL::CommandBufferStatus fill() {
    MTL::CommandBuffer* commands =
        blit([&](MTL::BlitCommandEncoder* encoder) { encoder->fillBuffer(one_, NS::Range(0, 4096), 9); });
    commands->waitUntilCompleted();
    const MTL::CommandBufferStatus status = commands->status();
    commands->release();
    return status;
  }

  MTL::ResidencySet* set_;
  MTL::Buffer* one_;
};

TEST_F(MetalResidency, IsNotAskedForWhereNoSetIsAttached) {
  EXPECT_EQ(fill(), MTL::CommandBufferStatusCompleted);
  EXPECT_EQ(bytes(one_)[0], 9);
}

TEST_F(MetalResidency, FaultsWithoutACommit) {
  queue_->addResidencySet(set_);
  set_->addAllocation(one_);
  EXPECT_EQ(fill(), MTL::CommandBufferStatusError);
  EXPECT_EQ(bytes(one_)[0], 0);
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("which is in no committed residency set of its queue")));
  set_->commit();
  EXPECT_EQ(fill(), MTL::CommandBufferStatusCompleted);
  EXPECT_EQ(bytes(one_)[0], 9);
}

TEST_F(MetalResidency, LastsUntilTheCommitAfterTheRemoval) {
  queue_->addResidencySet(set_);
  set_->addAllocation(one_);
  set_->commit();
  set_->removeAllocation(one_);
  EXPECT_EQ(fill(), MTL::CommandBufferStatusCompleted);
  set_->commit();
  EXPECT_EQ(fill(), MTL::CommandBufferStatusError);
  EXPECT_THAT(take_metal_violations(), ElementsAre(StartsWith("not resident: MTLCommandBuffer")));
}

TEST_F(MetalResidency, IsOfTheQueueThatHasTheSet) {
  MTL::ResidencySet* other = residency_set();
  queue_->addResidencySet(other);
  set_->addAllocation(one_);
  set_->commit();
  EXPECT_EQ(fill(), MTL::CommandBufferStatusError);
  EXPECT_EQ(take_metal_violations().size(), 1u);
  queue_->addResidencySet(set_);
  EXPECT_EQ(fill(), MTL::CommandBufferStatusCompleted);
  queue_->removeResidencySet(set_);
  EXPECT_EQ(fill(), MTL::CommandBufferStatusError);
  EXPECT_EQ(take_metal_violations().size(), 1u);
  other->release();
}

TEST_F(MetalResidency, OpensTheGpusViewAndNothingElseDoes) {
  // What a kernel reaches through an address, without naming the buffer.
  auto* address = reinterpret_cast<volatile unsigned char*>(one_->gpuAddress());
  ASSERT_NE(address, bytes(one_));
  bytes(one_)[5] = 55;
  EXPECT_DEATH(static_cast<void>(address[5]), "");
  set_->addAllocation(one_);
  EXPECT_DEATH(static_cast<void>(address[5]), "");
  set_->commit();
  EXPECT_EQ(address[5], 55);
  set_->removeAllAllocations();
  EXPECT_EQ(address[5], 55);
  set_->commit();
  EXPECT_DEATH(static_cast<void>(address[5]), "");
}

TEST_F(MetalResidency, CanBeGivenToOneCommandBuffer) {
  metal_double().set_residency(kMetalResidencyStrict);
  EXPECT_EQ(fill(), MTL::CommandBufferStatusError);
  EXPECT_EQ(take_metal_violations().size(), 1u);
  set_->addAllocation(one_);
  set_->commit();
  const Pool pool;
  MTL::CommandBuffer* commands = queue_->commandBuffer();
  commands->useResidencySet(set_);
  MTL::BlitCommandEncoder* encoder = commands->blitCommandEncoder();
  encoder->fillBuffer(one_, NS::Range(0, 4096), 9);
  encoder->endEncoding();
  commands->commit();
  commands->waitUntilCompleted();
  EXPECT_EQ(commands->status(), MTL::CommandBufferStatusCompleted);
}

TEST_F(MetalResidency, IsNotAskedOfMemoryThatSomebodyElseKeeps) {
  queue_->addResidencySet(set_);
  metal_double().keep_resident(one_);
  EXPECT_EQ(fill(), MTL::CommandBufferStatusCompleted);
}

TEST_F(MetalResidency, CountsItsMembersAndBytes) {
  MTL::Buffer* two = buffer(8192);
  const MTL::Allocation* both[] = {one_, two};
  set_->addAllocations(both, 2);
  set_->addAllocation(one_);
  EXPECT_EQ(set_->allocationCount(), 2u);
  EXPECT_TRUE(set_->containsAllocation(two));
  EXPECT_EQ(set_->allocatedSize(), 0u);
  EXPECT_EQ(metal_double().resident_bytes(), 0u);
  set_->commit();
  EXPECT_EQ(set_->allocatedSize(), 12288u);
  EXPECT_EQ(metal_double().resident_bytes(), 12288u);
  set_->removeAllocations(both, 2);
  set_->commit();
  EXPECT_EQ(metal_double().resident_bytes(), 0u);
  two->release();
}

TEST_F(MetalResidency, KeepsItsMembersUntilTheirRemovalIsCommitted) {
  MTL::Buffer* two = buffer(4096);
  set_->addAllocation(two);
  set_->commit();
  set_->removeAllocation(two);
  two->release();
  EXPECT_EQ(metal_double().live_bytes(), 8192u);
  set_->commit();
  EXPECT_EQ(metal_double().live_bytes(), 4096u);
}

TEST_F(MetalResidency, RefusesToRemoveWhatItHasNot) {
  set_->removeAllocation(one_);
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("which has it not")));
}

TEST_F(MetalResidency, IsAttachedOnce) {
  queue_->addResidencySet(set_);
  queue_->addResidencySet(set_);
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("was added to the same queue twice")));
  queue_->removeResidencySet(set_);
  queue_->removeResidencySet(set_);
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("is not among the residency sets")));
}

TEST_F(MetalDouble, HasNoResidencySetsOnAnOlderSystem) {
  drop_device();
  MetalDoubleOptions options;
  options.residency_sets = 0;
  restart(options);
  MTL::Device* device = MTL::CreateSystemDefaultDevice();
  metal_double().clear_messages();
  EXPECT_EQ(MTL::ResidencySetDescriptor::alloc(), nullptr);
  EXPECT_EQ(metal_double().messages_to_nil(), 1u);
  static_cast<void>(device->newResidencySet(nullptr, nullptr));
  EXPECT_THAT(take_metal_violations(),
              ElementsAre(HasSubstr("does not understand newResidencySetWithDescriptor:error:")));
  {
    const Pool pool;
    EXPECT_EQ(NS::ProcessInfo::processInfo()->operatingSystemVersion().majorVersion, 14);
  }
  device->release();
}

}  // namespace
}  // namespace berth::metal_test
