#include "engines/onnxruntime_session.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/try.h"

namespace berth::internal::ort {
namespace {

struct ElementInfo {
  int type;
  std::size_t bytes;
  const char* name;
};
constexpr ElementInfo kElements[] = {
    {kElementF32, 4, "float32"},   {kElementU8, 1, "uint8"},      {kElementI8, 1, "int8"},
    {kElementU16, 2, "uint16"},    {kElementI16, 2, "int16"},     {kElementI32, 4, "int32"},
    {kElementI64, 8, "int64"},     {kElementString, 0, "string"}, {kElementBool, 1, "bool"},
    {kElementF16, 2, "float16"},   {kElementF64, 8, "float64"},   {kElementU32, 4, "uint32"},
    {kElementU64, 8, "uint64"},    {kElementC64, 8, "complex64"}, {kElementC128, 16, "complex128"},
    {kElementBF16, 2, "bfloat16"},
};

const ElementInfo* find_element(int type) noexcept {
  for (const ElementInfo& element : kElements)
    if (element.type == type) return &element;
  return nullptr;
}

// Calls a Release function of the engine's table at the end of a scope.
template <class T>
class Scoped {
 public:
  Scoped(void (*release)(T*)) : release_(release) {}
  ~Scoped() {
    if (value != nullptr) release_(value);
  }
  Scoped(const Scoped&) = delete;
  Scoped& operator=(const Scoped&) = delete;
  T* value = nullptr;

