// WEBGPU joins twice: as it opens by itself, and with mapping of storage buffers turned off, so that the staged
// ways are checked on machines where memory can be written in place.
#include <cstring>

#include "berth/alloc/caching_pool.h"
#include "berth/alloc/linear.h"
#include "berth/memory/registry.h"
#include "conformance/allocator_conformance.h"
#include "conformance/device_conformance.h"
#include "devices/webgpu/webgpu_device.h"

namespace berth::conformance {

using namespace internal;

namespace {

constexpr std::string_view kAdd = R"(
@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> goal: array<u32>;
@group(0) @binding(2) var<uniform> constant: u32;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  goal[id.x] = source[id.x] + constant;
}
)";

Result<Kernel> add_kernel(Device& device) {
  return device.make_kernel({.code = std::as_bytes(std::span(kAdd))});
}

Result<ForeignMemory> foreign(Device& device, std::span<const std::byte> contents) {
  auto library = webgpu::open_library();
  if (!library) return library.error();
  const wgpu::Calls calls = library->calls;
  const auto native = static_cast<wgpu::Device>(device.native());
  wgpu::BufferDescriptor descriptor{};
  descriptor.usage = wgpu::kUsageStorage | wgpu::kUsageCopySrc | wgpu::kUsageCopyDst;
  descriptor.size = (contents.size() + 3) / 4 * 4;
  wgpu::Buffer buffer = calls.DeviceCreateBuffer(native, &descriptor);
  std::vector<std::byte> words(contents.begin(), contents.end());
  words.resize(descriptor.size);
  wgpu::Queue queue = calls.DeviceGetQueue(native);
  calls.QueueWriteBuffer(queue, buffer, 0, words.data(), words.size());
  calls.QueueRelease(queue);
  return ForeignMemory{.address = reinterpret_cast<std::uint64_t>(buffer),
                       .bytes = contents.size(),
                       .read_only = false,
                       .release = [calls, buffer] { calls.BufferRelease(buffer); }};
}

Result<DevicePtr> open_staged() {
  auto library = webgpu::open_library();
  if (!library) return library.error();
  webgpu::AdapterChoice choice = webgpu::adapter_choice(0);
  choice.map_storage = false;
  static std::weak_ptr<Device> known;
  if (DevicePtr alive = known.lock()) return alive;
  auto opened = webgpu::open_with(*library, choice);
  if (opened) known = *opened;
  return opened;
}

const std::vector<Never>& never() {
  static const std::vector<Never> list{
      {"KvCacheGivesSequencesContiguousAddresses", Code::kUnsupported, "WebGPU has buffers and no addresses"}};
  return list;
}

BERTH_DEVICE_CONFORMANCE(Webgpu, DeviceCase{.open = [] { return device("WEBGPU"); },
                                            .never = never(),
                                            .add_kernel = add_kernel,
                                            .foreign = foreign});

BERTH_DEVICE_CONFORMANCE(WebgpuStaged,
                         DeviceCase{
                             .open = open_staged, .never = never(), .add_kernel = add_kernel, .foreign = foreign});

BERTH_ALLOCATOR_CONFORMANCE(WebgpuRoot, [] { return allocator_of(device("WEBGPU")); });
BERTH_ALLOCATOR_CONFORMANCE(LinearOnWebgpu, [] {
  auto root = allocator_of(device("WEBGPU"));
  return root ? Result<AllocatorPtr>(make_linear(*root)) : root;
});
BERTH_ALLOCATOR_CONFORMANCE(PoolOnWebgpu, [] {
  auto root = allocator_of(device("WEBGPU"));
  return root ? Result<AllocatorPtr>(make_caching_pool(*root)) : root;
});

}  // namespace
}  // namespace berth::conformance
