// What residency costs and what it saves.
//   CPU: how long the first touch of a large buffer takes after a submit, with and without residency, side by side.
//   METAL: commits, fresh allocations, messages and locks a token of a decode-like loop through a BufferPool, counted
//   by the double of Metal where this build has it. Those are counts and no times: the double's speed says nothing of a
//   GPU.
// Usage: residency_bench [MIB]     the size of the CPU's buffer, 1024 by default
#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "berth/berth.h"
#include "devices/cpu/cpu_device.h"

#ifdef BERTH_METAL_DOUBLE
#include "doubles/metal/metal_double.h"
#endif

namespace {

thread_local std::uint64_t locks_taken = 0;

}  // namespace

// Every std::mutex of this program comes by here, and is counted for its thread.
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto next = reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  ++locks_taken;
  return next(mutex);
}

namespace berth {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct Touch {
  double submit = 0;     // milliseconds
  double touch_all = 0;  // one byte of every page
  double slowest = 0;    // the slowest of 64 MiB
};

Touch touch(bool resident, std::size_t bytes) {
  const DevicePtr cpu = cpu::open().value();
  if (resident) cpu->keep_resident().value();
  const QueuePtr queue = cpu->make_queue().value();
  const Buffer buffer = Buffer::allocate(cpu, u8, {bytes}, {.label = "weights"}).value();
  Touch result;
  auto start = Clock::now();
  queue->submit().value();
  result.submit = milliseconds_since(start);
  const std::span<std::byte> memory = buffer.as_host_bytes_mut().value();
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  constexpr std::size_t kStretch = std::size_t{64} << 20;
  start = Clock::now();
  for (std::size_t from = 0; from < bytes; from += kStretch) {
    const auto before = Clock::now();
    for (std::size_t at = from; at < std::min(bytes, from + kStretch); at += page) memory[at] = std::byte{1};
    result.slowest = std::max(result.slowest, milliseconds_since(before));
  }
  result.touch_all = milliseconds_since(start);
  if (resident)
    for (const auto& left : cpu->residency()->report().left) fmt::print("  not locked: {}\n", left.why);
  return result;
}

void bench_cpu(std::size_t bytes) {
  constexpr int kRounds = 7;
  std::vector<Touch> rounds[2];
  for (int round = 0; round < kRounds; ++round)
    for (const bool resident : {false, true}) rounds[resident].push_back(touch(resident, bytes));
  fmt::print("CPU: first touch of {} MiB after a submit, least and median of {} rounds, ms\n\n", bytes >> 20, kRounds);
  fmt::print("{:<20} {:>16} {:>22} {:>24}\n", "", "submit", "touch every page", "slowest 64 MiB of it");
  for (const bool resident : {false, true}) {
    const auto figure = [&](double Touch::*of) {
      std::vector<double> all;
      for (const Touch& round : rounds[resident]) all.push_back(round.*of);
      std::sort(all.begin(), all.end());
      return fmt::format("{:.3f} / {:.3f}", all.front(), all[all.size() / 2]);
    };
    fmt::print("{:<20} {:>16} {:>22} {:>24}\n", resident ? "with residency" : "without", figure(&Touch::submit),
               figure(&Touch::touch_all), figure(&Touch::slowest));
  }
}

#ifdef BERTH_METAL_DOUBLE

constexpr std::string_view kSource = "kernel void scale(device float* x [[buffer(0)]]) {}\n";

void bench_metal() {
  const MetalDoubleControl& metal = metal_double_control;
  static const MetalDoubleKernel scale{"scale", [](const MetalDoubleLaunch*) {}};
  metal.register_kernel(&scale);
  constexpr std::size_t kAllocations = 1750;
  const DevicePtr gpu = device("METAL").value();
  const QueuePtr queue = gpu->make_queue().value();
  const Kernel kernel = gpu->make_kernel({.code = std::as_bytes(std::span(kSource)), .entry = "scale"}).value();
  BufferPool pool(gpu);
  fmt::print("\nMETAL, on the double: a decode loop of {} allocations a token, each launched on once\n\n",
             kAllocations);
  fmt::print("{:>6} {:>9} {:>9} {:>16} {:>16} {:>16} {:>14} {:>16}\n", "token", "commits", "fresh", "residency msgs",
             "all messages", "msgs a launch", "locks", "locks an op");
  for (int token = 1; token <= 5; ++token) {
    metal.clear_messages();
    const std::uint64_t locks = locks_taken;
    for (std::size_t i = 0; i < kAllocations; ++i) {
      const Buffer x = pool.allocate(f32, {std::size_t{64} << i % 8}).value();
      queue->launch(kernel, std::array{KernelArgument{x.window().value(), Access::kReadWrite}}, {.threads = {64, 1, 1}})
          .value();
    }
    queue->finish().value();
    pool.reset();
    const std::uint64_t taken = locks_taken - locks;
    const std::uint64_t commits = metal.messages("MTLResidencySet commit");
    const std::uint64_t residency = commits + metal.messages("MTLResidencySet requestResidency") +
                                    metal.messages("MTLResidencySet addAllocations:count:") +
                                    metal.messages("MTLResidencySet removeAllocation:");
    const std::uint64_t messages = metal.messages(nullptr);
    fmt::print("{:>6} {:>9} {:>9} {:>16} {:>16} {:>16.2f} {:>14} {:>16.2f}\n", token, commits,
               metal.messages("newBufferWithLength:options:"), residency, messages,
               static_cast<double>(messages) / kAllocations, taken, static_cast<double>(taken) / kAllocations);
  }
}

#else

void bench_metal() {
  fmt::print(
      "\nMETAL: not counted. This build has neither the device nor its double, which need clang and metal-cpp.\n");
}

#endif

}  // namespace
}  // namespace berth

int main(int argc, char** argv) {
  const std::size_t mib = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1024;
  if (mib == 0) {
    fmt::print(stderr, "usage: residency_bench [MIB]\n");
    return 2;
  }
  berth::bench_cpu(mib << 20);
  berth::bench_metal();
  return 0;
}
