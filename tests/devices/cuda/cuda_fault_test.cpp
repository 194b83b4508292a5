// Every driver call of a scenario fails once, with each of three errors, and after each round: no crash, no race, no
// misuse, no leak, no made-up data, and a device that can be opened and used again.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "berth/alloc/growable.h"
#include "berth/berth.h"
#include "berth/tensor/evictable.h"
#include "devices/cuda/cuda_driver.h"
#include "doubles/cuda/cuda_kernels.h"
#include "support/fault_scenarios.h"

namespace berth {

using namespace internal;

namespace {

using cuda_test::cuda_double;
using cuda_test::cuda_violations;
using Bytes = std::vector<std::byte>;

struct Fault {
  const char* name;
  cuda::Status status;
  int loses_device;
};

// Does something a second time where the first was refused: unless the device is lost, it must work then.
struct Tries {
  bool lost;

  template <class Operation>
  auto operator()(const Operation& operation) -> decltype(operation()) {
    auto outcome = operation();
    if (outcome || lost) return outcome;
    auto second = operation();
    EXPECT_TRUE(second.has_value()) << "refused: " << outcome.error().message()
                                    << "\n  and again: " << second.error().message();
    refused = true;
    return second;
  }

  bool refused = false;
};

Result<void> kernels_and_order(const DevicePtr& gpu, const QueuePtr& queue, Tries&) {
  BERTH_TRY_ASSIGN(const Kernel add, cuda_test::make_add_kernel(*gpu));
  return test::add_on_one_queue_and_read_on_another(*queue, gpu, add, {.on = queue->timeline()});
}

Result<void> long_transfers(const DevicePtr& gpu, const QueuePtr& queue, Tries&) {
  const std::size_t large = (std::size_t{9} << 18) + 1;  // more than the staging pieces hold
  BERTH_TRY_ASSIGN(const Buffer big, Buffer::allocate(gpu, u8, {large}));
  const Bytes pattern(large, std::byte{3});
  BERTH_TRY(big.copyin(pattern));
  BERTH_TRY_ASSIGN(const Buffer head, big.view(0, 1000));
  BERTH_TRY_ASSIGN(const Buffer shifted, big.view(100, 1000));
  BERTH_TRY(shifted.copy_from(head));
  BERTH_TRY_ASSIGN(const Window rows, big.window());
  BERTH_TRY_ASSIGN(const Buffer target, Buffer::allocate(gpu, u8, {1000}));
  BERTH_TRY_ASSIGN(const Window rows_target, target.window());
  BERTH_TRY(queue->copy_rows(rows, 64, rows_target, 10, 10, 100));
  BERTH_TRY(queue->finish());
  Bytes copied(1000);
  BERTH_TRY(target.copyout(copied));
  EXPECT_EQ(copied, Bytes(1000, std::byte{3}));
  Bytes whole(large);
  BERTH_TRY(big.copyout(whole));
  EXPECT_TRUE(whole == pattern);
  return {};
}

Result<void> peers_and_managed(const DevicePtr& gpu, const QueuePtr& queue, Tries&) {
  BERTH_TRY_ASSIGN(const DevicePtr peer, device("CUDA:1"));
  BERTH_TRY_ASSIGN(const Buffer here, Buffer::allocate(gpu, u8, {1000}, {.zero = true}));
  BERTH_TRY_ASSIGN(const Buffer there, Buffer::allocate(peer, u8, {1000}));
  BERTH_TRY(there.copy_from(here));
  Bytes back(1000, std::byte{1});
  BERTH_TRY(there.copyout(back));
  EXPECT_EQ(back, Bytes(1000));
  BERTH_TRY_ASSIGN(const Buffer managed,
                   Buffer::allocate(gpu, u8, {4096}, {.host = HostAccess::kRequired, .zero = true}));
  BERTH_TRY_ASSIGN(const Window shared, managed.window());
  BERTH_TRY(queue->fill(shared, 5));
  BERTH_TRY(queue->finish());
  BERTH_TRY_ASSIGN(const std::span<const std::byte> bytes, managed.as_host_bytes());
  EXPECT_EQ(bytes[4095], std::byte{5});
  BERTH_TRY_ASSIGN(const auto slice, GpuBuffer<float>::alloc_from(gpu, std::vector<float>{1, 2, 3}));
  BERTH_TRY_ASSIGN(const std::vector<float> host, slice.to_host(*gpu));
  EXPECT_EQ(host, (std::vector<float>{1, 2, 3}));
  return gpu->synchronize();
}

constexpr std::size_t kStep = std::size_t{2} << 20;

Result<void> expect_contents(const Buffer& buffer, const Bytes& wanted, Tries& again) {
  Bytes seen(buffer.size());
  BERTH_TRY(again([&] { return buffer.copyout(seen); }));
  EXPECT_TRUE(seen == wanted);
  return {};
}

// One segment through all its calls: each that is refused works when it is made again.
Result<void> segments(const DevicePtr& gpu, const QueuePtr& queue, Tries& again) {
  const GrowableOptions options{.reserve_bytes = 8 * kStep, .step_bytes = kStep};
  BERTH_TRY_ASSIGN(const auto segment, again([&] { return make_growable(gpu, options); }));
  BERTH_TRY_ASSIGN(const Buffer first, again([&] { return Buffer::allocate(segment, u8, {1000}, {.zero = true}); }));
  {
    BERTH_TRY_ASSIGN(const Buffer wide, again([&] { return Buffer::allocate(segment, u8, {2 * kStep}); }));
    EXPECT_GE(segment->counters().mapped_bytes, 2 * kStep);
    EXPECT_EQ(segment->counters().mapped_bytes, gpu->counters().live_bytes);
    BERTH_TRY_ASSIGN(const Window window, wide.window());
    BERTH_TRY(again([&] { return queue->fill(window, 7); }));
    BERTH_TRY(again([&] { return queue->finish(); }));
    BERTH_TRY_ASSIGN(const Buffer end, wide.view(wide.size() - 1000, 1000));
    BERTH_TRY(expect_contents(end, Bytes(1000, std::byte{7}), again));
  }
  segment->trim();
  if (segment->counters().mapped_bytes > kStep) segment->trim();  // what the driver would not take the first time
  EXPECT_EQ(segment->counters().mapped_bytes, again.lost ? segment->counters().mapped_bytes : kStep);
  EXPECT_EQ(segment->counters().mapped_bytes, gpu->counters().live_bytes);
  BERTH_TRY(expect_contents(first, Bytes(1000), again));
  BERTH_TRY_ASSIGN(const Buffer last, again([&] { return Buffer::allocate(segment, u8, {kStep}); }));
  BERTH_TRY_ASSIGN(const Buffer start, last.view(0, 1000));
  return again([&] { return start.copyin(Bytes(1000, std::byte{1})); });
}

// A cache whose sequences have contiguous addresses, with pages of one and of two frames.
Result<void> contiguous_cache(const DevicePtr& gpu, const QueuePtr&, Tries& again) {
  const auto make = [&] {
    kv::CacheOptions options;
    options.groups = {{.name = Name("full"), .bytes_per_token = kStep},
                      {.name = Name("wide"), .bytes_per_token = 2 * kStep}};
    options.block_tokens = 1;
    options.budget = 10 * kStep;  // little, since every call for every frame fails once
    options.contiguous_tokens = 4;
    return kv::Cache::make(gpu, std::move(options));
  };
  BERTH_TRY_ASSIGN(const auto cache, again(make));
  const std::vector<kv::Token> tokens{1};
  const Bytes wanted(1000, std::byte{9}), other(1000, std::byte{4});
  // The end of the last token, in the second frame of its page.
  const auto end_of = [&](kv::SequenceId id) -> Result<Buffer> {
    BERTH_TRY_ASSIGN(const kv::ContiguousTokens all, again([&] { return cache->contiguous(1, id); }));
    return all.tokens.view(all.tokens.size() - 1000, 1000);
  };
  BERTH_TRY_ASSIGN(const kv::Opened first, again([&] { return cache->open(tokens); }));
  BERTH_TRY_ASSIGN(const Buffer end, end_of(first.id));
  BERTH_TRY(again([&] { return end.copyin(wanted); }));
  BERTH_TRY_ASSIGN(const kv::SequenceId fork, again([&] { return cache->fork(first.id); }));
  std::array<std::int64_t, 2> slots{};
  const kv::Token token = 2;
  BERTH_TRY(again([&] { return cache->append({&fork, 1}, {&token, 1}, slots); }));
  BERTH_TRY_ASSIGN(const Buffer grown, end_of(fork));
  BERTH_TRY(again([&] { return grown.copyin(other); }));
  BERTH_TRY(expect_contents(end, wanted, again));
  // Its addresses go to another one, which has other pages.
  BERTH_TRY(cache->close(first.id));
  const std::vector<kv::Token> others{7};
  BERTH_TRY_ASSIGN(const kv::Opened second, again([&] { return cache->open(others); }));
  BERTH_TRY_ASSIGN(const Buffer last, end_of(second.id));
  BERTH_TRY(again([&] { return last.copyin(wanted); }));
  BERTH_TRY(expect_contents(grown, other, again));
  BERTH_TRY(expect_contents(last, wanted, again));
  return cache->check();
}

// Two models that go away and come back, to host memory and to a file.
Result<void> evict_and_wake(const DevicePtr& gpu, const QueuePtr&, Tries& again) {
  BERTH_TRY_ASSIGN(const auto memory, again([&] { return make_evictable(gpu); }));
  const Bytes a_bytes(1000, std::byte{1});
  const Bytes b_bytes(100'000, std::byte{2});
  BERTH_TRY_ASSIGN(const Buffer a,
                   again([&] { return Buffer::allocate(memory, u8, {a_bytes.size()}, {.tag = "a", .zero = true}); }));
  BERTH_TRY_ASSIGN(const Buffer b, again([&] { return Buffer::allocate(memory, u8, {b_bytes.size()}, {.tag = "b"}); }));
  BERTH_TRY(again([&] { return a.copyin(a_bytes); }));
  BERTH_TRY(again([&] { return b.copyin(b_bytes); }));
  BERTH_TRY(again([&] { return memory->evict("a", Contents::kToHost); }));
  BERTH_TRY(again([&] { return memory->evict({}, Contents::kToFile); }));
  EXPECT_EQ(memory->counters().resident_bytes, 0u);
  EXPECT_EQ(gpu->counters().live_bytes, 0u);
  EXPECT_EQ(cuda_double().live_bytes(0), 0u);
  BERTH_TRY(again([&] { return memory->wake({}); }));
  EXPECT_EQ(memory->counters().spilled_bytes, 0u);
  EXPECT_EQ(memory->counters().resident_bytes, gpu->counters().live_bytes);
  BERTH_TRY(expect_contents(a, a_bytes, again));
  BERTH_TRY(expect_contents(b, b_bytes, again));
  BERTH_TRY(again([&] { return memory->evict("b", Contents::kDrop); }));  // and it goes while it is away
  return {};
}

// One memory that two sides have: whoever fails, the other side and the driver lose nothing.
Result<void> share_and_import(const DevicePtr& gpu, const QueuePtr&, Tries& again) {
  BERTH_TRY_ASSIGN(const AllocatorPtr memory, again([&] { return make_shareable(gpu); }));
  BERTH_TRY_ASSIGN(const Buffer mine, again([&] { return Buffer::allocate(memory, u8, {1000}, {.zero = true}); }));
  BERTH_TRY_ASSIGN(const SharedMemory shared, mine.share());
  const auto import = [&] { return Buffer::import_shared(gpu, shared, u8, {1000}, SharedAccess::kReadWrite); };
  BERTH_TRY_ASSIGN(const Buffer theirs, again(import));
  const Bytes bytes(1000, std::byte{3});
  BERTH_TRY(again([&] { return theirs.copyin(bytes); }));
  return expect_contents(mine, bytes, again);
}

// A graph over two queues with memory of its pool, captured, launched twice and read.
Result<void> graphs(const DevicePtr& gpu, const QueuePtr& queue, Tries&) {
  BERTH_TRY_ASSIGN(const Kernel add, cuda_test::make_add_kernel(*gpu));
  BERTH_TRY_ASSIGN(const QueuePtr side, gpu->make_queue());
  BERTH_TRY_ASSIGN(const Buffer input, Buffer::allocate(gpu, u32, {256}, {.zero = true}));
  Buffer output;
  BERTH_TRY_ASSIGN(CudaCapture capture, CudaCapture::begin(queue));
  const auto launch = [&](Queue& on, const Buffer& from, const Buffer& to) -> Result<void> {
    const std::uint32_t constant = 1;
    BERTH_TRY_ASSIGN(const Window source, from.window());
    BERTH_TRY_ASSIGN(const Window target, to.window());
    return on.launch(add, std::array{KernelArgument{source, Access::kRead}, KernelArgument{target, Access::kWrite}},
                     {.groups = {4, 1, 1}, .threads = {64, 1, 1}}, std::as_bytes(std::span(&constant, 1)));
  };
  BERTH_TRY_ASSIGN(const Buffer constants, Buffer::allocate(capture.memory(), u32, {256}, {.zero = true}));
  BERTH_TRY_ASSIGN(const Window written, constants.window());
  BERTH_TRY(queue->write(written, Bytes(1024, std::byte{1})));
  {
    BERTH_TRY_ASSIGN(const Buffer hidden, Buffer::allocate(capture.memory(), u32, {256}));
    BERTH_TRY(capture.fork(side));
    BERTH_TRY(launch(*side, input, hidden));
    BERTH_TRY(capture.join(*side));
    BERTH_TRY_ASSIGN(output, Buffer::allocate(capture.memory(), u32, {256}));
    BERTH_TRY(launch(*queue, hidden, output));
  }
  BERTH_TRY_ASSIGN(CudaGraph graph, capture.end());
  BERTH_TRY(graph.launch(*queue));
  BERTH_TRY(graph.launch(*side));
  std::vector<std::uint32_t> seen(256);
  BERTH_TRY(output.copyout(std::as_writable_bytes(std::span(seen))));
  EXPECT_EQ(seen, std::vector<std::uint32_t>(256, 2));
  Bytes ones(1024);
  BERTH_TRY(constants.copyout(ones));
  EXPECT_EQ(ones, Bytes(1024, std::byte{1}));
  return {};
}

struct Part {
  const char* name;
  Result<void> (*run)(const DevicePtr& gpu, const QueuePtr& queue, Tries& again);
};

// Calls that give something back. What they refuse to take stays with the driver.
bool gives_back(std::string_view call) {
  constexpr std::array kCalls = {"cuMemUnmap",
                                 "cuMemAddressFree",
                                 "cuMemRelease",
                                 "cuMemFree",
                                 "cuMemFreeAsync",
                                 "cuMemFreeHost",
                                 "cuMemPoolDestroy",
                                 "cuStreamDestroy",
                                 "cuEventDestroy",
                                 "cuModuleUnload",
                                 "cuDevicePrimaryCtxRelease",
                                 "cuGraphDestroy",
                                 "cuGraphExecDestroy"};
  return std::find(kCalls.begin(), kCalls.end(), call) != kCalls.end();
}

// Opens the device, uses a part of it once and lets go of everything. Returns the first error; data that arrives must
// be right.
Result<void> scenario(const Part& part, Tries& again) {
  BERTH_TRY_ASSIGN(const DevicePtr gpu, device("CUDA:0"));
  BERTH_TRY_ASSIGN(const QueuePtr queue, gpu->make_queue());
  auto outcome = part.run(gpu, queue, again);
  if (outcome && gpu->synchronize()) {
    EXPECT_EQ(gpu->counters().live_bytes, 0u);
  }
  return outcome;
}

class CudaFault : public ::testing::TestWithParam<std::tuple<Part, Fault, bool>> {};

TEST_P(CudaFault, LeavesNothingHalfDoneWhicheverCallFails) {
  if (cuda_test::on_real_gpu()) GTEST_SKIP() << "needs the driver double";
  const auto& [part, fault, pools] = GetParam();
  const CudaDoubleOptions options{.pools = pools ? 1 : 0};
  std::uint64_t calls = 0;
  for (int warm = 0; warm < 2; ++warm) {  // the first run may also open the driver
    const cuda_test::CudaChoice choice(options);
    Tries once{.lost = false};
    const auto clean = scenario(part, once);
    ASSERT_FALSE(once.refused);
    ASSERT_TRUE(clean.has_value()) << clean.error().message();
    calls = cuda_double().calls(nullptr);
    ASSERT_TRUE(cuda_violations().empty()) << cuda_violations()[0];
    ASSERT_EQ(cuda_double().live_objects(), 0u);
  }
  std::uint64_t refused = 0;
  for (std::uint64_t nth = 1; nth <= calls; ++nth) {
    const cuda_test::CudaChoice choice(options);
    cuda_double().fail(nullptr, nth, fault.status, fault.loses_device);
    Tries again{.lost = fault.loses_device != 0};
    const auto outcome = scenario(part, again);
    if (again.refused) ++refused;
    if (!outcome) {
      ++refused;
      EXPECT_FALSE(outcome.error().message().empty());
    }
    EXPECT_EQ(cuda_double().stop_failing(), 0);
    // Memory that the driver refused to take back is the driver's to keep; nothing else may go wrong.
    const std::string failed = cuda_double().failed_call();
    const bool may_leak = fault.loses_device != 0 || gives_back(failed);
    for (const std::string& text : cuda_violations())
      if (!may_leak || !text.starts_with("leak:")) ADD_FAILURE() << text;
    if (!may_leak) {
      EXPECT_EQ(cuda_double().live_objects(), 0u);
    }
    if (HasFailure()) {
      ADD_FAILURE() << "when call " << nth << " of " << calls << ", " << failed
                    << ", failed: " << (outcome ? "a success" : outcome.error().message());
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

INSTANTIATE_TEST_SUITE_P(
    EveryCall, CudaFault,
    ::testing::Combine(::testing::Values(Part{"KernelsAndOrder", kernels_and_order},
                                         Part{"LongTransfers", long_transfers},
                                         Part{"PeersAndManaged", peers_and_managed}, Part{"Segments", segments},
                                         Part{"EvictAndWake", evict_and_wake}, Part{"ShareAndImport", share_and_import},
                                         Part{"Graphs", graphs}, Part{"ContiguousCache", contiguous_cache}),
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
  // A driver is opened once for each spelling of its path; static, for when the test is repeated.
  static std::string path = BERTH_CUDA_DOUBLE;
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
