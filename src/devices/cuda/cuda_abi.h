// The part of the CUDA driver's binary interface that Berth calls, in our own words: handle types, the few
// structures, the codes, and one list of functions. No CUDA toolkit is needed to build. Where cuda.h is
// present, tests/unit/cuda_abi_test.cpp compares every size, offset, value and signature here with it.
// Nothing here is installed or has state; any thread may use it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace berth::internal::cuda {

// Handles are opaque. Distinct incomplete types keep a stream from being passed as an event.
using Address = unsigned long long;
using Ordinal = int;
using MemoryHandle = unsigned long long;
struct ContextTag;
struct StreamTag;
struct EventTag;
struct ModuleTag;
struct FunctionTag;
struct MemoryPoolTag;
struct GraphTag;
struct GraphExecTag;
using Context = ContextTag*;
using Stream = StreamTag*;
using Event = EventTag*;
using Module = ModuleTag*;
using Function = FunctionTag*;
using MemoryPool = MemoryPoolTag*;
using Graph = GraphTag*;
using GraphExec = GraphExecTag*;

enum Status : unsigned {
  kSuccess = 0,
  kErrorInvalidValue = 1,
  kErrorOutOfMemory = 2,
  kErrorNotInitialized = 3,
  kErrorDeinitialized = 4,
  kErrorStubLibrary = 34,
  kErrorDeviceUnavailable = 46,
  kErrorNoDevice = 100,
  kErrorInvalidDevice = 101,
  kErrorInvalidImage = 200,
  kErrorInvalidContext = 201,
  kErrorEccUncorrectable = 214,
  kErrorInvalidPtx = 218,
  kErrorNvlinkUncorrectable = 220,
  kErrorInvalidHandle = 400,
  kErrorIllegalState = 401,
  kErrorNotFound = 500,
  kErrorNotReady = 600,
  kErrorIllegalAddress = 700,
  kErrorLaunchTimeout = 702,
  kErrorContextIsDestroyed = 709,
  kErrorAssert = 710,
  kErrorHardwareStack = 714,
  kErrorIllegalInstruction = 715,
  kErrorMisalignedAddress = 716,
  kErrorInvalidAddressSpace = 717,
  kErrorInvalidPc = 718,
  kErrorLaunchFailed = 719,
  kErrorNotPermitted = 800,
  kErrorNotSupported = 801,
  kErrorCaptureUnsupported = 900,
  kErrorCaptureInvalidated = 901,
  kErrorCaptureMerge = 902,
  kErrorCaptureUnmatched = 903,
  kErrorCaptureUnjoined = 904,
  kErrorCaptureIsolation = 905,
  kErrorCapturedEvent = 907,
  kErrorCaptureWrongThread = 908,
  kErrorUnknown = 999,
};

enum Attribute : int {
  kAttributeMaxThreadsPerBlock = 1,
  kAttributeMaxBlockX = 2,
  kAttributeMaxGridX = 5,
  kAttributeMultiprocessors = 16,
  kAttributeIntegrated = 18,
  kAttributeUnifiedAddressing = 41,
  kAttributeCapabilityMajor = 75,
  kAttributeCapabilityMinor = 76,
  kAttributeManagedMemory = 83,
  kAttributeConcurrentManagedAccess = 89,
  kAttributeVirtualMemory = 102,
  kAttributeMemoryPools = 115,
};

enum PointerAttribute : int {
  kPointerMemoryType = 2,
  kPointerIsManaged = 8,
  kPointerDeviceOrdinal = 9,
};

enum MemoryType : unsigned { kMemoryHost = 1, kMemoryDevice = 2, kMemoryUnified = 4 };
enum LocationType : unsigned { kLocationInvalid = 0, kLocationDevice = 1, kLocationHost = 2 };
enum AllocationType : unsigned { kAllocationPinned = 1 };
enum HandleType : unsigned { kHandleNone = 0, kHandleDescriptor = 1 };
enum AccessFlags : unsigned { kAccessNone = 0, kAccessRead = 1, kAccessReadWrite = 3 };
enum Granularity : unsigned { kGranularityMinimum = 0, kGranularityRecommended = 1 };
enum PoolAttribute : unsigned { kPoolReleaseThreshold = 4, kPoolReservedNow = 5, kPoolUsedNow = 7 };
enum Advice : unsigned { kAdviseReadMostly = 1, kAdvisePreferredLocation = 3, kUnadvisePreferredLocation = 4 };
enum CaptureMode : unsigned { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };
enum ProcAddressResult : unsigned { kProcFound = 0, kProcNotFound = 1, kProcVersionNotSufficient = 2 };

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr unsigned kAttachGlobal = 1;
inline constexpr std::uint64_t kProcAddressLegacyStream = 1;

struct Uuid {
  char bytes[16];
};

struct Location {
  LocationType type;
  int id;
};

