// The driver double is strict about captures: what the driver's documentation forbids fails, is seen, and invalidates
// the capture.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "devices/cuda/double_streams.h"

namespace berth::internal::cuda {
namespace {

using cuda_test::cuda_double;
using cuda_test::cuda_violations;

class CudaDoubleGraph : public DoubleStreams {
 protected:
  void make() override {
    for (Event& event : events_) ASSERT_EQ(driver_->cuEventCreate(&event, kEventDisableTiming), kSuccess);
    ASSERT_EQ(driver_->cuMemAlloc(&memory_, kBytes), kSuccess);
  }
  void destroy() override {
    EXPECT_EQ(driver_->cuMemFree(memory_), kSuccess);
    for (Event event : events_) EXPECT_EQ(driver_->cuEventDestroy(event), kSuccess);
  }

  void begin(CaptureMode mode = kCaptureThreadLocal) {
    ASSERT_EQ(driver_->cuStreamBeginCapture(streams_[0], mode), kSuccess);
  }
  // The end of a capture that one call has broken; the violation is forgiven.
  void expect_invalid(std::string_view kind = "misuse:") {
    EXPECT_EQ(driver_->cuMemsetD8Async(memory_, 1, kBytes, streams_[0]), kErrorCaptureInvalidated);
    Graph graph = nullptr;
    EXPECT_EQ(driver_->cuStreamEndCapture(streams_[0], &graph), kErrorCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(cuda_violations(kind).size(), 1u);
    cuda_double().clear_violations();
    EXPECT_EQ(driver_->cuMemsetD8Async(memory_, 1, kBytes, streams_[0]), kSuccess) << "the stream is free again";
  }
  GraphExec end() {
    Graph graph = nullptr;
    EXPECT_EQ(driver_->cuStreamEndCapture(streams_[0], &graph), kSuccess);
    GraphExec exec = nullptr;
    EXPECT_EQ(driver_->cuGraphInstantiateWithFlags(&exec, graph, 0), kSuccess);
    EXPECT_EQ(driver_->cuGraphDestroy(graph), kSuccess);
    return exec;
  }

  std::array<Event, 2> events_{};
  Address memory_ = 0;
};

TEST_F(CudaDoubleGraph, RunsCapturedWorkAtEachLaunchAndNotBefore) {
  ASSERT_EQ(driver_->cuMemsetD8Async(memory_, 1, kBytes, streams_[0]), kSuccess);
  begin();
  ASSERT_EQ(driver_->cuMemsetD8Async(memory_, 7, 1000, streams_[0]), kSuccess);
  const GraphExec exec = end();
  ASSERT_EQ(driver_->cuMemcpyDtoHAsync(host(), memory_, kBytes, streams_[0]), kSuccess);
  ASSERT_EQ(driver_->cuStreamSynchronize(streams_[0]), kSuccess);
  EXPECT_EQ(host()[0], 1) << "captured and not run";
  for (int launch = 0; launch < 2; ++launch) {
    ASSERT_EQ(driver_->cuMemsetD8Async(memory_, 2, kBytes, streams_[0]), kSuccess);
    ASSERT_EQ(driver_->cuGraphLaunch(exec, streams_[0]), kSuccess);
    ASSERT_EQ(driver_->cuMemcpyDtoHAsync(host(), memory_, kBytes, streams_[0]), kSuccess);
    ASSERT_EQ(driver_->cuStreamSynchronize(streams_[0]), kSuccess);
    EXPECT_EQ(host()[999], 7);
    EXPECT_EQ(host()[1000], 2);
  }
  EXPECT_EQ(driver_->cuGraphExecDestroy(exec), kSuccess);
}

TEST_F(CudaDoubleGraph, RefusesToWaitForACapturingStreamInEveryMode) {
  for (const CaptureMode mode : {kCaptureGlobal, kCaptureThreadLocal, kCaptureRelaxed}) {
    begin(mode);
    EXPECT_EQ(driver_->cuStreamSynchronize(streams_[0]), kErrorCaptureUnsupported);
    expect_invalid();
    begin(mode);
    EXPECT_EQ(driver_->cuStreamQuery(streams_[0]), kErrorCaptureUnsupported);
    expect_invalid();
    begin(mode);
    EXPECT_EQ(driver_->cuCtxSynchronize(), kErrorCaptureUnsupported);
    expect_invalid();
    begin(mode);
    EXPECT_EQ(driver_->cuStreamDestroy(streams_[0]), kErrorCaptureUnsupported);
    expect_invalid();
    begin(mode);
    ASSERT_EQ(driver_->cuEventRecord(events_[0], streams_[0]), kSuccess);
    CaptureMode relaxed = kCaptureRelaxed;
    ASSERT_EQ(driver_->cuThreadExchangeStreamCaptureMode(&relaxed), kSuccess);
    EXPECT_EQ(relaxed, kCaptureGlobal) << "the mode of a thread that never changed it";
    EXPECT_EQ(driver_->cuEventQuery(events_[0]), kErrorCapturedEvent);
    ASSERT_EQ(driver_->cuThreadExchangeStreamCaptureMode(&relaxed), kSuccess);
    expect_invalid();
  }
}

TEST_F(CudaDoubleGraph, RefusesUnsafeCallsAsTheModesSay) {
  const auto allocate = [&] {
    Address pointer = 0;
    const Status status = driver_->cuMemAlloc(&pointer, kBytes);
    return status == kSuccess ? driver_->cuMemFree(pointer) : status;
  };
  const auto elsewhere = [&](CaptureMode of_thread) {
    Status status = kErrorUnknown;
    std::thread([&] {
      CaptureMode mode = of_thread;
      EXPECT_EQ(driver_->cuThreadExchangeStreamCaptureMode(&mode), kSuccess);
      EXPECT_EQ(driver_->cuCtxSetCurrent(context_), kSuccess);
      status = allocate();
      EXPECT_EQ(driver_->cuCtxSetCurrent(nullptr), kSuccess);
      EXPECT_EQ(driver_->cuThreadExchangeStreamCaptureMode(&mode), kSuccess);
    }).join();
    return status;
  };
  const auto drop = [&] { EXPECT_EQ(driver_->cuGraphExecDestroy(end()), kSuccess); };

  begin(kCaptureGlobal);
  EXPECT_EQ(allocate(), kErrorCaptureUnsupported);
  expect_invalid();
  begin(kCaptureGlobal);
  EXPECT_EQ(elsewhere(kCaptureGlobal), kErrorCaptureUnsupported) << "also on another thread";
  expect_invalid();
  begin(kCaptureGlobal);
  EXPECT_EQ(elsewhere(kCaptureThreadLocal), kSuccess);
  EXPECT_EQ(elsewhere(kCaptureRelaxed), kSuccess);
  drop();

  begin(kCaptureThreadLocal);
  EXPECT_EQ(elsewhere(kCaptureGlobal), kSuccess);
  EXPECT_EQ(allocate(), kErrorCaptureUnsupported);
  expect_invalid();

  begin(kCaptureRelaxed);
  EXPECT_EQ(allocate(), kSuccess);
  EXPECT_EQ(elsewhere(kCaptureGlobal), kSuccess);
  drop();

  begin(kCaptureGlobal);
  CaptureMode mode = kCaptureRelaxed;
  ASSERT_EQ(driver_->cuThreadExchangeStreamCaptureMode(&mode), kSuccess);
  EXPECT_EQ(allocate(), kSuccess) << "the mode of the thread decides";
  ASSERT_EQ(driver_->cuThreadExchangeStreamCaptureMode(&mode), kSuccess);
  drop();
}

TEST_F(CudaDoubleGraph, SeparatesACaptureFromWorkOutsideOfIt) {
  ASSERT_EQ(driver_->cuEventRecord(events_[0], streams_[1]), kSuccess);
  begin();
  EXPECT_EQ(driver_->cuStreamWaitEvent(streams_[0], events_[0], 0), kErrorCaptureIsolation);
  expect_invalid();
  begin();
  EXPECT_EQ(driver_->cuStreamBeginCapture(streams_[0], kCaptureGlobal), kErrorIllegalState);
  expect_invalid();
  begin();
  unsigned char pageable[16] = {};
  EXPECT_EQ(driver_->cuMemcpyHtoDAsync(memory_, pageable, 16, streams_[0]), kErrorCaptureUnsupported);
  expect_invalid();
  begin();
  EXPECT_EQ(driver_->cuMemcpyDtoHAsync(pageable, memory_, 16, streams_[0]), kErrorCaptureUnsupported);
  expect_invalid();
  Graph graph = nullptr;
  EXPECT_EQ(driver_->cuStreamEndCapture(streams_[0], &graph), kErrorIllegalState);
  forgive("misuse:");
}

TEST_F(CudaDoubleGraph, EndsACaptureWhereItBegan) {
  begin();
  ASSERT_EQ(driver_->cuEventRecord(events_[0], streams_[0]), kSuccess);
  ASSERT_EQ(driver_->cuStreamWaitEvent(streams_[1], events_[0], 0), kSuccess);
  Graph graph = nullptr;
  EXPECT_EQ(driver_->cuStreamEndCapture(streams_[1], &graph), kErrorCaptureUnmatched);
  expect_invalid();
  begin();
  std::thread([&] {
    EXPECT_EQ(driver_->cuCtxSetCurrent(context_), kSuccess);
    EXPECT_EQ(driver_->cuStreamEndCapture(streams_[0], &graph), kErrorCaptureWrongThread);
    EXPECT_EQ(driver_->cuCtxSetCurrent(nullptr), kSuccess);
  }).join();
  expect_invalid();
}

TEST_F(CudaDoubleGraph, WantsEveryStreamJoinedAndEveryConflictOrdered) {
  const auto fork = [&] {
    EXPECT_EQ(driver_->cuEventRecord(events_[0], streams_[0]), kSuccess);
    EXPECT_EQ(driver_->cuStreamWaitEvent(streams_[1], events_[0], 0), kSuccess);
  };
  const auto join = [&] {
    EXPECT_EQ(driver_->cuEventRecord(events_[1], streams_[1]), kSuccess);
    EXPECT_EQ(driver_->cuStreamWaitEvent(streams_[0], events_[1], 0), kSuccess);
  };
  Graph graph = nullptr;
  begin();
  fork();
  ASSERT_EQ(driver_->cuMemsetD8Async(memory_, 1, kBytes, streams_[1]), kSuccess);
  EXPECT_EQ(driver_->cuStreamEndCapture(streams_[0], &graph), kErrorCaptureUnjoined);
  forgive("misuse:");

  begin();
  fork();
  ASSERT_EQ(driver_->cuMemsetD8Async(memory_, 1, 100, streams_[1]), kSuccess);
  ASSERT_EQ(driver_->cuMemsetD8Async(memory_ + 100, 2, 100, streams_[0]), kSuccess);
  EXPECT_TRUE(cuda_violations().empty()) << "disjoint";
  ASSERT_EQ(driver_->cuMemsetD8Async(memory_ + 50, 2, 100, streams_[0]), kSuccess);
  forgive("race:");
  join();
  ASSERT_EQ(driver_->cuMemsetD8Async(memory_, 3, kBytes, streams_[0]), kSuccess);
  EXPECT_EQ(driver_->cuGraphExecDestroy(end()), kSuccess);
}

TEST_F(CudaDoubleGraph, SeesARaceBetweenALaunchAndOtherWork) {
  begin();
  ASSERT_EQ(driver_->cuMemsetD8Async(memory_, 1, kBytes, streams_[0]), kSuccess);
  const GraphExec exec = end();
  ASSERT_EQ(driver_->cuGraphLaunch(exec, streams_[0]), kSuccess);
  ASSERT_EQ(driver_->cuMemsetD8Async(memory_, 1, kBytes, streams_[1]), kSuccess);
  forgive("race:");
  EXPECT_EQ(driver_->cuGraphExecDestroy(exec), kSuccess);
  forgive("race:");
}

TEST_F(CudaDoubleGraph, SeesMemoryOfAGraphThatIsGone) {
  Address gone = 0;
  ASSERT_EQ(driver_->cuMemAlloc(&gone, kBytes), kSuccess);
  begin();
  ASSERT_EQ(driver_->cuMemsetD8Async(gone, 1, kBytes, streams_[0]), kSuccess);
  const GraphExec exec = end();
  ASSERT_EQ(driver_->cuMemFree(gone), kSuccess);
  ASSERT_EQ(driver_->cuGraphLaunch(exec, streams_[0]), kSuccess);
  forgive("misuse:");
  EXPECT_EQ(driver_->cuStreamSynchronize(streams_[0]), kErrorIllegalAddress);
  cuda_double().drop_context(0);
  EXPECT_EQ(driver_->cuDevicePrimaryCtxRetain(&context_, 0), kSuccess);
  EXPECT_EQ(driver_->cuCtxSetCurrent(context_), kSuccess);
  // What TearDown takes away.
  for (Stream& stream : streams_) ASSERT_EQ(driver_->cuStreamCreate(&stream, kStreamNonBlocking), kSuccess);
  for (Event& event : events_) ASSERT_EQ(driver_->cuEventCreate(&event, kEventDisableTiming), kSuccess);
  ASSERT_EQ(driver_->cuMemAlloc(&memory_, kBytes), kSuccess);
  ASSERT_EQ(driver_->cuMemHostAlloc(&pinned_, kBytes, 0), kSuccess);
}

}  // namespace
}  // namespace berth::internal::cuda
