// What the adapters of this folder share: memory for an engine that has an allocator hook and computes on the CPU. It
// is a Replay with the settings that suit such engines. To adapt one, pass each request to allocate(), each release to
// release(), and make a Run around each run of the engine:
//
//     auto memory = berth::engines::EngineMemory::create().value();
//     void* my_alloc(size_t bytes) { return memory.allocate(bytes); }    // the two functions of the engine's hook
//     void my_free(void* block) { memory.release(block); }
//     auto run = memory.run("detector", {{1, 3, 640, 480}});             // the model, and the shapes of its inputs
//     engine.run(...);
//
// Any thread may call any function; runs may overlap, and each has an arena of its own. It must outlive all memory that
// it returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "berth/base/result.h"
#include "berth/memory/allocator.h"
#include "berth/run/replay.h"

namespace berth::engines {

struct EngineMemoryOptions {
  // Unless `replay.planning` sets a limit, planning takes at most about 30 ms: it happens between two runs. Runs that
  // would be more than the processors wait, since they compute on these.
  ReplayOptions replay = {.max_arenas = ReplayOptions::kOnePerProcessor};
  // The allocators for the arenas and for everything else. Null: the CPU device, with arenas faulted in at once. The
  // engine computes in this memory, so it must have a host pointer.
  AllocatorPtr arena_memory = nullptr;
  AllocatorPtr pool = nullptr;
  // Kernels may read this many bytes past the end of any request, and ignore them.
  std::uint64_t read_past_end = 64;
};

// One run of an engine, from its construction to its destruction or end(). It belongs to the thread that made it, on
// which the engine must run and on which it must end. If it could not begin normally (no memory for the arena),
// `status` holds the error and the run is served by the pool.
class [[nodiscard]] EngineRun {
 public:
  EngineRun(Replay& replay, std::string_view key, Replay::Dimensions dimensions = {})
      : replay_(&replay), status(replay.begin_run(key, dimensions)) {}
  ~EngineRun() {
    if (replay_ != nullptr) replay_->end_run();
  }
  EngineRun(const EngineRun&) = delete;
  EngineRun& operator=(const EngineRun&) = delete;
  // Ends the run now and returns its result. `failed`: the engine gave an error, so nothing is learned from the run.
  ReplayRun end(bool failed = false) noexcept {
    Replay* replay = replay_;
    replay_ = nullptr;
    return replay != nullptr ? replay->end_run(failed) : ReplayRun{};
  }

 private:
  Replay* replay_;

 public:
  Result<void> status;
};

class EngineMemory {
 public:
  using Run = EngineRun;

  // The error of the CPU device if it is needed and cannot be opened.
  static Result<EngineMemory> create(EngineMemoryOptions options = {});

  // At least `bytes` bytes, aligned to 64 unless they are fewer. Null for zero bytes or without memory.
  void* allocate(std::size_t bytes) noexcept { return replay_->allocate(bytes); }
  // Releases memory that allocate() returned; null is ignored. Any other pointer stops the program with a message.
  void release(void* memory) noexcept { replay_->release(memory); }

  // A run with this key: the model, and which outputs are wanted. With the extents of the inputs as dimensions, shapes
  // that were not recorded are planned too.
  Run run(std::string_view key, Replay::Dimensions dimensions = {}) { return Run(*replay_, key, dimensions); }

  // The recorder, the plans and their counters. It stays where it is when this object is moved.
  Replay& replay() noexcept { return *replay_; }

 private:
  explicit EngineMemory(std::unique_ptr<Replay> replay) : replay_(std::move(replay)) {}
  std::unique_ptr<Replay> replay_;
};

}  // namespace berth::engines
