// `./run bench weights`: opening, touching and loading weight files, side by side with others in one run, page cache
// warm: 1 GiB in 300 tensors, 1 GiB in 30,000 tensors, and a tiny file. C++ peers run in this process; Python packages
// in one child process (bench/peers/weights_peers.py with build/venv's Python; those not installed are left out).
// Arguments: --folder DIR (for the files, about 3 GiB; default build/bench_weights), --rounds N (default 5).
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "berth/alloc/caching_pool.h"
#include "berth/memory/queue.h"
#include "berth/memory/registry.h"
#include "berth/weights/async_load.h"
#include "berth/weights/save.h"
#include "berth/weights/weights.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr std::size_t kBytes = std::size_t{1} << 30;

struct Bench {
  fs::path folder = "build/bench_weights";
  int rounds = 5;
  std::map<std::string, std::map<std::string, double>> seconds;

  // The best of all rounds; what `work` returns is dropped outside the clock.
  template <class Work>
  void measure(const std::string& row, const std::string& who, const Work& work, int times = 0) {
    double best = 1e9;
    for (int i = 0; i < (times == 0 ? rounds : times); ++i) {
      const auto start = Clock::now();
      const auto kept = work();
      asm volatile("" : : "g"(&kept) : "memory");  // what was made is used, or the compiler drops the work
      best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
    }
    seconds[row][who] = best;
  }
  using Works = std::vector<std::pair<std::string, std::function<std::shared_ptr<const void>()>>>;
  // Work whose result is dropped outside the clock.
  template <class Work>
  static void add(Works& works, std::string who, Work work) {
    works.emplace_back(std::move(who),
                       [work]() -> std::shared_ptr<const void> { return std::make_shared<decltype(work())>(work()); });
  }
  // The best of all rounds, taken in turns, so that a machine that slows down slows all of them.
  void measure_in_turns(const std::string& row, const Works& works) {
    for (int i = 0; i < rounds; ++i) {
      for (const auto& [who, work] : works) {
        const auto start = Clock::now();
        const auto kept = work();
        const double took = std::chrono::duration<double>(Clock::now() - start).count();
        const auto [found, fresh] = seconds[row].emplace(who, took);
        if (!fresh) found->second = std::min(found->second, took);
      }
    }
  }
  std::string path(const char* file) const { return (folder / file).string(); }
};

// `count` f32 tensors that make up kBytes, all views of one buffer.
void make_files(const Bench& bench) {
  fs::create_directories(bench.folder);
  const berth::DevicePtr cpu = berth::device("CPU").value();
  const auto make = [&](const char* file, std::size_t count, std::size_t bytes) {
    if (fs::exists(bench.folder / file)) return;
    fmt::print(stderr, "making {}\n", bench.path(file));
    const berth::Buffer all = berth::Buffer::allocate(cpu, berth::u8, {bytes}).value();
    auto words = all.view(0, berth::u32, {bytes / 4}).value().as_slice_mut<std::uint32_t>().value();
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::uint32_t>(i * 2654435761u);
    const std::size_t each = bytes / count / 1024 * 1024;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < count; ++i) names.push_back(fmt::format("layers.{}.block.{}.weight", i / 10, i % 10));
    std::vector<berth::NamedBuffer> tensors;
    for (std::size_t i = 0; i < count; ++i)
      tensors.push_back({count == 1 ? std::string_view("w") : std::string_view(names[i]),
                         all.view(i * each, berth::f32, {each / 1024, 256}).value()});
    const std::string path = bench.path(file);
    (path.ends_with(".gguf") ? berth::save_gguf(path, tensors) : berth::save_safetensors(path, tensors)).value();
  };
  make("few.safetensors", 300, kBytes);
  make("many.safetensors", 30'000, kBytes);
  make("many.gguf", 30'000, kBytes);
  make("tiny.safetensors", 1, 4096);
}

std::size_t touch(const std::byte* bytes, std::size_t count) {
  std::size_t sum = 0;
  for (std::size_t at = 0; at < count; at += 4096) sum += static_cast<std::size_t>(bytes[at]);
  return sum;
}

struct Mapping {
  explicit Mapping(std::size_t size, int descriptor = -1)
      : bytes(size),
        memory(mmap(nullptr, size, descriptor < 0 ? PROT_READ | PROT_WRITE : PROT_READ,
                    descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, descriptor, 0)) {
    if (memory == MAP_FAILED) throw std::bad_alloc();
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(memory, bytes); }
  std::size_t bytes;
  void* memory;
};

struct File {
  explicit File(const std::string& path) : descriptor(open(path.c_str(), O_RDONLY)) {
    bytes = static_cast<std::size_t>(lseek(descriptor, 0, SEEK_END));
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(descriptor); }
  void read(void* into) const { read(into, 0, bytes); }
  void read(void* into, std::size_t begin, std::size_t end) const {
    for (std::size_t at = begin; at < end;) {
      const ssize_t got = pread(descriptor, static_cast<char*>(into) + at, end - at, static_cast<off_t>(at));
      if (got <= 0) throw std::runtime_error("read failed");
      at += static_cast<std::size_t>(got);
    }
  }
  void read(void* into, unsigned threads) const {
    constexpr std::size_t kPiece = std::size_t{8} << 20;
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t at; (at = next.fetch_add(kPiece)) < bytes;) read(into, at, std::min(bytes, at + kPiece));
    };
    std::vector<std::jthread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(work);
    work();
  }
  int descriptor;
  std::size_t bytes;
};