 private:
  void (*release_)(T*);
};

}  // namespace

std::size_t element_bytes(int element_type) noexcept {
  const ElementInfo* element = find_element(element_type);
  return element != nullptr ? element->bytes : 0;
}

const char* element_name(int element_type) noexcept {
  const ElementInfo* element = find_element(element_type);
  return element != nullptr ? element->name : "unknown";
}

Result<Output::View> Output::view() const {
  int is_tensor = 0;
  BERTH_TRY(check(*api_, api_->is_tensor(value_, &is_tensor), "inspect an output"));
  if (is_tensor == 0) return Error(Code::kUnsupported, Layer::kEngine, "an output is a sequence or map, not a tensor");
  Scoped<TensorInfo> info(api_->release_tensor_info);
  BERTH_TRY(check(*api_, api_->get_tensor_type_and_shape(value_, &info.value), "inspect an output"));
  View view{};
  BERTH_TRY(check(*api_, api_->get_tensor_element_type(info.value, &view.element_type), "inspect an output"));
  std::size_t rank = 0, elements = 0;
  BERTH_TRY(check(*api_, api_->get_dimensions_count(info.value, &rank), "inspect an output"));
  view.shape.resize(rank);
  BERTH_TRY(check(*api_, api_->get_dimensions(info.value, view.shape.data(), rank), "inspect an output"));
  BERTH_TRY(check(*api_, api_->get_tensor_shape_element_count(info.value, &elements), "inspect an output"));
  const std::size_t size = element_bytes(view.element_type);
  if (size == 0) return Error(Code::kUnsupported, Layer::kEngine, "an output holds elements without a fixed size");
  void* data = nullptr;
  BERTH_TRY(check(*api_, api_->get_tensor_mutable_data(value_, &data), "read an output"));
  view.bytes = {static_cast<const std::byte*>(data), elements * size};
  return view;
}

Result<MappedModel> MappedModel::open(const std::string& path) {
  const auto failed = [&] { return Error::with_text(Code::kIo, Layer::kEngine, path + ": " + std::strerror(errno)); };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return failed();
  struct stat status {};
  const bool known = fstat(file, &status) == 0;
  if (!known || !S_ISREG(status.st_mode) || status.st_size == 0) {
    const Error error =
        known ? Error::with_text(Code::kInvalidData, Layer::kEngine,
                                 path + (S_ISREG(status.st_mode) ? " is empty" : " is not a regular file"))
              : failed();
    close(file);
    return error;
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (data == MAP_FAILED) return failed();
  MappedModel model;
  model.data_ = static_cast<const std::byte*>(data);
  model.size_ = size;
  return model;
}

MappedModel::~MappedModel() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedModel::forget_pages() const noexcept {
  if (data_ != nullptr) madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

Result<std::unique_ptr<Engine>> Engine::create(const std::string& preferred, int shared_threads) {
  BERTH_TRY_ASSIGN(const Library* opened, ort::library(preferred));
  std::unique_ptr<Engine> engine(new Engine(*opened));
  const Api& table = engine->api();
  constexpr int kFatal = 4;
  engine->shares_threads_ = shared_threads > 0;
  if (engine->shares_threads_) {
    Scoped<ThreadingOptions> threads(table.release_threading_options);
    BERTH_TRY(check(table, table.create_threading_options(&threads.value), "make options for threads"));
    BERTH_TRY(check(table, table.set_global_intra_op_num_threads(threads.value, shared_threads), "set the threads"));
    BERTH_TRY(check(table, table.set_global_inter_op_num_threads(threads.value, 1), "set the threads"));
    BERTH_TRY(check(table, table.create_env_with_global_thread_pools(kFatal, "berth", threads.value, &engine->env_),
                    "start"));
  } else {
    BERTH_TRY(check(table, table.create_env(kFatal, "berth", &engine->env_), "start"));
  }
  BERTH_TRY(check(engine->api(), engine->api().create_cpu_memory_info(0, 0, &engine->cpu_), "describe CPU memory"));
  return engine;
}

Engine::~Engine() {
  if (cpu_ != nullptr) api().release_memory_info(cpu_);
  if (env_ != nullptr) api().release_env(env_);
}

Result<std::unique_ptr<engines::OnnxRuntimeMemory>> Engine::attach_memory(engines::OnnxRuntimeOptions options) const {
  return engines::OnnxRuntimeMemory::attach(reinterpret_cast<const OrtApi*>(&api()), reinterpret_cast<OrtEnv*>(env_),
                                            std::move(options));
}

Result<std::unique_ptr<RequestRecorder>> Engine::attach_recorder() const {
  return RequestRecorder::attach(api(), env_);
}

Result<std::unique_ptr<Model>> Engine::open(const SessionSettings& settings) const {
  const Api& table = api();
  Scoped<SessionOptions> options(table.release_session_options);
  BERTH_TRY(check(table, table.create_session_options(&options.value), "make session options"));
  BERTH_TRY(check(table, table.set_intra_op_num_threads(options.value, settings.threads), "set the threads"));
  if (settings.memory != nullptr) {
    settings.memory->forget_loading();  // what starting the engine needed
    BERTH_TRY(settings.memory->prepare(reinterpret_cast<OrtSessionOptions*>(options.value)));
  }
  if (settings.memory == nullptr && !settings.arena)
    BERTH_TRY(check(table, table.disable_cpu_mem_arena(options.value), "run without an arena"));
  const auto set = [&](const char* key, const char* value) {
    return check(table, table.add_session_config_entry(options.value, key, value), key);
  };
  if (settings.recorder != nullptr) {
    BERTH_TRY(set("session.use_env_allocators", "1"));
    BERTH_TRY(check(table, table.disable_mem_pattern(options.value), "allocate each tensor by itself"));
  }
  if (!settings.reuse) {
    if (!shares_threads_)
      return Error(Code::kInvalidArgument, Layer::kEngine,
                   "a session without reuse needs an engine with shared threads");
    // For its parallel mode the engine plans no reuse, since nodes may overlap. The threads between operators that it
    // would use are those of the environment; there are none, so it executes node after node on the calling thread.
    constexpr int kParallel = 1;
    BERTH_TRY(check(table, table.disable_per_session_threads(options.value), "share its threads"));
    BERTH_TRY(check(table, table.set_session_execution_mode(options.value, kParallel), "run without reuse"));
  }
  if (!settings.profile.empty())
    BERTH_TRY(check(table, table.enable_profiling(options.value, settings.profile.c_str()), "write a profile"));
  if (!settings.save_ready_model.empty()) {
    BERTH_TRY(check(table, table.set_optimized_model_file_path(options.value, settings.save_ready_model.c_str()),
                    "name the optimised model"));
    BERTH_TRY(set("session.save_model_format", "ORT"));
  }
  std::unique_ptr<Model> model(new Model(*this));
  if (settings.mapped != nullptr) {
    BERTH_TRY(set("session.load_model_format", "ORT"));
    BERTH_TRY(set("session.use_ort_model_bytes_directly", "1"));
    BERTH_TRY(set("session.use_ort_model_bytes_for_initializers", "1"));
    BERTH_TRY(check(table, table.set_session_graph_optimization_level(options.value, 0), "load a ready model"));
    const auto bytes = settings.mapped->bytes();
    BERTH_TRY(check(table,
                    table.create_session_from_array(env_, bytes.data(), bytes.size(), options.value, &model->session_),
                    "load the model"));
  } else if (!settings.bytes.empty()) {
    BERTH_TRY(check(table,
                    table.create_session_from_array(env_, settings.bytes.data(), settings.bytes.size(), options.value,
                                                    &model->session_),
                    "load the model"));
  } else {
    BERTH_TRY(check(table, table.create_session(env_, settings.model.c_str(), options.value, &model->session_),
                    "load the model"));
  }
  BERTH_TRY(model->describe());
  if (settings.memory != nullptr) settings.memory->forget_loading();
  return model;
}

Model::~Model() {
  release_bound();
  if (session_ != nullptr) engine_.api().release_session(session_);
}

void Model::release_bound() noexcept {
  for (Value* value : bound_) engine_.api().release_value(value);
  bound_.clear();
}

Result<TensorSpec> Model::describe_one(bool input, std::size_t index) const {
  const Api& api = engine_.api();
  Allocator* allocator = nullptr;
  BERTH_TRY(check(api, api.get_allocator_with_default_options(&allocator), "describe the model"));
  char* name = nullptr;
  BERTH_TRY(check(api,
                  input ? api.session_get_input_name(session_, index, allocator, &name)
                        : api.session_get_output_name(session_, index, allocator, &name),
                  "name the model's inputs and outputs"));
  TensorSpec spec;
  spec.name = name;
  BERTH_TRY(check(api, api.allocator_free(allocator, name), "free a name"));
  Scoped<TypeInfo> type(api.release_type_info);
  BERTH_TRY(check(api,
                  input ? api.session_get_input_type_info(session_, index, &type.value)
                        : api.session_get_output_type_info(session_, index, &type.value),
                  "describe the model"));
  const TensorInfo* tensor = nullptr;
  BERTH_TRY(check(api, api.cast_type_info_to_tensor_info(type.value, &tensor), "describe the model"));
  if (tensor == nullptr) return spec;
  BERTH_TRY(check(api, api.get_tensor_element_type(tensor, &spec.element_type), "describe the model"));
  std::size_t rank = 0;
  BERTH_TRY(check(api, api.get_dimensions_count(tensor, &rank), "describe the model"));
  spec.shape.resize(rank);
  std::vector<const char*> symbols(rank);
  BERTH_TRY(check(api, api.get_dimensions(tensor, spec.shape.data(), rank), "describe the model"));
  BERTH_TRY(check(api, api.get_symbolic_dimensions(tensor, symbols.data(), rank), "describe the model"));
  for (const char* symbol : symbols) spec.symbols.emplace_back(symbol != nullptr ? symbol : "");
  return spec;
}

Result<void> Model::describe() {
  const Api& api = engine_.api();
  std::size_t inputs = 0, outputs = 0;
  BERTH_TRY(check(api, api.session_get_input_count(session_, &inputs), "describe the model"));
  BERTH_TRY(check(api, api.session_get_output_count(session_, &outputs), "describe the model"));
  for (std::size_t i = 0; i < inputs; ++i) {
    BERTH_TRY_ASSIGN(TensorSpec spec, describe_one(true, i));
    inputs_.push_back(std::move(spec));
  }
  for (std::size_t i = 0; i < outputs; ++i) {
    BERTH_TRY_ASSIGN(TensorSpec spec, describe_one(false, i));
    outputs_.push_back(std::move(spec));
  }
  for (const TensorSpec& spec : inputs_) input_names_.push_back(spec.name.c_str());
  for (const TensorSpec& spec : outputs_) output_names_.push_back(spec.name.c_str());
  return {};
}

Result<void> Model::bind(std::span<Tensor> tensors) {
  if (tensors.size() != inputs_.size())
    return Error(Code::kInvalidArgument, Layer::kEngine, "{} inputs for a model that takes {}", tensors.size(),
                 inputs_.size());
  release_bound();
  const Api& api = engine_.api();
  for (Tensor& tensor : tensors) {
    Value* value = nullptr;
    BERTH_TRY(check(api,
                    api.create_tensor_with_data(engine_.cpu(), tensor.bytes.data(), tensor.bytes.size(),
                                                tensor.shape.data(), tensor.shape.size(), tensor.element_type, &value),
                    "take an input"));
    bound_.push_back(value);
  }
  return {};
}

Result<std::vector<Output>> Model::run() {
  const Api& api = engine_.api();
  std::vector<Value*> values(outputs_.size());
  BERTH_TRY(check(api,
                  api.run(session_, nullptr, input_names_.data(), bound_.data(), bound_.size(), output_names_.data(),
                          output_names_.size(), values.data()),
                  "run the model"));
  std::vector<Output> outputs;
  outputs.reserve(values.size());
  for (Value* value : values) outputs.emplace_back(api, value);
  return outputs;
}

Result<std::vector<Output>> Model::run(std::span<const InputView> inputs, std::span<const std::size_t> outputs) const {
  if (inputs.size() != inputs_.size())
    return Error(Code::kInvalidArgument, Layer::kEngine, "{} inputs for a model that takes {}", inputs.size(),
                 inputs_.size());
  const Api& api = engine_.api();
  std::vector<const char*> names;
  for (const std::size_t output : outputs) {
    if (output >= outputs_.size())
      return Error(Code::kInvalidArgument, Layer::kEngine, "output {} of a model that has {}", output, outputs_.size());
    names.push_back(output_names_[output]);
  }
  // Values of inputs and outputs alike: released with this vector.
  std::vector<Output> held;
  std::vector<Value*> given;
  held.reserve(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Value* value = nullptr;
    // The engine takes a pointer to writable memory and never writes to an input.
    auto* data = const_cast<std::byte*>(inputs[i].bytes.data());
    BERTH_TRY(check(api,
                    api.create_tensor_with_data(engine_.cpu(), data, inputs[i].bytes.size(), inputs[i].shape.data(),
                                                inputs[i].shape.size(), inputs_[i].element_type, &value),
                    "take an input"));
    held.emplace_back(api, value);
    given.push_back(value);
  }
  std::vector<Value*> values(names.size());
  BERTH_TRY(check(api,
                  api.run(session_, nullptr, input_names_.data(), given.data(), given.size(), names.data(),
                          names.size(), values.data()),
                  "run the model"));
  std::vector<Output> made;
  made.reserve(values.size());
  for (Value* value : values) made.emplace_back(api, value);
  return made;
}

Result<Model::Profile> Model::end_profile() const {
  const Api& api = engine_.api();
  Profile profile;
  BERTH_TRY(check(api, api.session_get_profiling_start_time_ns(session_, &profile.start), "date its profile"));
  Allocator* allocator = nullptr;
  BERTH_TRY(check(api, api.get_allocator_with_default_options(&allocator), "name its profile"));
  char* file = nullptr;
  BERTH_TRY(check(api, api.session_end_profiling(session_, allocator, &file), "write a profile"));
  profile.file = file;
  BERTH_TRY(check(api, api.allocator_free(allocator, file), "free a name"));
  return profile;
}

Result<ArenaStats> Model::arena_stats() const {
  const Api& api = engine_.api();
  Scoped<Allocator> allocator(api.release_allocator);
  BERTH_TRY(check(api, api.create_allocator(session_, engine_.cpu(), &allocator.value), "find its arena"));
  Scoped<KeyValuePairs> stats(api.release_key_value_pairs);
  BERTH_TRY(check(api, api.allocator_get_stats(allocator.value, &stats.value), "count its arena"));
  const auto number = [&](const char* key) -> std::uint64_t {
    const char* text = api.get_key_value(stats.value, key);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 0;
  };
  return ArenaStats{.in_use = number("InUse"),
                    .max_in_use = number("MaxInUse"),
                    .held = number("TotalAllocated"),
                    .extensions = number("NumArenaExtensions")};
}

Result<std::vector<std::uint64_t>> Model::arena_addresses(const ReplayTrace& trace) const {
  const Api& api = engine_.api();
  Scoped<Allocator> arena(api.release_allocator);
  BERTH_TRY(check(api, api.create_allocator(session_, engine_.cpu(), &arena.value), "find its arena"));
  std::vector<void*> memory(trace.requests.size());
  std::vector<std::uint64_t> addresses(trace.requests.size());
  std::size_t next_release = 0;
  Result<void> result;
  for (std::size_t i = 0; i < memory.size() && result; ++i) {
    for (; next_release < trace.releases.size(); ++next_release) {
      const std::uint32_t request = trace.releases[next_release];
      if (trace.requests[request].released_at > i) break;
      result = check(api, api.allocator_free(arena.value, std::exchange(memory[request], nullptr)), "free memory");
    }
    if (result)
      result = check(api, api.allocator_alloc(arena.value, trace.requests[i].bytes, &memory[i]), "allocate memory");
    addresses[i] = reinterpret_cast<std::uintptr_t>(memory[i]);
  }
  for (void* left : memory)
    if (left != nullptr)
      if (Status* status = api.allocator_free(arena.value, left)) api.release_status(status);
  BERTH_TRY(result);
  return addresses;
}

}  // namespace berth::internal::ort
