// The runtime of blocks: copying them to the heap, with the variables they share, and counting those copies. The
// layouts are what the compiler emits.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "state.h"

#define DOUBLE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kOnHeap = 1 << 24;
constexpr int kHasHelpers = 1 << 25;
constexpr int kIsGlobal = 1 << 28;
constexpr int kFieldObject = 3;
constexpr int kFieldBlock = 7;
constexpr int kFieldShared = 8;
constexpr int kFieldCaller = 128;

struct Descriptor {
  unsigned long reserved;
  unsigned long size;
  void (*copy)(void* to, const void* from);
  void (*dispose)(const void* block);
};

struct Block {
  void* isa;
  int flags;
  int reserved;
  void (*invoke)();
  const Descriptor* descriptor;
};

// A __block variable.
struct Shared {
  void* isa;
  Shared* forwarding;
  int flags;
  unsigned size;
  void (*keep)(void* to, const void* from);
  void (*dispose)(void* shared);
};

// Heap copies have their count before them.
struct alignas(16) Count {
  std::atomic<std::size_t> references;
};

std::atomic<std::size_t> alive{0};

void* allocate(std::size_t size, std::size_t references) {
  auto* count = static_cast<Count*>(std::malloc(sizeof(Count) + size));
  new (count) Count{{references}};
  return count + 1;
}

Count& count_of(void* copy) {
  return static_cast<Count*>(copy)[-1];
}
bool drop(void* copy) {
  return count_of(copy).references.fetch_sub(1) == 1;
}

Shared* share(Shared* shared) {
  Shared* target = shared->forwarding;
  if ((target->flags & kOnHeap) != 0) {
    count_of(target).references.fetch_add(1);
    return target;
  }
  // One reference for the block that asks, one for the scope that declared the variable.
  auto* copy = static_cast<Shared*>(allocate(target->size, 2));
  const bool helpers = (target->flags & kHasHelpers) != 0;
  std::memcpy(static_cast<void*>(copy), target, target->size);
  copy->flags |= kOnHeap;
  copy->forwarding = copy;
  target->forwarding = copy;
  if (helpers) copy->keep(copy, target);
  return copy;
}

void unshare(Shared* shared) {
  Shared* target = shared->forwarding;
  if ((target->flags & kOnHeap) == 0 || !drop(target)) return;
  if ((target->flags & kHasHelpers) != 0) target->dispose(target);
  std::free(&count_of(target));
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) void* _NSConcreteStackBlock[32] = {};
__attribute__((visibility("default"))) void* _NSConcreteGlobalBlock[32] = {};
__attribute__((visibility("default"))) void* _NSConcreteMallocBlock[32] = {};
}

DOUBLE_EXPORT void* _Block_copy(const void* from) {
  if (from == nullptr) return nullptr;
  auto* block = static_cast<Block*>(const_cast<void*>(from));
  if ((block->flags & kIsGlobal) != 0) return block;
  if ((block->flags & kOnHeap) != 0) {
    count_of(block).references.fetch_add(1);
    return block;
  }
  auto* copy = static_cast<Block*>(allocate(block->descriptor->size, 1));
  std::memcpy(static_cast<void*>(copy), block, block->descriptor->size);
  copy->isa = _NSConcreteMallocBlock;
  copy->flags |= kOnHeap;
  alive.fetch_add(1);
  if ((block->flags & kHasHelpers) != 0) block->descriptor->copy(copy, block);
  return copy;
}

DOUBLE_EXPORT void _Block_release(const void* from) {
  auto* block = static_cast<Block*>(const_cast<void*>(from));
  if (block == nullptr || (block->flags & kOnHeap) == 0 || !drop(block)) return;
  if ((block->flags & kHasHelpers) != 0) block->descriptor->dispose(block);
  std::free(&count_of(block));
  alive.fetch_sub(1);
}

DOUBLE_EXPORT void _Block_object_assign(void* field, const void* value, int flags) {
  auto** target = static_cast<const void**>(field);
  if ((flags & kFieldCaller) == 0 && (flags & kFieldShared) != 0) {
    *target = share(static_cast<Shared*>(const_cast<void*>(value)));
  } else if ((flags & kFieldCaller) == 0 && (flags & kFieldBlock) == kFieldBlock) {
    *target = _Block_copy(value);
  } else {
    *target = value;
    if ((flags & kFieldCaller) == 0 && (flags & kFieldBlock) == kFieldObject && value != nullptr) {
      metal_double::hold(static_cast<metal_double::Object*>(const_cast<void*>(value)));
    }
  }
}

DOUBLE_EXPORT void _Block_object_dispose(const void* value, int flags) {
  if ((flags & kFieldCaller) != 0) return;
  if ((flags & kFieldShared) != 0) {
    unshare(static_cast<Shared*>(const_cast<void*>(value)));
  } else if ((flags & kFieldBlock) == kFieldBlock) {
    _Block_release(value);
  } else if ((flags & kFieldBlock) == kFieldObject && value != nullptr) {
    metal_double::let_go(static_cast<metal_double::Object*>(const_cast<void*>(value)));
  }
}

namespace metal_double {

Callback::Callback(const void* block) : block_(_Block_copy(block)) {}
Callback::~Callback() {
  _Block_release(block_);
}
void (*Callback::entry() const)() {
  return static_cast<Block*>(block_)->invoke;
}
std::size_t live_blocks() {
  return alive.load();
}

}  // namespace metal_double
