// Residency and the buffer pool on METAL: what reaches the system's own set, counted by the double.
#include "berth/memory/registry.h"
#include "devices/metal/metal_support.h"
#include "support/support.h"

namespace berth::metal_test {
namespace {

using test::fails_with;

class MetalResidency : public MetalTest {
 protected:
  void start() {
    gpu_ = device("METAL").value();
    queue_ = gpu_->make_queue().value();
    metal_double().clear_messages();
  }
  void TearDown() override {
    queue_.reset();
    gpu_.reset();
    MetalTest::TearDown();
  }
  static std::uint64_t commits() { return metal_double().messages("MTLResidencySet commit"); }

  DevicePtr gpu_;
  QueuePtr queue_;
};

TEST_F(MetalResidency, AddsInOneMessageAndCommitsOnceASubmit) {
  start();
  std::vector<Buffer> held;
  for (int i = 0; i < 100; ++i) held.push_back(Buffer::allocate(gpu_, u8, {4096}).value());
  EXPECT_EQ(commits(), 0u);
  ASSERT_TRUE(queue_->submit());
  EXPECT_EQ(commits(), 1u);
  EXPECT_EQ(metal_double().messages("MTLResidencySet addAllocations:count:"), 1u);
  EXPECT_EQ(metal_double().messages("MTLResidencySet requestResidency"), 1u);
  EXPECT_GE(metal_double().resident_bytes(), 409'600u);
  ASSERT_TRUE(queue_->submit());
  EXPECT_EQ(commits(), 1u) << "an idle submit commits nothing";
  held.clear();
  EXPECT_EQ(commits(), 1u);
  ASSERT_TRUE(queue_->submit());
  EXPECT_EQ(commits(), 2u);
  EXPECT_EQ(metal_double().resident_bytes(), 0u);
}

TEST_F(MetalResidency, CostsMetalNothingForWhatCameAndWent) {
  start();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Buffer::allocate(gpu_, u8, {4096}));
  ASSERT_TRUE(queue_->submit());
  EXPECT_EQ(gpu_->residency()->counters().commits, 1u);
  EXPECT_EQ(commits(), 0u);
  EXPECT_EQ(metal_double().messages("MTLResidencySet removeAllocation:"), 0u);
}

TEST_F(MetalResidency, IsAttachedOnceToEachQueue) {
  gpu_ = device("METAL").value();
  metal_double().clear_messages();
  queue_ = gpu_->make_queue().value();
  const Buffer buffer = Buffer::allocate(gpu_, u8, {64}).value();
  for (std::uint8_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(queue_->fill(buffer.window().value(), i));
    ASSERT_TRUE(queue_->finish());
  }
  EXPECT_EQ(metal_double().messages("MTLCommandQueue addResidencySet:"), 1u);
}

TEST_F(MetalResidency, IsCommittedBeforeTheWorkGoesOut) {
  start();
  // The double refuses work on memory that no committed set has.
  const Buffer buffer = Buffer::allocate(gpu_, u8, {64}).value();
  ASSERT_TRUE(queue_->fill(buffer.window().value(), 3));
  ASSERT_TRUE(queue_->finish());
  EXPECT_EQ(buffer.as_slice<std::uint8_t>().value()[63], 3);
}

TEST_F(MetalResidency, IsTurnedOffByTheEnvironment) {
  const Environment off("BERTH_RESIDENCY", "0");
  start();
  EXPECT_EQ(gpu_->residency(), nullptr);
  EXPECT_FALSE(metal_info(*gpu_).value().residency_sets);
  const Buffer buffer = Buffer::allocate(gpu_, u8, {64}).value();
  ASSERT_TRUE(queue_->fill(buffer.window().value(), 3));
  ASSERT_TRUE(queue_->finish());
  EXPECT_EQ(commits(), 0u);
}

TEST_F(MetalResidency, GoesOnWithoutItOnASystemThatIsTooOld) {
  restart({.residency_sets = 0});
  start();
  EXPECT_NE(gpu_->description().find("macOS 15"), std::string::npos) << gpu_->description();
  const Buffer buffer = Buffer::allocate(gpu_, u8, {64}, {.label = "weights"}).value();
  ASSERT_TRUE(queue_->fill(buffer.window().value(), 3));
  ASSERT_TRUE(queue_->finish());
  EXPECT_EQ(buffer.as_slice<std::uint8_t>().value()[0], 3);
  const ResidencyReport report = gpu_->residency()->report();
  ASSERT_EQ(report.left.size(), 1u);
  EXPECT_NE(report.left[0].why.find("macOS 15"), std::string::npos);
  EXPECT_FALSE(metal_info(*gpu_).value().residency_sets);
}

TEST_F(MetalResidency, GivesBackAtATrimWhatLeftTheSet) {
  start();
  {
    const Buffer buffer = Buffer::allocate(gpu_, u8, {1 << 20}).value();
    ASSERT_TRUE(queue_->submit());
  }
  EXPECT_GE(metal_double().live_bytes(), std::size_t{1} << 20) << "Metal keeps it until the set is committed";
  EXPECT_GE(gpu_->trim(0), std::size_t{1} << 20);
  EXPECT_EQ(metal_double().live_bytes(), 0u);
}

TEST_F(MetalResidency, IsRequestedAgainWhileNothingIsSubmitted) {
  start();
  const Buffer buffer = Buffer::allocate(gpu_, u8, {64}).value();
  ASSERT_TRUE(queue_->submit());
  const std::uint64_t before = metal_double().messages("MTLResidencySet requestResidency");
  gpu_->residency()->keep_alive(std::chrono::milliseconds(1));
  while (gpu_->residency()->counters().renewals < 3) std::this_thread::yield();
  gpu_->residency()->keep_alive(std::chrono::milliseconds(0));
  const std::uint64_t renewals = gpu_->residency()->counters().renewals;
  EXPECT_EQ(metal_double().messages("MTLResidencySet requestResidency"), before + renewals);
  EXPECT_EQ(commits(), 1u);
  // The end of the device ends the thread.
  gpu_->residency()->keep_alive(std::chrono::hours(1));
}

TEST_F(MetalResidency, GivesUpTheLeastRecentlyUsedWhenTheBudgetIsFull) {
  start();
  gpu_->residency()->set_budget(8192);
  const Buffer a = Buffer::allocate(gpu_, u8, {4096}, {.label = "a"}).value();
  const Buffer b = Buffer::allocate(gpu_, u8, {4096}, {.label = "b"}).value();
  ASSERT_TRUE(queue_->fill(b.window().value(), 1));
  ASSERT_TRUE(queue_->fill(a.window().value(), 1));
  ASSERT_TRUE(queue_->finish());
  const Buffer c = Buffer::allocate(gpu_, u8, {4096}, {.label = "c"}).value();
  ASSERT_TRUE(queue_->submit());
  const ResidencyReport report = gpu_->residency()->report();
  ASSERT_EQ(report.left.size(), 1u);
  EXPECT_EQ(report.left[0].label, Name("b"));
  EXPECT_EQ(metal_double().messages("MTLResidencySet removeAllocation:"), 1u);
}

TEST_F(MetalResidency, BringsBackWhatTheBudgetLeftOutBeforeWorkUsesIt) {
  start();
  gpu_->residency()->set_budget(8192);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 3; ++i) buffers.push_back(Buffer::allocate(gpu_, u8, {4096}).value());
  ASSERT_TRUE(queue_->submit());
  EXPECT_EQ(gpu_->residency()->report().left.size(), 1u);
  // Each in turn is the one that is out: the double refuses work on memory that is not in place.
  for (int round = 0; round < 6; ++round) {
    ASSERT_TRUE(queue_->fill(buffers[static_cast<std::size_t>(round) % 3].window().value(), 5));
    ASSERT_TRUE(queue_->finish());
    EXPECT_EQ(gpu_->residency()->report().resident_bytes, 8192u);
  }
  EXPECT_LE(metal_double().resident_bytes(), 8192u);
}

TEST_F(MetalResidency, CommitsAtMostOnceATokenAndAllocatesNothingAfterTheFirst) {
  start();
  StepBuffers pool(gpu_);
  for (int token = 0; token < 5; ++token) {
    metal_double().clear_messages();
    for (std::size_t i = 0; i < 1750; ++i) ASSERT_TRUE(pool.allocate(f32, {1 + i % 7, 64}));
    const Buffer first = pool.allocate(f32, {64}).value();
    ASSERT_TRUE(queue_->fill(first.window().value(), 1));
    ASSERT_TRUE(queue_->finish());
    pool.reset();
    EXPECT_EQ(commits(), token == 0 ? 1u : 0u);
    EXPECT_EQ(metal_double().messages("newBufferWithLength:options:"), token == 0 ? 1751u : 0u);
  }
}

TEST_F(MetalResidency, TakesABatchWithOneCommitAndAnEmptyOneWithNone) {
  start();
  StepBuffers pool(gpu_);
  ASSERT_TRUE(pool.allocate_batch({}));
  ASSERT_TRUE(queue_->submit());
  EXPECT_EQ(commits(), 0u);
  ASSERT_TRUE(pool.allocate_batch(std::vector<BufferRequest>(50, {u8, {1000}, {}})));
  ASSERT_TRUE(queue_->submit());
  EXPECT_EQ(commits(), 1u);
}

TEST_F(MetalResidency, HoldsARegisteredBufferUntilThePoolIsCleared) {
  start();
  MTL::Buffer* const raw =
      static_cast<internal::metal::MetalDevice&>(*gpu_).native_device().newBuffer(4096, MTL::ResourceStorageModeShared);
  {
    StepBuffers pool(gpu_);
    const Buffer foreign =
        Buffer::import(
            gpu_, {.address = internal::metal::handle_of(raw), .bytes = 4096, .release = [raw] { raw->release(); }}, u8,
            {4096})
            .value();
    ASSERT_TRUE(pool.register_existing(foreign));
    ASSERT_TRUE(pool.register_existing(foreign.view(0, 100).value()));
    ASSERT_TRUE(queue_->fill(foreign.window().value(), 2));
    ASSERT_TRUE(queue_->finish());
    EXPECT_GE(metal_double().resident_bytes(), 4096u);
    EXPECT_TRUE(fails_with(pool.release(foreign), Code::kNotOwned));
    pool.clear();
    ASSERT_TRUE(queue_->submit());
    EXPECT_EQ(metal_double().resident_bytes(), 0u);
  }
}

TEST_F(MetalResidency, ZeroesPoolMemoryThatIsUsedAgainWhenAsked) {
  start();
  StepBuffers pool(gpu_);
  for (const HostAccess host : {HostAccess::kPreferred, HostAccess::kNone}) {
    const Buffer fresh = pool.allocate(u8, {1000}, {.host = host}).value();
    Bytes seen(1000, std::byte{1});
    ASSERT_TRUE(fresh.copyout(seen));
    EXPECT_EQ(seen, Bytes(1000));
    ASSERT_TRUE(fresh.copyin(Bytes(1000, std::byte{8})));
    ASSERT_TRUE(pool.release(fresh));
    ASSERT_TRUE(pool.allocate(u8, {1000}, {.zero = true}).value().copyout(seen));
    EXPECT_EQ(seen, Bytes(1000));
    pool.clear();
  }
}

}  // namespace
}  // namespace berth::metal_test
