// Messages, references and pools.
#include "double_fixture.h"

extern "C" void* _Block_copy(const void* block);
extern "C" void _Block_release(const void* block);

namespace berth::metal_test {
namespace {

using MetalObjects = MetalDouble;

TEST_F(MetalObjects, CountMessagesByClassAndSelector) {
  MTL::Buffer* one = buffer(64);
  metal_double().clear_messages();
  one->contents();
  one->contents();
  static_cast<void>(one->length());
  EXPECT_EQ(metal_double().messages("MTLBuffer contents"), 2u);
  EXPECT_EQ(metal_double().messages("contents"), 2u);
  EXPECT_EQ(metal_double().messages("MTLDevice contents"), 0u);
  EXPECT_EQ(metal_double().messages(nullptr), 3u);
  metal_double().clear_messages();
  EXPECT_EQ(metal_double().messages(nullptr), 0u);
  one->release();
}

TEST_F(MetalObjects, AnswerZeroThroughNilAndCountIt) {
  metal_double().clear_messages();
  MTL::Buffer* none = nullptr;
  EXPECT_EQ(none->length(), 0u);
  EXPECT_EQ(none->contents(), nullptr);
  EXPECT_EQ(metal_double().messages_to_nil(), 2u);
}

TEST_F(MetalObjects, PassStructuresByValueBothWays) {
  const MTL::Size most = device_->maxThreadsPerThreadgroup();
  EXPECT_EQ(most.width, 1024u);
  EXPECT_EQ(most.depth, 1024u);
  const Pool pool;
  const NS::OperatingSystemVersion version = NS::ProcessInfo::processInfo()->operatingSystemVersion();
  EXPECT_EQ(version.majorVersion, 15);
}

TEST_F(MetalObjects, ReportWhatIsAliveByClass) {
  MTL::Buffer* one = buffer(64);
  MTL::Buffer* two = buffer(64);
  EXPECT_EQ(metal_double().live_objects("MTLBuffer"), 2u);
  EXPECT_THAT(metal_double().live_report(), HasSubstr("MTLBuffer 2"));
  one->release();
  two->release();
  EXPECT_EQ(metal_double().live_objects("MTLBuffer"), 0u);
}

TEST_F(MetalObjects, RefuseAResetWhileSomethingLives) {
  const MetalDoubleOptions options;
  EXPECT_EQ(metal_double().reset(&options), 0);
}

TEST_F(MetalObjects, NoticeAMessageToADeadObject) {
  MTL::Buffer* one = buffer(64);
  one->release();
  EXPECT_EQ(one->length(), 0u);
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("was sent length")));
}

TEST_F(MetalObjects, NoticeARetainOfADeadObject) {
  MTL::Buffer* one = buffer(64);
  one->release();
  one->retain();
  EXPECT_THAT(take_metal_violations(), ElementsAre(StartsWith("use after release: MTLBuffer")));
}

TEST_F(MetalObjects, NoticeAReleaseTooMany) {
  MTL::Buffer* one = buffer(64);
  MTL::CommandBuffer* commands = nullptr;
  {
    const Pool pool;
    commands = queue_->commandBuffer()->retain();
    MTL::BlitCommandEncoder* encoder = commands->blitCommandEncoder();
    encoder->fillBuffer(one, NS::Range(0, 64), 1);
    encoder->endEncoding();
  }
  one->release();
  // The command buffer still holds it, and yet the program has nothing left to release.
  one->release();
  EXPECT_THAT(take_metal_violations(), ElementsAre(StartsWith("over-release: MTLBuffer")));
  commands->release();
}

TEST_F(MetalObjects, NoticeAMessageThatIsNotUnderstood) {
  MTL::Buffer* one = buffer(64);
  static_cast<void>(reinterpret_cast<MTL::CommandQueue*>(one)->commandBuffer());
  EXPECT_THAT(take_metal_violations(), ElementsAre("unrecognised: MTLBuffer does not understand commandBuffer"));
  one->release();
}

TEST_F(MetalObjects, NoticeAnAutoreleaseWithoutAPool) {
  MTL::CommandBuffer* commands = queue_->commandBuffer();
  EXPECT_THAT(take_metal_violations(), ElementsAre(HasSubstr("no autorelease pool")));
  commands->release();
}

