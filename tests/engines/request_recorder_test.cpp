#include "engines/request_recorder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace berth::internal::ort {
namespace {

// As much of an engine as a recorder needs: it takes the allocator and calls it.
struct Engine {
  inline static Allocator* taken = nullptr;

  Engine() {
    api.create_cpu_memory_info = [](int, int, MemoryInfo** out) -> Status* {
      *out = reinterpret_cast<MemoryInfo*>(std::uintptr_t{64});
      return nullptr;
    };
    api.register_allocator = [](Env*, Allocator* allocator) -> Status* {
      taken = allocator;
      return nullptr;
    };
    api.unregister_allocator = [](Env*, const MemoryInfo*) -> Status* {
      taken = nullptr;
      return nullptr;
    };
    api.release_memory_info = [](MemoryInfo*) {};
  }
  static void* take(std::size_t bytes) { return taken->alloc(taken, bytes); }
  static void give(void* memory) { taken->free(taken, memory); }

  Api api{};
};

TEST(RequestRecorder, WritesDownEachRequestAndItsRelease) {
  const Engine engine;
  const auto recorder = RequestRecorder::attach(engine.api, nullptr).value();
  void* const before = Engine::take(7);
  recorder->begin();
  void* const a = Engine::take(100);
  void* const b = Engine::take(50);
  Engine::give(before);  // of nobody's concern
  Engine::give(a);
  void* const c = Engine::take(20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(c) % 64, 0u);
  Engine::give(c);
  EXPECT_EQ(recorder->peak(), 150u);
  const std::vector<TimedRequest> requests = recorder->end(0);
  Engine::give(b);
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].bytes, 100u);
  EXPECT_EQ(requests[1].bytes, 50u);
  EXPECT_EQ(requests[2].bytes, 20u);
  EXPECT_NE(requests[0].end, TimedRequest::kNever);
  EXPECT_EQ(requests[1].end, TimedRequest::kNever) << "live at the end";
  EXPECT_NE(requests[2].end, TimedRequest::kNever);
  EXPECT_EQ(Engine::take(0), nullptr);
}

TEST(RequestRecorder, TellsRequestsAtTheSameAddressApart) {
  const Engine engine;
  const auto recorder = RequestRecorder::attach(engine.api, nullptr).value();
  recorder->begin();
  for (int i = 0; i < 100; ++i) Engine::give(Engine::take(64));  // the heap gives the same bytes again
  EXPECT_EQ(recorder->peak(), 64u);
  const std::vector<TimedRequest> requests = recorder->end(0);
  ASSERT_EQ(requests.size(), 100u);
  for (const TimedRequest& request : requests) EXPECT_NE(request.end, TimedRequest::kNever);
}

}  // namespace
}  // namespace berth::internal::ort
