#include "run/order_worker.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/input_file.h"
#include "base/try.h"
#include "engines/node_memory.h"
#include "engines/onnxruntime_session.h"
#include "engines/ort_graph.h"
#include "run/inputs.h"

namespace berth::cli {

using namespace internal;

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kEnough{30};

// Less is not worth another file or mode of the engine.
constexpr std::uint64_t kWorthwhile = 100;  // a hundredth
bool is_lower(std::uint64_t peak, std::uint64_t than) {
  return peak < than - than / kWorthwhile;
}

struct Recording {
  std::uint64_t peak = 0;
  std::uint64_t outputs = 0;  // checksum
  std::vector<ort::TimedRequest> requests;
  std::string profile;  // its text; empty: none
};

class OrderFinder {
 public:
  OrderFinder(const WorkerTask& task, const ort::Engine& engine, ort::RequestRecorder& recorder)
      : task_(task), engine_(engine), recorder_(recorder) {}

  Result<OrderFound> find(std::size_t index) {
    const std::string &file = task_.ready_models[index], &ordered = task_.ordered_models[index];
    BERTH_TRY_ASSIGN(const Recording as_written, record(file, {.reuse = true}));
    OrderFound found;
    found.as_written_peak = found.peak = as_written.peak;
    found.recorded = 1;
    const auto keep_if_lower = [&](const Result<Recording>& recording, bool reordered, bool reuse) {
      found.recorded += recording ? 1 : 0;
      if (!recording || recording->outputs != as_written.outputs || !is_lower(recording->peak, found.peak)) return;
      found.peak = recording->peak;
      found.reordered = reordered;
      found.reuse = reuse;
    };
    if (is_late()) {
      found.note = "loading and running it takes too long to try others";
      return found;
    }
    const Result<Recording> released = record(file, {.reuse = false, .profile = true});
    const Result<bool> written = released ? write_ordered(*released, file, ordered, found) : released.error();
    if (!written) found.note = written.error().message();
    // Of forms with the same peak, the one that differs least from the engine's own is kept.
    const bool try_ordered = written && *written && !is_late();
    if (try_ordered) keep_if_lower(record(ordered, {.reuse = true}), true, true);
    keep_if_lower(released, false, false);
    if (try_ordered && !is_late()) keep_if_lower(record(ordered, {.reuse = false}), true, false);
    if (!found.reordered) {
      std::error_code ignored;
      fs::remove(ordered, ignored);
    }
    return found;
  }

 private:
  bool is_late() const { return Clock::now() - begin_ > kEnough; }

  struct Form {
    bool reuse = true;
    bool profile = false;
  };

  // One run of a model, with everything that it asks for.
  Result<Recording> record(const std::string& file, Form form) {
    BERTH_TRY_ASSIGN(const ort::MappedModel mapped, ort::MappedModel::open(file));
    ort::SessionSettings settings;
    settings.mapped = &mapped;
    settings.threads = task_.threads;
    settings.recorder = &recorder_;
    settings.reuse = form.reuse;
    if (form.profile) settings.profile = task_.reference + "/profile";
    BERTH_TRY_ASSIGN(const std::unique_ptr<ort::Model> model, engine_.open(settings));
    const InputRequest request{.dims = task_.dims, .files = task_.inputs, .seed = task_.seed};
    BERTH_TRY_ASSIGN(std::vector<ort::Tensor> inputs, make_inputs(model->inputs(), request));
    BERTH_TRY(model->bind(inputs));
    Recording recording;
    recorder_.begin();
    Checksum sum;
    std::uint64_t start = 0;
    {
      BERTH_TRY_ASSIGN(const std::vector<ort::Output> outputs, model->run());
      recording.peak = recorder_.peak();
      if (form.profile) {
        BERTH_TRY_ASSIGN(const ort::Model::Profile profile, model->end_profile());
        start = profile.start;
        Result<std::string> text = read_whole_file(profile.file);
        std::error_code ignored;
        fs::remove(profile.file, ignored);
        BERTH_TRY(text);
        recording.profile = *std::move(text);
      }
      recording.requests = recorder_.end(start);
      for (const ort::Output& output : outputs) {
        BERTH_TRY_ASSIGN(const ort::Output::View view, output.view());
        sum.add(view.bytes);
      }
    }
    recording.outputs = sum.value();
    return recording;
  }

  // Writes the model with its nodes in another order, if one is known that needs less.
  Result<bool> write_ordered(const Recording& recording, const std::string& file, const std::string& ordered,
                             OrderFound& found) {
    BERTH_TRY_ASSIGN(const ort::MappedModel mapped, ort::MappedModel::open(file));
    BERTH_TRY_ASSIGN(const ort::OrtGraph graph, ort::read_graph(mapped.bytes()));
    BERTH_TRY_ASSIGN(const std::vector<ort::NodeStart> starts, ort::read_profile(recording.profile));
    BERTH_TRY_ASSIGN(const ort::NodeMemory memory, ort::memory_of_nodes(graph, starts, recording.requests));
    BERTH_TRY_ASSIGN(const ort::IndexChoice choice, ort::choose_indices(graph, memory));
    found.lower_bound = choice.lower_bound;
    if (!is_lower(choice.peak, choice.recorded_peak)) return false;
    std::error_code failed;
    if (!fs::copy_file(file, ordered, fs::copy_options::overwrite_existing, failed))
      return Error::with_text(Code::kIo, Layer::kProgram, ordered + ": " + failed.message());
    BERTH_TRY(ort::write_indices(ordered, graph, choice.indices));
    return true;
  }

  const WorkerTask& task_;
  const ort::Engine& engine_;
  ort::RequestRecorder& recorder_;
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace

Result<std::vector<OrderFound>> find_orders(const WorkerTask& task) {
  BERTH_TRY_ASSIGN(const std::unique_ptr<ort::Engine> engine, ort::Engine::create({}, task.threads));
  BERTH_TRY_ASSIGN(const std::unique_ptr<ort::RequestRecorder> recorder, engine->attach_recorder());
  std::vector<OrderFound> all;
  for (std::size_t i = 0; i < task.ready_models.size(); ++i) {
    BERTH_TRY_ASSIGN(OrderFound found, OrderFinder(task, *engine, *recorder).find(i));
    all.push_back(std::move(found));
  }
  return all;
}

}  // namespace berth::cli
