// `./run bench memory`: Berth's allocators, views and host copies beside what a program would use otherwise, as a
// table of ratios. Each side is measured in a process of its own (this program again, with --side), because a peer
// that replaces malloc replaces it for everybody; the processes take turns, and the best of the turns counts, so
// that a busy machine hurts all alike.
//
// Fair play: every block is 64-byte aligned or the peer is given the choice of malloc and posix_memalign,
// whichever is faster; the pointer escapes and the first byte is written, so that no pair is optimised away; both
// sides of a copy use the same pages; files are in the page cache.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory_resource>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "berth/alloc/caching_pool.h"
#include "berth/alloc/linear.h"
#include "berth/alloc/linear_bytes.h"
#include "berth/berth.h"

namespace {

using Clock = std::chrono::steady_clock;
using Figures = std::map<std::string, double>;  // nanoseconds by row

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Hides a pointer from the optimiser.
void escape(void* pointer) {
  asm volatile("" : : "g"(pointer) : "memory");
}

void must(const auto& result) {
  if (result) return;
  fmt::print(stderr, "memory_bench: {}\n", result.error().message());
  std::exit(1);
}

// One side's allocate and release, for blocks that are held for a while, and a pair of both, as a program writes it.
struct BerthSide {
  using Held = berth::Block;
  berth::CachingPool& pool;
  berth::Result<berth::Block> allocate_touched(std::size_t bytes) const {
    auto block = pool.allocate({.bytes = bytes});
    must(block);
    *block->host = std::byte{1};
    escape(block->host);
    return block;
  }
  Held allocate(std::size_t bytes) const { return *allocate_touched(bytes); }
  void release(const Held& block) const { pool.release(block); }
  void pair(std::size_t bytes) const {
    const auto block = allocate_touched(bytes);
    pool.release(*block);
  }
};

struct MallocSide {
  using Held = void*;
  bool aligned;
  Held allocate(std::size_t bytes) const {
    void* memory = nullptr;
    if (!aligned)
      memory = std::malloc(bytes);
    else if (posix_memalign(&memory, 64, bytes) != 0)
      memory = nullptr;
    if (memory == nullptr) std::exit(1);
    *static_cast<char*>(memory) = 1;
    escape(memory);
    return memory;
  }
  void release(Held memory) const { std::free(memory); }
  void pair(std::size_t bytes) const { release(allocate(bytes)); }
};

constexpr int kBatches = 25;

// The fastest of many batches, in nanoseconds a pair.
double best_of(int batches, std::size_t operations, const std::function<void()>& batch) {
  double best = 1e300;
  for (int i = 0; i < batches; ++i) {
    const auto start = Clock::now();
    batch();
    best = std::min(best, seconds_since(start) * 1e9 / static_cast<double>(operations));
  }
  return best;
}

template <class Side>
double pairs(const Side& side, std::size_t bytes) {
  constexpr std::size_t kPairs = 20'000;
  return best_of(kBatches, kPairs, [&] {
    const Side mine = side;  // out of the way of the compiler, which must think that a call changes what is shared
    const std::size_t size = bytes;
    for (std::size_t i = 0; i < kPairs; ++i) mine.pair(size);
  });
}

// Sizes from 256 B to 4 MiB, as many of each order of magnitude; 256 blocks live at all times.
std::vector<std::uint32_t> mixed_sizes(unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> log_size(8.0, 22.0);
  std::vector<std::uint32_t> sizes(4096);
  for (auto& size : sizes) size = static_cast<std::uint32_t>(std::exp2(log_size(random)));
  return sizes;
}

template <class Side>
double mixed(const Side& side, unsigned seed) {
  constexpr std::size_t kSteps = 10'000, kLive = 256;
  const std::vector<std::uint32_t> sizes = mixed_sizes(seed);
  std::mt19937 random(seed);
  std::vector<std::uint32_t> order(4096);
  for (auto& at : order) at = static_cast<std::uint32_t>(random() % kLive);
  std::vector<typename Side::Held> live(kLive);
  std::size_t next = 0;
  for (auto& held : live) held = side.allocate(sizes[next++ % sizes.size()]);
  const double best = best_of(kBatches, kSteps, [&] {
    for (std::size_t i = 0; i < kSteps; ++i, ++next) {
      auto& held = live[order[next % order.size()]];
      side.release(held);
      held = side.allocate(sizes[(next * 7) % sizes.size()]);
    }
  });
  for (auto& held : live) side.release(held);
  return best;
}

template <class Side>
double two_threads(const Side& side) {
  double figures[2] = {};
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < 2; ++t) threads.emplace_back([&, t] { figures[t] = mixed(side, t + 1); });
  }
  return std::max(figures[0], figures[1]);
}

