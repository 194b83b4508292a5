// What PyTorch needs of CUDA to run without a GPU: memory that is only addresses, kernels that do nothing, and work
// that is done at once. Its allocator, its record of events and its snapshots are the real ones; values of tensors mean
// nothing. Everything that is not here returns 0 (no_gpu.py makes those).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { kSuccess = 0, kOutOfMemory = 2, kNotReady = 600 };

static const size_t kMiB = (size_t)1 << 20;

static size_t capacity(void) {
  const char* text = getenv("NO_GPU_MIB");
  return (text != NULL ? strtoull(text, NULL, 10) : 24 * 1024) * kMiB;
}

// --- Memory. A driver's addresses follow no order, so these do not either: a slot of 2^36 bytes for each piece. ---
enum { kSlots = 1 << 10 };
static size_t slots[kSlots];  // bytes taken, 0: free
static size_t taken;
static uint32_t state = 12345;

static const uintptr_t kBase = (uintptr_t)0x100000000000;

static uintptr_t place(size_t bytes) {
  for (int tries = 0; tries < 100 * kSlots; ++tries) {
    state = state * 1664525 + 1013904223;
    const uint32_t slot = state >> 22;
    if (slots[slot] != 0) continue;
    slots[slot] = bytes;
    return kBase + ((uintptr_t)slot << 36);
  }
  return 0;
}

static size_t displace(uintptr_t address) {
  const size_t slot = (address - kBase) >> 36, bytes = slots[slot];
  slots[slot] = 0;
  return bytes;
}

int cudaMalloc(void** result, size_t bytes) {
  if (bytes > capacity() - taken) return kOutOfMemory;
  *result = (void*)place(bytes);
  taken += bytes;
  return *result != NULL ? kSuccess : kOutOfMemory;
}
int cudaFree(void* address) {
  if (address != NULL) taken -= displace((uintptr_t)address);
  return kSuccess;
}
int cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *total = capacity();
  *free_bytes = *total - taken;
  return kSuccess;
}
int cudaHostAlloc(void** result, size_t bytes, unsigned flags) {
  (void)flags;
  *result = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *result != NULL ? kSuccess : kOutOfMemory;
}
int cudaFreeHost(void* address) {
  free(address);
  return kSuccess;
}
// Reads of the device give zeros.
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind) {
  (void)from;
  if (kind == 2) memset(to, 0, bytes);
  return kSuccess;
}
int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  return cudaMemcpyAsync(to, from, bytes, kind);
}

// --- Addresses without memory, and memory without addresses, for expandable segments. ---
int cuMemAddressReserve(uint64_t* result, size_t bytes, size_t alignment, uint64_t wanted, uint64_t flags) {
  (void)alignment, (void)wanted, (void)flags;
  *result = place(bytes);
  return *result != 0 ? kSuccess : kOutOfMemory;
}
int cuMemAddressFree(uint64_t address, size_t bytes) {
  (void)bytes;
  displace(address);
  return kSuccess;
}
int cuMemCreate(uint64_t* handle, size_t bytes, const void* properties, uint64_t flags) {
  (void)properties, (void)flags;
  if (bytes > capacity() - taken) return kOutOfMemory;
  taken += bytes;
  *handle = bytes;
  return kSuccess;
}
int cuMemRelease(uint64_t handle) {
  taken -= handle;
  return kSuccess;
}
int cuMemGetAllocationGranularity(size_t* result, const void* properties, int option) {
  (void)properties, (void)option;
  *result = 2 * kMiB;
  return kSuccess;
}

