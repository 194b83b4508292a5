// Every driver call of a scenario fails once, with each of three errors, and after each round: no crash, no race, no
// misuse, no made-up data, and a device that can be opened and used again.
#include <gtest/gtest.h>

#include "berth/berth.h"
#include "devices/cuda/cuda_driver.h"
#include "doubles/cuda/cuda_kernels.h"

namespace berth {
namespace {

using cuda_test::cuda_double;
using cuda_test::cuda_violations;
using Bytes = std::vector<std::byte>;

struct Fault {
  const char* name;
  cuda::Status status;
  int loses_device;
};

#define STEP(...)                                                                   \
  do {                                                                              \
    if (auto step_result = (__VA_ARGS__); !step_result) return step_result.error(); \
  } while (false)
#define STEP_ASSIGN(type, name, ...)                \
  auto name##_result = (__VA_ARGS__);               \
  if (!name##_result) return name##_result.error(); \
  type name = *std::move(name##_result)

Result<void> kernels_and_order(const DevicePtr& gpu, const QueuePtr& queue) {
  STEP_ASSIGN(const QueuePtr, other, gpu->make_queue());
  STEP_ASSIGN(const Kernel, add, cuda_test::make_add_kernel(*gpu));
  STEP_ASSIGN(const Buffer, a, Buffer::allocate(gpu, u32, {256}, {.zero = true}));
  STEP_ASSIGN(const Buffer, b, Buffer::allocate(gpu, u32, {256}, {.on = queue->line()}));
  STEP_ASSIGN(const Window, from, a.window());
  STEP_ASSIGN(const Window, to, b.window());
  const std::uint32_t constant = 7;
  STEP(queue->launch(add, std::array{KernelArgument{from, Access::kRead}, KernelArgument{to, Access::kWrite}},
                     {.groups = {4, 1, 1}, .threads = {64, 1, 1}}, std::as_bytes(std::span(&constant, 1))));
  STEP_ASSIGN(const Timepoint, added, queue->submit());
  STEP(other->wait_for(added));
  std::vector<std::uint32_t> seen(256);
  STEP(other->read(to, std::as_writable_bytes(std::span(seen))));
  STEP(other->finish());
  EXPECT_EQ(seen, std::vector<std::uint32_t>(256, 7));
  return {};
}

Result<void> long_transfers(const DevicePtr& gpu, const QueuePtr& queue) {
  const std::size_t large = (std::size_t{9} << 18) + 1;  // more than the staging pieces hold
  STEP_ASSIGN(const Buffer, big, Buffer::allocate(gpu, u8, {large}));
  const Bytes pattern(large, std::byte{3});
  STEP(big.copyin(pattern));
  STEP_ASSIGN(const Buffer, head, big.view(0, 1000));
  STEP_ASSIGN(const Buffer, shifted, big.view(100, 1000));
  STEP(shifted.copy_from(head));
  STEP_ASSIGN(const Window, rows, big.window());
  STEP_ASSIGN(const Buffer, target, Buffer::allocate(gpu, u8, {1000}));
  STEP_ASSIGN(const Window, rows_target, target.window());
  STEP(queue->copy_rows(rows, 64, rows_target, 10, 10, 100));
  STEP(queue->finish());
  Bytes copied(1000);
  STEP(target.copyout(copied));
  EXPECT_EQ(copied, Bytes(1000, std::byte{3}));
  Bytes whole(large);
  STEP(big.copyout(whole));
  EXPECT_TRUE(whole == pattern);
  return {};
}

Result<void> peers_and_managed(const DevicePtr& gpu, const QueuePtr& queue) {
  STEP_ASSIGN(const DevicePtr, peer, device("CUDA:1"));
  STEP_ASSIGN(const Buffer, here, Buffer::allocate(gpu, u8, {1000}, {.zero = true}));
  STEP_ASSIGN(const Buffer, there, Buffer::allocate(peer, u8, {1000}));
  STEP(there.copy_from(here));
  Bytes back(1000, std::byte{1});
  STEP(there.copyout(back));
  EXPECT_EQ(back, Bytes(1000));
  STEP_ASSIGN(const Buffer, managed, Buffer::allocate(gpu, u8, {4096}, {.host = HostAccess::kRequired, .zero = true}));
  STEP_ASSIGN(const Window, shared, managed.window());
  STEP(queue->fill(shared, 5));
  STEP(queue->finish());
  STEP_ASSIGN(const std::span<const std::byte>, bytes, managed.as_host_bytes());
  EXPECT_EQ(bytes[4095], std::byte{5});
  STEP_ASSIGN(const auto, slice, GpuBuffer<float>::alloc_from(gpu, std::vector<float>{1, 2, 3}));
  STEP_ASSIGN(const std::vector<float>, host, slice.to_host(*gpu));
  EXPECT_EQ(host, (std::vector<float>{1, 2, 3}));
  return gpu->synchronize();
}

struct Part {
  const char* name;
  Result<void> (*run)(const DevicePtr& gpu, const QueuePtr& queue);
};

// Opens the device, uses a part of it once and lets go of everything. Returns the first error; data that arrives must
// be right.
Result<void> scenario(const Part& part) {
  STEP_ASSIGN(const DevicePtr, gpu, device("CUDA:0"));
  STEP_ASSIGN(const QueuePtr, queue, gpu->make_queue());
  return part.run(gpu, queue);
}

class CudaFault : public ::testing::TestWithParam<std::tuple<Part, Fault, bool>> {};

TEST_P(CudaFault, LeavesNothingHalfDoneWhicheverCallFails) {
  if (cuda_test::on_real_gpu()) GTEST_SKIP() << "needs the driver double";
  const auto& [part, fault, pools] = GetParam();
  const CudaDoubleOptions options{.pools = pools ? 1 : 0};
  std::uint64_t calls = 0;
  for (int warm = 0; warm < 2; ++warm) {  // the first run may also open the driver
    const cuda_test::CudaChoice choice(options);
    const auto clean = scenario(part);
    ASSERT_TRUE(clean.has_value()) << clean.error().message();
    calls = cuda_double().calls(nullptr);
    ASSERT_TRUE(cuda_violations().empty()) << cuda_violations()[0];
    ASSERT_EQ(cuda_double().live_objects(), 0u);
  }
  std::uint64_t refused = 0;
  for (std::uint64_t nth = 1; nth <= calls; ++nth) {
    const cuda_test::CudaChoice choice(options);
    cuda_double().fail(nullptr, nth, fault.status, fault.loses_device);
    const auto outcome = scenario(part);
    if (!outcome) {
      ++refused;
      EXPECT_FALSE(outcome.error().message().empty());
    }
    EXPECT_EQ(cuda_double().stop_failing(), 0);
    // Memory that the driver refused to take back is the driver's to keep; nothing else may go wrong.
    for (const char* kind : {"race:", "misuse:"})
      for (const std::string& text : cuda_violations(kind)) ADD_FAILURE() << text;
    if (HasFailure()) {
      ADD_FAILURE() << "when call " << nth << " of " << calls << " failed, a "
                    << (outcome ? "success" : outcome.error().message());
      return;
    }
    // A release of the context that failed leaves it retained.
    for (const int ordinal : {0, 1}) cuda_double().drop_context(ordinal);
  }
  // The rest were frees, whose errors are recorded, and calls that have another way.
  EXPECT_GT(refused, calls / 3);
  RecordProperty("calls", static_cast<int>(calls));
  RecordProperty("refused", static_cast<int>(refused));
}

INSTANTIATE_TEST_SUITE_P(EveryCall, CudaFault,
                         ::testing::Combine(::testing::Values(Part{"KernelsAndOrder", kernels_and_order},
                                                              Part{"LongTransfers", long_transfers},
                                                              Part{"PeersAndManaged", peers_and_managed}),
                                            ::testing::Values(Fault{"OutOfMemory", cuda::kErrorOutOfMemory, 0},
                                                              Fault{"DeviceLost", cuda::kErrorLaunchFailed, 1},
                                                              Fault{"InvalidValue", cuda::kErrorInvalidValue, 0}),
                                            ::testing::Bool()),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param).name) + std::get<1>(each.param).name +
                                  (std::get<2>(each.param) ? "" : "WithoutPools");
                         });

TEST(CudaDriverFault, IsUnavailableWhicheverCallOfTheLookUpFails) {
  if (cuda_test::on_real_gpu()) GTEST_SKIP() << "needs the driver double";
  const cuda_test::CudaChoice choice;
  // A driver is opened once for each spelling of its path.
  std::string path = BERTH_CUDA_DOUBLE;
  const auto respell = [&] { path.insert(path.rfind('/'), "/."); };
  respell();
  ASSERT_TRUE(cuda::Driver::open(path));
  const std::uint64_t calls = cuda_double().calls(nullptr);
  ASSERT_GT(calls, 60u);
  std::uint64_t refused = 0;
  for (std::uint64_t nth = 1; nth <= calls; ++nth) {
    respell();
    cuda_double().fail(nullptr, nth, cuda::kErrorInvalidValue, 0);
    const auto opened = cuda::Driver::open(path);
    EXPECT_EQ(cuda_double().stop_failing(), 0);
    if (opened) continue;  // a function that is not needed
    ++refused;
    EXPECT_EQ(opened.error().code(), Code::kDeviceUnavailable) << opened.error().message();
    EXPECT_TRUE(cuda::Driver::open(path)) << "a second try works";
  }
  EXPECT_EQ(refused, calls - 3) << "advice, prefetch and parameter sizes are optional";
}

}  // namespace
}  // namespace berth