template <class Side>
void measure_allocator(const Side& side, const std::string& suffix, Figures& figures) {
  figures["pair 4 KiB" + suffix] = pairs(side, 4096);
  figures["pair 1 MiB" + suffix] = pairs(side, std::size_t{1} << 20);
  figures["mixed" + suffix] = mixed(side, 1);
  figures["mixed, 2 threads" + suffix] = two_threads(side);
}

// Rounds of requests that end together: 1,000 of 256 bytes, 64-byte aligned, then all are released, then the reset. The
// memory is there from the first round on, for both sides.
constexpr std::size_t kRequests = 1000;
constexpr std::size_t kRequestBytes = 256;

void measure_linear(Figures& figures) {
  const auto linear = berth::make_linear(berth::device("CPU").value());
  std::vector<berth::Block> held(kRequests);
  const auto mark = linear->mark();
  figures["linear"] = figures["linear with release"] = 1e300;
  for (int i = 0; i < kBatches * 20; ++i) {
    const auto start = Clock::now();
    for (berth::Block& block : held) {
      auto made = linear->allocate({.bytes = kRequestBytes});
      must(made);
      escape(made->host);
      block = *made;
    }
    const double requests = seconds_since(start) * 1e9 / kRequests;
    for (const berth::Block& block : held) linear->release(block);
    must(linear->reset(mark));
    const double all = seconds_since(start) * 1e9 / kRequests;
    figures["linear"] = std::min(figures["linear"], requests);
    figures["linear with release"] = std::min(figures["linear with release"], all);
  }
}

// The same without a layer below, for innermost loops.
void measure_linear_bytes(Figures& figures) {
  std::vector<std::byte> memory(2 * kRequests * kRequestBytes);
  berth::LinearBytes linear{std::span(memory)};
  escape(&linear);
  std::vector<void*> held(kRequests);
  figures["linear bytes"] = 1e300;
  for (int i = 0; i < kBatches * 20; ++i) {
    const auto mark = linear.mark();
    const auto start = Clock::now();
    for (void*& block : held) {
      block = linear.take_host(kRequestBytes);
      escape(block);
    }
    figures["linear bytes"] = std::min(figures["linear bytes"], seconds_since(start) * 1e9 / kRequests);
    if (held.back() == nullptr || !linear.reset(mark)) std::exit(1);
  }
}

void measure_monotonic(Figures& figures) {
  std::vector<std::byte> memory(2 * kRequests * kRequestBytes);
  std::pmr::monotonic_buffer_resource monotonic(memory.data(), memory.size());
  std::pmr::memory_resource* resource = &monotonic;
  escape(&resource);  // as a program that takes any resource
  std::vector<void*> held(kRequests);
  figures["linear"] = figures["linear with release"] = 1e300;
  for (int i = 0; i < kBatches * 20; ++i) {
    const auto start = Clock::now();
    for (void*& block : held) {
      block = resource->allocate(kRequestBytes, 64);
      escape(block);
    }
    const double requests = seconds_since(start) * 1e9 / kRequests;
    for (void* block : held) resource->deallocate(block, kRequestBytes, 64);
    monotonic.release();
    const double all = seconds_since(start) * 1e9 / kRequests;
    figures["linear"] = std::min(figures["linear"], requests);
    figures["linear with release"] = std::min(figures["linear with release"], all);
  }
}

constexpr std::size_t kCopyBytes = std::size_t{256} << 20;
constexpr std::size_t kFileBytes = std::size_t{1} << 30;
constexpr int kLargeRounds = 5;

std::vector<std::byte> touched(std::size_t bytes) {
  return std::vector<std::byte>(bytes, std::byte{3});
}

std::string file_path() {
  return (std::filesystem::temp_directory_path() / "berth_memory_bench.bin").string();
}

