// WEBGPU side by side with the plain API, in one process and on one device: the plain columns call the library as a
// short program would, Berth's go through Queue. Run with `./run bench webgpu [ROUNDS]`. Every figure is the median of
// ROUNDS rounds (default 15) in which the ways take turns, so that a busy machine is busy for all of them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "berth/berth.h"
#include "devices/webgpu/webgpu_device.h"

namespace {

using namespace berth;
using namespace berth::internal;
using Clock = std::chrono::steady_clock;

double seconds(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Way {
  std::string name;
  std::function<void()> work;
  std::vector<double> times{};

  double median() {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
};

void take_turns(std::vector<Way>& ways, int rounds) {
  for (Way& way : ways) way.work();  // warm
  for (int round = 0; round < rounds; ++round)
    for (Way& way : ways) way.times.push_back(seconds(way.work));
}

// The plain API, written as its examples do.
struct Plain {
  wgpu::Calls calls;
  wgpu::Device device;
  wgpu::Queue queue;

  wgpu::Buffer buffer(std::uint64_t bytes, wgpu::Flags usage) const {
    wgpu::BufferDescriptor descriptor{};
    descriptor.size = bytes;
    descriptor.usage = usage;
    return calls.DeviceCreateBuffer(device, &descriptor);
  }
  void wait() const { calls.DevicePoll(device, 1, nullptr); }
  void submit(wgpu::CommandEncoder encoder) const {
    wgpu::CommandBuffer commands = calls.CommandEncoderFinish(encoder, nullptr);
    calls.QueueSubmit(queue, 1, &commands);
    calls.CommandBufferRelease(commands);
    calls.CommandEncoderRelease(encoder);
  }
  void write(wgpu::Buffer to, const std::vector<std::byte>& bytes) const {
    calls.QueueWriteBuffer(queue, to, 0, bytes.data(), bytes.size());
    calls.QueueSubmit(queue, 0, nullptr);
    wait();
  }
  void read(wgpu::Buffer from, std::vector<std::byte>& bytes) const {
    wgpu::Buffer staging = buffer(bytes.size(), wgpu::kUsageMapRead | wgpu::kUsageCopyDst);
    wgpu::CommandEncoder encoder = calls.DeviceCreateCommandEncoder(device, nullptr);
    calls.CommandEncoderCopyBufferToBuffer(encoder, from, 0, staging, 0, bytes.size());
    submit(encoder);
    bool mapped = false;
    wgpu::CallbackInfo<wgpu::StatusCallback> info{};
    info.mode = wgpu::kCallbackAllowSpontaneous;
    info.userdata1 = &mapped;
    info.callback = [](wgpu::Enum, wgpu::StringView, void* done, void*) { *static_cast<bool*>(done) = true; };
    calls.BufferMapAsync(staging, wgpu::kMapRead, 0, bytes.size(), info);
    while (!mapped) wait();
    std::memcpy(bytes.data(), calls.BufferGetConstMappedRange(staging, 0, bytes.size()), bytes.size());
    calls.BufferUnmap(staging);
    calls.BufferDestroy(staging);
    calls.BufferRelease(staging);
  }
};

// A kernel that does next to nothing, so that what is measured is the way to it.
constexpr std::string_view kTiny = R"(
@group(0) @binding(0) var<storage, read_write> words: array<u32>;
@compute @workgroup_size(1) fn main() { words[0] += 1u; }
)";

struct PlainKernel {
  wgpu::ComputePipeline pipeline = nullptr;
  wgpu::BindGroup group = nullptr;

  PlainKernel(const Plain& plain, wgpu::Buffer buffer) {
    wgpu::ShaderSourceWgsl source{};
    source.chain.type = wgpu::kTypeShaderSourceWgsl;
    source.code = {kTiny.data(), kTiny.size()};
    wgpu::ShaderModuleDescriptor module{};
    module.next = &source.chain;
    wgpu::BindGroupLayoutEntry entry{};
    entry.visibility = wgpu::kStageCompute;
    entry.buffer.type = wgpu::kBindingStorage;
    wgpu::BindGroupLayoutDescriptor layout{};
    layout.entry_count = 1;
    layout.entries = &entry;
    wgpu::BindGroupLayout group_layout = plain.calls.DeviceCreateBindGroupLayout(plain.device, &layout);
    wgpu::PipelineLayoutDescriptor layouts{};
    layouts.bind_group_layout_count = 1;
    layouts.bind_group_layouts = &group_layout;
    wgpu::ComputePipelineDescriptor descriptor{};
    descriptor.layout = plain.calls.DeviceCreatePipelineLayout(plain.device, &layouts);
    descriptor.compute.module = plain.calls.DeviceCreateShaderModule(plain.device, &module);
    descriptor.compute.entry_point = {"main", 4};
    pipeline = plain.calls.DeviceCreateComputePipeline(plain.device, &descriptor);
    wgpu::BindGroupEntry binding{};
    binding.buffer = buffer;
    binding.size = 256;
    wgpu::BindGroupDescriptor bindings{};
    bindings.layout = group_layout;
    bindings.entry_count = 1;
    bindings.entries = &binding;
    group = plain.calls.DeviceCreateBindGroup(plain.device, &bindings);
  }

  void dispatch(const Plain& plain, int times) const {
    wgpu::CommandEncoder encoder = plain.calls.DeviceCreateCommandEncoder(plain.device, nullptr);
    wgpu::ComputePass pass = plain.calls.CommandEncoderBeginComputePass(encoder, nullptr);
    for (int i = 0; i < times; ++i) {
      plain.calls.ComputePassEncoderSetPipeline(pass, pipeline);
      plain.calls.ComputePassEncoderSetBindGroup(pass, 0, group, 0, nullptr);
      plain.calls.ComputePassEncoderDispatchWorkgroups(pass, 1, 1, 1);
    }
    plain.calls.ComputePassEncoderEnd(pass);
    plain.calls.ComputePassEncoderRelease(pass);
    plain.submit(encoder);
    plain.wait();
  }
};

void check(const Result<void>& result) {
  if (!result) throw BadResult(result.error());
}

void print_bandwidth(const char* what, std::vector<Way>& ways, std::size_t bytes) {
  fmt::print("\n{}\n", what);
  const double plain = ways[0].median();
  const double memcpy_time = ways.back().median();
  for (Way& way : ways)
    fmt::print("  {:<44} {:7.2f} GB/s   {:5.2f}x the plain call   {:5.2f} of memcpy\n", way.name,
               static_cast<double>(bytes) / way.median() / 1e9, plain / way.median(), memcpy_time / way.median());
}

void print_time(const char* what, std::vector<Way>& ways, double unit, const char* suffix, int per) {
  fmt::print("\n{}\n", what);
  const double plain = ways[0].median();
  for (Way& way : ways)
    fmt::print("  {:<44} {:9.2f} {}   {:+6.1f} % against plain\n", way.name, way.median() / unit / per, suffix,
               (way.median() / plain - 1) * 100);
}

// What an f16 shadow costs beyond the f32 data itself, converted on either side. The kernel reads the floats that are
// on the device already; WGSL leaves the rounding of pack2x16float to the adapter, so its bits are compared too.
constexpr std::string_view kConvert = R"(
@group(0) @binding(0) var<storage, read> floats: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read_write> halves: array<u32>;
@compute @workgroup_size(256) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  halves[id.x] = pack2x16float(floats[id.x]);
}
)";

