// The TLSF offset allocator beside two simple ways to do the same: a sorted list of free ranges searched from the
// front (first fit), and free ranges indexed by size and by start in balanced trees (best fit). All hand out offsets
// of one range, touch no memory, take no lock, and merge neighbours at once. The best of many short rounds,
// in nanoseconds for one allocate and one release: short, so that some run undisturbed on a busy machine.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <vector>

#include "berth/alloc/offset_allocator.h"

namespace {

constexpr std::uint64_t kCapacity = std::uint64_t{4} << 30;
constexpr std::uint64_t kNone = ~std::uint64_t{0};

std::uint64_t rounded(std::uint64_t bytes) {
  return (bytes + 63) & ~std::uint64_t{63};
}

struct TlsfHeap {
  berth::OffsetAllocator heap = berth::OffsetAllocator::make(kCapacity).value();
  std::uint64_t allocate(std::uint64_t bytes) {
    const auto offset = heap.allocate(bytes);
    return offset ? *offset : kNone;
  }
  void release(std::uint64_t offset, std::uint64_t) { (void)heap.release(offset); }
};

struct FirstFit {
  std::list<std::pair<std::uint64_t, std::uint64_t>> free = {{0, kCapacity}};
  std::uint64_t allocate(std::uint64_t bytes) {
    bytes = rounded(bytes);
    for (auto it = free.begin(); it != free.end(); ++it) {
      if (it->second - it->first < bytes) continue;
      const std::uint64_t at = it->first;
      it->first += bytes;
      if (it->first == it->second) free.erase(it);
      return at;
    }
    return kNone;
  }
  void release(std::uint64_t offset, std::uint64_t bytes) {
    bytes = rounded(bytes);
    auto it = free.begin();
    while (it != free.end() && it->first < offset) ++it;
    it = free.insert(it, {offset, offset + bytes});
    if (const auto next = std::next(it); next != free.end() && next->first == it->second) {
      it->second = next->second;
      free.erase(next);
    }
    if (it != free.begin() && std::prev(it)->second == it->first) {
      std::prev(it)->second = it->second;
      free.erase(it);
    }
  }
};

struct BestFit {
  std::map<std::uint64_t, std::uint64_t> by_start = {{0, kCapacity}};
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size = {{kCapacity, 0}};
  std::uint64_t allocate(std::uint64_t bytes) {
    bytes = rounded(bytes);
    const auto it = by_size.lower_bound({bytes, 0});
    if (it == by_size.end()) return kNone;
    const auto [size, start] = *it;
    by_size.erase(it);
    by_start.erase(start);
    if (size > bytes) add(start + bytes, size - bytes);
    return start;
  }
  void release(std::uint64_t offset, std::uint64_t bytes) {
    bytes = rounded(bytes);
    auto next = by_start.lower_bound(offset);
    if (next != by_start.end() && next->first == offset + bytes) {
      bytes += next->second;
      by_size.erase({next->second, next->first});
      next = by_start.erase(next);
    }
    if (next != by_start.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        bytes += before->second;
        by_size.erase({before->second, before->first});
        by_start.erase(before);
      }
    }
    add(offset, bytes);
  }
  void add(std::uint64_t start, std::uint64_t size) {
    by_start[start] = size;
    by_size.insert({size, start});
  }
};

struct Random {
  std::uint64_t state = 1;
  std::uint64_t next() { return (state = state * 6364136223846793005ull + 1442695040888963407ull) >> 33; }
};

template <class Work>
double best_of(int rounds, int pairs, Work work) {
  double best = 1e300;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count());
  }
  return best / pairs;
}

template <class Heap>
double pair_time(std::uint64_t bytes) {
  constexpr int kPairs = 2000;
  Heap heap;
  return best_of(400, kPairs, [&] {
    for (int i = 0; i < kPairs; ++i) heap.release(heap.allocate(bytes), bytes);
  });
}

// `live` allocations of 256 B to 4 MiB, evenly in the exponent; each step releases one at random and makes another.
template <class Heap>
double mixed_time(std::size_t live) {
  constexpr int kPairs = 1000;
  Heap heap;
  Random random;
  const auto size = [&] { return (std::uint64_t{256} << (random.next() % 14)) + random.next() % 256; };
  std::vector<std::pair<std::uint64_t, std::uint64_t>> held;
  for (std::size_t i = 0; i < live; ++i) {
    const std::uint64_t bytes = size();
    held.push_back({heap.allocate(bytes), bytes});
  }
  return best_of(400, kPairs, [&] {
    for (int i = 0; i < kPairs; ++i) {
      auto& [offset, bytes] = held[random.next() % live];
      heap.release(offset, bytes);
      bytes = size();
      offset = heap.allocate(bytes);
    }
  });
}

template <class Heap>
void row(const char* name) {
  fmt::print("{:<22}{:>12.1f}{:>12.1f}{:>14.1f}{:>16.1f}\n", name, pair_time<Heap>(4096), pair_time<Heap>(1 << 20),
             mixed_time<Heap>(256), mixed_time<Heap>(4096));
}

}  // namespace

int main() {
  fmt::print("{:<22}{:>12}{:>12}{:>14}{:>16}\n", "ns a pair", "4 KiB", "1 MiB", "mixed, 256", "mixed, 4096");
  row<TlsfHeap>("Berth TLSF");
  row<FirstFit>("first fit, list");
  row<BestFit>("best fit, trees");
}
