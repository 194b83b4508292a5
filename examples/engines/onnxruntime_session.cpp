// Your own ONNX Runtime session with Berth as its memory. Usage: example_onnxruntime_session MODEL.onnx
// The model takes one float input "x" of shape rows x 64 and has an output "y".
#include <berth/engines/onnxruntime.h>

#if __has_include(<onnxruntime_c_api.h>)
#include <onnxruntime_c_api.h>
#else
#include "onnxruntime_c_api_subset.h"
#endif

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

const OrtApi* api = nullptr;

void check(OrtStatus* status) {
  if (status == nullptr) return;
  std::fprintf(stderr, "%s\n", api->GetErrorMessage(status));
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: example_onnxruntime_session MODEL.onnx\n"), 2;
  const auto found = berth::engines::find_onnxruntime();  // or link the engine and call OrtGetApiBase()
  if (!found) return std::fprintf(stderr, "%s\n", found.error().message().c_str()), 77;
  api = *found;

  OrtEnv* env = nullptr;
  OrtSessionOptions* options = nullptr;
  OrtSession* session = nullptr;
  OrtMemoryInfo* cpu = nullptr;
  check(api->CreateEnv(static_cast<OrtLoggingLevel>(3), "example", &env));
  check(api->CreateSessionOptions(&options));

  // These two lines, and the one before Run() below, are all there is to it.
  auto memory = berth::engines::OnnxRuntimeMemory::attach(api, env).value();
  memory->prepare(options).value();

  check(api->CreateSession(env, argv[1], options, &session));
  check(api->CreateCpuMemoryInfo(static_cast<OrtAllocatorType>(0), static_cast<OrtMemType>(0), &cpu));
  const int64_t shape[] = {128, 64};
  std::vector<float> data(128 * 64, 0.25f);
  OrtValue* input = nullptr;
  check(api->CreateTensorWithDataAsOrtValue(cpu, data.data(), data.size() * sizeof(float), shape, 2,
                                            static_cast<ONNXTensorElementDataType>(1), &input));
  const char* input_names[] = {"x"};
  const char* output_names[] = {"y"};
  float first = 0;
  bool same = true;
  for (int i = 0; i < 5; ++i) {
    OrtValue* output = nullptr;
    auto run = memory->run("128 rows");  // the first is recorded, all others come from the planned arena
    check(api->Run(session, nullptr, input_names, &input, 1, output_names, 1, &output));
    void* values = nullptr;
    check(api->GetTensorMutableData(output, &values));
    if (i == 0) first = *static_cast<float*>(values);
    same = same && first == *static_cast<float*>(values);
    api->ReleaseValue(output);
  }
  const berth::ReplayCounters counters = memory->replay().counters();
  std::printf("arena %llu bytes, %llu requests served from it, %llu not; outputs %s\n",
              static_cast<unsigned long long>(counters.arena_bytes), static_cast<unsigned long long>(counters.planned),
              static_cast<unsigned long long>(counters.deviated), same ? "identical" : "DIFFERENT");

  api->ReleaseValue(input);
  api->ReleaseMemoryInfo(cpu);
  api->ReleaseSessionOptions(options);
  api->ReleaseSession(session);
  memory.reset();
  api->ReleaseEnv(env);
  return same && counters.planned > 0 && counters.deviated == 0 ? 0 : 1;
}
