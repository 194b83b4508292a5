// What residency costs and what it saves, each figure beside its goal.
//   CPU: how long the first touch of a large buffer takes after a submit, with and without residency, side by side.
//   Marks and steps: what a pair of add and remove costs when many come between two submits, what a commit costs when
//   there are many members and one of them is new, and what a pool's reset costs when it has many buffers and few are
//   used.
//   METAL: commits, fresh allocations, messages and locks a token of a decode-like loop through a StepBuffers, counted
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
#include <string>
#include <string_view>
#include <vector>

#include "berth/berth.h"

#ifdef BERTH_METAL_DOUBLE
#include "support/metal_double.h"
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

int met = 0, missed = 0;

// One goal, what was found, and whether that meets it.
void goal(const std::string& what, const std::string& wanted, const std::string& found, bool reached) {
  fmt::print("  {:<70} {:<28} {:<20} {}\n", what, wanted, found, reached ? "met" : "MISSED");
  ++(reached ? met : missed);
}

struct Touch {
  double submit = 0;     // milliseconds
  double touch_all = 0;  // one byte of every page
  double slowest = 0;    // the slowest of 64 MiB
};

Touch touch(bool resident, std::size_t bytes) {
  const DevicePtr cpu = device("CPU").value();
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
  fmt::print("  {:<20} {:>16} {:>22} {:>24}\n", "", "submit", "touch every page", "slowest 64 MiB of it");
  const auto sorted = [&](bool resident, double Touch::*of) {
    std::vector<double> all;
    for (const Touch& round : rounds[resident]) all.push_back(round.*of);
    std::sort(all.begin(), all.end());
    return all;
  };
  for (const bool resident : {false, true}) {
    const auto figure = [&](double Touch::*of) {
      const std::vector<double> all = sorted(resident, of);
      return fmt::format("{:.3f} / {:.3f}", all.front(), all[all.size() / 2]);
    };
    fmt::print("  {:<20} {:>16} {:>22} {:>24}\n", resident ? "with residency" : "without", figure(&Touch::submit),
               figure(&Touch::touch_all), figure(&Touch::slowest));
  }
  const double with = sorted(true, &Touch::touch_all)[kRounds / 2];
  const double without = sorted(false, &Touch::touch_all)[kRounds / 2];
  fmt::print("\n");
  goal("first touch with residency, median", "a tenth of that without", fmt::format("1 / {:.1f}", without / with),
       with * 10 <= without);
}

// Nanoseconds of one of `times` calls of `work`.
template <class Work>
double ns_of(std::size_t times, const Work& work) {
  const auto start = Clock::now();
  for (std::size_t i = 0; i < times; ++i) work();
  return milliseconds_since(start) * 1e6 / static_cast<double>(times);
}

// The least of many short stretches: a long one would be interrupted on a busy machine.
template <class Work>
double least_ns(std::size_t times, const Work& work) {
  double least = 1e300;
  for (int stretch = 0; stretch < 20; ++stretch) least = std::min(least, ns_of(times, work));
  return least;
}

