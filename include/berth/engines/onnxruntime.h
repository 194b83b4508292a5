// Berth as the memory of ONNX Runtime, for a session of your own. Attach it to your environment, prepare the options
// of each session, and name each run:
//
//     auto memory = berth::engines::OnnxRuntimeMemory::attach(api, env).value();
//     memory->prepare(session_options).value();
//     api->CreateSession(env, "model.onnx", session_options, &session);
//     auto run = memory->run("640x480");   // equal keys: the same requests are expected
//     api->Run(session, ...);
//
// The first run of a key is recorded; every later one is served from one planned arena, with the same bits out.
// Sessions of one environment share the arena, which is as large as the largest plan. The engine may call from any of
// its threads. Destroy in this order: values, sessions, the memory, the environment.
//
// This header needs none of the engine's: its types are only named. It is for the CPU memory of ONNX Runtime 1.23 or
// newer; an attached environment takes all its sessions' CPU memory from Berth if they were prepared.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "berth/base/result.h"
#include "berth/memory/allocator.h"
#include "berth/run/replay.h"

struct OrtApi;
struct OrtEnv;
struct OrtAllocator;
struct OrtSessionOptions;

namespace berth::engines {

// ONNX Runtime's table of functions, from a library that is found and opened at run time: the environment variable
// BERTH_ONNXRUNTIME (the library or its folder), the wheel in build/venv or the active Python environment, the system.
// kDeviceUnavailable: nowhere, or older than 1.23; the sentence has the command that installs it. A program that links
// the engine does not need this.
Result<const OrtApi*> find_onnxruntime();

struct OnnxRuntimeOptions {
  // Without a limit in `replay.planning`, a plan takes at most about 30 ms.
  ReplayOptions replay = {};
  // Where the arena and everything else come from. DryRun: the CPU device, the arena faulted in at once. The engine
  // computes in this memory, so it must have a host pointer.
  AllocatorPtr arena_memory = nullptr;
  AllocatorPtr pool = nullptr;
  // Called before memory for weights is taken, while a session is made: a moment to give back file pages that were
  // read already.
  std::function<void()> before_weights = nullptr;
};

class OnnxRuntimeMemory {
 public:
  // Gives `env` Berth's allocator. kAlreadyExists: it has one. Driver: the engine refused, in its own words.
  static Result<std::unique_ptr<OnnxRuntimeMemory>> attach(const OrtApi* api, OrtEnv* env,
                                                           OnnxRuntimeOptions options = {});
  // Takes it away again. Requires: all sessions that use it are released.
  ~OnnxRuntimeMemory();
  OnnxRuntimeMemory(const OnnxRuntimeMemory&) = delete;
  OnnxRuntimeMemory& operator=(const OnnxRuntimeMemory&) = delete;

  // Makes a session that is created with these options take its memory from here, each tensor by itself.
  Result<void> prepare(OrtSessionOptions* session_options) const;

  // From here to the end of the returned value's life is one run. What went wrong in beginning it (no memory for the
  // arena) is in `status`; the run is then served by the pool.
  class [[nodiscard]] Run {
   public:
    Run(Replay& replay, std::string_view key) : replay_(&replay), status(replay.begin_run(key)) {}
    ~Run() {
      if (replay_ != nullptr) replay_->end_run();
    }
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;
    // Ends the run now and says what it did.
    ReplayRun end() noexcept {
      Replay* replay = replay_;
      replay_ = nullptr;
      return replay != nullptr ? replay->end_run() : ReplayRun{};
    }

   private:
    Replay* replay_;

   public:
    Result<void> status;
  };
  Run run(std::string_view key) { return Run(replay(), key); }

  // Gives back the pages of the engine's code that this process has mapped. Starting the engine and loading a model
  // touch some 15 MiB of it that a run does not need; a good moment is when the sessions are made. Costs the next run
  // a fault for each 64 KiB of code that it does need. Nothing happens where the system cannot do it.
  void forget_loading() const noexcept;

  // The recorder, plans and counters behind it.
  Replay& replay() noexcept;
  // Bytes that were taken for weights, over all sessions so far.
  std::uint64_t weight_bytes() const noexcept;

  // The allocator itself, for calls that take one. Lives as long as this.
  OrtAllocator* allocator() noexcept;

 private:
  OnnxRuntimeMemory();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace berth::engines