Figures measure_berth() {
  Figures figures;
  const auto cpu = berth::device("CPU").value();
  const auto pool = berth::make_caching_pool(cpu);
  measure_allocator(BerthSide{*pool}, "", figures);

  const auto buffer = berth::Buffer::allocate(pool, berth::f32, {1024, 1024}).value();
  figures["view"] = best_of(kBatches, 20'000, [&] {
    for (std::size_t i = 0; i < 20'000; ++i) {
      auto view = buffer.view(i * 64, 4096);
      escape(&view);
    }
  });
  figures["buffer 4 KiB"] = best_of(kBatches, 20'000, [&] {
    for (std::size_t i = 0; i < 20'000; ++i) {
      auto fresh = berth::Buffer::allocate(pool, berth::f32, {1024});
      escape(&fresh);
    }
  });
  pool->trim();
  measure_linear(figures);
  measure_linear_bytes(figures);

  {
    const std::vector<std::byte> source = touched(kCopyBytes);
    figures["fresh 256 MiB"] = best_of(kLargeRounds, 1, [&] {
      const auto fresh = berth::Buffer::allocate(cpu, berth::u8, {kCopyBytes}).value();
      must(fresh.copyin(source));
    });
  }
  {
    const auto from = berth::Buffer::allocate(cpu, berth::u8, {kCopyBytes}).value();
    const auto to = berth::Buffer::allocate(cpu, berth::u8, {kCopyBytes}).value();
    std::memset(from.as_raw_ptr(), 1, kCopyBytes);
    std::memset(to.as_raw_ptr(), 2, kCopyBytes);
    const auto plain = [&](std::size_t offset, std::size_t bytes) {
      std::memcpy(static_cast<char*>(to.as_raw_ptr()) + offset, static_cast<char*>(from.as_raw_ptr()) + offset, bytes);
    };
    const std::size_t threads = std::max(1u, std::thread::hardware_concurrency());
    for (const char* key : {"copy 256 MiB", "memcpy, 1 thread", "memcpy, all threads"}) figures[key] = 1e300;
    // In turns, so that a slow moment of the machine hits all three.
    for (int round = 0; round < 2 * kLargeRounds; ++round) {
      const auto keep = [&](const char* key, const std::function<void()>& work) {
        figures[key] = std::min(figures[key], best_of(1, 1, work));
      };
      keep("copy 256 MiB", [&] { must(to.copy_from(from)); });
      keep("memcpy, 1 thread", [&] { plain(0, kCopyBytes); });
      keep("memcpy, all threads", [&] {
        std::vector<std::jthread> running;
        const std::size_t part = kCopyBytes / threads;
        for (std::size_t t = 0; t < threads; ++t) running.emplace_back([&, t] { plain(t * part, part); });
      });
    }
  }
  figures["file 1 GiB"] = best_of(kLargeRounds, 1, [&] {
    const auto file = berth::map_file(file_path()).value();
    const auto fresh = berth::Buffer::lazy(cpu, berth::u8, {kFileBytes}).value();
    must(fresh.copy_from(file));
  });
  return figures;
}

Figures measure_malloc(bool with_large) {
  Figures figures;
  measure_allocator(MallocSide{true}, "", figures);
  if (!with_large) {
    // Peers with an alignment of their own may be faster without being asked for one.
    measure_allocator(MallocSide{false}, " (malloc)", figures);
    return figures;
  }
  measure_monotonic(figures);
  {
    const std::vector<std::byte> source = touched(kCopyBytes);
    figures["fresh 256 MiB"] = best_of(kLargeRounds, 1, [&] {
      void* fresh = std::malloc(kCopyBytes);
      if (fresh == nullptr) std::exit(1);
      std::memcpy(fresh, source.data(), kCopyBytes);
      escape(fresh);
      std::free(fresh);
    });
  }
  figures["file 1 GiB"] = best_of(kLargeRounds, 1, [&] {
    const int file = open(file_path().c_str(), O_RDONLY | O_CLOEXEC);
    auto* fresh = static_cast<char*>(std::malloc(kFileBytes));
    if (file < 0 || fresh == nullptr) std::exit(1);
    for (std::size_t at = 0; at < kFileBytes;) {
      const ssize_t got = read(file, fresh + at, kFileBytes - at);
      if (got <= 0) std::exit(1);
      at += static_cast<std::size_t>(got);
    }
    escape(fresh);
    std::free(fresh);
    close(file);
  });
  return figures;
}

