// The environment and sessions of ONNX Runtime as values, as far as needed to run a model. This is not a complete
// binding: `berth run`, its tests, its benchmark and the Python module use it. A session is for one thread at a time,
// except for run() with inputs as arguments, which any number of threads may call. A session must not outlive its
// engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "berth/base/result.h"
#include "berth/engines/onnxruntime.h"
#include "engines/onnxruntime_library.h"
#include "engines/request_recorder.h"

namespace berth::internal::ort {

// Bytes of one element; 0 for types without a fixed size, such as strings.
std::size_t element_bytes(int element_type) noexcept;
// The name in NumPy, such as "float32".
const char* element_name(int element_type) noexcept;

// The description of an input or output of a model before it runs.
struct TensorSpec {
  std::string name;
  int element_type = kElementUndefined;
  std::vector<std::int64_t> shape;   // -1: symbolic
  std::vector<std::string> symbols;  // one per dimension; empty if it has no name
};

struct Tensor {
  std::string name;
  int element_type = kElementUndefined;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

// An input that is used in place: only read, and only during the run.
struct InputView {
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

// An output of a run, in the engine's memory. Released with it.
class Output {
 public:
  Output(const Api& api, Value* value) : api_(&api), value_(value) {}
  Output(Output&& other) noexcept : api_(other.api_), value_(std::exchange(other.value_, nullptr)) {}
  Output& operator=(Output&&) = delete;
  ~Output() {
    if (value_ != nullptr) api_->release_value(value_);
  }
  // Element type, shape and bytes. kUnsupported for what is not a tensor of numbers.
  struct View {
    int element_type;
    std::vector<std::int64_t> shape;
    std::span<const std::byte> bytes;
  };
  Result<View> view() const;

 private:
  const Api* api_;
  Value* value_;
};

// A file mapped for reading, from which a session can take its weights in place.
class MappedModel {
 public:
  static Result<MappedModel> open(const std::string& path);
  MappedModel(MappedModel&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedModel& operator=(MappedModel&&) = delete;
  ~MappedModel();
  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  // Drops the pages read so far; they are read again from the file when they are used.
  void forget_pages() const noexcept;

 private:
  MappedModel() = default;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The engine's own arena of a session, as the engine reports it.
struct ArenaStats {
  std::uint64_t in_use = 0;
  std::uint64_t max_in_use = 0;
  std::uint64_t held = 0;
  std::uint64_t extensions = 0;
};

struct SessionSettings {
  std::string model = {};                        // a file: .onnx, or .ort
  std::span<const std::byte> bytes = {};         // instead of the file: what it holds; read while the session is made
  const MappedModel* mapped = nullptr;           // an .ort model to run from in place; it must outlive the session
  int threads = 1;                               // inside an operator; 0: as many as the engine likes
  engines::OnnxRuntimeMemory* memory = nullptr;  // null: the engine's own
  RequestRecorder* recorder = nullptr;           // instead of `memory`: what writes its requests down
  bool arena = true;                             // false: the engine's own memory is the heap, not its arena
  // False: every tensor has memory of its own, which is released after its last use. By itself the engine may keep the
  // memory of a dead tensor for a later one of the same shape. Needs an engine with shared threads.
  bool reuse = true;
  std::string profile = {};           // beginning of the name of a profile to write; empty: none
  std::string save_ready_model = {};  // where to write the optimised model as .ort; empty: nowhere
};

class Model;

class Engine {
 public:
  // The engine's environment, quiet but for fatal messages. `preferred`: see library(). `shared_threads`: how many
  // threads sessions without reuse have inside an operator, all of them together; 0: there will be no such sessions.
  static Result<std::unique_ptr<Engine>> create(const std::string& preferred = {}, int shared_threads = 0);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Result<std::unique_ptr<Model>> open(const SessionSettings& settings) const;
  // Makes Berth the memory of the sessions that are opened with it.
  Result<std::unique_ptr<engines::OnnxRuntimeMemory>> attach_memory(engines::OnnxRuntimeOptions options = {}) const;
  // Makes a recorder the memory of the sessions that are opened with it. There is either this or attach_memory().
  Result<std::unique_ptr<RequestRecorder>> attach_recorder() const;

  const Library& library() const noexcept { return *library_; }
  const Api& api() const noexcept { return *library_->api; }
  const MemoryInfo* cpu() const noexcept { return cpu_; }
  Env* env() const noexcept { return env_; }

 private:
  explicit Engine(const Library& library) : library_(&library) {}
  const Library* library_;
  Env* env_ = nullptr;
  MemoryInfo* cpu_ = nullptr;
  bool shares_threads_ = false;
};

// A loaded model: one session.
class Model {
 public:
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const std::vector<TensorSpec>& inputs() const noexcept { return inputs_; }
  const std::vector<TensorSpec>& outputs() const noexcept { return outputs_; }

  // Binds the inputs of all later runs, in the order of inputs(). Their bytes must stay valid until the next bind or
  // the end. kInvalidArgument for another number of inputs. kDriver if the engine refuses one.
  Result<void> bind(std::span<Tensor> tensors);
  // One run. Requires: bind().
  Result<std::vector<Output>> run();

  // One run with these inputs, in the order of inputs() and with their element types, for the outputs with these
  // indices. kInvalidArgument for another number of inputs or an unknown output. kDriver if the engine refuses.
  Result<std::vector<Output>> run(std::span<const InputView> inputs, std::span<const std::size_t> outputs) const;

  // Ends the profile of a session that was opened with one.
  struct Profile {
    std::string file;
    std::uint64_t start = 0;  // on the system's clock, in nanoseconds
  };
  Result<Profile> end_profile() const;

  // Statistics of the engine's own arena; zero if Berth is the memory.
  Result<ArenaStats> arena_stats() const;

  // Makes a recorded run's requests of the engine's own arena, in order, and gives the address of each.
  Result<std::vector<std::uint64_t>> arena_addresses(const ReplayTrace& trace) const;

 private:
  friend class Engine;
  explicit Model(const Engine& engine) : engine_(engine) {}
  Result<void> describe();
  Result<TensorSpec> describe_one(bool input, std::size_t index) const;
  void release_bound() noexcept;

  const Engine& engine_;
  Session* session_ = nullptr;
  std::vector<TensorSpec> inputs_, outputs_;
  std::vector<const char*> input_names_, output_names_;
  std::vector<Value*> bound_;
};

}  // namespace berth::internal::ort
