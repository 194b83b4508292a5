// Compares our declarations with the real webgpu.h, where one is installed when the tests are configured.
#include "devices/webgpu/webgpu_abi.h"

#include <gtest/gtest.h>

#if defined(BERTH_WEBGPU_HEADERS)

#include <webgpu.h>
#include <wgpu.h>

#include <tuple>
#include <type_traits>
#include <utility>

namespace mine = berth::internal::wgpu;

#define SAME_SIZE(ours, theirs) \
  static_assert(sizeof(mine::ours) == sizeof(theirs) && alignof(mine::ours) == alignof(theirs))
#define SAME_PLACE(ours, ours_member, theirs, theirs_member)                            \
  static_assert(offsetof(mine::ours, ours_member) == offsetof(theirs, theirs_member) && \
                sizeof(std::declval<mine::ours>().ours_member) == sizeof(std::declval<theirs>().theirs_member))
#define SAME_VALUE(ours, theirs) \
  static_assert(static_cast<std::uint64_t>(mine::ours) == static_cast<std::uint64_t>(theirs))

SAME_SIZE(StringView, WGPUStringView);
SAME_PLACE(StringView, data, WGPUStringView, data);
SAME_PLACE(StringView, length, WGPUStringView, length);
SAME_SIZE(Chain, WGPUChainedStruct);
SAME_PLACE(Chain, type, WGPUChainedStruct, sType);
SAME_SIZE(Future, WGPUFuture);
SAME_SIZE(FutureWaitInfo, WGPUFutureWaitInfo);
SAME_PLACE(FutureWaitInfo, completed, WGPUFutureWaitInfo, completed);
SAME_SIZE(InstanceDescriptor, WGPUInstanceDescriptor);
SAME_PLACE(InstanceDescriptor, required_feature_count, WGPUInstanceDescriptor, requiredFeatureCount);
SAME_PLACE(InstanceDescriptor, required_features, WGPUInstanceDescriptor, requiredFeatures);
SAME_SIZE(RequestAdapterOptions, WGPURequestAdapterOptions);
SAME_PLACE(RequestAdapterOptions, feature_level, WGPURequestAdapterOptions, featureLevel);
SAME_PLACE(RequestAdapterOptions, power_preference, WGPURequestAdapterOptions, powerPreference);
SAME_PLACE(RequestAdapterOptions, force_fallback_adapter, WGPURequestAdapterOptions, forceFallbackAdapter);
SAME_PLACE(RequestAdapterOptions, backend_type, WGPURequestAdapterOptions, backendType);
SAME_PLACE(RequestAdapterOptions, compatible_surface, WGPURequestAdapterOptions, compatibleSurface);
SAME_SIZE(AdapterInfo, WGPUAdapterInfo);
SAME_PLACE(AdapterInfo, device, WGPUAdapterInfo, device);
SAME_PLACE(AdapterInfo, description, WGPUAdapterInfo, description);
SAME_PLACE(AdapterInfo, backend_type, WGPUAdapterInfo, backendType);
SAME_PLACE(AdapterInfo, adapter_type, WGPUAdapterInfo, adapterType);
SAME_SIZE(Limits, WGPULimits);
SAME_PLACE(Limits, max_storage_buffers_per_shader_stage, WGPULimits, maxStorageBuffersPerShaderStage);
SAME_PLACE(Limits, max_uniform_buffer_binding_size, WGPULimits, maxUniformBufferBindingSize);
SAME_PLACE(Limits, max_storage_buffer_binding_size, WGPULimits, maxStorageBufferBindingSize);
SAME_PLACE(Limits, min_uniform_buffer_offset_alignment, WGPULimits, minUniformBufferOffsetAlignment);
SAME_PLACE(Limits, min_storage_buffer_offset_alignment, WGPULimits, minStorageBufferOffsetAlignment);
SAME_PLACE(Limits, max_buffer_size, WGPULimits, maxBufferSize);
SAME_PLACE(Limits, max_compute_workgroups_per_dimension, WGPULimits, maxComputeWorkgroupsPerDimension);
SAME_PLACE(Limits, max_immediate_size, WGPULimits, maxImmediateSize);
SAME_SIZE(CallbackInfo<mine::AdapterCallback>, WGPURequestAdapterCallbackInfo);
SAME_PLACE(CallbackInfo<mine::AdapterCallback>, mode, WGPURequestAdapterCallbackInfo, mode);
SAME_PLACE(CallbackInfo<mine::AdapterCallback>, callback, WGPURequestAdapterCallbackInfo, callback);
SAME_PLACE(CallbackInfo<mine::AdapterCallback>, userdata1, WGPURequestAdapterCallbackInfo, userdata1);
SAME_PLACE(CallbackInfo<mine::AdapterCallback>, userdata2, WGPURequestAdapterCallbackInfo, userdata2);
SAME_SIZE(CallbackInfo<mine::DeviceCallback>, WGPURequestDeviceCallbackInfo);
SAME_SIZE(CallbackInfo<mine::LostCallback>, WGPUDeviceLostCallbackInfo);
SAME_SIZE(CallbackInfo<mine::ScopeCallback>, WGPUPopErrorScopeCallbackInfo);
SAME_SIZE(CallbackInfo<mine::StatusCallback>, WGPUBufferMapCallbackInfo);
SAME_SIZE(CallbackInfo<mine::StatusCallback>, WGPUQueueWorkDoneCallbackInfo);
SAME_SIZE(ErrorCallbackInfo, WGPUUncapturedErrorCallbackInfo);
SAME_PLACE(ErrorCallbackInfo, callback, WGPUUncapturedErrorCallbackInfo, callback);
SAME_SIZE(QueueDescriptor, WGPUQueueDescriptor);
SAME_SIZE(DeviceDescriptor, WGPUDeviceDescriptor);
SAME_PLACE(DeviceDescriptor, required_feature_count, WGPUDeviceDescriptor, requiredFeatureCount);
SAME_PLACE(DeviceDescriptor, required_features, WGPUDeviceDescriptor, requiredFeatures);
SAME_PLACE(DeviceDescriptor, required_limits, WGPUDeviceDescriptor, requiredLimits);
SAME_PLACE(DeviceDescriptor, default_queue, WGPUDeviceDescriptor, defaultQueue);
SAME_PLACE(DeviceDescriptor, lost, WGPUDeviceDescriptor, deviceLostCallbackInfo);
SAME_PLACE(DeviceDescriptor, uncaptured_error, WGPUDeviceDescriptor, uncapturedErrorCallbackInfo);
SAME_SIZE(BufferDescriptor, WGPUBufferDescriptor);
SAME_PLACE(BufferDescriptor, usage, WGPUBufferDescriptor, usage);
SAME_PLACE(BufferDescriptor, size, WGPUBufferDescriptor, size);
SAME_PLACE(BufferDescriptor, mapped_at_creation, WGPUBufferDescriptor, mappedAtCreation);
SAME_SIZE(ShaderSourceWgsl, WGPUShaderSourceWGSL);
SAME_PLACE(ShaderSourceWgsl, code, WGPUShaderSourceWGSL, code);
SAME_SIZE(ShaderModuleDescriptor, WGPUShaderModuleDescriptor);
SAME_SIZE(ComputeState, WGPUComputeState);
SAME_PLACE(ComputeState, module, WGPUComputeState, module);
SAME_PLACE(ComputeState, entry_point, WGPUComputeState, entryPoint);
SAME_PLACE(ComputeState, constant_count, WGPUComputeState, constantCount);
SAME_SIZE(ComputePipelineDescriptor, WGPUComputePipelineDescriptor);
SAME_PLACE(ComputePipelineDescriptor, layout, WGPUComputePipelineDescriptor, layout);
SAME_PLACE(ComputePipelineDescriptor, compute, WGPUComputePipelineDescriptor, compute);
SAME_SIZE(BufferBindingLayout, WGPUBufferBindingLayout);
SAME_PLACE(BufferBindingLayout, type, WGPUBufferBindingLayout, type);
SAME_PLACE(BufferBindingLayout, has_dynamic_offset, WGPUBufferBindingLayout, hasDynamicOffset);
SAME_PLACE(BufferBindingLayout, min_binding_size, WGPUBufferBindingLayout, minBindingSize);
SAME_SIZE(SamplerBindingLayout, WGPUSamplerBindingLayout);
SAME_SIZE(TextureBindingLayout, WGPUTextureBindingLayout);
SAME_SIZE(StorageTextureBindingLayout, WGPUStorageTextureBindingLayout);
SAME_SIZE(BindGroupLayoutEntry, WGPUBindGroupLayoutEntry);
SAME_PLACE(BindGroupLayoutEntry, binding, WGPUBindGroupLayoutEntry, binding);
SAME_PLACE(BindGroupLayoutEntry, visibility, WGPUBindGroupLayoutEntry, visibility);
SAME_PLACE(BindGroupLayoutEntry, binding_array_size, WGPUBindGroupLayoutEntry, bindingArraySize);
SAME_PLACE(BindGroupLayoutEntry, buffer, WGPUBindGroupLayoutEntry, buffer);
SAME_PLACE(BindGroupLayoutEntry, sampler, WGPUBindGroupLayoutEntry, sampler);
SAME_PLACE(BindGroupLayoutEntry, texture, WGPUBindGroupLayoutEntry, texture);
SAME_PLACE(BindGroupLayoutEntry, storage_texture, WGPUBindGroupLayoutEntry, storageTexture);
SAME_SIZE(BindGroupLayoutDescriptor, WGPUBindGroupLayoutDescriptor);
SAME_PLACE(BindGroupLayoutDescriptor, entries, WGPUBindGroupLayoutDescriptor, entries);
SAME_SIZE(PipelineLayoutDescriptor, WGPUPipelineLayoutDescriptor);
SAME_PLACE(PipelineLayoutDescriptor, bind_group_layouts, WGPUPipelineLayoutDescriptor, bindGroupLayouts);
SAME_PLACE(PipelineLayoutDescriptor, immediate_size, WGPUPipelineLayoutDescriptor, immediateSize);
SAME_SIZE(BindGroupEntry, WGPUBindGroupEntry);
SAME_PLACE(BindGroupEntry, binding, WGPUBindGroupEntry, binding);
SAME_PLACE(BindGroupEntry, buffer, WGPUBindGroupEntry, buffer);
SAME_PLACE(BindGroupEntry, offset, WGPUBindGroupEntry, offset);
SAME_PLACE(BindGroupEntry, size, WGPUBindGroupEntry, size);
SAME_SIZE(BindGroupDescriptor, WGPUBindGroupDescriptor);
SAME_PLACE(BindGroupDescriptor, layout, WGPUBindGroupDescriptor, layout);
SAME_PLACE(BindGroupDescriptor, entries, WGPUBindGroupDescriptor, entries);

