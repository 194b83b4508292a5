// Every call of the WebGPU library that can fail is made to fail in turn: the error names the call, nothing leaks,
// and the same device does the same work afterwards.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "base/try.h"
#include "berth/berth.h"
#include "devices/webgpu/webgpu_device.h"
#include "doubles/webgpu_shim.h"

namespace berth::test {

using namespace internal;

namespace {

constexpr std::string_view kScale = R"(
@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> goal: array<u32>;
@group(0) @binding(2) var<uniform> factor: u32;
@compute @workgroup_size(16) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  goal[id.x] = source[id.x] * factor;
}
)";

// Something of everything: writes in place and staged, at whole words and at odd bytes, fills, copies inside one
// buffer, a kernel on windows of one buffer, reads.
Result<std::array<std::uint32_t, 16>> do_some_work(const DevicePtr& device) {
  BERTH_TRY_ASSIGN(const QueuePtr queue, device->make_queue());
  BERTH_TRY_ASSIGN(const Buffer buffer, Buffer::allocate(device, u8, {4096}));
  BERTH_TRY_ASSIGN(const Kernel kernel, device->make_kernel({.code = std::as_bytes(std::span(kScale))}));
  const auto window = [&](std::size_t offset, std::size_t bytes) -> Result<Window> {
    BERTH_TRY_ASSIGN(const Buffer view, buffer.view(offset, bytes));
    return view.window();
  };
  std::array<std::uint32_t, 16> numbers{};
  for (std::uint32_t i = 0; i < 16; ++i) numbers[i] = i + 1;
  BERTH_TRY_ASSIGN(const Window first, window(0, 64));
  BERTH_TRY_ASSIGN(const Window second, window(1024, 64));
  BERTH_TRY_ASSIGN(const Window odd, window(2049, 64));
  BERTH_TRY_ASSIGN(const Window third, window(3072, 64));
  BERTH_TRY(queue->fill(second, 0xff));
  BERTH_TRY(queue->write(first, std::as_bytes(std::span(numbers))));
  BERTH_TRY(queue->copy(first, odd));
  BERTH_TRY(queue->copy(odd, second));
  BERTH_TRY(queue->fill(odd, 7));
  const std::array<KernelArgument, 2> arguments = {KernelArgument{second, Access::kRead},
                                                   KernelArgument{third, Access::kWrite}};
  const std::uint32_t factor = 3;
  BERTH_TRY(queue->launch(kernel, arguments, {}, std::as_bytes(std::span(&factor, 1))));
  BERTH_TRY(queue->write(odd, std::as_bytes(std::span(numbers))));
  std::array<std::uint32_t, 16> scaled{}, seen{};
  BERTH_TRY(queue->read(third, std::as_writable_bytes(std::span(scaled))));
  BERTH_TRY(queue->read(odd, std::as_writable_bytes(std::span(seen))));
  BERTH_TRY(queue->finish());
  BERTH_TRY(buffer.view(0, 64)->copyin(std::as_bytes(std::span(scaled))));
  BERTH_TRY(buffer.view(0, 64)->copyout(std::as_writable_bytes(std::span(scaled))));
  if (seen != numbers) return Error(Code::kInvalidData, Layer::kProgram, "odd bytes came back wrong");
  return scaled;
}

void expect_scaled(const Result<std::array<std::uint32_t, 16>>& result) {
  ASSERT_TRUE(result.has_value()) << result.error().message();
  for (std::uint32_t i = 0; i < 16; ++i) EXPECT_EQ((*result)[i], (i + 1) * 3);
}

struct Way {
  const char* name;
  bool maps;
  bool gives_null;
  bool standard;
};

class WebgpuFaults : public testing::TestWithParam<Way> {};

TEST_P(WebgpuFaults, EveryCallThatFailsIsNamedAndLeaksNothing) {
  auto library = webgpu::open_library();
  if (!library) GTEST_SKIP() << "skipped: no WEBGPU: " << library.error().message();
  const Way way = GetParam();
  webgpu::AdapterChoice choice = webgpu::adapter_choice(0);
  choice.map_storage = way.maps;
  bool swept = false;
  for (std::uint64_t nth = 1; !swept; ++nth) {
    SCOPED_TRACE(nth);
    ASSERT_LT(nth, 2000u);
    const webgpu::Library between = shimmed(*library, way.standard);
    WebgpuShim& shim = webgpu_shim();
    shim.gives_null = way.gives_null;
    shim.arm(nth);
    {
      auto device = webgpu::open_with(between, choice);
      if (!device && nth == 1 && shim.failed.empty())
        GTEST_SKIP() << "skipped: no WEBGPU: " << device.error().message();
      if (!device) {
        ASSERT_FALSE(shim.failed.empty()) << device.error().message();
        EXPECT_NE(device.error().message().find("wgpu" + shim.failed), std::string::npos) << device.error().message();
      } else {
        const auto result = do_some_work(*device);
        const std::string failed = shim.failed;
        swept = failed.empty();
        if (swept) {
          expect_scaled(result);
        } else {
          ASSERT_FALSE(result.has_value()) << failed << " failed and nobody was told";
          EXPECT_NE(result.error().message().find("wgpu" + failed), std::string::npos)
              << failed << " failed, and the error is: " << result.error().message();
          EXPECT_EQ(result.error().code() == Code::kOutOfMemory, failed == "DeviceCreateBuffer");
        }
        // Whatever failed, the device is as good as before.
        shim.arm(0);
        expect_scaled(do_some_work(*device));
        EXPECT_TRUE((*device)->synchronize().has_value());
        EXPECT_EQ((*device)->counters().live_bytes, 0u) << failed;
      }
    }
    EXPECT_EQ(shim.live.load(), 0) << shim.failed << " left handles behind";
    EXPECT_TRUE(shim.scopes.empty()) << shim.failed << " left error scopes open";
    if (HasFailure()) break;
  }
}

// A driver may fail by giving null or by giving an object that only errs: each way of moving bytes meets one of them.
INSTANTIATE_TEST_SUITE_P(Ways, WebgpuFaults,
                         testing::Values(Way{"InPlace", true, true, false},
                                         Way{"StagedWithErrorObjects", false, false, false},
                                         Way{"StandardHeaderOnly", false, true, true}),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace berth::test
