// What is WEBGPU's own: opening, kernels and their rules, staging, errors on the side, the loss of the device. What
// every device must do is in the conformance suite, each failing call in the fault sweep.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <thread>

#include "berth/berth.h"
#include "devices/webgpu/webgpu_device.h"
#include "devices/webgpu/webgpu_wgsl.h"
#include "doubles/webgpu_shim.h"
#include "support/support.h"

namespace berth::test {

using namespace internal;

namespace {

using webgpu::AdapterChoice;

// Sets an environment variable for one scope.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value, 1);
  }
  ~Environment() {
    if (before_)
      setenv(name_, before_->c_str(), 1);
    else
      unsetenv(name_);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

constexpr std::string_view kAdd = R"(
@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> goal: array<u32>;
@group(0) @binding(2) var<uniform> constant: u32;
@compute @workgroup_size(1) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  goal[id.x] = source[id.x] + constant;
}
)";

// A device in each test, in place or staged, or a clear word that there is none.
class WebgpuDevices : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    auto library = webgpu::open_library();
    if (!library) GTEST_SKIP() << "skipped: no WEBGPU: " << library.error().message();
    library_ = *library;
    AdapterChoice choice = webgpu::adapter_choice(0);
    choice.map_storage = GetParam();
    auto opened = webgpu::open_with(library_, choice);
    if (!opened) GTEST_SKIP() << "skipped: no WEBGPU: " << opened.error().message();
    device_ = *opened;
    queue_ = device_->make_queue().value();
  }

  Buffer words(std::size_t count) { return Buffer::allocate(device_, u32, {count}).value(); }
  Window window(const Buffer& buffer, std::size_t offset, std::size_t bytes) {
    return buffer.view(offset, bytes).value().window().value();
  }
  std::uint64_t submissions() const { return webgpu::transfer_counters(*device_).submissions; }

  webgpu::Library library_;
  DevicePtr device_;
  QueuePtr queue_;
};

INSTANTIATE_TEST_SUITE_P(Ways, WebgpuDevices, testing::Values(true, false),
                         [](const auto& each) { return each.param ? "InPlace" : "Staged"; });

// ---- opening ------------------------------------------------------------------------------------------------

TEST(Webgpu, SaysWhatToInstallWhenTheNamedLibraryIsMissing) {
  const Environment named("BERTH_WEBGPU_LIBRARY", "/no/such/libwgpu_native.so");
  const auto opened = webgpu::open("0");
  ASSERT_TRUE(fails_with(opened, Code::kDeviceUnavailable));
  EXPECT_NE(opened.error().message().find("/no/such/libwgpu_native.so"), std::string::npos);
  EXPECT_NE(opened.error().message().find("pip install wgpu"), std::string::npos);
}

TEST(Webgpu, RefusesALibraryThatIsNotWebgpu) {
  const auto opened = webgpu::open_library_at("libm.so.6");
  ASSERT_TRUE(fails_with(opened, Code::kDeviceUnavailable));
  EXPECT_NE(opened.error().message().find("wgpuCreateInstance"), std::string::npos);
}

TEST(Webgpu, RefusesALibraryOfAnOlderHeader) {
  wgpu::Calls calls{};
  calls.DevicePoll = [](wgpu::Device, wgpu::Bool, const std::uint64_t*) { return wgpu::Bool{1}; };
  calls.QueueSubmitForIndex = [](wgpu::Queue, std::size_t, const wgpu::CommandBuffer*) { return std::uint64_t{0}; };
  calls.GetVersion = [] { return std::uint32_t{22} << 24 | 1 << 16; };
  EXPECT_EQ(webgpu::dialect_objection(calls, true), "wgpu-native 22 is older than 29, whose webgpu.h Berth uses");
  EXPECT_EQ(webgpu::dialect_version(calls), "wgpu-native 22.1.0.0");
  calls.GetVersion = [] { return std::uint32_t{30} << 24; };
  EXPECT_EQ(webgpu::dialect_objection(calls, true), "");
  EXPECT_NE(webgpu::dialect_objection(calls, false), "");
  calls.GetVersion = nullptr;
  EXPECT_EQ(webgpu::dialect_version(calls), "standard webgpu.h");
  EXPECT_EQ(webgpu::dialect_objection(calls, true), "");
  EXPECT_EQ(webgpu::dialect_of({}), webgpu::Dialect::kStandard);
  wgpu::Calls standard{};
  standard.GetVersion = [] { return std::uint32_t{30} << 24; };
  EXPECT_EQ(webgpu::dialect_version(standard), "standard webgpu.h");
}

