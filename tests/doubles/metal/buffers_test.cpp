// Buffers, blits and the mistakes one can make with them.
#include <sys/mman.h>

#include "double_fixture.h"

namespace berth::metal_test {
namespace {

using MetalBuffers = MetalDouble;

TEST_F(MetalBuffers, AreClearedAndKnowTheirOptions) {
  MTL::Buffer* one = buffer(100);
  EXPECT_EQ(one->length(), 100u);
  EXPECT_EQ(one->storageMode(), MTL::StorageModeShared);
  EXPECT_EQ(one->device(), device_);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(bytes(one)[i], 0) << i;
  EXPECT_EQ(device_->currentAllocatedSize(), one->allocatedSize());
  one->release();
  EXPECT_EQ(device_->currentAllocatedSize(), 0u);
}

TEST_F(MetalBuffers, HoldThePoisonATestAsksFor) {
  drop_device();
  MetalDoubleOptions options;
  options.fresh_byte = 0xCD;
  restart(options);
  MTL::Device* device = MTL::CreateSystemDefaultDevice();
  MTL::Buffer* one = device->newBuffer(8, MTL::ResourceStorageModeShared);
  EXPECT_EQ(bytes(one)[7], 0xCD);
  one->release();
  device->release();
}

TEST_F(MetalBuffers, HaveNoContentsWhenPrivate) {
  MTL::Buffer* hidden = buffer(64, MTL::ResourceStorageModePrivate);
  EXPECT_EQ(hidden->contents(), nullptr);
  EXPECT_EQ(hidden->storageMode(), MTL::StorageModePrivate);
  hidden->release();
}

TEST_F(MetalBuffers, AreUnreadableOnceReleased) {
  MTL::Buffer* one = buffer(64);
  unsigned char* contents = bytes(one);
  one->release();
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile unsigned char*>(contents)), "");
}

TEST_F(MetalBuffers, WrapTheProgramsOwnPagesAndGiveThemBack) {
  void* pages = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  __block std::size_t given_back = 0;
  MTL::Buffer* wrapped =
      device_->newBuffer(pages, 8192, MTL::ResourceStorageModeShared, ^(void* pointer, NS::UInteger length) {
        given_back = length;
        munmap(pointer, length);
      });
  EXPECT_EQ(wrapped->contents(), pages);
  EXPECT_EQ(metal_double().live_objects("Block"), 1u);
  wrapped->release();
  EXPECT_EQ(given_back, 8192u);
}

TEST_F(MetalBuffers, RefuseToWrapPartsOfPages) {
  alignas(4096) static unsigned char memory[8192];
  EXPECT_EQ(device_->newBuffer(memory + 64, 4096, MTL::ResourceStorageModeShared, nullptr), nullptr);
  EXPECT_EQ(device_->newBuffer(memory, 100, MTL::ResourceStorageModeShared, nullptr), nullptr);
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("must be whole pages"), HasSubstr("must be whole pages")));
}

TEST_F(MetalBuffers, RefuseZeroBytes) {
  EXPECT_EQ(buffer(0), nullptr);
  EXPECT_THAT(take_metal_violations(), ElementsAre("argument: a buffer of 0 bytes was asked for"));
}

TEST_F(MetalBuffers, AreNilPastTheLimits) {
  drop_device();
  MetalDoubleOptions options;
  options.memory_bytes = 3 * 4096;
  options.max_buffer_bytes = 2 * 4096;
  options.private_memory = 0;
  restart(options);
  MTL::Device* device = MTL::CreateSystemDefaultDevice();
  EXPECT_EQ(device->newBuffer(2 * 4096 + 1, MTL::ResourceStorageModeShared), nullptr);
  EXPECT_EQ(device->newBuffer(4096, MTL::ResourceStorageModePrivate), nullptr);
  MTL::Buffer* two = device->newBuffer(2 * 4096, MTL::ResourceStorageModeShared);
  EXPECT_NE(two, nullptr);
  EXPECT_EQ(device->newBuffer(2 * 4096, MTL::ResourceStorageModeShared), nullptr);
  two->release();
  MTL::Buffer* again = device->newBuffer(2 * 4096, MTL::ResourceStorageModeShared);
  EXPECT_NE(again, nullptr);
  again->release();
  device->release();
}

TEST_F(MetalBuffers, AreCopiedAndFilledByBlits) {
  MTL::Buffer* source = buffer(64);
  MTL::Buffer* hidden = buffer(64, MTL::ResourceStorageModePrivate);
  MTL::Buffer* target = buffer(64);
  for (int i = 0; i < 64; ++i) bytes(source)[i] = static_cast<unsigned char>(i);
  blit_and_wait([&](MTL::BlitCommandEncoder* encoder) {
    encoder->copyFromBuffer(source, 0, hidden, 0, 64);
    encoder->copyFromBuffer(hidden, 8, target, 4, 16);
    encoder->fillBuffer(target, NS::Range(32, 4), 0xAB);
  });
  EXPECT_EQ(bytes(target)[4], 8);
  EXPECT_EQ(bytes(target)[19], 23);
  EXPECT_EQ(bytes(target)[20], 0);
  EXPECT_EQ(bytes(target)[35], 0xAB);
  EXPECT_EQ(bytes(target)[36], 0);
  for (MTL::Buffer* one : {source, hidden, target}) one->release();
}

