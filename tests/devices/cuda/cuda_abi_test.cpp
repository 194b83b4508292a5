// Compares our own declarations of the CUDA driver's interface with the toolkit's headers, where these are present.
#include "devices/cuda/cuda_abi.h"

#include <gtest/gtest.h>

#ifdef BERTH_HAS_CUDA_H

#include <cuda.h>
#include <cudaTypedefs.h>

#include <tuple>
#include <type_traits>

namespace berth::internal::cuda {
namespace {

// Two parameters pass alike if they have one size and are both pointers or both not.
template <class Ours, class Theirs>
constexpr bool passes_alike() {
  return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
         std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> && std::is_class_v<Ours> == std::is_class_v<Theirs> &&
         std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;
}

template <class Ours, class Theirs>
struct Alike : std::false_type {};
template <class... Ours, class... Theirs>
struct Alike<Status (*)(Ours...), CUresult (*)(Theirs...)> {
  static constexpr bool compare() {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs))
      return false;
    else
      return (passes_alike<Ours, Theirs>() && ...);
  }
  static constexpr bool value = compare();
};

#define BERTH_COMPARE(name, symbol, version, need, parameters) \
  using name##_type = Status(*) parameters;                    \
  static_assert(Alike<name##_type, PFN_##name##_v##version>::value, #name " differs from cudaTypedefs.h");
BERTH_CUDA_FUNCTIONS(BERTH_COMPARE)
#undef BERTH_COMPARE

static_assert(sizeof(Status) == sizeof(CUresult) && sizeof(Address) == sizeof(CUdeviceptr));
static_assert(sizeof(Uuid) == sizeof(CUuuid));

static_assert(sizeof(Location) == sizeof(CUmemLocation));
static_assert(offsetof(Location, id) == offsetof(CUmemLocation, id));

static_assert(sizeof(AllocationProperties) == sizeof(CUmemAllocationProp));
static_assert(offsetof(AllocationProperties, requested_handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProperties, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(AllocationProperties, win32_metadata) == offsetof(CUmemAllocationProp, win32HandleMetaData));
static_assert(offsetof(AllocationProperties, flags) == offsetof(CUmemAllocationProp, allocFlags));

static_assert(sizeof(AccessDescription) == sizeof(CUmemAccessDesc));
static_assert(offsetof(AccessDescription, flags) == offsetof(CUmemAccessDesc, flags));

static_assert(sizeof(PoolProperties) == sizeof(CUmemPoolProps));
static_assert(offsetof(PoolProperties, location) == offsetof(CUmemPoolProps, location));
static_assert(offsetof(PoolProperties, win32_attributes) == offsetof(CUmemPoolProps, win32SecurityAttributes));
static_assert(offsetof(PoolProperties, max_size) == offsetof(CUmemPoolProps, maxSize));
static_assert(offsetof(PoolProperties, usage) == offsetof(CUmemPoolProps, usage));

static_assert(sizeof(Copy2d) == sizeof(CUDA_MEMCPY2D));
static_assert(offsetof(Copy2d, source_y) == offsetof(CUDA_MEMCPY2D, srcY));
static_assert(offsetof(Copy2d, source_type) == offsetof(CUDA_MEMCPY2D, srcMemoryType));
static_assert(offsetof(Copy2d, source_host) == offsetof(CUDA_MEMCPY2D, srcHost));
static_assert(offsetof(Copy2d, source_device) == offsetof(CUDA_MEMCPY2D, srcDevice));
static_assert(offsetof(Copy2d, source_pitch) == offsetof(CUDA_MEMCPY2D, srcPitch));
static_assert(offsetof(Copy2d, target_x_bytes) == offsetof(CUDA_MEMCPY2D, dstXInBytes));
static_assert(offsetof(Copy2d, target_type) == offsetof(CUDA_MEMCPY2D, dstMemoryType));
static_assert(offsetof(Copy2d, target_device) == offsetof(CUDA_MEMCPY2D, dstDevice));
static_assert(offsetof(Copy2d, target_pitch) == offsetof(CUDA_MEMCPY2D, dstPitch));
static_assert(offsetof(Copy2d, width_bytes) == offsetof(CUDA_MEMCPY2D, WidthInBytes));
static_assert(offsetof(Copy2d, height) == offsetof(CUDA_MEMCPY2D, Height));

#define BERTH_SAME(ours, theirs) static_assert(static_cast<long>(ours) == static_cast<long>(theirs), #theirs)
BERTH_SAME(kSuccess, CUDA_SUCCESS);
BERTH_SAME(kErrorInvalidValue, CUDA_ERROR_INVALID_VALUE);
BERTH_SAME(kErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
BERTH_SAME(kErrorNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
BERTH_SAME(kErrorDeinitialized, CUDA_ERROR_DEINITIALIZED);
BERTH_SAME(kErrorStubLibrary, CUDA_ERROR_STUB_LIBRARY);
BERTH_SAME(kErrorDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE);
BERTH_SAME(kErrorNoDevice, CUDA_ERROR_NO_DEVICE);
BERTH_SAME(kErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
BERTH_SAME(kErrorInvalidImage, CUDA_ERROR_INVALID_IMAGE);
BERTH_SAME(kErrorInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
BERTH_SAME(kErrorEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
BERTH_SAME(kErrorInvalidPtx, CUDA_ERROR_INVALID_PTX);
BERTH_SAME(kErrorNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE);
BERTH_SAME(kErrorInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
BERTH_SAME(kErrorNotFound, CUDA_ERROR_NOT_FOUND);
BERTH_SAME(kErrorNotReady, CUDA_ERROR_NOT_READY);
BERTH_SAME(kErrorIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
BERTH_SAME(kErrorLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
BERTH_SAME(kErrorContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
BERTH_SAME(kErrorAssert, CUDA_ERROR_ASSERT);
BERTH_SAME(kErrorHardwareStack, CUDA_ERROR_HARDWARE_STACK_ERROR);
BERTH_SAME(kErrorIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
BERTH_SAME(kErrorMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS);
BERTH_SAME(kErrorInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE);
BERTH_SAME(kErrorInvalidPc, CUDA_ERROR_INVALID_PC);
BERTH_SAME(kErrorLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
BERTH_SAME(kErrorNotPermitted, CUDA_ERROR_NOT_PERMITTED);
BERTH_SAME(kErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED);
BERTH_SAME(kErrorIllegalState, CUDA_ERROR_ILLEGAL_STATE);
BERTH_SAME(kErrorCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
BERTH_SAME(kErrorCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
BERTH_SAME(kErrorCaptureMerge, CUDA_ERROR_STREAM_CAPTURE_MERGE);
BERTH_SAME(kErrorCaptureUnmatched, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
BERTH_SAME(kErrorCaptureUnjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
BERTH_SAME(kErrorCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
BERTH_SAME(kErrorCapturedEvent, CUDA_ERROR_CAPTURED_EVENT);
BERTH_SAME(kErrorCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
BERTH_SAME(kCaptureGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL);
BERTH_SAME(kCaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
BERTH_SAME(kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
BERTH_SAME(kErrorUnknown, CUDA_ERROR_UNKNOWN);
BERTH_SAME(kAttributeMaxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
BERTH_SAME(kAttributeMaxBlockX, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
BERTH_SAME(kAttributeMaxGridX, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
BERTH_SAME(kAttributeMultiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
BERTH_SAME(kAttributeIntegrated, CU_DEVICE_ATTRIBUTE_INTEGRATED);
BERTH_SAME(kAttributeUnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
BERTH_SAME(kAttributeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
BERTH_SAME(kAttributeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
BERTH_SAME(kAttributeManagedMemory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
BERTH_SAME(kAttributeConcurrentManagedAccess, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
BERTH_SAME(kAttributeVirtualMemory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
BERTH_SAME(kAttributeMemoryPools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
BERTH_SAME(kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
BERTH_SAME(kPointerIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
BERTH_SAME(kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
BERTH_SAME(kMemoryHost, CU_MEMORYTYPE_HOST);
BERTH_SAME(kMemoryDevice, CU_MEMORYTYPE_DEVICE);
BERTH_SAME(kMemoryUnified, CU_MEMORYTYPE_UNIFIED);
BERTH_SAME(kLocationInvalid, CU_MEM_LOCATION_TYPE_INVALID);
BERTH_SAME(kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE);
BERTH_SAME(kLocationHost, CU_MEM_LOCATION_TYPE_HOST);
BERTH_SAME(kAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED);
BERTH_SAME(kHandleNone, CU_MEM_HANDLE_TYPE_NONE);
BERTH_SAME(kHandleDescriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
BERTH_SAME(kAccessNone, CU_MEM_ACCESS_FLAGS_PROT_NONE);
BERTH_SAME(kAccessRead, CU_MEM_ACCESS_FLAGS_PROT_READ);
BERTH_SAME(kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
BERTH_SAME(kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
BERTH_SAME(kGranularityRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
BERTH_SAME(kPoolReleaseThreshold, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
BERTH_SAME(kPoolReservedNow, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
BERTH_SAME(kPoolUsedNow, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
BERTH_SAME(kAdviseReadMostly, CU_MEM_ADVISE_SET_READ_MOSTLY);
BERTH_SAME(kAdvisePreferredLocation, CU_MEM_ADVISE_SET_PREFERRED_LOCATION);
BERTH_SAME(kUnadvisePreferredLocation, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION);
BERTH_SAME(kProcFound, CU_GET_PROC_ADDRESS_SUCCESS);
BERTH_SAME(kProcNotFound, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
BERTH_SAME(kProcVersionNotSufficient, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
BERTH_SAME(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
BERTH_SAME(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
BERTH_SAME(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
BERTH_SAME(kAttachGlobal, CU_MEM_ATTACH_GLOBAL);
BERTH_SAME(kProcAddressLegacyStream, CU_GET_PROC_ADDRESS_LEGACY_STREAM);

// Everything above is checked by the compiler; this says in the test list that it was.
TEST(CudaAbi, AgreesWithTheToolkitsHeaders) {
  EXPECT_GE(CUDA_VERSION, 12040) << "cuFuncGetParamInfo came with CUDA 12.4";
}

}  // namespace
}  // namespace berth::internal::cuda

#endif  // BERTH_HAS_CUDA_H
