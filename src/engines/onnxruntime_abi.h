// The part of ONNX Runtime's C interface that Berth uses, declared by ourselves: the engine is opened at run
// time and no package ships its headers. The engine's table of functions only ever grows at its end, so a
// slot's position is a fact that does not change; every position used is asserted below. The types are opaque
// and live in their own namespace, so that a program may include the engine's own header beside this one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace berth::internal::ort {

struct Status;
struct Env;
struct Session;
struct SessionOptions;
struct RunOptions;
struct Value;
struct MemoryInfo;
struct TypeInfo;
struct TensorInfo;
struct KeyValuePairs;
struct ThreadingOptions;

// What the engine takes memory from. Filled by us for our allocator, by the engine for its own.
struct Allocator {
  std::uint32_t version;
  void* (*alloc)(Allocator* self, std::size_t bytes);
  void (*free)(Allocator* self, void* pointer);  // pointer may be null
  const MemoryInfo* (*info)(const Allocator* self);
  void* (*reserve)(Allocator* self, std::size_t bytes);  // initialisers, at load time
  Status* (*get_stats)(const Allocator* self, KeyValuePairs** out);
  void* (*alloc_on_stream)(Allocator* self, std::size_t bytes, void* stream);
  void* shrink;
};
static_assert(sizeof(Allocator) == 64 && offsetof(Allocator, alloc) == 8 && offsetof(Allocator, reserve) == 32);

// The first version whose allocators have `reserve`; a higher one would promise get_stats and streams.
inline constexpr std::uint32_t kAllocatorVersion = 18;
// The first version whose table reaches AllocatorGetStats, the highest slot used here.
inline constexpr std::uint32_t kApiVersion = 23;

enum ElementType : int {
  kElementUndefined = 0,
  kElementF32 = 1,
  kElementU8 = 2,
  kElementI8 = 3,
  kElementU16 = 4,
  kElementI16 = 5,
  kElementI32 = 6,
  kElementI64 = 7,
  kElementString = 8,
  kElementBool = 9,
  kElementF16 = 10,
  kElementF64 = 11,
  kElementU32 = 12,
  kElementU64 = 13,
  kElementC64 = 14,
  kElementC128 = 15,
  kElementBF16 = 16,
};

using Slot = void (*)();

struct Api {
  Slot create_status;
  int (*get_error_code)(const Status*);
  const char* (*get_error_message)(const Status*);
  Status* (*create_env)(int log_level, const char* name, Env** out);
  Slot unused_4[3];
  Status* (*create_session)(const Env*, const char* path, const SessionOptions*, Session** out);
  Status* (*create_session_from_array)(const Env*, const void* data, std::size_t bytes, const SessionOptions*,
                                       Session** out);
  Status* (*run)(Session*, const RunOptions*, const char* const* input_names, const Value* const* inputs,
                 std::size_t input_count, const char* const* output_names, std::size_t output_count, Value** outputs);
  Status* (*create_session_options)(SessionOptions** out);
  Status* (*set_optimized_model_file_path)(SessionOptions*, const char* path);
  Slot unused_12;
  Status* (*set_session_execution_mode)(SessionOptions*, int mode);  // 0 sequential, 1 parallel
  Status* (*enable_profiling)(SessionOptions*, const char* prefix);
  Slot unused_15;
  Status* (*enable_mem_pattern)(SessionOptions*);
  Status* (*disable_mem_pattern)(SessionOptions*);
  Status* (*enable_cpu_mem_arena)(SessionOptions*);
  Status* (*disable_cpu_mem_arena)(SessionOptions*);
  Slot unused_20[2];
  Status* (*set_session_log_severity_level)(SessionOptions*, int level);
  Status* (*set_session_graph_optimization_level)(SessionOptions*, int level);
  Status* (*set_intra_op_num_threads)(SessionOptions*, int threads);
  Status* (*set_inter_op_num_threads)(SessionOptions*, int threads);
  Slot unused_26[4];
  Status* (*session_get_input_count)(const Session*, std::size_t* out);
  Status* (*session_get_output_count)(const Session*, std::size_t* out);
  Slot unused_32;
  Status* (*session_get_input_type_info)(const Session*, std::size_t index, TypeInfo** out);
  Status* (*session_get_output_type_info)(const Session*, std::size_t index, TypeInfo** out);
  Slot unused_35;
  Status* (*session_get_input_name)(const Session*, std::size_t index, Allocator*, char** out);
  Status* (*session_get_output_name)(const Session*, std::size_t index, Allocator*, char** out);
  Slot unused_38[11];
  Status* (*create_tensor_with_data)(const MemoryInfo*, void* data, std::size_t bytes, const std::int64_t* shape,
                                     std::size_t rank, int element_type, Value** out);
  Status* (*is_tensor)(const Value*, int* out);
  Status* (*get_tensor_mutable_data)(Value*, void** out);
  Slot unused_52[3];
  Status* (*cast_type_info_to_tensor_info)(const TypeInfo*, const TensorInfo** out);  // null: not a tensor
  Slot unused_56[4];
  Status* (*get_tensor_element_type)(const TensorInfo*, int* out);
  Status* (*get_dimensions_count)(const TensorInfo*, std::size_t* out);
  Status* (*get_dimensions)(const TensorInfo*, std::int64_t* out, std::size_t count);
  Status* (*get_symbolic_dimensions)(const TensorInfo*, const char** out, std::size_t count);
  Status* (*get_tensor_shape_element_count)(const TensorInfo*, std::size_t* out);
  Status* (*get_tensor_type_and_shape)(const Value*, TensorInfo** out);
  Slot unused_66[3];
  Status* (*create_cpu_memory_info)(int allocator_type, int memory_type, MemoryInfo** out);
  Slot unused_70[5];
  Status* (*allocator_alloc)(Allocator*, std::size_t bytes, void** out);
  Status* (*allocator_free)(Allocator*, void* pointer);
  Slot unused_77;
  Status* (*get_allocator_with_default_options)(Allocator** out);
  Slot unused_79[13];
  void (*release_env)(Env*);
  void (*release_status)(Status*);
  void (*release_memory_info)(MemoryInfo*);
  void (*release_session)(Session*);
  void (*release_value)(Value*);
  void (*release_run_options)(RunOptions*);
  void (*release_type_info)(TypeInfo*);
  void (*release_tensor_info)(TensorInfo*);
  void (*release_session_options)(SessionOptions*);
  Slot unused_101[9];
  Status* (*session_end_profiling)(Session*, Allocator*, char** file);
  Slot unused_111[8];
  Status* (*create_env_with_global_thread_pools)(int log_level, const char* name, const ThreadingOptions*, Env** out);
  Status* (*disable_per_session_threads)(SessionOptions*);
  Status* (*create_threading_options)(ThreadingOptions** out);
  void (*release_threading_options)(ThreadingOptions*);
  Slot unused_123[7];
  Status* (*add_session_config_entry)(SessionOptions*, const char* key, const char* value);
  Status* (*create_allocator)(const Session*, const MemoryInfo*, Allocator** out);
  void (*release_allocator)(Allocator*);
  Slot unused_133[13];
  Status* (*session_get_profiling_start_time_ns)(const Session*, std::uint64_t* out);
  Status* (*set_global_intra_op_num_threads)(ThreadingOptions*, int threads);
  Status* (*set_global_inter_op_num_threads)(ThreadingOptions*, int threads);
  Slot unused_149[27];
  Status* (*register_allocator)(Env*, Allocator*);
  Status* (*unregister_allocator)(Env*, const MemoryInfo*);
  Slot unused_178[119];
  const char* (*get_key_value)(const KeyValuePairs*, const char* key);
  Slot unused_298[2];
  void (*release_key_value_pairs)(KeyValuePairs*);
  Slot unused_301[18];
  Status* (*allocator_get_stats)(const Allocator*, KeyValuePairs** out);
};