TEST(Webgpu, ReadsTheChoiceOfAdapterFromTheEnvironment) {
  const Environment name("BERTH_WEBGPU_ADAPTER", "llvm"), power("BERTH_WEBGPU_POWER", "LOW"),
      software("BERTH_WEBGPU_SOFTWARE", "1"), maps("BERTH_WEBGPU_MAP_STORAGE", "0");
  const AdapterChoice choice = webgpu::adapter_choice(2);
  EXPECT_EQ(choice.name, "llvm");
  EXPECT_EQ(choice.power, wgpu::kPowerLow);
  EXPECT_TRUE(choice.software);
  EXPECT_FALSE(choice.map_storage);
  EXPECT_EQ(choice.ordinal, 2u);
}

TEST_P(WebgpuDevices, ListsTheAdaptersWhenNoneHasTheName) {
  AdapterChoice choice;
  choice.name = "no adapter has this name";
  const auto opened = webgpu::open_with(library_, choice);
  ASSERT_TRUE(fails_with(opened, Code::kDeviceUnavailable));
  EXPECT_NE(opened.error().message().find("there are"), std::string::npos) << opened.error().message();
  choice.name.clear();
  choice.ordinal = 99;
  EXPECT_TRUE(fails_with(webgpu::open_with(library_, choice), Code::kDeviceUnavailable));
}

TEST_P(WebgpuDevices, OpensTheAdapterThatIsNamed) {
  AdapterChoice choice;
  choice.name = device_->description().substr(0, 4);
  const auto opened = webgpu::open_with(library_, choice);
  ASSERT_TRUE(opened.has_value()) << opened.error().message();
  EXPECT_EQ((*opened)->description(), device_->description());
}

TEST_P(WebgpuDevices, TellsItsLimits) {
  const DeviceLimits& limits = device_->limits();
  EXPECT_GE(limits.max_binding_bytes, std::size_t{128} << 20);
  EXPECT_GE(limits.max_block_bytes, std::size_t{256} << 20);
  EXPECT_GE(limits.binding_alignment, 32u);
  EXPECT_EQ(limits.transfer_alignment, 4u);
  EXPECT_TRUE(!limits.unified_memory || GetParam());
  EXPECT_NE(device_->native(), nullptr);
}

// ---- memory -------------------------------------------------------------------------------------------------

