// The example of docs/allocators.md: a stack of allocators, and an error that explains itself.
#include <berth/alloc/caching_pool.h>
#include <berth/alloc/limit.h>
#include <berth/alloc/statistics.h>
#include <berth/berth.h>

#include <cstdio>

int main() {
  auto cpu = berth::device("CPU").value();
  auto cache = berth::make_caching_pool(cpu);                                             // keeps what comes back
  auto counted = berth::make_statistics(berth::make_limit(cache, std::size_t{8} << 20));  // counts, and stops at 8 MiB

  for (int step = 0; step < 100; ++step)  // one trip to the system, 99 hits
    auto scratch = berth::Buffer::allocate(counted, berth::f32, {256, 1024}, {.label = "scratch"}).value();
  std::printf("%llu hits, %llu misses\n", static_cast<unsigned long long>(cache->counters().hits),
              static_cast<unsigned long long>(cache->counters().misses));

  auto weights = berth::Buffer::allocate(counted, berth::f32, {1536, 1024}, {.label = "weights"}).value();
  auto refused = berth::Buffer::allocate(counted, berth::f32, {1024, 1024}, {.label = "logits"});
  std::printf("%s\n", refused.error().message().c_str());
  return cache->counters().hits == 99 && !refused ? 0 : 1;
}
