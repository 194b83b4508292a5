// Live defragmentation: a memory that is 95 % full and in pieces refuses a request that its free bytes would hold;
// after a defragmentation it is served. For each family of traces: what the pools say, what was moved, and how long.
//   refused  the last request; "full" if a request before it was refused already, so that the memory never came to 95 %
//   pause    the longest time that one buffer was out of reach, and the time of the whole pass for each MiB moved
// The memory of the host is real. Where a WebGPU driver is, WEBGPU is measured too, with a quarter of the memory and at
// least 64 MiB, and where a GPU is, CUDA (BERTH_BENCH_CUDA=1). On WEBGPU a step is a slab, and buffers above 1/8 of it
// have objects of their own, so the blocks of the regular trace are smaller there. Usage: defrag_bench [MIB]     the
// memory, 256 by default
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "berth/alloc/caching_pool.h"
#include "berth/alloc/growable.h"
#include "berth/alloc/limit.h"
#include "berth/alloc/offset_allocator.h"
#include "berth/berth.h"

namespace berth {
namespace {

using Clock = std::chrono::steady_clock;

// Best fit over one range: the smallest free range that holds the request, adjacent ones merged at once.
class BestFit {
 public:
  explicit BestFit(std::size_t capacity) { free_[0] = capacity; }
  std::optional<std::size_t> allocate(std::size_t bytes) {
    auto best = free_.end();
    for (auto one = free_.begin(); one != free_.end(); ++one)
      if (one->second >= bytes && (best == free_.end() || one->second < best->second)) best = one;
    if (best == free_.end()) return std::nullopt;
    const std::size_t offset = best->first, rest = best->second - bytes;
    free_.erase(best);
    if (rest != 0) free_[offset + bytes] = rest;
    live_[offset] = bytes;
    return offset;
  }
  void release(std::size_t offset) {
    const auto gone = live_.extract(offset);
    auto at = free_.emplace(offset, gone.mapped()).first;
    if (const auto next = std::next(at); next != free_.end() && at->first + at->second == next->first) {
      at->second += next->second;
      free_.erase(next);
    }
    if (at == free_.begin()) return;
    if (const auto before = std::prev(at); before->first + before->second == at->first) {
      before->second += at->second;
      free_.erase(at);
    }
  }