int run_side(const std::string& side) {
  Figures figures;
  // The last three are parts of the first two, for a quick look.
  if (side == "berth")
    figures = measure_berth();
  else if (side == "linear")
    measure_linear(figures);
  else if (side == "linear-bytes")
    measure_linear_bytes(figures);
  else if (side == "monotonic")
    measure_monotonic(figures);
  else
    figures = measure_malloc(side == "glibc");
  for (const auto& [row, ns] : figures) fmt::print("{}\t{}\n", row, ns);
  return 0;
}

// The side's figures from a process of its own; empty when the peer is not installed.
Figures run_in_child(const std::string& self, const std::string& side, const std::string& preload) {
  const std::string command =
      fmt::format("{}{} --side {}", preload.empty() ? "" : "LD_PRELOAD=" + preload + " ", self, side);
  FILE* pipe = popen(command.c_str(), "r");
  Figures figures;
  char line[256];
  while (pipe != nullptr && std::fgets(line, sizeof line, pipe) != nullptr) {
    const std::string text(line);
    const std::size_t tab = text.find('\t');
    if (tab != std::string::npos) figures[text.substr(0, tab)] = std::strtod(text.c_str() + tab, nullptr);
  }
  if (pipe != nullptr && pclose(pipe) != 0) figures.clear();
  return figures;
}

void keep_best(Figures& best, const Figures& fresh) {
  for (const auto& [row, ns] : fresh) {
    const auto [at, is_new] = best.try_emplace(row, ns);
    if (!is_new) at->second = std::min(at->second, ns);
  }
}

std::string library(const char* name) {
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu/", "/usr/lib/aarch64-linux-gnu/", "/usr/lib/", "/usr/lib64/"})
    if (const std::string path = std::string(folder) + name; std::filesystem::exists(path)) return path;
  return "";
}

// torch's as_strided in this machine's own torch; empty where there is none.
std::optional<double> torch_view_ns() {
  const char* program =
      "python3 -c 'import timeit, torch; t = torch.zeros(1024, 1024); "
      "print(min(timeit.repeat(lambda: t.as_strided((1024,), (1,), 4096), number=20000, repeat=10)) / 20000 * 1e9)' "
      "2>/dev/null";
  FILE* pipe = popen(program, "r");
  char line[64] = {};
  const bool answered = pipe != nullptr && std::fgets(line, sizeof line, pipe) != nullptr;
  const bool good = pipe != nullptr && pclose(pipe) == 0;
  return answered && good ? std::optional(std::strtod(line, nullptr)) : std::nullopt;
}

bool write_file() {
  FILE* file = std::fopen(file_path().c_str(), "wb");
  if (file == nullptr) return false;
  const std::vector<std::byte> piece = touched(std::size_t{16} << 20);
  bool whole = true;
  for (std::size_t at = 0; at < kFileBytes; at += piece.size())
    whole = std::fwrite(piece.data(), 1, piece.size(), file) == piece.size() && whole;
  return std::fclose(file) == 0 && whole;
}

std::string in_units(double ns) {
  return ns < 1e5 ? fmt::format("{:.1f} ns", ns) : fmt::format("{:.1f} ms", ns / 1e6);
}

struct Row {
  std::string name;
  double ours;
  std::map<std::string, double> peers;
  double goal;  // fastest peer / ours must reach it; 0: an absolute goal
  std::string hint;
};

