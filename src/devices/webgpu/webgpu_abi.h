// The part of the webgpu.h binary interface that Berth calls, declared here so that building Berth needs no
// WebGPU. Types, layouts and values are those of the standard header as wgpu-native 24+ and Dawn ship it; the
// test webgpu_abi_test.cpp compares every one of them with the real header where one is installed. Plain data:
// any thread, no lifetime.
#pragma once

#include <cstddef>
#include <cstdint>

namespace berth::internal::wgpu {

// ---- handles ----------------------------------------------------------------------------------------------

using Instance = struct InstanceImpl*;
using Adapter = struct AdapterImpl*;
using Device = struct DeviceImpl*;
using Queue = struct QueueImpl*;
using Buffer = struct BufferImpl*;
using BindGroup = struct BindGroupImpl*;
using BindGroupLayout = struct BindGroupLayoutImpl*;
using PipelineLayout = struct PipelineLayoutImpl*;
using ShaderModule = struct ShaderModuleImpl*;
using ComputePipeline = struct ComputePipelineImpl*;
using CommandEncoder = struct CommandEncoderImpl*;
using CommandBuffer = struct CommandBufferImpl*;
using ComputePass = struct ComputePassImpl*;

using Bool = std::uint32_t;
using Flags = std::uint64_t;
using Enum = std::uint32_t;

struct Future {
  std::uint64_t id;
};

struct FutureWaitInfo {
  Future future;
  Bool completed;
};

// ---- values -----------------------------------------------------------------------------------------------

inline constexpr Enum kStatusSuccess = 1;  // also the success value of every asynchronous status below

inline constexpr Enum kRequestAdapterUnavailable = 3;
inline constexpr Enum kMapError = 3;
inline constexpr Enum kMapAborted = 4;
inline constexpr Enum kWaitSuccess = 1;
inline constexpr Enum kWaitError = 3;

inline constexpr Enum kErrorNone = 1;
inline constexpr Enum kErrorValidation = 2;
inline constexpr Enum kErrorOutOfMemory = 3;
inline constexpr Enum kErrorInternal = 4;

inline constexpr Enum kFilterValidation = 1;
inline constexpr Enum kFilterOutOfMemory = 2;
inline constexpr Enum kFilterInternal = 3;

inline constexpr Enum kLostDestroyed = 2;
inline constexpr Enum kLostCallbackCancelled = 3;

inline constexpr Enum kCallbackWaitAnyOnly = 1;
inline constexpr Enum kCallbackAllowProcessEvents = 2;
inline constexpr Enum kCallbackAllowSpontaneous = 3;

inline constexpr Enum kFeatureShaderF16 = 0x0B;
inline constexpr Enum kInstanceFeatureTimedWaitAny = 1;

inline constexpr Enum kPowerUndefined = 0;
inline constexpr Enum kPowerLow = 1;
inline constexpr Enum kPowerHigh = 2;

inline constexpr Enum kBackendVulkan = 6;
inline constexpr Enum kBackendMetal = 5;
inline constexpr Enum kBackendD3D12 = 4;

inline constexpr Enum kAdapterDiscrete = 1;
inline constexpr Enum kAdapterIntegrated = 2;
inline constexpr Enum kAdapterCpu = 3;

inline constexpr Enum kBindingUniform = 2;
inline constexpr Enum kBindingStorage = 3;
inline constexpr Enum kBindingReadOnlyStorage = 4;

inline constexpr Enum kTypeShaderSourceWgsl = 2;

inline constexpr Flags kUsageMapRead = 0x1;
inline constexpr Flags kUsageMapWrite = 0x2;
inline constexpr Flags kUsageCopySrc = 0x4;
inline constexpr Flags kUsageCopyDst = 0x8;
inline constexpr Flags kUsageUniform = 0x40;
inline constexpr Flags kUsageStorage = 0x80;

inline constexpr Flags kMapRead = 1;
inline constexpr Flags kMapWrite = 2;
inline constexpr Flags kStageCompute = 4;

// ---- structs ----------------------------------------------------------------------------------------------

struct StringView {
  const char* data;
  std::size_t length;
};

struct Chain {
  Chain* next;
  Enum type;
};

struct InstanceLimits;

struct InstanceDescriptor {
  Chain* next;
  std::size_t required_feature_count;
  const Enum* required_features;
  const InstanceLimits* required_limits;
};

struct RequestAdapterOptions {
  Chain* next;
  Enum feature_level;
  Enum power_preference;
  Bool force_fallback_adapter;
  Enum backend_type;
  void* compatible_surface;
};

struct AdapterInfo {
  Chain* next;
  StringView vendor;
  StringView architecture;
  StringView device;
  StringView description;
  Enum backend_type;
  Enum adapter_type;
  std::uint32_t vendor_id;
  std::uint32_t device_id;
  std::uint32_t subgroup_min_size;
  std::uint32_t subgroup_max_size;
};

struct Limits {
  Chain* next;
  std::uint32_t max_texture_dimension_1d;
  std::uint32_t max_texture_dimension_2d;
  std::uint32_t max_texture_dimension_3d;
  std::uint32_t max_texture_array_layers;
  std::uint32_t max_bind_groups;
  std::uint32_t max_bind_groups_plus_vertex_buffers;
  std::uint32_t max_bindings_per_bind_group;
  std::uint32_t max_dynamic_uniform_buffers_per_pipeline_layout;
  std::uint32_t max_dynamic_storage_buffers_per_pipeline_layout;
  std::uint32_t max_sampled_textures_per_shader_stage;
  std::uint32_t max_samplers_per_shader_stage;
  std::uint32_t max_storage_buffers_per_shader_stage;
  std::uint32_t max_storage_textures_per_shader_stage;
  std::uint32_t max_uniform_buffers_per_shader_stage;
  std::uint64_t max_uniform_buffer_binding_size;
  std::uint64_t max_storage_buffer_binding_size;
  std::uint32_t min_uniform_buffer_offset_alignment;
  std::uint32_t min_storage_buffer_offset_alignment;
  std::uint32_t max_vertex_buffers;
  std::uint64_t max_buffer_size;
  std::uint32_t max_vertex_attributes;
  std::uint32_t max_vertex_buffer_array_stride;
  std::uint32_t max_inter_stage_shader_variables;
  std::uint32_t max_color_attachments;
  std::uint32_t max_color_attachment_bytes_per_sample;
  std::uint32_t max_compute_workgroup_storage_size;
  std::uint32_t max_compute_invocations_per_workgroup;
  std::uint32_t max_compute_workgroup_size_x;
  std::uint32_t max_compute_workgroup_size_y;
  std::uint32_t max_compute_workgroup_size_z;
  std::uint32_t max_compute_workgroups_per_dimension;
  std::uint32_t max_immediate_size;
};

using AdapterCallback = void (*)(Enum status, Adapter, StringView message, void*, void*);
using DeviceCallback = void (*)(Enum status, Device, StringView message, void*, void*);
using LostCallback = void (*)(const Device*, Enum reason, StringView message, void*, void*);
using ErrorCallback = void (*)(const Device*, Enum type, StringView message, void*, void*);
using ScopeCallback = void (*)(Enum status, Enum type, StringView message, void*, void*);
using StatusCallback = void (*)(Enum status, StringView message, void*, void*);  // map, work done

template <class Callback>
struct CallbackInfo {
  Chain* next;
  Enum mode;
  Callback callback;
  void* userdata1;
  void* userdata2;
};

struct ErrorCallbackInfo {  // the one callback that has no mode
  Chain* next;
  ErrorCallback callback;
  void* userdata1;
  void* userdata2;
};

struct QueueDescriptor {
  Chain* next;
  StringView label;
};

struct DeviceDescriptor {
  Chain* next;
  StringView label;
  std::size_t required_feature_count;
  const Enum* required_features;
  const Limits* required_limits;
  QueueDescriptor default_queue;
  CallbackInfo<LostCallback> lost;
  ErrorCallbackInfo uncaptured_error;
};

struct BufferDescriptor {
  Chain* next;
  StringView label;
  Flags usage;
  std::uint64_t size;
  Bool mapped_at_creation;
};

struct ShaderSourceWgsl {
  Chain chain;
  StringView code;
};

struct ShaderModuleDescriptor {
  Chain* next;
  StringView label;
};

struct ConstantEntry;

struct ComputeState {
  Chain* next;
  ShaderModule module;
  StringView entry_point;
  std::size_t constant_count;
  const ConstantEntry* constants;
};

struct ComputePipelineDescriptor {
  Chain* next;
  StringView label;
  PipelineLayout layout;
  ComputeState compute;
};

struct BufferBindingLayout {
  Chain* next;
  Enum type;
  Bool has_dynamic_offset;
  std::uint64_t min_binding_size;
};

// Layouts of bindings that Berth never uses; zero means "not this kind".
struct SamplerBindingLayout {
  Chain* next;
  Enum type;
};

struct TextureBindingLayout {
  Chain* next;
  Enum sample_type;
  Enum view_dimension;
  Bool multisampled;
};

struct StorageTextureBindingLayout {
  Chain* next;
  Enum access;
  Enum format;
  Enum view_dimension;
};

struct BindGroupLayoutEntry {
  Chain* next;
  std::uint32_t binding;
  Flags visibility;
  std::uint32_t binding_array_size;
  BufferBindingLayout buffer;
  SamplerBindingLayout sampler;
  TextureBindingLayout texture;
  StorageTextureBindingLayout storage_texture;
};

struct BindGroupLayoutDescriptor {
  Chain* next;
  StringView label;
  std::size_t entry_count;
  const BindGroupLayoutEntry* entries;
};

struct PipelineLayoutDescriptor {
  Chain* next;
  StringView label;
  std::size_t bind_group_layout_count;
  const BindGroupLayout* bind_group_layouts;
  std::uint32_t immediate_size;
};

struct BindGroupEntry {
  Chain* next;
  std::uint32_t binding;
  Buffer buffer;
  std::uint64_t offset;
  std::uint64_t size;
  void* sampler;
  void* texture_view;
};

struct BindGroupDescriptor {
  Chain* next;
  StringView label;
  BindGroupLayout layout;
  std::size_t entry_count;
  const BindGroupEntry* entries;
};

struct EnumerateOptions;
struct CommandEncoderDescriptor;
struct CommandBufferDescriptor;
struct ComputePassDescriptor;

// ---- wgpu-native's own (its wgpu.h) -----------------------------------------------------------------------

inline constexpr Enum kTypeNativeInstanceExtras = 0x00030004;
inline constexpr Enum kNativeMappablePrimaryBuffers = 0x0003000E;
inline constexpr Flags kNativeVulkan = 1U << 0;
inline constexpr Flags kNativeMetal = 1U << 2;
inline constexpr Flags kNativeD3D12 = 1U << 3;

struct NativeInstanceExtras {
  Chain chain;
  Flags backends;
  Flags flags;
  Enum dx12_shader_compiler;
  Enum gles3_minor_version;
  Enum gl_fence_behaviour;
  StringView dxc_path;
  Enum dxc_max_shader_model;
  Enum dx12_presentation_system;
  const std::uint8_t* budget_for_device_creation;
  const std::uint8_t* budget_for_device_loss;
  Enum display_handle_type;
  void* display_handle[2];
};

// ---- calls ------------------------------------------------------------------------------------------------

// X(symbol without "wgpu", result, arguments). Every conforming library has these.
#define BERTH_WEBGPU_CALLS(X)                                                                                         \
  X(CreateInstance, Instance, (const InstanceDescriptor*))                                                            \
  X(InstanceRequestAdapter, Future, (Instance, const RequestAdapterOptions*, CallbackInfo<AdapterCallback>))          \
  X(InstanceWaitAny, Enum, (Instance, std::size_t, FutureWaitInfo*, std::uint64_t))                                   \
  X(InstanceProcessEvents, void, (Instance))                                                                          \
  X(InstanceRelease, void, (Instance))                                                                                \
  X(AdapterGetInfo, Enum, (Adapter, AdapterInfo*))                                                                    \
  X(AdapterInfoFreeMembers, void, (AdapterInfo))                                                                      \
  X(AdapterGetLimits, Enum, (Adapter, Limits*))                                                                       \
  X(AdapterHasFeature, Bool, (Adapter, Enum))                                                                         \
  X(AdapterRequestDevice, Future, (Adapter, const DeviceDescriptor*, CallbackInfo<DeviceCallback>))                   \
  X(AdapterRelease, void, (Adapter))                                                                                  \
  X(DeviceGetQueue, Queue, (Device))                                                                                  \
  X(DeviceGetLimits, Enum, (Device, Limits*))                                                                         \
  X(DevicePushErrorScope, void, (Device, Enum))                                                                       \
  X(DevicePopErrorScope, Future, (Device, CallbackInfo<ScopeCallback>))                                               \
  X(DeviceCreateBuffer, Buffer, (Device, const BufferDescriptor*))                                                    \
  X(DeviceCreateShaderModule, ShaderModule, (Device, const ShaderModuleDescriptor*))                                  \
  X(DeviceCreateBindGroupLayout, BindGroupLayout, (Device, const BindGroupLayoutDescriptor*))                         \
  X(DeviceCreatePipelineLayout, PipelineLayout, (Device, const PipelineLayoutDescriptor*))                            \
  X(DeviceCreateComputePipeline, ComputePipeline, (Device, const ComputePipelineDescriptor*))                         \
  X(DeviceCreateBindGroup, BindGroup, (Device, const BindGroupDescriptor*))                                           \
  X(DeviceCreateCommandEncoder, CommandEncoder, (Device, const CommandEncoderDescriptor*))                            \
  X(DeviceDestroy, void, (Device))                                                                                    \
  X(DeviceRelease, void, (Device))                                                                                    \
  X(QueueSubmit, void, (Queue, std::size_t, const CommandBuffer*))                                                    \
  X(QueueWriteBuffer, void, (Queue, Buffer, std::uint64_t, const void*, std::size_t))                                 \
  X(QueueOnSubmittedWorkDone, Future, (Queue, CallbackInfo<StatusCallback>))                                          \
  X(QueueRelease, void, (Queue))                                                                                      \
  X(BufferMapAsync, Future, (Buffer, Flags, std::size_t, std::size_t, CallbackInfo<StatusCallback>))                  \
  X(BufferGetMappedRange, void*, (Buffer, std::size_t, std::size_t))                                                  \
  X(BufferGetConstMappedRange, const void*, (Buffer, std::size_t, std::size_t))                                       \
  X(BufferGetSize, std::uint64_t, (Buffer))                                                                           \
  X(BufferGetUsage, Flags, (Buffer))                                                                                  \
  X(BufferUnmap, void, (Buffer))                                                                                      \
  X(BufferDestroy, void, (Buffer))                                                                                    \
  X(BufferAddRef, void, (Buffer))                                                                                     \
  X(BufferRelease, void, (Buffer))                                                                                    \
  X(CommandEncoderCopyBufferToBuffer, void,                                                                           \
    (CommandEncoder, Buffer, std::uint64_t, Buffer, std::uint64_t, std::uint64_t))                                    \
  X(CommandEncoderClearBuffer, void, (CommandEncoder, Buffer, std::uint64_t, std::uint64_t))                          \
  X(CommandEncoderBeginComputePass, ComputePass, (CommandEncoder, const ComputePassDescriptor*))                      \
  X(CommandEncoderFinish, CommandBuffer, (CommandEncoder, const CommandBufferDescriptor*))                            \
  X(CommandEncoderRelease, void, (CommandEncoder))                                                                    \
  X(CommandBufferRelease, void, (CommandBuffer))                                                                      \
  X(ComputePassEncoderSetPipeline, void, (ComputePass, ComputePipeline))                                              \
  X(ComputePassEncoderSetBindGroup, void, (ComputePass, std::uint32_t, BindGroup, std::size_t, const std::uint32_t*)) \
  X(ComputePassEncoderDispatchWorkgroups, void, (ComputePass, std::uint32_t, std::uint32_t, std::uint32_t))           \
  X(ComputePassEncoderEnd, void, (ComputePass))                                                                       \
  X(ComputePassEncoderRelease, void, (ComputePass))                                                                   \
  X(BindGroupRelease, void, (BindGroup))                                                                              \
  X(BindGroupLayoutRelease, void, (BindGroupLayout))                                                                  \
  X(PipelineLayoutRelease, void, (PipelineLayout))                                                                    \
  X(ShaderModuleRelease, void, (ShaderModule))                                                                        \
  X(ComputePipelineRelease, void, (ComputePipeline))

// Calls of one implementation only; null where the library has none. See webgpu_dialect.h.
#define BERTH_WEBGPU_OPTIONAL_CALLS(X)                                                     \
  X(DevicePoll, Bool, (Device, Bool wait, const std::uint64_t* submission))                \
  X(QueueSubmitForIndex, std::uint64_t, (Queue, std::size_t, const CommandBuffer*))        \
  X(InstanceEnumerateAdapters, std::size_t, (Instance, const EnumerateOptions*, Adapter*)) \
  X(GetVersion, std::uint32_t, ())

// The library as a table: what the driver fills by name, and what tests replace call by call.
struct Calls {
#define BERTH_WEBGPU_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
  BERTH_WEBGPU_CALLS(BERTH_WEBGPU_MEMBER)
  BERTH_WEBGPU_OPTIONAL_CALLS(BERTH_WEBGPU_MEMBER)
#undef BERTH_WEBGPU_MEMBER
};

}  // namespace berth::internal::wgpu
