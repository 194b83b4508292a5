// The report of what is alive, and the check for tests that fails on a leak.
#include "berth/tensor/leaks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "berth/alloc/caching_pool.h"
#include "berth/berth.h"
#include "berth/testing.h"
#include "doubles/lagging_device.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

// The reports below are of devices of their own, so that other tests cannot disturb them.
DevicePtr fresh_device() {
  return doubles::LaggingDevice::make();
}

class Leaks : public ::testing::Test {
 protected:
  void SetUp() override { track_buffers(true); }
  void TearDown() override { track_buffers(before_); }

 private:
  const bool before_ = tracks_buffers();
};

TEST_F(Leaks, AreReportedByLabelTagAndPlaceLargestFirst) {
  const DevicePtr device = fresh_device();
  std::vector<Buffer> held;
  held.push_back(Buffer::allocate(device, u8, {100}, {.label = "small"}).value());
  const std::uint32_t line = __LINE__ + 2;
  for (int i = 0; i < 3; ++i)
    held.push_back(Buffer::allocate(device, u8, {1000}, {.label = "weights", .tag = "model"}).value());
  held.push_back(Buffer::allocate(device, u8, {1500}, {.label = "weights", .tag = "other"}).value());
  const LiveReport report = live_buffers(device.get());
  ASSERT_EQ(report.buffers.size(), 3u);
  EXPECT_EQ(report.count, 5u);
  EXPECT_EQ(report.bytes, 4600u);
  const LiveBuffers& largest = report.buffers[0];
  EXPECT_EQ(largest.label, "weights");
  EXPECT_EQ(largest.tag, "model");
  EXPECT_EQ(largest.bytes, 3000u);
  EXPECT_EQ(largest.count, 3u);
  EXPECT_EQ(largest.line, line);
  EXPECT_THAT(largest.file, HasSubstr("leaks_test.cpp"));
  EXPECT_EQ(largest.device, device->name());
  EXPECT_EQ(report.buffers[1].tag, "other");
  EXPECT_EQ(report.buffers[2].label, "small");
  EXPECT_LE(report.buffers[2].made_after_seconds, largest.made_after_seconds);
  EXPECT_THAT(report.to_string(), HasSubstr("2.9 KiB in 3 buffers"));
  EXPECT_THAT(report.to_string(), HasSubstr("label \"weights\", tag \"model\", made at "));
  held.clear();
  EXPECT_EQ(live_buffers(device.get()).count, 0u);
  EXPECT_EQ(live_buffers(device.get()).to_string(), "");
}

TEST_F(Leaks, CountAStorageOnceAndNotBeforeItHasMemory) {
  const DevicePtr device = fresh_device();
  const Buffer lazy = Buffer::lazy(device, u8, {100}).value();
  EXPECT_EQ(live_buffers(device.get()).count, 0u);
  ASSERT_TRUE(lazy.ensure_allocated());
  const Buffer view = lazy.view(10, 20).value();
  const Buffer copy = lazy;
  EXPECT_EQ(live_buffers(device.get()).count, 1u);
  EXPECT_EQ(live_buffers(device.get()).bytes, 100u);
}

TEST_F(Leaks, AreNotReportedOfBuffersMadeWhileNothingIsTracked) {
  const DevicePtr device = fresh_device();
  track_buffers(false);
  const Buffer unseen = Buffer::allocate(device, u8, {100}).value();
  track_buffers(true);
  const Buffer seen = Buffer::allocate(device, u8, {50}).value();
  EXPECT_EQ(live_buffers(device.get()).bytes, 50u);
}

TEST_F(Leaks, OfATestAreFoundByTheCheck) {
  const DevicePtr device = fresh_device();
  const Buffer earlier = Buffer::allocate(device, u8, {70}, {.label = "earlier"}).value();
  const LeakCheck check(device);
  EXPECT_EQ(check.report().to_string(), "nothing leaked\n");
  EXPECT_TRUE(check.report().ok()) << check.report().to_string();
  { const Buffer fine = Buffer::allocate(device, u8, {100}).value(); }
  EXPECT_TRUE(check.report().ok()) << check.report().to_string();
  const Buffer leaked = Buffer::allocate(device, u8, {100}, {.label = "forgotten"}).value();
  const LeakReport report = check.report();
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.buffers.bytes, 100u);
  EXPECT_THAT(report.to_string(), HasSubstr("forgotten"));
  EXPECT_THAT(report.to_string(), ::testing::Not(HasSubstr("earlier")));
}

