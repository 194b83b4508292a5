// Berth as the memory of ONNX Runtime, for sessions that your program creates. Attach it to your environment, prepare
// the options of each session, and name each run:
//
//     auto memory = berth::engines::OnnxRuntimeMemory::attach(api, env).value();
//     memory->prepare(session_options).value();
//     api->CreateSession(env, "model.onnx", session_options, &session);
//     auto run = memory->run("detector", {{1, 3, 640, 480}});   // the model, and the shapes of its inputs
//     api->Run(session, ...);
//
// The first runs of a key are recorded; later runs are served from planned arenas, with bit-identical outputs, also for
// shapes that were not recorded. Threads may run at the same time; each run has an arena of its own. Sessions of one
// environment share the arenas. The engine allocates on the thread that calls Run() unless a session executes nodes in
// parallel; requests of other threads are served as Replay says. Destroy in this order: values, sessions, the memory,
// the environment.
//
// This header needs no header of the engine. It supports the CPU memory of ONNX Runtime 1.23 or newer; all prepared
// sessions of an attached environment take their CPU memory from Berth.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "berth/base/result.h"
#include "berth/engines/engine_memory.h"
#include "berth/run/replay.h"

struct OrtApi;
struct OrtEnv;
struct OrtAllocator;
struct OrtSessionOptions;

namespace berth::engines {

// The function table of ONNX Runtime, from a library that is found and opened at run time: the environment variable
// BERTH_ONNXRUNTIME (the library or its folder), the wheel in build/venv or the active Python environment, the system.
// kDeviceUnavailable if none is found or it is older than 1.23; the message contains the command that installs it. A
// program that links the engine does not need this.
Result<const OrtApi*> find_onnxruntime();

struct OnnxRuntimeOptions : EngineMemoryOptions {
  // Called before memory for weights is allocated during session creation: an opportunity to release file pages that
  // were already read.
  std::function<void()> before_weights = nullptr;
};

// What OnnxRuntimeMemory::Load did with the memory of one load.
struct SharedWeights {
  std::uint64_t bytes = 0;   // allocated while loading and kept: weights, and what kernels pack from them
  std::uint64_t shared = 0;  // of these, in pages that all processes share
  std::string problem;       // why not all of them are; empty if they are
};

class OnnxRuntimeMemory {
 public:
  // Registers Berth's allocator with `env`. kAlreadyExists if it has one. kDriver with the message of the engine if it
  // refuses.
  static Result<std::unique_ptr<OnnxRuntimeMemory>> attach(const OrtApi* api, OrtEnv* env,
                                                           OnnxRuntimeOptions options = {});
  // Unregisters the allocator. Requires: all sessions that use it are released.
  ~OnnxRuntimeMemory();
  OnnxRuntimeMemory(const OnnxRuntimeMemory&) = delete;
  OnnxRuntimeMemory& operator=(const OnnxRuntimeMemory&) = delete;

  // Makes sessions that are created with these options allocate here, one request per tensor.
  Result<void> prepare(OrtSessionOptions* session_options) const;

  using Run = EngineRun;
  // It belongs to the calling thread, on which the engine's Run() must be called and on which it must end.
  Run run(std::string_view key, Replay::Dimensions dimensions = {}) { return Run(replay(), key, dimensions); }

  // Sessions that the calling thread creates from the construction of this object to end(). What they allocate and keep
  // is then shared with all processes that load the same: each block of at least 16 KiB is written to a file in
  // `folder`, named after its content, or compared with the file that is there, and its pages are replaced by those of
  // the file. Outputs cannot change: what differs is not replaced. The files may be deleted at any time by a program
  // that finds them unused; they must not be written to. One load per thread at a time.
  class [[nodiscard]] Load {
   public:
    Load(OnnxRuntimeMemory& memory, std::string folder);
    ~Load();
    Load(const Load&) = delete;
    Load& operator=(const Load&) = delete;
    // Ends the load, shares, and returns free memory of the heap to the system. A failure is in `problem`; the memory
    // is then as the engine left it. Requires: the sessions are not used before it returns.
    SharedWeights end();

   private:
    OnnxRuntimeMemory& memory_;
    std::string folder_;
    std::uint64_t number_;
    std::uint64_t before_;  // the number of the load around this one, or 0
    bool ended_ = false;
  };

  // Releases the pages of the engine's code that this process has mapped. Starting the engine and loading a model touch
  // about 15 MiB of code that a run does not need; call this after the sessions are created. The next run takes one
  // page fault per 64 KiB of code that it does need. Does nothing on systems without support.
  void forget_loading() const noexcept;

  // The recorder, the plans and their counters.
  Replay& replay() noexcept;
  // Bytes allocated for weights, over all sessions so far.
  std::uint64_t weight_bytes() const noexcept;

  // The allocator itself, for calls that take one. Valid as long as this object.
  OrtAllocator* allocator() noexcept;

 private:
  OnnxRuntimeMemory();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace berth::engines
