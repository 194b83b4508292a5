// Every creating message can be made to fail, and says so where it can.
#include "double_fixture.h"

namespace berth::metal_test {
namespace {

using MetalFailures = MetalDouble;

TEST_F(MetalFailures, GiveNilAtTheNthMessageOfAName) {
  metal_double().fail("newBufferWithLength:options:", 2);
  MTL::Buffer* one = buffer(64);
  EXPECT_NE(one, nullptr);
  MTL::Buffer* none = buffer(64);
  EXPECT_EQ(none, nullptr);
  MTL::Buffer* two = buffer(64);
  EXPECT_NE(two, nullptr);
  EXPECT_EQ(metal_double().stop_failing(), 0);
  one->release();
  two->release();
}

TEST_F(MetalFailures, GiveAnErrorWhereTheMessageHasOne) {
  const Pool pool;
  NS::Error* error = nullptr;
  metal_double().fail("MTLDevice newLibraryWithSource:options:error:", 1);
  EXPECT_EQ(device_->newLibrary(MTLSTR("kernel void f() {}"), nullptr, &error), nullptr);
  ASSERT_NE(error, nullptr);
  EXPECT_STREQ(error->localizedDescription()->utf8String(),
               "the double was told to refuse MTLDevice newLibraryWithSource:options:error:");
  error = nullptr;
  metal_double().fail("newResidencySetWithDescriptor:error:", 1);
  EXPECT_EQ(residency_set(), nullptr);
}

TEST_F(MetalFailures, LetGoOfWhatAnInitialiserWasGiven) {
  metal_double().fail("MTLResidencySetDescriptor init", 1);
  EXPECT_EQ(MTL::ResidencySetDescriptor::alloc()->init(), nullptr);
  EXPECT_EQ(metal_double().live_objects("MTLResidencySetDescriptor"), 0u);
}

TEST_F(MetalFailures, GiveNoDeviceToWhoAsksForOne) {
  metal_double().fail("MTLCreateSystemDefaultDevice", 1);
  EXPECT_EQ(MTL::CreateSystemDefaultDevice(), nullptr);
  metal_double().fail("MTLCopyAllDevices", 1);
  EXPECT_EQ(MTL::CopyAllDevices(), nullptr);
}

TEST_F(MetalFailures, CanBeSweptOverEveryCreation) {
  const auto work = [this]() -> bool {
    const Pool pool;
    MTL::Device* device = MTL::CreateSystemDefaultDevice();
    if (device == nullptr) return false;
    MTL::CommandQueue* queue = device->newCommandQueue();
    MTL::Buffer* one = queue == nullptr ? nullptr : device->newBuffer(64, MTL::ResourceStorageModeShared);
    MTL::SharedEvent* event = one == nullptr ? nullptr : device->newSharedEvent();
    MTL::ResidencySet* set = event == nullptr ? nullptr : residency_set();
    MTL::CommandBuffer* commands = set == nullptr ? nullptr : queue->commandBuffer();
    MTL::BlitCommandEncoder* encoder = commands == nullptr ? nullptr : commands->blitCommandEncoder();
    if (encoder != nullptr) encoder->endEncoding();
    for (NS::Object* object : std::initializer_list<NS::Object*>{device, queue, one, event, set}) {
      if (object != nullptr) object->release();
    }
    return encoder != nullptr;
  };
  metal_double().clear_messages();
  ASSERT_TRUE(work());
  const std::uint64_t creations = metal_double().creations();
  EXPECT_EQ(creations, 9u) << "device, queue, buffer, event, descriptor twice, set, command buffer and encoder";
  for (std::uint64_t nth = 1; nth <= creations; ++nth) {
    metal_double().fail(nullptr, nth);
    EXPECT_FALSE(work()) << nth;
    EXPECT_EQ(metal_double().stop_failing(), 0) << nth;
  }
  metal_double().fail(nullptr, creations + 1);
  EXPECT_TRUE(work());
  EXPECT_EQ(metal_double().stop_failing(), 1);
}

}  // namespace
}  // namespace berth::metal_test