void run_here(Bench& bench) {
  const berth::DevicePtr cpu = berth::device("CPU").value();
  const auto names = [](const std::string& path) {
    std::vector<std::string> all;
    const berth::WeightFile file = berth::open_weights(path).value();
    for (const berth::TensorInfo& info : file.tensors()) all.emplace_back(info.name);
    return all;
  };
  bench.measure("list", "berth", [&] { return names(bench.path("many.safetensors")); });
  bench.measure("list gguf", "berth", [&] { return names(bench.path("many.gguf")); });

  const unsigned threads = std::min(8u, std::max(1u, std::thread::hardware_concurrency()));
  for (const char* kind : {"few", "many"}) {
    const std::string path = bench.path(fmt::format("{}.safetensors", kind).c_str());
    Bench::Works touching;
    Bench::add(touching, "raw mmap", [=] {
      const File file(path);
      const Mapping mapped(file.bytes, file.descriptor);
      return touch(static_cast<const std::byte*>(mapped.memory), file.bytes);
    });
    Bench::add(touching, "berth", [=] {
      const berth::WeightFile file = berth::open_weights(path).value();
      std::size_t sum = 0;
      for (const berth::TensorInfo& info : file.tensors()) {
        const auto bytes = file.tensor(info).value().as_host_bytes().value();
        sum += touch(bytes.data(), bytes.size());
      }
      return sum;
    });
    bench.measure_in_turns(fmt::format("touch {}", kind), touching);

    Bench::Works loading;
    Bench::add(loading, "read() into malloc", [=] {
      const File file(path);
      std::unique_ptr<void, void (*)(void*)> memory(std::malloc(file.bytes), std::free);
      file.read(memory.get());
      return memory;
    });
    // What the kernel gives at best: the same threads and pieces, huge pages, and nothing else.
    Bench::add(loading, fmt::format("{} threads pread into fresh huge pages", threads), [=] {
      const File file(path);
      auto fresh = std::make_unique<Mapping>(file.bytes);
      madvise(fresh->memory, file.bytes, MADV_HUGEPAGE);
      file.read(fresh->memory, threads);
      return fresh;
    });
    const auto ready = std::make_shared<Mapping>(fs::file_size(path));
    madvise(ready->memory, ready->bytes, MADV_HUGEPAGE);
    std::memset(ready->memory, 1, ready->bytes);
    Bench::add(loading, "pread into pre-faulted memory", [=] {
      File(path).read(ready->memory);
      return 0;
    });
    Bench::add(loading, "berth", [=] { return berth::open_weights(path).value().load_all(cpu).value(); });
    const auto pool = berth::make_caching_pool(cpu, {.max_cached_bytes = 2 * kBytes});
    Bench::add(loading, "berth, memory of the round before (a pool)",
               [=] { return berth::open_weights(path).value().load_all(pool).value(); });
    for (const auto method : {berth::ReadMethod::kThreads, berth::ReadMethod::kRing})
      Bench::add(loading, fmt::format("berth, in the background: {}", to_string(method)), [=] {
        auto load = berth::load_all_async(berth::open_weights(path).value(), cpu, {.method = method}).value();
        load.finish().value();
        return load;
      });
    bench.measure_in_turns(fmt::format("load {}", kind), loading);

    // Until the first tensor can be used. The rest is read, or cancelled, outside the clock.
    Bench::Works first;
    Bench::add(first, "berth::load_all", [=] { return berth::open_weights(path).value().load_all(cpu).value(); });
    for (const auto method : {berth::ReadMethod::kThreads, berth::ReadMethod::kRing})
      Bench::add(first, method == berth::ReadMethod::kThreads ? "berth" : "berth, ring", [=] {
        auto load = berth::load_all_async(berth::open_weights(path).value(), cpu, {.method = method}).value();
        berth::wait(load.arrivals()[0]).value();
        return load;
      });
    bench.measure_in_turns(fmt::format("first {}", kind), first);
  }
  bench.measure("one", "berth", [&] {
    return berth::open_weights(bench.path("many.safetensors")).value().load("layers.777.block.3.weight", cpu).value();
  });
  // Many at once, as the peers do it: one alone would measure how cold the caches are.
  constexpr int kOpens = 200;
  bench.measure("tiny", "berth", [&] {
    berth::Buffer last;
    for (int i = 0; i < kOpens; ++i)
      last = berth::open_weights(bench.path("tiny.safetensors")).value().tensor("w").value();
    return last;
  });
  bench.seconds["tiny"]["berth"] /= kOpens;
}