// --- The device. ---
int cudaGetDeviceCount(int* count) {
  *count = 1;
  return kSuccess;
}
int cudaGetDevice(int* device) {
  *device = 0;
  return kSuccess;
}
int cudaDriverGetVersion(int* version) {
  *version = CUDA_MAJOR * 1000 + 90;
  return kSuccess;
}
int cudaRuntimeGetVersion(int* version) {
  *version = CUDA_MAJOR * 1000;
  return kSuccess;
}
// cudaDeviceProp has another layout since CUDA 13.
int cudaGetDeviceProperties(void* result) {
  char* bytes = result;
  const int is_13 = CUDA_MAJOR >= 13;
  const struct {
    size_t at;
    int value;
  } numbers[] = {{304, 65536},  // registers of a block
                 {308, 32},     // threads of a warp
                 {320, 1024},   // threads of a block
                 {324, 1024},   // by dimension
                 {328, 1024},
                 {332, 64},
                 {336, 2147483647},  // blocks of a grid, by dimension
                 {340, 65535},
                 {344, 65535},
                 {360, 8},  // compute capability
                 {364, 0},
                 {is_13 ? 384 : 388, 16},     // multiprocessors
                 {is_13 ? 604 : 624, 2048}};  // threads of one
  memset(bytes, 0, is_13 ? 1008 : 1032);
  strcpy(bytes, "no GPU");
  const size_t total = capacity(), shared = 49152;
  memcpy(bytes + 288, &total, sizeof(total));
  memcpy(bytes + 296, &shared, sizeof(shared));
  memcpy(bytes + (is_13 ? 624 : 640), &shared, sizeof(shared));
  for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); ++i)
    memcpy(bytes + numbers[i].at, &numbers[i].value, sizeof(int));
  return kSuccess;
}
int cudaGetDeviceProperties_v2(void* result) {
  return cudaGetDeviceProperties(result);
}
int cudaDeviceGetAttribute(int* value) {
  *value = 0;
  return kSuccess;
}
int cuDeviceGetAttribute(int* value) {
  return cudaDeviceGetAttribute(value);
}
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kSuccess;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks) {
  *blocks = 1;
  return kSuccess;
}
int cudaPointerGetAttributes(void* result) {
  memset(result, 0, 24);
  return kSuccess;
}
const char* cudaGetErrorString(int code) {
  return code == kOutOfMemory ? "out of memory" : "an error";
}
const char* cudaGetErrorName(int code) {
  return cudaGetErrorString(code);
}
int cuGetErrorString(int code, const char** text) {
  *text = cudaGetErrorString(code);
  return kSuccess;
}

// --- Order. An event is over when it is asked for the third time, so that frees of other streams' memory wait. ---
static int make(void** result) {
  *result = calloc(1, 64);
  return *result != NULL ? kSuccess : kOutOfMemory;
}
int cudaStreamCreateWithPriority(void** stream) {
  return make(stream);
}
int cudaStreamCreate(void** stream) {
  return make(stream);
}
int cudaEventCreateWithFlags(void** event) {
  return make(event);
}
int cudaEventCreate(void** event) {
  return make(event);
}
int cudaEventRecord(int* event) {
  *event = 0;
  return kSuccess;
}
int cudaEventQuery(int* event) {
  return ++*event < 3 ? kNotReady : kSuccess;
}
int cudaEventSynchronize(int* event) {
  *event = 3;
  return kSuccess;
}
int cudaStreamIsCapturing(void* stream, int* status) {
  (void)stream;
  *status = 0;
  return kSuccess;
}
int cudaStreamGetCaptureInfo_v2(void* stream, int* status) {
  return cudaStreamIsCapturing(stream, status);
}
int cudaStreamGetCaptureInfo(void* stream, int* status) {
  return cudaStreamIsCapturing(stream, status);
}
int cudaStreamGetCaptureInfo_v3(void* stream, int* status) {
  return cudaStreamIsCapturing(stream, status);
}

// --- Libraries. ---
int cublasCreate_v2(void** handle) {
  return make(handle);
}
int cublasLtCreate(void** handle) {
  return make(handle);
}
int cudnnCreate(void** handle) {
  return make(handle);
}
int cublasLtMatmulAlgoGetHeuristic(void* a, void* b, void* c, void* d, void* e, void* f, void* g, int wanted,
                                   void* results, int* count) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)wanted, (void)results;
  *count = 1;
  return kSuccess;
}
size_t cudnnGetVersion(void) {
  return 90100;
}

int cudaGetDriverEntryPoint(const char* name, void** result, unsigned long long flags, int* found) {
  (void)flags;
  *result = dlsym(RTLD_DEFAULT, name);
  if (found != NULL) *found = *result != NULL ? 0 : 1;
  return kSuccess;
}
int cudaGetDriverEntryPointByVersion(const char* name, void** result, unsigned version, unsigned long long flags,
                                     int* found) {
  (void)version;
  return cudaGetDriverEntryPoint(name, result, flags, found);
}
