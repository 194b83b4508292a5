// The measurements of `./run bench serving`, each made in a process of its own: what one side does and what it takes,
// as JSON for the process that compares the sides.
#pragma once

#include <atomic>
#include <barrier>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "berth/plan/plan.h"
#include "serving_support.h"
#include "support/decoder_onnx.h"

namespace serving {

using Json = nlohmann::json;

inline Json counters_of(Server& server) {
  if (server.replay() == nullptr) return {};
  const berth::ReplayCounters c = server.replay()->counters();
  return {{"requests", c.requests},   {"planned", c.planned},         {"recorded", c.recorded_runs},
          {"arenas", c.arenas},       {"arena_bytes", c.arena_bytes}, {"deviated", c.deviated},
          {"waits", c.waits},         {"predictions", c.predictions}, {"unattributed", c.unattributed},
          {"unlearned", c.unlearned}, {"pool_peak", c.pool_peak}};
}

// N threads run one session at the same time. Memory is counted from the loaded session on, with the threads of the
// server that use it, and the recorded runs included; time after a warm-up. `cap`: the most arenas, 0 for no cap;
// nothing: what the library does by itself.
inline Json threads_child(const std::string& side, const BenchModel& model, unsigned threads, int runs,
                          std::optional<unsigned> cap) {
  std::vector<std::byte> bytes = read_file(*find_model(model.file));
  berth::engines::OnnxRuntimeOptions options;
  if (cap) options.replay.max_arenas = *cap;
  Server server(side, bytes, std::move(options));
  bytes = {};
  const std::vector<ort::Tensor> inputs = server.inputs(model.usual);
  std::atomic<std::uint64_t> hash{0};
  std::atomic<bool> same{true};
  // All threads and this one meet before and after each part.
  std::barrier<> meet(threads + 1);
  const auto part = [&](int count) {
    meet.arrive_and_wait();
    for (int i = 0; i < count; ++i) {
      const std::uint64_t made = server.run(inputs).hash;
      const std::uint64_t before = hash.exchange(made);
      if (before != 0 && before != made) same = false;
    }
    meet.arrive_and_wait();
  };
  constexpr int kWarmup = 2;
  std::vector<std::thread> pool;
  for (unsigned t = 0; t < threads; ++t)
    pool.emplace_back([&] {
      void* volatile first = std::malloc(1024);  // the C library makes a heap for each thread
      std::free(first);
      part(0);
      part(kWarmup);
      part(runs);
    });
  part(0);
  fault_in_code();
  const OverSession over;
  meet.arrive_and_wait();
  meet.arrive_and_wait();
  const Json warm = counters_of(server);
  const double cpu = cpu_seconds();
  const Clock::time_point start = Clock::now();
  meet.arrive_and_wait();
  meet.arrive_and_wait();
  Json result{{"seconds", seconds_since(start)}, {"cpu", cpu_seconds() - cpu}};
  result["over"] = over.highest();
  for (std::thread& thread : pool) thread.join();
  result["hash"] = hash.load();
  result["same"] = same.load();
  if (server.replay() != nullptr) {
    const Json now = counters_of(server);
    result["counters"] = now;
    const double requests = now["requests"].get<double>() - warm["requests"].get<double>();
    result["planned"] = (now["planned"].get<double>() - warm["planned"].get<double>()) / std::max(requests, 1.0);
    if (const auto plan = server.replay()->plan("model", Server::dims_of(inputs))) result["plan"] = plan->size;
  }
  return result;
}

// The processor time of one run of each side, in one process and by turns: what else the machine does meets both alike.
inline Json time_child(const BenchModel& model, int runs) {
  const std::vector<std::byte> bytes = read_file(*find_model(model.file));
  Server stock("stock", bytes), berth("berth", bytes);
  const std::vector<ort::Tensor> inputs = stock.inputs(model.usual);
  std::vector<double> of_stock, of_berth;
  bool same = true;
  constexpr int kWarmup = 3;
  for (int i = 0; i < runs + kWarmup; ++i) {
    const bool stock_first = i % 2 == 0;
    const Server::Done first = (stock_first ? stock : berth).run(inputs);
    const Server::Done second = (stock_first ? berth : stock).run(inputs);
    same = same && first.hash == second.hash;
    if (i < kWarmup) continue;
    of_stock.push_back((stock_first ? first : second).seconds);
    of_berth.push_back((stock_first ? second : first).seconds);
  }
  const auto median = [](std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  return {{"stock", median(of_stock)}, {"berth", median(of_berth)}, {"same", same}};
}

inline Dims random_dims(const BenchModel& model, std::mt19937& random) {
  Dims dims = model.usual;
  for (const Range& range : model.ranges)
    dims[range.axis] =
        range.low + range.unit * static_cast<std::int64_t>(
                                     random() % static_cast<unsigned>((range.high - range.low) / range.unit + 1));
  return dims;
}

// Shapes that are drawn at random, most of them new.
inline Json shapes_child(const std::string& side, const BenchModel& model, int count, unsigned seed) {
  Beginning beginning;
  berth::engines::OnnxRuntimeOptions options;
  beginning.measure(options.replay);
  Server server(side, read_file(*find_model(model.file)), std::move(options));
  fault_in_code();
  const OverSession over;
  std::mt19937 random(seed);
  Json hashes = Json::array();
  int last_recorded = 0, unseen = 0;
  std::uint64_t deviated = 0, requests = 0;
  std::vector<std::pair<std::shared_ptr<const berth::ReplayTrace>, std::uint64_t>> made;  // with its arena's bytes
  double slowest = 0, begins = 0, faults = 0, layouts = 0;
  for (int i = 1; i <= count; ++i) {
    const std::vector<ort::Tensor> inputs = server.inputs(random_dims(model, random));
    const std::uint64_t predictions = server.replay() == nullptr ? 0 : server.replay()->counters().predictions;
    const double faults_before = beginning.faults;
    const Server::Done done = server.run(inputs, true);
    hashes.push_back(done.hash);
    if (server.replay() == nullptr) continue;
    if (done.run.recorded) last_recorded = i;
    if (i > 6) deviated += done.run.deviated;
    if (!done.run.predicted || server.replay()->counters().predictions == predictions) continue;
    if (!done.plan) continue;
    // A run that made smaller requests than predicted leaves no plan: the next one has what it did.
    if (!server.replay()->trace("model", Server::dims_of(inputs))) server.run(inputs);
    const auto trace = server.replay()->trace("model", Server::dims_of(inputs));
    if (!trace) continue;
    made.emplace_back(trace, done.plan->size);
    requests = trace->requests.size();
    const double begin = (done.begin - (beginning.faults - faults_before)) * 1e3;
    slowest = std::max(slowest, begin);
    begins += begin;
    faults += (beginning.faults - faults_before) * 1e3;
    layouts += done.plan->seconds * 1e3;
    ++unseen;
  }
  const double n = std::max(unseen, 1);
  Json result{{"hashes", hashes}, {"over", over.highest()}, {"last_recorded", last_recorded}};
  // After the memory is counted, since this takes some.
  double worst = 1, sum = 0;
  for (const auto& [trace, bytes] : made) {
    const auto own = berth::plan(berth::plan_problem(*trace), {.time_limit = 0.2});
    const double ratio = static_cast<double>(bytes) / static_cast<double>(std::max<std::uint64_t>(own->size, 1));
    worst = std::max(worst, ratio);
    sum += ratio;
  }
  result["deviated"] = deviated;
  result["unseen"] = unseen;
  result["requests"] = requests;
  result["worst"] = worst;
  result["mean"] = sum / n;
  result["begin_ms"] = begins / n;
  result["slowest_ms"] = slowest;
  result["fault_ms"] = faults / n;
  result["layout_ms"] = layouts / n;
  result["counters"] = counters_of(server);
  return result;
}

// Small inputs, a large one, small ones again.
inline Json decay_child(const std::string& side, const BenchModel& model) {
  berth::engines::OnnxRuntimeOptions options;
  options.replay.decay = std::chrono::milliseconds(300);
  Server server(side, read_file(*find_model(model.file)), std::move(options));
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
class Decoder {
 public:
  Decoder(const std::string& side, int most_steps)
      : beginning_(std::make_unique<Beginning>()), most_steps_(most_steps) {
    const std::string text = berth::testing::decoder_onnx(kLayers, kWidth);
    std::vector<std::byte> bytes(text.size());
    std::memcpy(bytes.data(), text.data(), text.size());
    berth::engines::OnnxRuntimeOptions options;
    beginning_->measure(options.replay);
    server_ = std::make_unique<Server>(side, bytes, std::move(options));
  }

  // Returns its processor time in seconds.
  double step() {
    const double start = thread_seconds();
    const std::int64_t past = kFirst + steps_;
    for (std::vector<std::byte>& cache : caches_) {
      // Their memory is taken once, for the longest: what a heap makes of vectors that grow is not compared.
      cache.reserve(kRow * static_cast<std::size_t>(kFirst + most_steps_));
      cache.resize(kRow * static_cast<std::size_t>(past));
    }
    for (std::size_t i = 0; i < kWidth; ++i) {
      const float value = static_cast<float>((i * 31 + static_cast<std::size_t>(steps_) * 17) % 97) / 97.0f;
      std::memcpy(x_.data() + 4 * i, &value, 4);
    }
    std::vector<ort::InputView> views{{{1, kWidth}, x_}};
    Dims dims{1, kWidth};
    for (const auto& cache : caches_) {
      views.push_back({{past, kWidth}, cache});
      dims.insert(dims.end(), {past, kWidth});
    }
    std::vector<std::size_t> outputs(server_->model().outputs().size());
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i] = i;
    std::optional<berth::engines::OnnxRuntimeMemory::Run> scope;
    const double before = thread_seconds();
    if (server_->replay() != nullptr) scope.emplace(*server_->replay(), "decoder", dims);
    beginning_->all += thread_seconds() - before;
    {
      const auto made = server_->model().run(views, outputs).value();
      for (std::size_t i = 0; i < made.size(); ++i) {
        const auto view = made[i].view().value();
        if (i == 0)
          hash_ = hash_bytes(view.bytes, hash_);
        else
          caches_[i - 1].assign(view.bytes.begin(), view.bytes.end());
      }
    }
    if (scope) {
      const berth::ReplayRun did = scope->end();
      planned_ += !did.recorded && did.deviated == 0 ? 1 : 0;
    }
    ++steps_;
    return thread_seconds() - start;
  }

  Json report() {
    return {{"hash", hash_},
            {"planned", planned_},
            {"begin_ms", beginning_->all * 1e3},
            {"fault_ms", beginning_->faults * 1e3},
            {"search_ms", beginning_->search * 1e3},
            {"counters", counters_of(*server_)}};
  }

 private:
  static constexpr unsigned kLayers = 4, kWidth = 512;
  static constexpr std::size_t kRow = std::size_t{4} * kWidth;
  static constexpr std::int64_t kFirst = 64;
  std::unique_ptr<Beginning> beginning_;
  std::unique_ptr<Server> server_;
  std::vector<std::vector<std::byte>> caches_{2 * kLayers};
  std::vector<std::byte> x_ = std::vector<std::byte>(kRow);
  std::uint64_t hash_ = 0xcbf2'9ce4'8422'2325;
  int most_steps_, planned_ = 0, steps_ = 0;
};

inline Json decoder_child(const std::string& side, int steps) {
  Decoder decoder(side, steps);
  fault_in_code();
  const OverSession over;
  const std::uint64_t faults_before = faults();
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(steps));
  for (int step = 0; step < steps; ++step) times.push_back(decoder.step());
  const std::uint64_t now = over.now();
  Json result = decoder.report();
  result["faults"] = faults() - faults_before;
  result["over"] = now;
  result["times"] = times;
  return result;
}

}  // namespace serving