bool run_peers(Bench& bench) {
  const char* python = "build/venv/bin/python";
  if (!fs::exists(python) || !fs::exists("bench/peers/weights_peers.py")) return false;
  // Berth's own Python module and the nanobind peer are beside this program in the build.
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  const std::string command = fmt::format(
      "JAX_PLATFORMS=cpu PYTHONPATH='{}:{}' {} bench/peers/weights_peers.py '{}' {}",
      (here.parent_path() / "python").string(), (here / "peers").string(), python, bench.folder.string(), bench.rounds);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return false;
  std::string text;
  std::array<char, 4096> piece{};
  while (const std::size_t n = std::fread(piece.data(), 1, piece.size(), pipe)) text.append(piece.data(), n);
  pclose(pipe);
  const auto rows = nlohmann::json::parse(text, nullptr, false);
  if (!rows.is_object()) return false;
  for (const auto& [row, peers] : rows.items())
    for (const auto& [who, seconds] : peers.items()) bench.seconds[row][who] = seconds;
  return true;
}

std::string time_text(double seconds) {
  if (seconds < 1e-4) return fmt::format("{:.2f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

void print(const Bench& bench) {
  struct Row {
    const char* key;
    const char* title;
    const char* ours;
    const char* goal;
  };
  constexpr Row kRows[] = {
      {"list", "open + list 30,000 tensors, safetensors", "berth", "3x faster than the fastest peer"},
      {"list gguf", "open + list 30,000 tensors, GGUF", "berth", "3x faster than the fastest peer"},
      {"touch few", "open + touch every page in place, 1 GiB in 300", "berth", "0.9 of raw mmap"},
      {"touch many", "open + touch every page in place, 1 GiB in 30,000", "berth", "0.9 of raw mmap"},
      {"load few", "load all to fresh memory, 1 GiB in 300", "berth", "3x the fastest; 0.8 of pre-faulted"},
      {"load many", "load all to fresh memory, 1 GiB in 30,000", "berth", "3x the fastest; 0.8 of pre-faulted"},
      {"first few", "background load until the first tensor is there, 1 GiB in 300", "berth", "none"},
      {"first many", "background load until the first tensor is there, 1 GiB in 30,000", "berth", "none"},
      {"one", "open + load one tensor of 30,000", "berth", "3x faster than the fastest peer"},
      {"tiny", "open a tiny file + its tensor", "berth", "3x faster than the fastest peer"},
      {"dlpack import", "import through DLPack from Python", "berth.from_dlpack(numpy)",
       "no slower than nanobind's ndarray and NumPy to JAX"},
      {"dlpack export", "export through DLPack from Python", "numpy.from_dlpack(berth)",
       "no slower than nanobind's ndarray and NumPy to JAX"},
  };
  for (const Row& row : kRows) {
    const auto found = bench.seconds.find(row.key);
    if (found == bench.seconds.end()) continue;
    const auto ours = found->second.find(row.ours);
    fmt::print("\n{}   (goal: {})\n", row.title, row.goal);
    std::vector<std::pair<std::string, double>> sorted(found->second.begin(), found->second.end());
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    for (const auto& [who, seconds] : sorted) {
      const std::string ratio =
          ours == found->second.end() || who == row.ours ? "" : fmt::format("{:.2f}x", seconds / ours->second);
      fmt::print("  {:<44} {:>12} {:>9}\n", who, time_text(seconds), ratio);
    }
  }
  fmt::print("\nTimes are the best of {}; the last column is a peer's time over Berth's.\n", bench.rounds);
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--folder") == 0) bench.folder = argv[i + 1];
    if (std::strcmp(argv[i], "--rounds") == 0) bench.rounds = std::max(1, std::atoi(argv[i + 1]));
  }
  try {
    make_files(bench);
    run_here(bench);
    if (!run_peers(bench)) fmt::print(stderr, "no Python peers: build/venv is missing or a peer failed\n");
    print(bench);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench weights: {}\n", error.what());
    return 1;
  }
  return 0;
}