SAME_SIZE(NativeInstanceExtras, WGPUInstanceExtras);
SAME_PLACE(NativeInstanceExtras, backends, WGPUInstanceExtras, backends);
SAME_PLACE(NativeInstanceExtras, flags, WGPUInstanceExtras, flags);
SAME_PLACE(NativeInstanceExtras, dxc_path, WGPUInstanceExtras, dxcPath);
SAME_PLACE(NativeInstanceExtras, display_handle_type, WGPUInstanceExtras, displayHandle.type);

SAME_VALUE(kTypeNativeInstanceExtras, WGPUSType_InstanceExtras);
SAME_VALUE(kNativeMappablePrimaryBuffers, WGPUNativeFeature_MappablePrimaryBuffers);
SAME_VALUE(kNativeVulkan, WGPUInstanceBackend_Vulkan);
SAME_VALUE(kNativeMetal, WGPUInstanceBackend_Metal);
SAME_VALUE(kNativeD3D12, WGPUInstanceBackend_DX12);
SAME_VALUE(kStatusSuccess, WGPUStatus_Success);
SAME_VALUE(kStatusSuccess, WGPURequestAdapterStatus_Success);
SAME_VALUE(kStatusSuccess, WGPURequestDeviceStatus_Success);
SAME_VALUE(kStatusSuccess, WGPUMapAsyncStatus_Success);
SAME_VALUE(kStatusSuccess, WGPUQueueWorkDoneStatus_Success);
SAME_VALUE(kStatusSuccess, WGPUPopErrorScopeStatus_Success);
SAME_VALUE(kRequestAdapterUnavailable, WGPURequestAdapterStatus_Unavailable);
SAME_VALUE(kMapError, WGPUMapAsyncStatus_Error);
SAME_VALUE(kMapAborted, WGPUMapAsyncStatus_Aborted);
SAME_VALUE(kWaitSuccess, WGPUWaitStatus_Success);
SAME_VALUE(kWaitError, WGPUWaitStatus_Error);
SAME_VALUE(kErrorNone, WGPUErrorType_NoError);
SAME_VALUE(kErrorValidation, WGPUErrorType_Validation);
SAME_VALUE(kErrorOutOfMemory, WGPUErrorType_OutOfMemory);
SAME_VALUE(kErrorInternal, WGPUErrorType_Internal);
SAME_VALUE(kFilterValidation, WGPUErrorFilter_Validation);
SAME_VALUE(kFilterOutOfMemory, WGPUErrorFilter_OutOfMemory);
SAME_VALUE(kFilterInternal, WGPUErrorFilter_Internal);
SAME_VALUE(kLostDestroyed, WGPUDeviceLostReason_Destroyed);
SAME_VALUE(kLostCallbackCancelled, WGPUDeviceLostReason_CallbackCancelled);
SAME_VALUE(kCallbackWaitAnyOnly, WGPUCallbackMode_WaitAnyOnly);
SAME_VALUE(kCallbackAllowProcessEvents, WGPUCallbackMode_AllowProcessEvents);
SAME_VALUE(kCallbackAllowSpontaneous, WGPUCallbackMode_AllowSpontaneous);
SAME_VALUE(kFeatureShaderF16, WGPUFeatureName_ShaderF16);
SAME_VALUE(kInstanceFeatureTimedWaitAny, WGPUInstanceFeatureName_TimedWaitAny);
SAME_VALUE(kPowerUndefined, WGPUPowerPreference_Undefined);
SAME_VALUE(kPowerLow, WGPUPowerPreference_LowPower);
SAME_VALUE(kPowerHigh, WGPUPowerPreference_HighPerformance);
SAME_VALUE(kBackendVulkan, WGPUBackendType_Vulkan);
SAME_VALUE(kBackendMetal, WGPUBackendType_Metal);
SAME_VALUE(kBackendD3D12, WGPUBackendType_D3D12);
SAME_VALUE(kAdapterDiscrete, WGPUAdapterType_DiscreteGPU);
SAME_VALUE(kAdapterIntegrated, WGPUAdapterType_IntegratedGPU);
SAME_VALUE(kAdapterCpu, WGPUAdapterType_CPU);
SAME_VALUE(kBindingUniform, WGPUBufferBindingType_Uniform);
SAME_VALUE(kBindingStorage, WGPUBufferBindingType_Storage);
SAME_VALUE(kBindingReadOnlyStorage, WGPUBufferBindingType_ReadOnlyStorage);
SAME_VALUE(kTypeShaderSourceWgsl, WGPUSType_ShaderSourceWGSL);
SAME_VALUE(kUsageMapRead, WGPUBufferUsage_MapRead);
SAME_VALUE(kUsageMapWrite, WGPUBufferUsage_MapWrite);
SAME_VALUE(kUsageCopySrc, WGPUBufferUsage_CopySrc);
SAME_VALUE(kUsageCopyDst, WGPUBufferUsage_CopyDst);
SAME_VALUE(kUsageUniform, WGPUBufferUsage_Uniform);
SAME_VALUE(kUsageStorage, WGPUBufferUsage_Storage);
SAME_VALUE(kMapRead, WGPUMapMode_Read);
SAME_VALUE(kMapWrite, WGPUMapMode_Write);
SAME_VALUE(kStageCompute, WGPUShaderStage_Compute);

