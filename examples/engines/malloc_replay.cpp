// A second client of berth::Replay that is no engine at all: malloc itself, by interposition. Preload the library this
// file makes into a program that marks its runs with berth_begin_run and berth_end_run:
//
//     LD_PRELOAD=./libexample_malloc_replay.so ./example_stencil 50
//
// Requests of 1 KiB and more inside a run are recorded, planned and replayed; everything else goes to the C library.
// At exit, one line on standard error says what was done. glibc only: it exports its own malloc under other names.
#include <berth/memory/allocator.h>
#include <berth/run/replay.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);
}

namespace {

constexpr std::size_t kLeastBytes = 1024;

// The C library's memory as an allocator, for what the plan does not serve and for the arena.
class LibcMemory final : public berth::Allocator {
 public:
  berth::Result<berth::Block> allocate(const berth::BlockSpec& spec) override {
    void* memory = __libc_memalign(spec.alignment, spec.bytes);
    if (memory == nullptr)
      return berth::Error(berth::Code::kOutOfMemory, berth::Layer::kAllocator, "the C library has no {b}", spec.bytes);
    berth::Block block;
    block.handle = reinterpret_cast<std::uintptr_t>(memory);
    block.host = static_cast<std::byte*>(memory);
    block.bytes = spec.bytes;
    return block;
  }
  void release(const berth::Block& block, berth::Timepoint) noexcept override { __libc_free(block.host); }
  berth::Device& device() noexcept override { std::abort(); }  // nobody asks: no buffers are made from it
  std::string_view name() const noexcept override { return "libc"; }
};

// What Berth itself allocates, while it serves a request or plans, is the C library's.
[[gnu::tls_model("initial-exec")]] thread_local bool inside = false;
class Inside {
 public:
  Inside() { inside = true; }
  ~Inside() { inside = false; }
};

berth::Replay* replay = nullptr;  // made at the first run, never destroyed: frees come until the very end

void say_what_was_done() {
  const Inside guard;
  const berth::ReplayCounters counters = replay->counters();
  std::fprintf(stderr, "berth: %llu runs, arena %llu bytes, %llu requests served from it, %llu not in the plan\n",
               static_cast<unsigned long long>(counters.runs), static_cast<unsigned long long>(counters.arena_bytes),
               static_cast<unsigned long long>(counters.planned), static_cast<unsigned long long>(counters.deviated));
}

bool in_run = false;

void* take(std::size_t bytes, std::size_t alignment) {
  const Inside guard;
  return replay->allocate(bytes, alignment);
}

bool is_ours(void* memory) {
  if (replay == nullptr || inside) return false;
  const Inside guard;
  return replay->owns(memory);
}

}  // namespace

extern "C" {

void berth_begin_run(const char* key) {
  const Inside guard;
  if (replay == nullptr) {
    const auto memory = std::make_shared<LibcMemory>();
    replay = new berth::Replay(memory, memory);
    std::atexit(say_what_was_done);
  }
  static_cast<void>(replay->begin_run(key));  // a run without a plan is served by the C library
  in_run = true;
}

void berth_end_run() {
  const Inside guard;
  in_run = false;
  replay->end_run();
}

void* malloc(std::size_t bytes) {
  return in_run && !inside && bytes >= kLeastBytes ? take(bytes, 16) : __libc_malloc(bytes);
}

void free(void* memory) {
  if (memory == nullptr) return;
  if (!is_ours(memory)) return __libc_free(memory);
  const Inside guard;
  replay->release(memory);
}

void* calloc(std::size_t count, std::size_t size) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count, size, &bytes) || !in_run || inside || bytes < kLeastBytes)
    return __libc_calloc(count, size);
  void* memory = take(bytes, 16);
  return memory != nullptr ? std::memset(memory, 0, bytes) : nullptr;
}

void* realloc(void* memory, std::size_t bytes) {
  if (memory == nullptr) return malloc(bytes);
  if (!is_ours(memory)) return __libc_realloc(memory, bytes);
  std::size_t had = 0;
  {
    const Inside guard;
    had = replay->size_of(memory);
  }
  void* moved = malloc(bytes);
  if (moved == nullptr) return nullptr;
  std::memcpy(moved, memory, had < bytes ? had : bytes);
  free(memory);
  return moved;
}

void* memalign(std::size_t alignment, std::size_t bytes) {
  return in_run && !inside && bytes >= kLeastBytes ? take(bytes, alignment) : __libc_memalign(alignment, bytes);
}

void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return memalign(alignment, bytes);
}

int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
  void* memory = memalign(alignment, bytes);
  if (memory == nullptr) return ENOMEM;
  *out = memory;
  return 0;
}

}  // extern "C"