TEST_F(MetalObjects, KeepAnAutoreleasedObjectUntilItsPoolIsDrained) {
  {
    const Pool outer;
    {
      const Pool inner;
      NS::String::string("a", NS::UTF8StringEncoding);
      EXPECT_EQ(metal_double().live_objects("NSString"), 2u);  // and the device's name
    }
    EXPECT_EQ(metal_double().live_objects("NSString"), 1u);
  }
}

TEST_F(MetalObjects, NoticePoolsDrainedOutOfOrder) {
  NS::AutoreleasePool* outer = NS::AutoreleasePool::alloc()->init();
  NS::AutoreleasePool* inner = NS::AutoreleasePool::alloc()->init();
  outer->release();
  EXPECT_THAT(take_metal_violations(), ElementsAre(StartsWith("pool: NSAutoreleasePool")));
  inner->release();
  outer->release();
}

TEST_F(MetalObjects, NoticeAPoolThatAThreadLeavesBehind) {
  NS::AutoreleasePool* left = nullptr;
  std::thread([&] { left = NS::AutoreleasePool::alloc()->init(); }).join();
  EXPECT_THAT(take_metal_violations(), ElementsAre("pool: a thread ended with an autorelease pool in place"));
  EXPECT_EQ(metal_double().live_objects("NSAutoreleasePool"), 1u);
  left->drain();
}

TEST_F(MetalObjects, GiveStringsConstantsAndErrors) {
  const Pool pool;
  NS::String* text = NS::String::string("berth", NS::UTF8StringEncoding);
  EXPECT_STREQ(text->utf8String(), "berth");
  EXPECT_EQ(text->length(), 5u);
  EXPECT_TRUE(text->isEqualToString(MTLSTR("berth")));
  NS::String* constant = MTLSTR("constant");
  EXPECT_STREQ(constant->utf8String(), "constant");
  constant->retain();
  constant->release();
  NS::Error* error = NS::Error::error(MTLSTR("domain"), 7, nullptr);
  EXPECT_EQ(error->code(), 7);
  EXPECT_STREQ(error->domain()->utf8String(), "domain");
  EXPECT_THAT(error->localizedDescription()->utf8String(), HasSubstr("error 7"));
  NS::Dictionary* info = NS::Dictionary::dictionary(MTLSTR("the reason"), NS::LocalizedDescriptionKey);
  error = NS::Error::error(MTLSTR("domain"), 8, info);
  EXPECT_STREQ(error->localizedDescription()->utf8String(), "the reason");
}

TEST_F(MetalObjects, EndTheProcessWhenToldTo) {
  drop_device();
  EXPECT_DEATH(
      {
        MetalDoubleOptions options;
        options.abort_on_violation = 1;
        metal_double().reset(&options);
        MTL::Device* device = MTL::CreateSystemDefaultDevice();
        device->release();
        device->release();
      },
      "Metal double: over-release: MTLDevice");
}

TEST_F(MetalObjects, GiveEveryDeviceOnceAndTheSameOneAgain) {
  drop_device();
  MetalDoubleOptions options;
  options.devices = 2;
  restart(options);
  NS::Array* all = MTL::CopyAllDevices();
  ASSERT_EQ(all->count(), 2u);
  MTL::Device* first = MTL::CreateSystemDefaultDevice();
  EXPECT_EQ(first, all->object<MTL::Device>(0));
  EXPECT_NE(first->registryID(), all->object<MTL::Device>(1)->registryID());
  EXPECT_STREQ(first->name()->utf8String(), "Metal double 0");
  first->release();
  all->release();
}

TEST_F(MetalObjects, CountBlocksThatNobodyReleased) {
  int seen = 0;
  int* target = &seen;
  void* kept = _Block_copy(reinterpret_cast<const void*>(^{
    *target = 1;
  }));
  EXPECT_EQ(metal_double().live_objects("Block"), 1u);
  EXPECT_THAT(metal_double().live_report(), HasSubstr("Block 1"));
  _Block_release(kept);
  EXPECT_EQ(metal_double().live_objects("Block"), 0u);
}

}  // namespace
}  // namespace berth::metal_test
