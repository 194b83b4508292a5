// Berth as the memory of ncnn. NcnnMemory is an ncnn::Allocator; give it to the options of a net, and name each run:
//
//     #include <berth/engines/ncnn.h>
//     #include <net.h>
//
//     auto memory = berth::engines::NcnnMemory::create().value();
//     memory->prepare(net.opt);                       // the blobs and the workspaces of its extractors
//     ...
//     auto run = memory->run("detector", in);         // the model, and the inputs, whose shapes decide the sizes
//     ncnn::Extractor extractor = net.create_extractor();
//     extractor.input("data", in);
//     extractor.extract("output", out);
//
// The first runs of a key are recorded; later runs are served from planned arenas, with bit-identical outputs, also for
// shapes that were not recorded where the sizes are functions of the shape. Nets that are prepared with one memory
// share its arenas. Threads may run at the same time; each run has an arena of its own. ncnn allocates on the thread
// that calls extract(); what a layer allocates on threads of its own is served as Replay says. Make the run before the
// extractor, so that the extractor is destroyed first and what it holds is planned. An ncnn::Mat may be kept as long as
// you like: the memory must outlive the nets and all mats that were made with it.
//
// This header needs no header of ncnn: include those of your ncnn in the file that uses NcnnMemory, in any order. ncnn
// must have been compiled with RTTI, which is its default outside of Android and iOS, unless your program is without.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "berth/base/result.h"
#include "berth/engines/engine_memory.h"

namespace ncnn {
class Allocator;
}

namespace berth::engines {

// An ncnn::Mat, or anything else with the extents of one.
template <class T>
concept NcnnShape = requires(const T& mat) {
  std::int64_t{mat.w} + mat.h + mat.d + mat.c;
  static_cast<std::int64_t>(mat.elemsize);
};

// NcnnMemory, below, is this with ncnn::Allocator, which is complete where your program names NcnnMemory.
template <class NcnnAllocator>
class NcnnMemoryOver final : public NcnnAllocator {
 public:
  using Run = EngineRun;

  // The error of EngineMemory::create().
  static Result<std::unique_ptr<NcnnMemoryOver>> create(EngineMemoryOptions options = {}) {
    Result<EngineMemory> memory = EngineMemory::create(std::move(options));
    if (!memory) return memory.error();
    return std::unique_ptr<NcnnMemoryOver>(new NcnnMemoryOver(*std::move(memory)));
  }

  // Makes this the allocator of blobs and workspaces: of an ncnn::Option, such as `net.opt` before an extractor is
  // created, or of one ncnn::Extractor. A key-value cache keeps an allocator of its own, as ncnn demands.
  template <class Option>
  requires requires(Option& option) { option.blob_allocator = option.workspace_allocator; }
  void prepare(Option& option) noexcept {
    option.blob_allocator = this;
    option.workspace_allocator = this;
  }
  template <class Extractor>
  requires requires(Extractor& extractor) { extractor.set_workspace_allocator(nullptr); }
  void prepare(Extractor& extractor) {
    extractor.set_blob_allocator(this);
    extractor.set_workspace_allocator(this);
  }

  // A run with this key: the model, and which outputs are extracted. It belongs to the calling thread, on which
  // extract() must be called and on which it must end. See EngineRun.
  Run run(std::string_view key, Replay::Dimensions dimensions = {}) { return memory_.run(key, dimensions); }
  // The same with the extents of the inputs as dimensions. Give all of them, in the same order each time.
  template <NcnnShape... Mats>
  requires(sizeof...(Mats) > 0) Run run(std::string_view key, const Mats&... inputs) {
    std::array<std::int64_t, 5 * sizeof...(Mats)> dimensions{};
    auto at = dimensions.begin();
    const auto add = [&at](const auto& mat) {
      for (const std::int64_t extent : {std::int64_t{mat.w}, std::int64_t{mat.h}, std::int64_t{mat.d},
                                        std::int64_t{mat.c}, static_cast<std::int64_t>(mat.elemsize)})
        *at++ = extent;
    };
    (add(inputs), ...);
    return memory_.run(key, dimensions);
  }

  // The recorder, the plans and their counters.
  Replay& replay() noexcept { return memory_.replay(); }

  // The two functions of ncnn::Allocator. Null for zero bytes or without memory; ncnn then fails the layer with -100.
  void* fastMalloc(std::size_t bytes) override { return memory_.allocate(bytes); }
  void fastFree(void* memory) override { memory_.release(memory); }

 private:
  explicit NcnnMemoryOver(EngineMemory memory) : memory_(std::move(memory)) {}
  EngineMemory memory_;
};

using NcnnMemory = NcnnMemoryOver<ncnn::Allocator>;

}  // namespace berth::engines