TEST_F(MetalBuffers, RefuseBlitsThatAreNoMultiplesOfFour) {
  MTL::Buffer* one = buffer(64);
  MTL::Buffer* two = buffer(64);
  blit_and_wait([&](MTL::BlitCommandEncoder* encoder) {
    encoder->copyFromBuffer(one, 2, two, 0, 4);
    encoder->copyFromBuffer(one, 0, two, 0, 3);
    encoder->fillBuffer(one, NS::Range(1, 4), 1);
    encoder->fillBuffer(one, NS::Range(0, 0), 1);
  });
  EXPECT_THAT(take_metal_violations(),
              ElementsAre(StartsWith("alignment: copyFromBuffer"), StartsWith("alignment: copy"),
                          StartsWith("alignment: fillBuffer"), HasSubstr("given 0 bytes")));
  EXPECT_EQ(bytes(one)[1], 0) << "a refused command has no effect";
  one->release();
  two->release();
}

TEST_F(MetalBuffers, RefuseRangesOutsideEvenIfTheyOverflow) {
  MTL::Buffer* one = buffer(64);
  MTL::Buffer* two = buffer(32);
  blit_and_wait([&](MTL::BlitCommandEncoder* encoder) {
    encoder->copyFromBuffer(one, 0, two, 0, 64);
    encoder->copyFromBuffer(one, ~std::size_t{3}, two, 0, 8);
    encoder->fillBuffer(two, NS::Range(32, 4), 1);
  });
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("the target of a copy, is outside the 32 bytes"),
                                                   HasSubstr("the source of a copy, is outside the 64 bytes"),
                                                   HasSubstr("the target of a fill, is outside the 32 bytes")));
  one->release();
  two->release();
}

TEST_F(MetalBuffers, RefuseACopyOntoItself) {
  MTL::Buffer* one = buffer(64);
  blit_and_wait([&](MTL::BlitCommandEncoder* encoder) {
    encoder->copyFromBuffer(one, 0, one, 16, 16);
    encoder->copyFromBuffer(one, 0, one, 12, 16);
  });
  EXPECT_THAT(take_metal_violations(), ElementsAre(StartsWith("overlap: a copy within MTLBuffer")));
  one->release();
}

TEST_F(MetalBuffers, RefuseTheMemoryOfAnotherDevice) {
  drop_device();
  MetalDoubleOptions options;
  options.devices = 2;
  restart(options);
  NS::Array* devices = MTL::CopyAllDevices();
  queue_ = devices->object<MTL::Device>(0)->newCommandQueue();
  MTL::Buffer* foreign = devices->object<MTL::Device>(1)->newBuffer(64, MTL::ResourceStorageModeShared);
  blit_and_wait([&](MTL::BlitCommandEncoder* encoder) { encoder->fillBuffer(foreign, NS::Range(0, 64), 1); });
  EXPECT_THAT(take_metal_violations(), ElementsAre(StartsWith("wrong device: MTLBuffer")));
  foreign->release();
  devices->release();
}

TEST_F(MetalBuffers, RefuseADeadBufferInACommand) {
  MTL::Buffer* one = buffer(64);
  one->release();
  blit_and_wait([&](MTL::BlitCommandEncoder* encoder) { encoder->fillBuffer(one, NS::Range(0, 64), 1); });
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("was given as the target of a fill")));
}

TEST_F(MetalBuffers, SayWhichMemoryIsNotManaged) {
  MTL::Buffer* one = buffer(64);
  MTL::Buffer* managed = buffer(64, MTL::ResourceStorageModeManaged);
  one->didModifyRange(NS::Range(0, 64));
  managed->didModifyRange(NS::Range(0, 64));
  managed->didModifyRange(NS::Range(60, 8));
  blit_and_wait([&](MTL::BlitCommandEncoder* encoder) {
    encoder->synchronizeResource(managed);
    encoder->synchronizeResource(one);
  });
  EXPECT_THAT(take_metal_violations(),
              ElementsAre(StartsWith("argument: didModifyRange:"), StartsWith("range: didModifyRange:"),
                          StartsWith("argument: synchronizeResource:")));
  one->release();
  managed->release();
}

TEST_F(MetalBuffers, LiveOnInTheCommandBufferThatUsesThem) {
  metal_double().set_pace(kMetalHeld);
  MTL::Buffer* one = buffer(64);
  MTL::CommandBuffer* commands =
      blit([&](MTL::BlitCommandEncoder* encoder) { encoder->fillBuffer(one, NS::Range(0, 64), 1); });
  one->release();
  EXPECT_EQ(metal_double().live_objects("MTLBuffer"), 1u);
  metal_double().set_pace(kMetalLate);
  commands->waitUntilCompleted();
  EXPECT_EQ(metal_double().live_objects("MTLBuffer"), 0u);
  commands->release();
}

}  // namespace
}  // namespace berth::metal_test