namespace {

// Two calls are the same call when results and arguments agree in number, size and kind.
template <class Ours, class Theirs>
constexpr bool same_kind() {
  if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
    return std::is_void_v<Ours> && std::is_void_v<Theirs>;
  } else {
    return sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
           std::is_class_v<Ours> == std::is_class_v<Theirs>;
  }
}

template <class Ours, class Theirs>
struct SameCall : std::false_type {};
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B)) struct SameCall<R (*)(A...), S (*)(B...)>
    : std::bool_constant<(same_kind<R, S>() && ... && same_kind<A, B>())> {
};

template <class F>
constexpr bool same_calls(F) {
  using namespace mine;
#define SAME_CALL(name, result, arguments) \
  static_assert(SameCall<decltype(Calls::name), decltype(&wgpu##name)>::value, "wgpu" #name);
  BERTH_WEBGPU_CALLS(SAME_CALL)
  BERTH_WEBGPU_OPTIONAL_CALLS(SAME_CALL)
#undef SAME_CALL
  return true;
}

}  // namespace

TEST(WebgpuAbi, AgreesWithTheInstalledHeader) {
  EXPECT_TRUE(same_calls(0));
}

#else

TEST(WebgpuAbi, AgreesWithTheInstalledHeader) {
  GTEST_SKIP() << "skipped: no webgpu.h was found when the tests were configured (pip install wgpu into build/venv)";
}

#endif