#define BERTH_ORT_SLOT(member, position) static_assert(offsetof(Api, member) == (position) * sizeof(void*))
BERTH_ORT_SLOT(create_env, 3);
BERTH_ORT_SLOT(create_session, 7);
BERTH_ORT_SLOT(run, 9);
BERTH_ORT_SLOT(set_optimized_model_file_path, 11);
BERTH_ORT_SLOT(set_session_execution_mode, 13);
BERTH_ORT_SLOT(enable_profiling, 14);
BERTH_ORT_SLOT(disable_mem_pattern, 17);
BERTH_ORT_SLOT(set_session_log_severity_level, 22);
BERTH_ORT_SLOT(set_inter_op_num_threads, 25);
BERTH_ORT_SLOT(session_get_output_count, 31);
BERTH_ORT_SLOT(session_get_output_type_info, 34);
BERTH_ORT_SLOT(session_get_output_name, 37);
BERTH_ORT_SLOT(create_tensor_with_data, 49);
BERTH_ORT_SLOT(get_tensor_mutable_data, 51);
BERTH_ORT_SLOT(cast_type_info_to_tensor_info, 55);
BERTH_ORT_SLOT(get_tensor_type_and_shape, 65);
BERTH_ORT_SLOT(create_cpu_memory_info, 69);
BERTH_ORT_SLOT(allocator_free, 76);
BERTH_ORT_SLOT(get_allocator_with_default_options, 78);
BERTH_ORT_SLOT(release_env, 92);
BERTH_ORT_SLOT(release_session_options, 100);
BERTH_ORT_SLOT(session_end_profiling, 110);
BERTH_ORT_SLOT(create_env_with_global_thread_pools, 119);
BERTH_ORT_SLOT(release_threading_options, 122);
BERTH_ORT_SLOT(add_session_config_entry, 130);
BERTH_ORT_SLOT(release_allocator, 132);
BERTH_ORT_SLOT(session_get_profiling_start_time_ns, 146);
BERTH_ORT_SLOT(set_global_inter_op_num_threads, 148);
BERTH_ORT_SLOT(unregister_allocator, 177);
BERTH_ORT_SLOT(get_key_value, 297);
BERTH_ORT_SLOT(release_key_value_pairs, 300);
BERTH_ORT_SLOT(allocator_get_stats, 319);
#undef BERTH_ORT_SLOT

struct ApiBase {
  const Api* (*get_api)(std::uint32_t version);
  const char* (*get_version)();
};

}  // namespace berth::internal::ort