 private:
  std::map<std::size_t, std::size_t> free_, live_;
};

// Requests that fill the memory, and which of them go before the last one comes.
struct Trace {
  std::string name;
  std::vector<std::size_t> sizes;
  std::vector<bool> goes;
  std::size_t wanted = 0;
};

// Traces fill this much, so that what an allocator loses at the ends of its pieces does not decide.
std::size_t filled(std::size_t memory) {
  return memory / 1000 * 985;
}

// Lets blocks go, in this order, until 5 % of the memory are free. The last request is for three quarters of that.
void make_holes(Trace& trace, std::size_t memory, const std::vector<std::size_t>& order) {
  trace.goes.resize(trace.sizes.size());
  std::size_t free = memory - std::accumulate(trace.sizes.begin(), trace.sizes.end(), std::size_t{0});
  for (const std::size_t chosen : order) {
    if (free >= memory / 20) break;
    trace.goes[chosen] = true;
    free += trace.sizes[chosen];
  }
  trace.wanted = memory / 20 * 3 / 4;
}

// Holes of one unit, with blocks of 19 between.
Trace regular(std::size_t memory, std::size_t unit) {
  Trace trace{.name = fmt::format("19 : 1 holes of {} bytes", unit), .sizes = {}, .goes = {}};
  std::vector<std::size_t> holes;
  for (std::size_t used = 0; used + 20 * unit <= filled(memory); used += 20 * unit) {
    holes.push_back(trace.sizes.size());
    trace.sizes.insert(trace.sizes.end(), {unit, 19 * unit});
  }
  make_holes(trace, memory, holes);
  return trace;
}

// Sizes drawn at random over three orders of magnitude; one block in twenty goes, by bytes.
Trace drawn(std::size_t memory, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Trace trace{.name = fmt::format("drawn, seed {}", seed), .sizes = {}, .goes = {}};
  std::size_t used = 0;
  while (true) {
    const std::size_t bytes = (std::size_t{256} << (random() % 12)) * (1 + random() % 7) / 4 * 4;
    const std::size_t rounded = (bytes + 255) / 256 * 256;
    if (used + rounded > filled(memory)) break;
    used += rounded;
    trace.sizes.push_back(rounded);
  }
  std::vector<std::size_t> order(trace.sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  // The hole of a large one alone must not serve the request.
  std::erase_if(order, [&](std::size_t chosen) { return trace.sizes[chosen] > memory / 100; });
  make_holes(trace, memory, order);
  return trace;
}

struct Served {
  bool full = false;  // a request before the last one was refused
  bool before = false;
  bool after = false;
  DefragmentResult result{};
  double milliseconds = 0;
  bool intact = true;
};

Served run(const Trace& trace, const AllocatorPtr& memory) {
  Served served;
  std::vector<std::pair<Buffer, std::uint8_t>> kept;
  {
    std::vector<Buffer> gone;
    for (std::size_t i = 0; i < trace.sizes.size(); ++i) {
      auto made = Buffer::allocate(memory, u8, {trace.sizes[i]});
      served.full = served.full || !made;
      if (!made) continue;
      if (trace.goes[i]) {
        gone.push_back(*std::move(made));
        continue;
      }
      const auto value = static_cast<std::uint8_t>(i * 37 + 11);
      made->copyin(std::vector<std::byte>(trace.sizes[i], static_cast<std::byte>(value))).value();
      kept.emplace_back(*std::move(made), value);
    }
  }
  served.before = Buffer::allocate(memory, u8, {trace.wanted}).has_value();
  if (auto* const growable = dynamic_cast<GrowableMemory*>(memory.get())) {
    const Clock::time_point start = Clock::now();
    served.result = growable->defragment();
    served.milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    served.after = Buffer::allocate(memory, u8, {trace.wanted}).has_value();
  }
  for (const auto& [buffer, value] : kept) {
    std::vector<std::byte> seen(buffer.size());
    buffer.copyout(seen).value();
    served.intact &= std::all_of(seen.begin(), seen.end(), [v = value](std::byte b) { return b == std::byte{v}; });
  }
  return served;
}

template <class Heap>
Served serves(const Trace& trace, Heap heap) {
  Served served;
  std::vector<std::size_t> gone;
  for (std::size_t i = 0; i < trace.sizes.size(); ++i) {
    const auto offset = heap.allocate(trace.sizes[i]);
    served.full = served.full || !offset;
    if (offset && trace.goes[i]) gone.push_back(*offset);
  }
  for (const std::size_t offset : gone) static_cast<void>(heap.release(offset));
  served.before = heap.allocate(trace.wanted).has_value();
  return served;
}

struct Tlsf {
  OffsetAllocator heap;
  std::optional<std::size_t> allocate(std::size_t bytes) {
    const auto offset = heap.allocate(bytes);
    return offset ? std::optional<std::size_t>(*offset) : std::nullopt;
  }
  void release(std::size_t offset) { static_cast<void>(heap.release(offset)); }
};

// `units`: the holes of the regular traces, as parts of a step.
int bench(const DevicePtr& device, std::size_t memory, std::size_t step, const std::vector<std::size_t>& units) {
  const auto word = [](bool is_served) { return is_served ? "served" : "refused"; };
  const auto first = [&](const Served& served) { return served.full ? "full" : word(served.before); };
  fmt::print("{}: {} MiB, steps of {} KiB, 95 % in use\n", device->name(), memory >> 20, step >> 10);
  fmt::print("{:<26}{:>9}{:>10}{:>10}{:>10}{:>12}{:>12}{:>11}{:>11}{:>13}{:>13}\n", "", "request", "best fit", "TLSF",
             "pool", "growable", "then", "moved", "returned", "ms a MiB", "pause, ms");
  std::vector<Trace> traces;
  for (const std::size_t unit : units)
    traces.push_back(regular(memory, std::max<std::size_t>(256, step / unit / 256 * 256)));
  for (std::uint64_t seed = 1; seed <= 3; ++seed) traces.push_back(drawn(memory, seed));
  int wrong = 0;
  for (const Trace& trace : traces) {
    const Served best = serves(trace, BestFit(memory));
    const Served tlsf = serves(trace, Tlsf{OffsetAllocator::make(memory, 256).value()});
    device->set_budget(device->counters().live_bytes + memory);
    const GrowableOptions options{.reserve_bytes = 8 * memory, .step_bytes = step};
    const Served pool = run(trace, make_caching_pool(make_growable(device, options).value()));
    const auto growable = make_growable(device, options).value();
    const Served moved = run(trace, growable);
    device->set_budget(0);
    const double mib = static_cast<double>(moved.result.moved_bytes) / (1 << 20);
    fmt::print("{:<26}{:>5} MiB{:>10}{:>10}{:>10}{:>12}{:>12}{:>7.0f} MiB{:>7} MiB{:>13.3f}{:>13.3f}{}\n", trace.name,
               trace.wanted >> 20, first(best), first(tlsf), first(pool), first(moved), word(moved.after), mib,
               moved.result.returned_bytes >> 20, mib == 0 ? 0 : moved.milliseconds / mib,
               std::chrono::duration<double, std::milli>(moved.result.longest_pause).count(),
               moved.intact && pool.intact ? "" : "   CONTENTS LOST");
    wrong += moved.full || !moved.after || !moved.intact || !pool.intact;
  }
  return wrong;
}

}  // namespace
}  // namespace berth

int main(int count, char** arguments) {
  const std::size_t mib = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 256;
  if (mib < 32 || mib > 1 << 20) {
    fmt::print(stderr, "usage: defrag_bench [MIB], at least 32\n");
    return 2;
  }
  int wrong = berth::bench(berth::device("CPU").value(), mib << 20, std::size_t{256} << 10, {40, 10, 3});
  if (auto webgpu = berth::device("WEBGPU"))
    wrong += berth::bench(*webgpu, std::max<std::size_t>(mib << 18, 64 << 20), std::size_t{512} << 10, {2048});
  else
    fmt::print("WEBGPU: {}\n", webgpu.error().message());
  if (const char* cuda = std::getenv("BERTH_BENCH_CUDA"); cuda != nullptr && cuda[0] == '1') {
    if (auto gpu = berth::device("CUDA"))
      wrong += berth::bench(*gpu, mib << 20, std::size_t{2} << 20, {40, 10, 3});
    else
      fmt::print("CUDA: {}\n", gpu.error().message());
  }
  return wrong == 0 ? 0 : 1;
}