void compare_shadows(const DevicePtr& device, Queue& queue, int rounds) {
  constexpr std::size_t kFloats = std::size_t{16} << 20;
  std::vector<float> source(kFloats);
  for (std::size_t i = 0; i < kFloats; ++i) source[i] = static_cast<float>(i % 60'000) / 7 - 4'000;
  const Buffer floats = Buffer::allocate(device, f32, {kFloats}).value();
  const Buffer by_host = Buffer::allocate(device, f16, {kFloats}).value();
  const Buffer by_kernel = Buffer::allocate(device, f16, {kFloats}).value();
  check(queue.write(floats.window().value(), std::as_bytes(std::span(source))));
  check(queue.finish());
  const auto convert_on_host = [&] {
    constexpr std::size_t kPiece = 4096;  // floats: both sides of a piece stay in the first cache
    std::array<F16, kPiece> piece;
    Window window = by_host.window().value();
    window.bytes = sizeof(piece);
    for (std::size_t at = 0; at < kFloats; at += kPiece, window.offset += sizeof(piece)) {
      to_f16(std::span(source).subspan(at, kPiece), piece);
      check(queue.write(window, std::as_bytes(std::span(piece))));
    }
    check(queue.finish());
  };
  const Kernel kernel = device->make_kernel({.code = std::as_bytes(std::span(kConvert))}).value();
  const std::array<KernelArgument, 2> arguments = {KernelArgument{floats.window().value(), Access::kRead},
                                                   KernelArgument{by_kernel.window().value()}};
  const auto convert_on_device = [&] {
    check(queue.launch(kernel, arguments, {.groups = {kFloats / 2 / 256, 1, 1}}));
    check(queue.finish());
  };
  std::vector<Way> ways;
  ways.push_back({"on the host with SIMD, then written", convert_on_host});
  ways.push_back({"on the device with a kernel", convert_on_device});
  take_turns(ways, rounds);
  fmt::print("\nf16 shadow of 64 MiB of f32, beside writing the f32 itself\n");
  for (Way& way : ways)
    fmt::print("  {:<44} {:7.2f} ms   {:5.2f}x the host\n", way.name, way.median() * 1e3,
               ways[0].median() / way.median());
  std::vector<std::uint16_t> host(kFloats), kernels(kFloats);
  check(queue.read(by_host.window().value(), std::as_writable_bytes(std::span(host))));
  check(queue.read(by_kernel.window().value(), std::as_writable_bytes(std::span(kernels))));
  check(queue.finish());
  std::size_t different = 0;
  for (std::size_t i = 0; i < kFloats; ++i) different += host[i] != kernels[i];
  fmt::print("  values the two round differently: {} of {}\n", different, kFloats);
}

void run(int rounds) {
  const DevicePtr device = berth::device("WEBGPU").value();
  const webgpu::Library library = webgpu::open_library().value();
  if (library.calls.DevicePoll == nullptr) {
    fmt::print("the plain side of this bench is written for wgpu-native, and {} is not\n", library.path);
    return;
  }
  const auto native = static_cast<wgpu::Device>(device->native());
  const Plain plain{library.calls, native, library.calls.DeviceGetQueue(native)};
  const QueuePtr queue = device->make_queue().value();
  const bool maps = device->limits().unified_memory;
  fmt::print("{}\n{} rounds, medians; memory of this adapter {}\n", device->description(), rounds,
             maps ? "can be written in place" : "is staged");

  constexpr std::size_t kBytes = std::size_t{64} << 20;
  std::vector<std::byte> source(kBytes, std::byte{1}), target(kBytes, std::byte{2});
  wgpu::Buffer raw = plain.buffer(kBytes, wgpu::kUsageStorage | wgpu::kUsageCopySrc | wgpu::kUsageCopyDst);
  const Buffer mapped = Buffer::allocate(device, u8, {kBytes}).value();
  const Buffer staged = Buffer::allocate(device, u8, {kBytes}, {.host = HostAccess::kNone}).value();
  const auto write = [&](const Buffer& to) {
    check(queue->write(to.window().value(), source));
    check(queue->finish());
  };
  const auto read = [&](const Buffer& from) {
    check(queue->read(from.window().value(), target));
    check(queue->finish());
  };
  {
    std::vector<Way> ways;
    ways.push_back({"plain: wgpuQueueWriteBuffer", [&] { plain.write(raw, source); }});
    ways.push_back({"Berth, staged", [&] { write(staged); }});
    if (maps) ways.push_back({"Berth, in place", [&] { write(mapped); }});
    ways.push_back({"memcpy", [&] { std::memcpy(target.data(), source.data(), kBytes); }});
    take_turns(ways, rounds);
    print_bandwidth("write 64 MiB", ways, kBytes);
  }
  {
    std::vector<Way> ways;
    ways.push_back({"plain: staging buffer, copy, map", [&] { plain.read(raw, target); }});
    ways.push_back({"Berth, staged", [&] { read(staged); }});
    if (maps) ways.push_back({"Berth, in place", [&] { read(mapped); }});
    ways.push_back({"memcpy", [&] { std::memcpy(target.data(), source.data(), kBytes); }});
    take_turns(ways, rounds);
    print_bandwidth("read 64 MiB", ways, kBytes);
  }
  {
    constexpr std::size_t kPiece = 4096, kCount = 1000;
    // Every other piece, so that no two of them are neighbours.
    const auto pieces = [&](const Buffer& to) {
      Window window = to.window().value();
      window.bytes = kPiece;
      for (std::size_t i = 0; i < kCount; ++i) {
        window.offset = i * 2 * kPiece;
        check(queue->write(window, std::span(source).subspan(i * kPiece, kPiece)));
      }
      check(queue->finish());
    };
    std::vector<Way> ways;
    ways.push_back({"plain: 1,000 wgpuQueueWriteBuffer, one submit", [&] {
                      for (std::size_t i = 0; i < kCount; ++i)
                        plain.calls.QueueWriteBuffer(plain.queue, raw, i * 2 * kPiece, source.data() + i * kPiece,
                                                     kPiece);
                      plain.calls.QueueSubmit(plain.queue, 0, nullptr);
                      plain.wait();
                    }});
    ways.push_back({"Berth, staged", [&] { pieces(staged); }});
    if (maps) ways.push_back({"Berth, in place", [&] { pieces(mapped); }});
    take_turns(ways, rounds);
    print_time("1,000 writes of 4 KiB", ways, 1e-3, "ms", 1);
    const auto submissions = [&](const Buffer& to) {
      const std::uint64_t before = webgpu::transfer_counters(*device).submissions;
      pieces(to);
      return webgpu::transfer_counters(*device).submissions - before;
    };
    fmt::print("  submissions: staged {}, {} {}\n", submissions(staged), maps ? "in place" : "again",
               submissions(mapped));
  }
  {
    const Buffer words = Buffer::allocate(device, u32, {64}).value();
    const Kernel kernel = device->make_kernel({.code = std::as_bytes(std::span(kTiny))}).value();
    wgpu::Buffer small = plain.buffer(256, wgpu::kUsageStorage | wgpu::kUsageCopySrc | wgpu::kUsageCopyDst);
    const PlainKernel plain_kernel(plain, small);
    const std::array<KernelArgument, 1> arguments = {KernelArgument{words.window().value()}};
    const auto dispatch = [&](int times) {
      for (int i = 0; i < times; ++i) check(queue->launch(kernel, arguments, {}));
      check(queue->finish());
    };
    for (const int times : {1, 1000}) {
      // Short work needs many rounds to say anything.
      const int repeats = times == 1 ? 50 : 1;
      std::vector<Way> ways;
      ways.push_back({"plain", [&] {
                        for (int i = 0; i < repeats; ++i) plain_kernel.dispatch(plain, times);
                      }});
      ways.push_back({"Berth", [&] {
                        for (int i = 0; i < repeats; ++i) dispatch(times);
                      }});
      take_turns(ways, rounds * 2);
      print_time(times == 1 ? "one dispatch, submit and wait" : "1,000 dispatches, one submit and wait: each", ways,
                 1e-6, "us", times * repeats);
    }
  }
  compare_shadows(device, *queue, rounds);
}

}  // namespace

int main(int argc, char** argv) {
  const auto device = berth::device("WEBGPU");
  if (!device) {
    fmt::print("no WEBGPU here: {}\n", device.error().message());
    return 0;
  }
  try {
    run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 15);
  } catch (const std::exception& failed) {
    fmt::print(stderr, "{}\n", failed.what());
    return 1;
  }
  return 0;
}