struct AllocationProperties {
  AllocationType type;
  HandleType requested_handle_types;
  Location location;
  void* win32_metadata;
  struct {
    unsigned char compression_type;
    unsigned char rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};

struct AccessDescription {
  Location location;
  AccessFlags flags;
};

struct PoolProperties {
  AllocationType type;
  HandleType handle_types;
  Location location;
  void* win32_attributes;
  std::size_t max_size;
  unsigned short usage;
  unsigned char reserved[54];
};

struct Copy2d {
  std::size_t source_x_bytes;
  std::size_t source_y;
  MemoryType source_type;
  const void* source_host;
  Address source_device;
  void* source_array;
  std::size_t source_pitch;
  std::size_t target_x_bytes;
  std::size_t target_y;
  MemoryType target_type;
  void* target_host;
  Address target_device;
  void* target_array;
  std::size_t target_pitch;
  std::size_t width_bytes;
  std::size_t height;
};

}  // namespace berth::internal::cuda

// Every function Berth calls: X(name, symbol, version, need, parameters). `name` is what cuGetProcAddress is
// asked for, `symbol` the exported name of the same function, `version` the CUDA version that introduced this
// signature: cuGetProcAddress gives a function's newest form not younger than the version asked for, so the
// version picks the signature (cuCtxSynchronize takes a context from 13000 on, and none before). A driver
// without a kNeeded function is too old; without a kOptional one, a feature is off.
#define BERTH_CUDA_FUNCTIONS(X)                                                                                      \
  X(cuInit, cuInit, 2000, kNeeded, (unsigned flags))                                                                 \
  X(cuDriverGetVersion, cuDriverGetVersion, 2020, kNeeded, (int* version))                                           \
  X(cuGetErrorName, cuGetErrorName, 6000, kNeeded, (Status status, const char** text))                               \
  X(cuGetErrorString, cuGetErrorString, 6000, kNeeded, (Status status, const char** text))                           \
  X(cuDeviceGetCount, cuDeviceGetCount, 2000, kNeeded, (int* count))                                                 \
  X(cuDeviceGet, cuDeviceGet, 2000, kNeeded, (Ordinal * device, int ordinal))                                        \
  X(cuDeviceGetName, cuDeviceGetName, 2000, kNeeded, (char* name, int length, Ordinal device))                       \
  X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, kNeeded, (std::size_t * bytes, Ordinal device))                     \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, kNeeded, (int* value, Attribute attribute, Ordinal device))    \
  X(cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040, kNeeded, (Uuid * uuid, Ordinal device))                              \
  X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, kNeeded, (int* can, Ordinal device, Ordinal peer))           \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, kNeeded, (Context * context, Ordinal device))          \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, kNeeded, (Ordinal device))                       \
  X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, kNeeded, (Context context))                                         \
  X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, kNeeded, (Context * context))                                         \
  X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, kNeeded, (Context * context))                                            \
  X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, kNeeded, (Context context))                                              \
  X(cuCtxSynchronize, cuCtxSynchronize, 2000, kNeeded, ())                                                           \
  X(cuMemGetInfo, cuMemGetInfo_v2, 3020, kNeeded, (std::size_t * free, std::size_t * total))                         \
  X(cuMemAlloc, cuMemAlloc_v2, 3020, kNeeded, (Address * pointer, std::size_t bytes))                                \
  X(cuMemFree, cuMemFree_v2, 3020, kNeeded, (Address pointer))                                                       \
  X(cuMemHostAlloc, cuMemHostAlloc, 2020, kNeeded, (void** pointer, std::size_t bytes, unsigned flags))              \
  X(cuMemFreeHost, cuMemFreeHost, 2000, kNeeded, (void* pointer))                                                    \
  X(cuMemAllocManaged, cuMemAllocManaged, 6000, kNeeded, (Address * pointer, std::size_t bytes, unsigned flags))     \
  X(cuMemAdvise, cuMemAdvise_v2, 12020, kOptional,                                                                   \
    (Address pointer, std::size_t bytes, Advice advice, Location location))                                          \
  X(cuMemPrefetchAsync, cuMemPrefetchAsync_v2, 12020, kOptional,                                                     \
    (Address pointer, std::size_t bytes, Location location, unsigned flags, Stream stream))                          \
  X(cuMemPoolCreate, cuMemPoolCreate, 11020, kNeeded, (MemoryPool * pool, const PoolProperties* properties))         \
  X(cuMemPoolDestroy, cuMemPoolDestroy, 11020, kNeeded, (MemoryPool pool))                                           \
  X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, kNeeded,                                                    \
    (MemoryPool pool, PoolAttribute attribute, void* value))                                                         \
  X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, kNeeded, (MemoryPool pool, std::size_t bytes_to_keep))                  \
  X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, kNeeded,                                                \
    (Address * pointer, std::size_t bytes, MemoryPool pool, Stream stream))                                          \
  X(cuMemFreeAsync, cuMemFreeAsync, 11020, kNeeded, (Address pointer, Stream stream))                                \
  X(cuMemAddressReserve, cuMemAddressReserve, 10020, kNeeded,                                                        \
    (Address * pointer, std::size_t bytes, std::size_t alignment, Address hint, unsigned long long flags))           \
  X(cuMemAddressFree, cuMemAddressFree, 10020, kNeeded, (Address pointer, std::size_t bytes))                        \
  X(cuMemCreate, cuMemCreate, 10020, kNeeded,                                                                        \
    (MemoryHandle * handle, std::size_t bytes, const AllocationProperties* properties, unsigned long long flags))    \
  X(cuMemRelease, cuMemRelease, 10020, kNeeded, (MemoryHandle handle))                                               \
  X(cuMemMap, cuMemMap, 10020, kNeeded,                                                                              \
    (Address pointer, std::size_t bytes, std::size_t offset, MemoryHandle handle, unsigned long long flags))         \
  X(cuMemUnmap, cuMemUnmap, 10020, kNeeded, (Address pointer, std::size_t bytes))                                    \
  X(cuMemSetAccess, cuMemSetAccess, 10020, kNeeded,                                                                  \
    (Address pointer, std::size_t bytes, const AccessDescription* access, std::size_t count))                        \
  X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, kNeeded,                                      \
    (void* shareable, MemoryHandle handle, HandleType type, unsigned long long flags))                               \
  X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, kNeeded,                                  \
    (MemoryHandle * handle, void* shareable, HandleType type))                                                       \
  X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, kNeeded,                                    \
    (std::size_t * bytes, const AllocationProperties* properties, Granularity which))                                \
  X(cuPointerGetAttribute, cuPointerGetAttribute, 4000, kNeeded,                                                     \
    (void* value, PointerAttribute attribute, Address pointer))                                                      \
  X(cuStreamCreate, cuStreamCreate, 2000, kNeeded, (Stream * stream, unsigned flags))                                \
  X(cuStreamDestroy, cuStreamDestroy_v2, 4000, kNeeded, (Stream stream))                                             \
  X(cuStreamSynchronize, cuStreamSynchronize, 2000, kNeeded, (Stream stream))                                        \
  X(cuStreamQuery, cuStreamQuery, 2000, kNeeded, (Stream stream))                                                    \
  X(cuStreamWaitEvent, cuStreamWaitEvent, 3020, kNeeded, (Stream stream, Event event, unsigned flags))               \
  X(cuEventCreate, cuEventCreate, 2000, kNeeded, (Event * event, unsigned flags))                                    \
  X(cuEventDestroy, cuEventDestroy_v2, 4000, kNeeded, (Event event))                                                 \
  X(cuEventRecord, cuEventRecord, 2000, kNeeded, (Event event, Stream stream))                                       \
  X(cuEventSynchronize, cuEventSynchronize, 2000, kNeeded, (Event event))                                            \
  X(cuEventQuery, cuEventQuery, 2000, kNeeded, (Event event))                                                        \
  X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020, kNeeded,                                                          \
    (Address target, const void* source, std::size_t bytes, Stream stream))                                          \
  X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020, kNeeded,                                                          \
    (void* target, Address source, std::size_t bytes, Stream stream))                                                \
  X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020, kNeeded,                                                          \
    (Address target, Address source, std::size_t bytes, Stream stream))                                              \
  X(cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000, kNeeded,                                                             \
    (Address target, Context target_context, Address source, Context source_context, std::size_t bytes,              \
     Stream stream))                                                                                                 \
  X(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, 3020, kNeeded, (const Copy2d* copy, Stream stream))                         \
  X(cuMemsetD8Async, cuMemsetD8Async, 3020, kNeeded,                                                                 \
    (Address target, unsigned char value, std::size_t count, Stream stream))                                         \
  X(cuMemsetD32Async, cuMemsetD32Async, 3020, kNeeded,                                                               \
    (Address target, unsigned value, std::size_t count, Stream stream))                                              \
  X(cuModuleLoadData, cuModuleLoadData, 2000, kNeeded, (Module * module, const void* image))                         \
  X(cuModuleUnload, cuModuleUnload, 2000, kNeeded, (Module module))                                                  \
  X(cuModuleGetFunction, cuModuleGetFunction, 2000, kNeeded, (Function * function, Module module, const char* name)) \
  X(cuFuncGetParamInfo, cuFuncGetParamInfo, 12040, kOptional,                                                        \
    (Function function, std::size_t index, std::size_t * offset, std::size_t * bytes))                               \
  X(cuLaunchKernel, cuLaunchKernel, 4000, kNeeded,                                                                   \
    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,       \
     unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters, void** extra))                       \
  X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, kNeeded, (Stream stream, CaptureMode mode))                \
  X(cuStreamEndCapture, cuStreamEndCapture, 10000, kNeeded, (Stream stream, Graph * graph))                          \
  X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, kNeeded, (CaptureMode * mode))      \
  X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, kNeeded,                                        \
    (GraphExec * exec, Graph graph, unsigned long long flags))                                                       \
  X(cuGraphDestroy, cuGraphDestroy, 10000, kNeeded, (Graph graph))                                                   \
  X(cuGraphExecDestroy, cuGraphExecDestroy, 10000, kNeeded, (GraphExec exec))                                        \
  X(cuGraphLaunch, cuGraphLaunch, 10000, kNeeded, (GraphExec exec, Stream stream))