void bench_marks() {
  fmt::print("\nMarks and steps: what they cost where there are few and where there are many, ns\n\n");
  const auto compare = [](const char* what, double few, double many) {
    goal(what, "at most twice that of few", fmt::format("{:.0f} and {:.0f} ns", few, many), many <= 2 * few);
  };
  for (const std::uint64_t stride : {4096, 0}) {
    // 100,000 pairs between two submits: the first stretches of them and the last.
    CountingResidency set;
    std::uint64_t at = 1;
    const auto pair = [&] {
      const Block block{.handle = at, .bytes = 64};
      set.add(block);
      set.remove(block);
      at += stride;
    };
    const double first = least_ns(500, pair);
    for (int i = 0; i < 80'000; ++i) pair();
    compare(stride == 0 ? "an add and remove, of the first and the last of 100,000, one address"
                        : "an add and remove, of the first and the last of 100,000",
            first, least_ns(500, pair));
    set.commit().value();
  }
  const auto commit = [](std::uint64_t members) {
    CountingResidency set;
    for (std::uint64_t i = 0; i < members; ++i) set.add({.handle = 1 + i * 4096, .bytes = 64});
    set.commit().value();
    return least_ns(500, [&] {
      const Block block{.handle = std::uint64_t{1} << 60, .bytes = 64};
      set.add(block);
      set.commit().value();
      set.remove(block);
    });
  };
  compare("a commit of one block, with 100 and with 100,000 members", commit(100), commit(100'000));
  const auto reset = [](std::size_t free) {
    StepBuffers pool(device("CPU").value());
    for (std::size_t i = 0; i < free; ++i) pool.allocate(u8, {64}).value();
    pool.reset();
    std::vector<Buffer> step(100);
    double least = 1e300;
    for (int round = 0; round < 50; ++round) {
      for (Buffer& buffer : step) buffer = pool.allocate(u8, {64}).value();
      least = std::min(least, ns_of(1, [&] { pool.reset(); }));
    }
    return least;
  };
  compare("a reset of 100 buffers, in a pool of 100 and of 4,000", reset(100), reset(4000));
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
  StepBuffers pool(gpu);
  fmt::print("\nMETAL, on the double: a decode loop of {} allocations a token, each launched on once\n\n",
             kAllocations);
  fmt::print("  {:>6} {:>9} {:>9} {:>16} {:>16} {:>16} {:>14} {:>16}\n", "token", "commits", "fresh", "residency msgs",
             "all messages", "msgs a launch", "locks", "locks a launch");
  struct Token {
    std::uint64_t commits = 0, fresh = 0, residency = 0, messages = 0, locks = 0;
  };
  Token most;  // of the tokens after the first
  std::uint64_t most_commits = 0;
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
    Token now;
    now.locks = locks_taken - locks;
    now.commits = metal.messages("MTLResidencySet commit");
    now.residency = now.commits + metal.messages("MTLResidencySet requestResidency") +
                    metal.messages("MTLResidencySet addAllocations:count:") +
                    metal.messages("MTLResidencySet removeAllocation:");
    now.fresh = metal.messages("newBufferWithLength:options:");
    now.messages = metal.messages(nullptr);
    const auto a_launch = [](std::uint64_t count) { return static_cast<double>(count) / kAllocations; };
    fmt::print("  {:>6} {:>9} {:>9} {:>16} {:>16} {:>16.2f} {:>14} {:>16.2f}\n", token, now.commits, now.fresh,
               now.residency, now.messages, a_launch(now.messages), now.locks, a_launch(now.locks));
    most_commits = std::max(most_commits, now.commits);
    if (token > 1)
      most = {std::max(most.commits, now.commits), std::max(most.fresh, now.fresh),
              std::max(most.residency, now.residency), std::max(most.messages, now.messages),
              std::max(most.locks, now.locks)};
  }
  fmt::print("\n");
  const auto count = [](std::uint64_t value) { return fmt::format("{} a token", value); };
  goal("commits of the residency set, any token", "at most 1", count(most_commits), most_commits <= 1);
  goal("fresh allocations after the first token", "0", count(most.fresh), most.fresh == 0);
  goal("messages about residency after the first token", "0", count(most.residency), most.residency == 0);
  // A launch binds its buffer and dispatches; the rest is a command buffer and an encoder a token.
  goal("messages in all after the first token", "2 a launch and 50", count(most.messages),
       most.messages <= 2 * kAllocations + 50);
  // One of the pool and one of the queue.
  goal("locks of the calling thread after the first token", "2 a launch and 100", count(most.locks),
       most.locks <= 2 * kAllocations + 100);
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
  berth::bench_marks();
  berth::bench_metal();
  fmt::print("\n{} goals met, {} missed\n", berth::met, berth::missed);
  return 0;
}
