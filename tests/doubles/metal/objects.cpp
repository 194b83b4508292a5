// Counting references, and the pools that put a release off.
#include "objects.h"

#include <mutex>
#include <vector>

#include "state.h"

extern "C" int __CFConstantStringClassReference[24];

namespace metal_double {
namespace {

constexpr std::uint64_t kOwned = 1;
constexpr std::uint64_t kHeld = std::uint64_t{1} << 32;
constexpr std::uint64_t owned(std::uint64_t references) {
  return references & (kHeld - 1);
}

// Heads are never given back: an address says which object was meant for as long as the process lives.
Object* new_head() {
  constexpr std::size_t kHeadsInAChunk = 1024;
  struct Heads {
    std::mutex mutex;
    std::vector<Object*> chunks;
    std::size_t used = kHeadsInAChunk;
    std::uint64_t serial = 0;
  };
  static auto* const heads = new Heads;
  const Guard guard(heads->mutex);
  if (heads->used == kHeadsInAChunk) {
    heads->chunks.push_back(new Object[kHeadsInAChunk]);
    heads->used = 0;
  }
  Object* head = heads->chunks.back() + heads->used++;
  head->serial = ++heads->serial;
  return head;
}

void destroy(Object* object) {
  delete object->body;
  object->body = nullptr;
  object->type->live.fetch_sub(1);
}

struct Pool {
  std::vector<Object*> objects;
  bool in_place = true;

  void drain() {
    // What is released may autorelease more, into the pool outside.
    const std::vector<Object*> taken = std::move(objects);
    for (auto object = taken.rbegin(); object != taken.rend(); ++object) release(*object);
  }
};

struct PoolStack {
  std::vector<Pool*> pools;
  PoolStack() = default;
  PoolStack(const PoolStack&) = delete;
  PoolStack& operator=(const PoolStack&) = delete;
  ~PoolStack();
};

PoolStack::~PoolStack() {
  if (pools.empty()) return;
  violation("pool: a thread ended with an autorelease pool in place");
  for (Pool* pool : pools) pool->in_place = false;
}

PoolStack& stack() {
  thread_local PoolStack own;
  return own;
}

struct PoolBody : Body {
  Pool pool;
};

Object* pool_init(Object* self, Selector) {
  auto& own = body<PoolBody>(self);
  own.pool.in_place = true;
  stack().pools.push_back(&own.pool);
  return self;
}

void pool_drain(Object* self, Selector) {
  auto& own = body<PoolBody>(self);
  auto& pools = stack().pools;
  if (own.pool.in_place && (pools.empty() || pools.back() != &own.pool)) {
    violation("pool: " + describe(self) + " was drained on another thread, or before the pools made after it");
    return;
  }
  if (own.pool.in_place) {
    pools.pop_back();
    own.pool.in_place = false;
  }
  own.pool.drain();
  release(self);
}

void pool_add(Object* self, Selector, Object* object) {
  body<PoolBody>(self).pool.objects.push_back(object);
}

Object* pool_alloc(Object*, Selector) {
  auto* made = new PoolBody;
  made->pool.in_place = false;  // until it is initialised
  return create("NSAutoreleasePool", made);
}

}  // namespace

void add_pool_type() {
  make_type("NSAutoreleasePool")
      .on_class("alloc", &pool_alloc, Kind::kCreates)
      .on("init", &pool_init, Kind::kInitialises)
      .on("drain", &pool_drain)
      .on("release", &pool_drain)
      .on("addObject:", &pool_add);
}

bool is_constant(const Object* object) {
  return static_cast<const void*>(object->type) == static_cast<const void*>(&__CFConstantStringClassReference);
}

Object* create(Type* type, Body* body) {
  Object* object = new_head();
  object->type = type;
  object->body = body;
  type->live.fetch_add(1);
  object->references.store(kOwned);
  return object;
}

Object* create(const char* type_name, Body* body) {
  return create(find_type(type_name), body);
}

bool is_alive(const Object* object) {
  return is_constant(object) || object->references.load() != 0;
}

std::string describe(const Object* object) {
  if (object == nullptr) return "nil";
  if (is_constant(object)) return "a string constant";
  return object->type->name + " #" + std::to_string(object->serial);
}

void retain(Object* object) {
  if (is_constant(object)) return;
  std::uint64_t now = object->references.load();
  do {
    if (now == 0) return violation("use after release: " + describe(object) + " was retained");
  } while (!object->references.compare_exchange_weak(now, now + kOwned));
}

void release(Object* object) {
  if (is_constant(object)) return;
  std::uint64_t now = object->references.load();
  do {
    if (owned(now) == 0) {
      return violation("over-release: " + describe(object) + " was released more often than it was retained");
    }
  } while (!object->references.compare_exchange_weak(now, owned(now) == 1 ? now - kOwned + kHeld : now - kOwned));
  if (owned(now) != 1) return;
  object->body->disowned();
  let_go(object);
}

Object* autorelease(Object* object) {
  if (object == nullptr || is_constant(object)) return object;
  auto& pools = stack().pools;
  if (pools.empty()) {
    violation("pool: " + describe(object) + " was autoreleased with no autorelease pool in place");
  } else {
    pools.back()->objects.push_back(object);
  }
  return object;
}

void hold(Object* object) {
  if (!is_constant(object)) object->references.fetch_add(kHeld);
}

bool try_hold(Object* object) {
  if (is_constant(object)) return true;
  std::uint64_t now = object->references.load();
  do {
    if (now == 0) return false;
  } while (!object->references.compare_exchange_weak(now, now + kHeld));
  return true;
}

void let_go(Object* object) {
  if (is_constant(object)) return;
  if (object->references.fetch_sub(kHeld) == kHeld) destroy(object);
}

bool expect(Object* object, const char* type_name, const char* what) {
  if (object == nullptr) {
    violation(std::string("argument: ") + what + " is nil");
  } else if (!is_alive(object)) {
    violation(std::string("use after release: ") + describe(object) + " was given as " + what);
  } else if (is_constant(object) || object->type->name != type_name) {
    violation(std::string("argument: ") + what + " is " + describe(object) + ", not a " + type_name);
  } else {
    return true;
  }
  return false;
}

PoolScope::PoolScope() {
  stack().pools.push_back(new Pool);
}

PoolScope::~PoolScope() {
  auto& pools = stack().pools;
  Pool* own = pools.back();
  pools.pop_back();
  own->drain();
  delete own;
}

}  // namespace metal_double