int run_table(const std::string& self) {
  if (!write_file()) {
    fmt::print(stderr, "memory_bench: cannot write 1 GiB to {}\n", file_path());
    return 1;
  }
  struct Peer {
    std::string side, preload;
    Figures figures{};
  };
  std::vector<Peer> peers = {{"glibc", ""}};
  for (const auto& [side, file] : {std::pair{"mimalloc", "libmimalloc.so.2.0"}, {"jemalloc", "libjemalloc.so.2"}}) {
    if (const std::string path = library(file); !path.empty())
      peers.push_back({side, path});
    else
      fmt::print("{} is not installed ({}): its column is missing\n", side, file);
  }
  Figures ours;
  for (int turn = 0; turn < 2; ++turn) {
    keep_best(ours, run_in_child(self, "berth", ""));
    for (Peer& peer : peers) keep_best(peer.figures, run_in_child(self, peer.side, peer.preload));
  }
  std::filesystem::remove(file_path());

  const auto of_peers = [&](const std::string& row) {
    std::map<std::string, double> result;
    for (Peer& peer : peers) {
      double best = 1e300;
      for (const std::string& key : {row, row + " (malloc)"})
        if (const auto at = peer.figures.find(key); at != peer.figures.end()) best = std::min(best, at->second);
      if (best < 1e300) result[peer.side] = best;
    }
    return result;
  };
  const auto monotonic = [&](const std::string& row) {
    return std::map<std::string, double>{{"pmr monotonic", peers.front().figures[row]}};
  };
  std::vector<Row> rows = {
      {"pool pair 4 KiB", ours["pair 4 KiB"], of_peers("pair 4 KiB"), 1.0,
       "both sides are a little over a hundred instructions and use all of a core: a busy neighbour decides; run it "
       "again on a quiet machine, then valgrind --tool=callgrind memory_bench --side berth"},
      {"pool pair 1 MiB", ours["pair 1 MiB"], of_peers("pair 1 MiB"), 4.0,
       "the hit costs the same at every size; the peer's own fast path sets the ratio"},
      {"mixed 256 B-4 MiB, 256 live", ours["mixed"], of_peers("mixed"), 2.0,
       "look for misses in CachingPool::counters(): a larger max_cached_bytes turns them into hits"},
      {"the same, 2 threads", ours["mixed, 2 threads"], of_peers("mixed, 2 threads"), 1.0,
       "two threads on fewer than two free cores measure the scheduler"},
      {"LinearBytes request, 256 B", ours["linear bytes"], monotonic("linear"), 1.0,
       "a few instructions on each side; run it again on a quiet machine"},
      {"linear request, 256 B", ours["linear"], monotonic("linear"), 1.0,
       "a block is 32 bytes with its label, its use and its checks, a pointer is 8"},
      {"linear request and release", ours["linear with release"], monotonic("linear with release"), 0.5,
       "the peer does nothing at a release; here it counts, so that a reset under a live block is refused"},
      {"fresh 256 MiB, filled", ours["fresh 256 MiB"], of_peers("fresh 256 MiB"), 3.0,
       "page faults: needs transparent huge pages ('madvise' or 'always') and free ones"},
      {"copy 256 MiB",
       ours["copy 256 MiB"],
       {{"memcpy 1 thread", ours["memcpy, 1 thread"]}, {"memcpy all threads", ours["memcpy, all threads"]}},
       0.95,
       "memory bandwidth: both sides stop at the machine's"},
      {"file 1 GiB to fresh buffer", ours["file 1 GiB"], of_peers("file 1 GiB"), 3.0,
       "page faults of the target and copies out of the page cache; both scale with free cores"},
  };
  fmt::print("{:<30}{:>12}   {:<46}{:>8}{:>8}\n", "work", "Berth", "peers", "ratio", "goal");
  int missed = 0;
  std::string hints;
  for (const Row& row : rows) {
    double fastest = 1e300;
    std::string text;
    for (const auto& [name, ns] : row.peers) {
      fastest = std::min(fastest, ns);
      text += (text.empty() ? "" : ", ") + name + " " + in_units(ns);
    }
    const double ratio = row.peers.empty() ? 0 : fastest / row.ours;
    fmt::print("{:<30}{:>12}   {:<46}{:>7.2f}x{:>7.2f}x{}\n", row.name, in_units(row.ours), text, ratio, row.goal,
               ratio >= row.goal ? "" : "  missed");
    if (ratio < row.goal) {
      ++missed;
      hints += fmt::format("  {}: {}\n", row.name, row.hint);
    }
  }
  const std::optional<double> torch = torch_view_ns();
  fmt::print("{:<30}{:>12}   {:<46}{:>8}{:>8}{}\n", "view of a buffer", in_units(ours["view"]),
             torch ? fmt::format("torch as_strided {:.1f} ns; quoted: ggml 76-80 ns", *torch)
                   : "quoted: ggml 76-80 ns, torch as_strided 107-220 ns",
             "", "< 30 ns", ours["view"] < 30 ? "" : "  missed");
  fmt::print("{:<30}{:>12}\n", "Buffer allocate + drop, 4 KiB", in_units(ours["buffer 4 KiB"]));
  if (missed > 0) fmt::print("\nWhere a row is missed, look here first:\n{}", hints);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--side") return run_side(argv[2]);
  return run_table(std::filesystem::read_symlink("/proc/self/exe").string());
}