TEST_P(WebgpuDevices, RefusesPastTheBudgetBeforeTheDriverIsAsked) {
  device_->set_budget(1 << 20);
  const Buffer half = Buffer::allocate(device_, u8, {600'000}).value();
  const auto refused = Buffer::allocate(device_, u8, {600'000}, {.label = "too much"});
  ASSERT_TRUE(fails_with(refused, Code::kOutOfMemory));
  ASSERT_NE(refused.error().out_of_memory(), nullptr);
  EXPECT_EQ(refused.error().out_of_memory()->budget, std::size_t{1} << 20);
  device_->set_budget(0);
  EXPECT_TRUE(Buffer::allocate(device_, u8, {600'000}).has_value());
}

TEST_P(WebgpuDevices, HasNoLastingHostPointer) {
  EXPECT_TRUE(fails_with(Buffer::allocate(device_, u8, {64}, {.host = HostAccess::kRequired}), Code::kUnsupported));
  const Buffer buffer = words(16);
  EXPECT_TRUE(fails_with(buffer.as_host_bytes(), Code::kNotCpuAccessible));
}

TEST_P(WebgpuDevices, RefusesToImportWhatDoesNotFit) {
  EXPECT_TRUE(fails_with(device_->import_block({.address = 0, .bytes = 16}), Code::kInvalidArgument));
  const Buffer own = words(4);
  EXPECT_TRUE(fails_with(device_->import_block({.address = own.native_handle(), .bytes = 64}), Code::kSizeMismatch));
}

// ---- transfers ----------------------------------------------------------------------------------------------

TEST_P(WebgpuDevices, BatchesAThousandSmallWritesIntoOneSubmit) {
  const Buffer buffer = Buffer::allocate(device_, u8, {1000 * 4096}).value();
  const std::uint64_t before = submissions();
  for (std::size_t i = 0; i < 1000; ++i)
    ASSERT_TRUE(queue_->write(window(buffer, i * 4096, 4096), std::vector<std::byte>(4096, static_cast<std::byte>(i))));
  ASSERT_TRUE(queue_->finish().has_value());
  EXPECT_EQ(submissions() - before, device_->limits().unified_memory ? 0u : 1u);
  std::vector<std::byte> seen(1000 * 4096);
  ASSERT_TRUE(buffer.copyout(seen).has_value());
  for (std::size_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(seen[i * 4096], static_cast<std::byte>(i));
    ASSERT_EQ(seen[i * 4096 + 4095], static_cast<std::byte>(i));
  }
}

TEST_P(WebgpuDevices, ReusesItsStaging) {
  // Device-only memory is never written in place.
  const Buffer buffer = Buffer::allocate(device_, u8, {9 << 20}, {.host = HostAccess::kNone}).value();
  std::vector<std::byte> bytes = counting_bytes(9 << 20), seen(9 << 20);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(buffer.copyin(bytes).has_value());
    ASSERT_TRUE(buffer.copyout(seen).has_value());
    ASSERT_TRUE(seen == bytes);
    std::reverse(bytes.begin(), bytes.end());
  }
  EXPECT_LE(webgpu::transfer_counters(*device_).staging_chunks, 8u) << "27 MiB each way went through a few chunks";
  EXPECT_GE(device_->trim(0), std::size_t{4} << 20);
  EXPECT_EQ(device_->trim(0), 0u);
  ASSERT_TRUE(buffer.copyin(bytes).has_value()) << "after a trim staging is made anew";
}

TEST_P(WebgpuDevices, WritesAfterRecordedWorkTakeEffectAfterIt) {
  // wgpuQueueWriteBuffer, and a mapped write, would overtake what is recorded and not submitted.
  const Buffer buffer = words(64), copy = words(64);
  const std::vector<std::uint32_t> first(64, 1), second(64, 2);
  ASSERT_TRUE(queue_->write(window(buffer, 0, 256), bytes_of(first)).has_value());
  ASSERT_TRUE(queue_->copy(window(buffer, 0, 256), window(copy, 0, 256)).has_value());
  ASSERT_TRUE(queue_->write(window(buffer, 0, 256), bytes_of(second)).has_value());
  ASSERT_TRUE(queue_->finish().has_value());
  std::vector<std::uint32_t> seen(64);
  ASSERT_TRUE(copy.copyout(std::as_writable_bytes(std::span(seen))).has_value());
  EXPECT_EQ(seen, first);
  ASSERT_TRUE(buffer.copyout(std::as_writable_bytes(std::span(seen))).has_value());
  EXPECT_EQ(seen, second);
}

TEST_P(WebgpuDevices, NeighbouringBytesSurviveWritersOnOtherThreads) {
  // Four threads write every fourth byte each, so that every word is shared by all.
  constexpr std::size_t kBytes = 256, kThreads = 4;
  const Buffer buffer = Buffer::allocate(device_, u8, {kBytes}).value();
  const Window whole = window(buffer, 0, kBytes);
  std::atomic<int> failures{0};
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        const QueuePtr queue = device_->make_queue().value();
        for (std::size_t at = t; at < kBytes; at += kThreads) {
          const std::array<std::byte, 1> value{static_cast<std::byte>(at ^ 0x5a)};
          Window one = whole;
          one.offset += at;
          one.bytes = 1;
          if (!queue->write(one, value) || (at % 16 == t && !queue->finish())) failures.fetch_add(1);
        }
        if (!queue->finish()) failures.fetch_add(1);
      });
  }
  EXPECT_EQ(failures.load(), 0);
  std::vector<std::byte> seen(kBytes);
  ASSERT_TRUE(buffer.copyout(seen).has_value());
  for (std::size_t i = 0; i < kBytes; ++i) ASSERT_EQ(seen[i], static_cast<std::byte>(i ^ 0x5a)) << i;
}

TEST_P(WebgpuDevices, FillsMoreThanOneBindingHolds) {
  const std::size_t bytes = device_->limits().max_binding_bytes + 4096;
  const Buffer buffer = Buffer::allocate(device_, u8, {bytes}, {.host = HostAccess::kNone}).value();
  ASSERT_TRUE(queue_->fill(window(buffer, 3, bytes - 5), 0x42).has_value());
  ASSERT_TRUE(queue_->finish().has_value());
  std::vector<std::byte> ends(16);
  ASSERT_TRUE(buffer.view(0, 8)->copyout(std::span(ends).first(8)).has_value());
  ASSERT_TRUE(buffer.view(bytes - 8, 8)->copyout(std::span(ends).last(8)).has_value());
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(ends[i], i < 3 || i >= 14 ? std::byte{0} : std::byte{0x42}) << i;
}

// ---- kernels ------------------------------------------------------------------------------------------------

TEST_P(WebgpuDevices, CompilesAKernelOnce) {
  const Kernel first = device_->make_kernel({.code = bytes_of(kAdd)}).value();
  const Kernel again = device_->make_kernel({.code = bytes_of(kAdd)}).value();
  EXPECT_EQ(first, again);
}

TEST_P(WebgpuDevices, ShowsTheCompilersWords) {
  const auto broken = device_->make_kernel({.code = bytes_of("@compute @workgroup_size(1) fn main() { nonsense(); }")});
  ASSERT_TRUE(fails_with(broken, Code::kDriver));
  EXPECT_NE(broken.error().message().find("nonsense"), std::string::npos) << broken.error().message();
  EXPECT_TRUE(fails_with(device_->make_kernel({}), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(device_->make_kernel({.code = bytes_of(kAdd), .entry = "other"}), Code::kDriver));
}

TEST_P(WebgpuDevices, RefusesLaunchesThatTheDriverWouldNotForgive) {
  const Kernel kernel = device_->make_kernel({.code = bytes_of(kAdd)}).value();
  const Buffer buffer = words(1024);
  const std::uint32_t constant = 1;
  const auto constants = std::as_bytes(std::span(&constant, 1));
  const auto launch = [&](std::vector<Window> windows, Grid grid, std::span<const std::byte> with) {
    std::vector<KernelArgument> arguments;
    for (const Window& each : windows) arguments.push_back({each, arguments.empty() ? Access::kRead : Access::kWrite});
    return queue_->launch(kernel, arguments, grid, with);
  };
  const Window a = window(buffer, 0, 256), b = window(buffer, 1024, 256);
  const auto misaligned = launch({a, window(buffer, 1028, 256)}, {}, constants);
  ASSERT_TRUE(fails_with(misaligned, Code::kMisaligned));
  EXPECT_NE(misaligned.error().message().find("1028"), std::string::npos) << misaligned.error().message();
  EXPECT_TRUE(fails_with(launch({a}, {}, constants), Code::kInvalidArgument)) << "a window is missing";
  EXPECT_TRUE(fails_with(launch({a, b}, {}, {}), Code::kInvalidArgument)) << "constants are missing";
  EXPECT_TRUE(fails_with(launch({a, window(buffer, 0, 0)}, {}, constants), Code::kInvalidArgument)) << "empty";
  EXPECT_TRUE(fails_with(launch({a, b}, {.groups = {70'000, 1, 1}}, constants), Code::kInvalidArgument));
  const Kernel host = device("CPU").value()->make_kernel({.host = [](const HostCall&) {}}).value();
  EXPECT_TRUE(fails_with(queue_->launch(host, {}, {}), Code::kInvalidArgument)) << "another device's kernel";
  ASSERT_TRUE(launch({a, b}, {}, constants).has_value());
  EXPECT_TRUE(queue_->finish().has_value()) << "the queue is none the worse";
}

TEST_P(WebgpuDevices, RefusesOverlapsThatTheKernelDeclaresWritable) {
  const Kernel kernel = device_->make_kernel({.code = bytes_of(kAdd)}).value();
  const Buffer buffer = words(64);
  const std::uint32_t constant = 1;
  const std::array<KernelArgument, 2> lies = {KernelArgument{window(buffer, 0, 256), Access::kRead},
                                              KernelArgument{window(buffer, 128, 128), Access::kRead}};
  EXPECT_TRUE(
      fails_with(queue_->launch(kernel, lies, {}, std::as_bytes(std::span(&constant, 1))), Code::kInvalidArgument));
}

TEST_P(WebgpuDevices, RefusesAWindowLargerThanABindingWithTheNumbers) {
  const Kernel kernel = device_->make_kernel({.code = bytes_of(kAdd)}).value();
  const std::size_t most = device_->limits().max_binding_bytes;
  const Buffer large = Buffer::allocate(device_, u8, {most + 64}).value(), small = words(64);
  const std::uint32_t constant = 1;
  const std::array<KernelArgument, 2> arguments = {KernelArgument{large.window().value(), Access::kRead},
                                                   KernelArgument{small.window().value(), Access::kWrite}};
  const auto refused = queue_->launch(kernel, arguments, {}, std::as_bytes(std::span(&constant, 1)));
  ASSERT_TRUE(fails_with(refused, Code::kInvalidArgument));
  EXPECT_NE(refused.error().message().find("64 bytes less"), std::string::npos) << refused.error().message();
}

TEST_P(WebgpuDevices, LaunchesMoreThanTheConstantsOfOneRecordingHold) {
  // Each adds 1 to a running sum, so that a lost, doubled or reordered launch would show.
  const Kernel kernel = device_->make_kernel({.code = bytes_of(kAdd)}).value();
  const Buffer buffer = words(512);
  for (std::uint32_t i = 0; i < 3000; ++i) {
    const std::array<KernelArgument, 2> arguments = {
        KernelArgument{window(buffer, i % 2 == 0 ? 0 : 1024, 4), Access::kRead},
        KernelArgument{window(buffer, i % 2 == 0 ? 1024 : 0, 4), Access::kWrite}};
    const std::uint32_t constant = i % 7;
    ASSERT_TRUE(queue_->launch(kernel, arguments, {}, std::as_bytes(std::span(&constant, 1))).has_value());
  }
  std::uint32_t sum = 0, expected = 0;
  for (std::uint32_t i = 0; i < 3000; ++i) expected += i % 7;
  ASSERT_TRUE(queue_->read(window(buffer, 0, 4), std::as_writable_bytes(std::span(&sum, 1))).has_value());
  ASSERT_TRUE(queue_->finish().has_value());
  EXPECT_EQ(sum, expected);
}

// The same kernel on the same windows, with its constants in another chunk of staging: a bind group that is cached from
// the first launch would read the constants of the first.
TEST_P(WebgpuDevices, BindsTheConstantsOfThisRecording) {
  const Kernel kernel = device_->make_kernel({.code = bytes_of(kAdd)}).value();
  const Buffer buffer = words(512);
  ASSERT_TRUE(buffer.copyin(std::vector<std::byte>(2048)).has_value());
  const std::array<KernelArgument, 2> arguments = {KernelArgument{window(buffer, 0, 4), Access::kRead},
                                                   KernelArgument{window(buffer, 1024, 4), Access::kWrite}};
  const auto launch = [&](Queue& queue, std::uint32_t constant) {
    ASSERT_TRUE(queue.launch(kernel, arguments, {}, std::as_bytes(std::span(&constant, 1))).has_value());
  };
  const auto result = [&] {
    std::uint32_t value = 0;
    EXPECT_TRUE(queue_->read(window(buffer, 1024, 4), std::as_writable_bytes(std::span(&value, 1))).has_value());
    EXPECT_TRUE(queue_->finish().has_value());
    return value;
  };
  launch(*queue_, 11);
  EXPECT_EQ(result(), 11u);
  // Another queue takes the chunk that has become free, and keeps it.
  const QueuePtr other = device_->make_queue().value();
  launch(*other, 22);
  const std::uint64_t chunks = webgpu::transfer_counters(*device_).staging_chunks;
  launch(*queue_, 33);
  EXPECT_GT(webgpu::transfer_counters(*device_).staging_chunks, chunks) << "the test needs another chunk";
  EXPECT_EQ(result(), 33u);
}

TEST_P(WebgpuDevices, BindsAsManyBytesAsTheWindowOfThisLaunchHas) {
  constexpr std::string_view kCount = R"(
@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> goal: array<u32>;
@compute @workgroup_size(1) fn main() { goal[0] = arrayLength(&source); }
)";
  const Kernel kernel = device_->make_kernel({.code = bytes_of(kCount)}).value();
  const Buffer source = Buffer::allocate(device_, u32, {1024}).value();
  const Buffer goal = Buffer::allocate(device_, u32, {64}).value();
  for (const std::size_t elements : {64, 1024, 64}) {  // of the same buffer, from the same byte on
    const std::array arguments{KernelArgument{window(source, 0, 4 * elements), Access::kRead},
                               KernelArgument{goal.window().value(), Access::kWrite}};
    ASSERT_TRUE(queue_->launch(kernel, arguments, {}).has_value());
    ASSERT_TRUE(queue_->finish());
    std::vector<std::uint32_t> seen(64);
    ASSERT_TRUE(goal.copyout(std::as_writable_bytes(std::span(seen))));
    EXPECT_EQ(seen[0], elements);
  }
}

// What is bound is made for one kernel: another declares the same windows in another way.
TEST_P(WebgpuDevices, BindsTheSameWindowsToKernelsThatDeclareThemDifferently) {
  constexpr std::string_view kForth = R"(
@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read_write> b: array<u32>;
@compute @workgroup_size(1) fn main() { b[0] = a[0] + 1u; }
)";
  constexpr std::string_view kBack = R"(
@group(0) @binding(0) var<storage, read_write> a: array<u32>;
@group(0) @binding(1) var<storage, read_write> b: array<u32>;
@compute @workgroup_size(1) fn main() { a[0] = b[0] * 2u; }
)";
  const Kernel forth = device_->make_kernel({.code = bytes_of(kForth)}).value();
  const Kernel back = device_->make_kernel({.code = bytes_of(kBack)}).value();
  const Buffer a = Buffer::allocate(device_, u32, {64}, {.zero = true}).value();
  const Buffer b = Buffer::allocate(device_, u32, {64}).value();
  const auto launch = [&](const Kernel& kernel, Access of_a, Access of_b) {
    const std::array arguments{KernelArgument{a.window().value(), of_a}, KernelArgument{b.window().value(), of_b}};
    return queue_->launch(kernel, arguments, {});
  };
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(launch(forth, Access::kRead, Access::kWrite));
    ASSERT_TRUE(launch(back, Access::kReadWrite, Access::kReadWrite));
  }
  ASSERT_TRUE(queue_->finish());
  std::vector<std::uint32_t> seen(64);
  ASSERT_TRUE(a.copyout(std::as_writable_bytes(std::span(seen))));
  EXPECT_EQ(seen[0], 6u);  // ((0 + 1) * 2 + 1) * 2
}

TEST_P(WebgpuDevices, HoldsTheBuffersOfALaunchThatHadToSendTheRecordingOff) {
  // The launch that finds no room for its constants sends off what was recorded before it. What comes after it must
  // still wait for it, though everything submitted is over by then.
  const Kernel kernel = device_->make_kernel({.code = bytes_of(kAdd)}).value();
  const Buffer buffer = words(512), aside = words(4);
  const std::array<KernelArgument, 2> arguments = {KernelArgument{window(buffer, 0, 4), Access::kRead},
                                                   KernelArgument{window(buffer, 1024, 4), Access::kWrite}};
  const std::uint32_t constant = 7;
  const std::uint64_t before = submissions();
  for (int launches = 0; submissions() == before; ++launches) {
    ASSERT_LT(launches, 100'000);
    ASSERT_TRUE(queue_->launch(kernel, arguments, {}, std::as_bytes(std::span(&constant, 1))).has_value());
  }
  const QueuePtr other = device_->make_queue().value();
  ASSERT_TRUE(other->copy(window(aside, 0, 4), window(aside, 8, 4)).has_value());
  ASSERT_TRUE(other->finish().has_value()) << "and with it what was submitted before";
  ASSERT_TRUE(queue_->fill(window(buffer, 1024, 4), 0x11).has_value());
  ASSERT_TRUE(queue_->finish().has_value());
  std::uint32_t seen = 0;
  ASSERT_TRUE(buffer.view(1024, 4)->copyout(std::as_writable_bytes(std::span(&seen, 1))).has_value());
  EXPECT_EQ(seen, 0x11111111u);
}

TEST_P(WebgpuDevices, ReadsAWindowTwiceBesideOneItWritesInTheSameBuffer) {
  const Kernel kernel = device_
                            ->make_kernel({.code = bytes_of(R"(
@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read> b: array<u32>;
@group(0) @binding(2) var<storage, read_write> goal: array<u32>;
@compute @workgroup_size(1) fn main() { goal[0] = a[0] * b[0]; })")})
                            .value();
  const Buffer buffer = words(512);
  const std::vector<std::uint32_t> twelve(1, 12);
  ASSERT_TRUE(queue_->write(window(buffer, 0, 4), bytes_of(twelve)).has_value());
  const Window source = window(buffer, 0, 4);
  const std::array<KernelArgument, 3> arguments = {KernelArgument{source, Access::kRead},
                                                   KernelArgument{source, Access::kRead},
                                                   KernelArgument{window(buffer, 1024, 4), Access::kWrite}};
  ASSERT_TRUE(queue_->launch(kernel, arguments, {}).has_value());
  std::uint32_t square = 0;
  ASSERT_TRUE(queue_->read(window(buffer, 1024, 4), std::as_writable_bytes(std::span(&square, 1))).has_value());
  ASSERT_TRUE(queue_->finish().has_value());
  EXPECT_EQ(square, 144u);
}

TEST_P(WebgpuDevices, RunsHalfPrecisionKernelsWhereItSaysSo) {
  if (!device_->limits().f16_kernels) GTEST_SKIP() << "skipped: this adapter has no shader-f16";
  const Kernel kernel = device_
                            ->make_kernel({.code = bytes_of(R"(
enable f16;
@group(0) @binding(0) var<storage, read_write> halves: array<f16>;
@compute @workgroup_size(1) fn main() { halves[1] = halves[0] * 2.0h; })")})
                            .value();
  const Buffer buffer = words(1);
  const std::uint32_t three_halves = 0x3e00;
  ASSERT_TRUE(buffer.copyin(std::as_bytes(std::span(&three_halves, 1))).has_value());
  const std::array<KernelArgument, 1> arguments = {KernelArgument{buffer.window().value()}};
  ASSERT_TRUE(queue_->launch(kernel, arguments, {}).has_value());
  ASSERT_TRUE(queue_->finish().has_value());
  std::uint32_t seen = 0;
  ASSERT_TRUE(buffer.copyout(std::as_writable_bytes(std::span(&seen, 1))).has_value());
  EXPECT_EQ(seen, 0x42003e00u);
}

// ---- errors on the side -------------------------------------------------------------------------------------

TEST_P(WebgpuDevices, TellsTheNextWaitOfAnErrorNobodyWaitedFor) {
  wgpu::BufferDescriptor too_large{};
  too_large.usage = wgpu::kUsageStorage;
  too_large.size = std::uint64_t{1} << 62;
  const wgpu::Buffer bad = library_.calls.DeviceCreateBuffer(static_cast<wgpu::Device>(device_->native()), &too_large);
  const Buffer buffer = words(4);
  const auto told = buffer.copyin(std::vector<std::byte>(16));
  ASSERT_TRUE(fails_with(told, Code::kDriver));
  EXPECT_NE(told.error().message().find("an earlier WebGPU call"), std::string::npos) << told.error().message();
  EXPECT_TRUE(buffer.copyin(std::vector<std::byte>(16)).has_value()) << "it is told once";
  library_.calls.BufferRelease(bad);
}

TEST_P(WebgpuDevices, TellsOfTheLossOfTheDevice) {
  const Buffer buffer = words(1024), other = words(1024);
  ASSERT_TRUE(queue_->copy(buffer.window().value(), other.window().value()).has_value());
  library_.calls.DeviceDestroy(static_cast<wgpu::Device>(device_->native()));
  EXPECT_TRUE(fails_with(queue_->submit(), Code::kDeviceLost));
  EXPECT_TRUE(fails_with(buffer.copyin(std::vector<std::byte>(4096)), Code::kDeviceLost));
  EXPECT_TRUE(fails_with(Buffer::allocate(device_, u8, {64}), Code::kDeviceLost));
  std::vector<std::byte> seen(4096);
  EXPECT_TRUE(fails_with(buffer.copyout(seen), Code::kDeviceLost));
}

TEST_P(WebgpuDevices, HandsItsEncoderToNativeWork) {
  const Buffer source = words(16), goal = words(16);
  const std::vector<std::uint32_t> numbers(16, 77);
  ASSERT_TRUE(source.copyin(bytes_of(numbers)).has_value());
  const std::array<Window, 2> uses = {source.window().value(), goal.window().value()};
  ASSERT_TRUE(queue_
                  ->record_native(uses,
                                  [&](void* encoder) -> Result<void> {
                                    library_.calls.CommandEncoderCopyBufferToBuffer(
                                        static_cast<wgpu::CommandEncoder>(encoder),
                                        reinterpret_cast<wgpu::Buffer>(source.native_handle()), 0,
                                        reinterpret_cast<wgpu::Buffer>(goal.native_handle()), 0, 64);
                                    return {};
                                  })
                  .has_value());
  // Recorded native work holds its buffers: this write must not land before the copy.
  ASSERT_TRUE(queue_->fill(window(source, 0, 64), 0).has_value());
  ASSERT_TRUE(queue_->finish().has_value());
  std::vector<std::uint32_t> seen(16);
  ASSERT_TRUE(goal.copyout(std::as_writable_bytes(std::span(seen))).has_value());
  EXPECT_EQ(seen, numbers);
}

// ---- reading WGSL -------------------------------------------------------------------------------------------

TEST(Wgsl, FindsBindingsPastCommentsAndBlanks) {
  const std::string_view code = R"(
// @group(0) @binding(9) var<storage> commented: array<u32>;
/* nested /* @binding(8) var<uniform> x: u32; */ still a comment */
@binding(1) @group(0)
var < storage , read_write > goal: array<u32>;
@group(0) @binding(0) var<storage> source: array<u32>;
@group(0u) @binding( 2, ) var<uniform> constant: u32;
@compute @workgroup_size(64) fn main() { var x = 1u; }
)";
  const auto found = webgpu::wgsl_bindings(code);
  ASSERT_TRUE(found.has_value()) << found.error().message();
  ASSERT_EQ(found->size(), 3u);
  using Kind = webgpu::WgslBinding::Kind;
  EXPECT_EQ((*found)[0].kind, Kind::kRead);
  EXPECT_EQ((*found)[1].kind, Kind::kReadWrite);
  EXPECT_EQ((*found)[2].kind, Kind::kUniform);
  const std::string writable = webgpu::wgsl_all_writable(code, *found);
  EXPECT_NE(writable.find("var<storage, read_write> source"), std::string::npos) << writable;
  EXPECT_NE(writable.find("@binding(9) var<storage> commented"), std::string::npos) << "comments stay";
}

TEST(Wgsl, RefusesBindingsItCannotMakeAndNamesTheLine) {
  const auto refusal = [](std::string_view code) {
    const auto found = webgpu::wgsl_bindings(code);
    return found ? std::string() : found.error().message();
  };
  EXPECT_NE(refusal("\n@group(1) @binding(0) var<storage> a: array<u32>;").find("line 2"), std::string::npos);
  EXPECT_NE(refusal("@group(0) @binding(1) var<storage> a: array<u32>;").find("binding 1 where 0"), std::string::npos);
  EXPECT_NE(refusal("@group(0) @binding(0) var<uniform> c: u32; @group(0) @binding(1) var<storage> a: array<u32>;")
                .find("last binding"),
            std::string::npos);
  EXPECT_NE(refusal("@group(0) @binding(0) var t: texture_2d<f32>;").find("not a buffer"), std::string::npos);
  EXPECT_NE(refusal("@group(0) @binding(N) var<storage> a: array<u32>;").find("plain number"), std::string::npos);
  EXPECT_NE(refusal("@group(0) @binding(0) var<workgroup> a: u32;").find("workgroup"), std::string::npos);
  EXPECT_NE(refusal("@group(0) @binding(0) var<storage a: u32;").find("not closed"), std::string::npos);
  EXPECT_EQ(refusal("@compute @workgroup_size(1) fn main() {}"), "");
}

}  // namespace
}  // namespace berth::test
