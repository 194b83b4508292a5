/* For building the example where ONNX Runtime's SDK is not installed: the few of its declarations that the example
 * uses, at their positions in the engine's table. With the SDK, its own header is used instead. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct OrtStatus;
struct OrtEnv;
struct OrtSession;
struct OrtSessionOptions;
struct OrtRunOptions;
struct OrtValue;
struct OrtMemoryInfo;
enum OrtLoggingLevel : int;
enum OrtAllocatorType : int;
enum OrtMemType : int;
enum ONNXTensorElementDataType : int;

struct OrtApi {
  void (*unused_0[2])();
  const char* (*GetErrorMessage)(const OrtStatus*);
  OrtStatus* (*CreateEnv)(OrtLoggingLevel level, const char* name, OrtEnv** out);
  void (*unused_4[3])();
  OrtStatus* (*CreateSession)(const OrtEnv*, const char* path, const OrtSessionOptions*, OrtSession** out);
  void (*unused_8)();
  OrtStatus* (*Run)(OrtSession*, const OrtRunOptions*, const char* const* input_names, const OrtValue* const* inputs,
                    size_t input_count, const char* const* output_names, size_t output_count, OrtValue** outputs);
  OrtStatus* (*CreateSessionOptions)(OrtSessionOptions** out);
  void (*unused_11[38])();
  OrtStatus* (*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo*, void* data, size_t bytes, const int64_t* shape,
                                               size_t rank, ONNXTensorElementDataType type, OrtValue** out);
  void (*unused_50)();
  OrtStatus* (*GetTensorMutableData)(OrtValue*, void** out);
  void (*unused_52[17])();
  OrtStatus* (*CreateCpuMemoryInfo)(OrtAllocatorType allocator, OrtMemType memory, OrtMemoryInfo** out);
  void (*unused_70[22])();
  void (*ReleaseEnv)(OrtEnv*);
  void (*ReleaseStatus)(OrtStatus*);
  void (*ReleaseMemoryInfo)(OrtMemoryInfo*);
  void (*ReleaseSession)(OrtSession*);
  void (*ReleaseValue)(OrtValue*);
  void (*unused_97[3])();
  void (*ReleaseSessionOptions)(OrtSessionOptions*);
};
static_assert(offsetof(OrtApi, Run) == 9 * sizeof(void*) && offsetof(OrtApi, ReleaseEnv) == 92 * sizeof(void*) &&
              offsetof(OrtApi, CreateTensorWithDataAsOrtValue) == 49 * sizeof(void*) &&
              offsetof(OrtApi, ReleaseSessionOptions) == 100 * sizeof(void*));