TEST_F(Leaks, OfBlocksAreFoundByTheCheckEvenBesideBlocksThatWereThere) {
  const DevicePtr device = fresh_device();
  const Block before = device->allocate({.bytes = 64, .label = "kv 0"}).value();
  const Block other = device->allocate({.bytes = 64, .label = "kv 1"}).value();
  const LeakCheck check(device);
  device->release(other);
  EXPECT_TRUE(check.report().ok()) << check.report().to_string();
  const Block again = device->allocate({.bytes = 64, .label = "kv 7"}).value();
  EXPECT_TRUE(check.report().ok()) << "as many and as much as before: " << check.report().to_string();
  const Block leaked = device->allocate({.bytes = 500, .label = "raw"}).value();
  const LeakReport report = check.report();
  ASSERT_EQ(report.blocks.size(), 1u) << report.to_string();
  EXPECT_EQ(report.blocks[0].label, "raw");
  EXPECT_EQ(report.blocks[0].bytes, 500u);
  EXPECT_EQ(report.to_string(), "the device has more blocks than before:\n  500 B in 1 block, label \"raw\"\n");
  EXPECT_EQ(report.buffers.count, 0u);
  const Block second = device->allocate({.bytes = 500, .label = "raw"}).value();
  EXPECT_THAT(check.report().to_string(), HasSubstr("1000 B in 2 blocks, label \"raw\""));
  device->release(second);
  for (const Block& block : {before, again, leaked}) device->release(block);
}

TEST_F(Leaks, OfBlocksAreToldApartByTheLastLetterOfTheirLabels) {
  const DevicePtr device = fresh_device();
  const Block before = device->allocate({.bytes = 64, .label = "cat"}).value();
  const LeakCheck check(device);
  device->release(before);
  const Block leaked = device->allocate({.bytes = 64, .label = "car"}).value();
  const LeakReport report = check.report();
  ASSERT_EQ(report.blocks.size(), 1u) << report.to_string();
  EXPECT_EQ(report.blocks[0].label, "car");
  device->release(leaked);
}

TEST_F(Leaks, OfACacheLastUntilItIsTrimmed) {
  const DevicePtr device = fresh_device();
  const auto pool = make_caching_pool(device);
  const LeakCheck check(device);
  { const Buffer used = Buffer::allocate(pool, u8, {1000}).value(); }
  EXPECT_FALSE(check.report().ok());
  pool->trim();
  EXPECT_TRUE(check.report().ok()) << check.report().to_string();
}

TEST_F(Leaks, ArePrintedWhenTheirDeviceGoes) {
  ::testing::internal::CaptureStderr();
  const DevicePtr host = device("CPU").value();
  Block leaked;
  {
    const DevicePtr lagging = fresh_device();
    leaked = lagging->allocate({.bytes = 300, .label = "never released"}).value();
  }
  host->release(leaked);  // the device took it from there, and LeakSanitizer watches
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("is destroyed with"));
  EXPECT_THAT(text, HasSubstr("never released"));
}

TEST_F(Leaks, AreNotPrintedForADeviceWithoutAny) {
  ::testing::internal::CaptureStderr();
  {
    const DevicePtr device = fresh_device();
    device->release(device->allocate({.bytes = 300}).value());
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(LeakCheck, TracksBuffersWhereNothingElseAsksForIt) {
  const bool before = tracks_buffers();
  track_buffers(false);
  {
    const LeakCheck check;
    EXPECT_TRUE(tracks_buffers());
    const Buffer kept = Buffer::allocate(device("CPU").value(), u8, {64}).value();
    EXPECT_EQ(check.report().buffers.count, 1u);
  }
  EXPECT_FALSE(tracks_buffers()) << "as it was";
  track_buffers(before);
}

}  // namespace
}  // namespace berth
