// The double's Objective-C: selectors, classes with tables of methods, and objects that are counted. Everything the
// Metal classes are made of. An object's head is never freed or used again, so a message to a dead object is always
// recognised; what the object held goes with its last reference.
//
// References are of two kinds. `owned` ones belong to the program under test, and a release without one is a
// violation at once; `held` ones are the double's own, such as a command buffer's hold on its buffers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

struct objc_selector {
  std::string name;
};

namespace metal_double {

using Selector = objc_selector*;
using Implementation = void (*)();

struct Type;

// What an object is made of, one class derived from this for each Objective-C class.
struct Body {
  virtual ~Body() = default;
  // Called when the program's last reference goes, while the double may still hold the object.
  virtual void disowned() {}
};

struct Object {
  Type* type = nullptr;  // Objective-C's isa, which is why it comes first
  std::atomic<std::uint64_t> references{0};
  std::uint64_t serial = 0;
  Body* body = nullptr;
};

enum class Kind : std::uint8_t {
  kPlain,
  kCreates,      // told to fail, it gives nil
  kInitialises,  // told to fail, it also lets go of its receiver
  kErrorFirst,   // creates; the address for the NSError is its first argument after self and selector, and so on
  kErrorSecond,
  kErrorThird,
  kErrorFourth,
};

struct Method {
  Implementation run = nullptr;
  Kind kind = Kind::kPlain;
  bool needs_residency = false;
  std::atomic<std::uint64_t> calls{0};
};

// A class or, as its `type`, a metaclass. Made before the first message and never changed after.
struct Type {
  Type* meta = nullptr;  // first, as in Object: a class receives messages too
  std::string name;
  bool is_meta = false;
  bool needs_residency = false;
  std::unordered_map<Selector, Method> methods;
  std::atomic<std::size_t> live{0};

  template <typename F>
  Type& on(const char* selector, F* function, Kind kind = Kind::kPlain) {
    return add(selector, reinterpret_cast<Implementation>(function), kind);
  }
  // The same for the class itself.
  template <typename F>
  Type& on_class(const char* selector, F* function, Kind kind = Kind::kPlain) {
    meta->add(selector, reinterpret_cast<Implementation>(function), kind);
    return *this;
  }
  // Marks a method added before as absent from an OS without residency sets.
  Type& with_residency(const char* selector);
  Type& add(const char* selector, Implementation run, Kind kind);
};

Selector selector_named(const char* name);
// Null if there is none of that name.
Type* find_type(const char* name);
// For the functions that fill the tables: makes the class with what every object understands.
Type& make_type(const char* name);
// One of the classes made so far, for a file that adds to another's.
Type& made_type(const char* name);

// A new object with one owned reference.
Object* create(Type* type, Body* body);
Object* create(const char* type_name, Body* body);
bool is_alive(const Object* object);
// A string constant of the compiler's, which is not counted.
bool is_constant(const Object* object);
// "MTLBuffer #12".
std::string describe(const Object* object);

void retain(Object* object);
void release(Object* object);
Object* autorelease(Object* object);
void hold(Object* object);
// False if the object is dead.
bool try_hold(Object* object);
void let_go(Object* object);

// The double's own pool around what it calls on its own threads.
class PoolScope {
 public:
  PoolScope();
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;
};

template <typename T>
T& body(Object* object) {
  return *static_cast<T*>(object->body);
}

// A held reference.
class Held {
 public:
  Held() = default;
  explicit Held(Object* object) : object_(object) {
    if (object_ != nullptr) hold(object_);
  }
  Held(const Held& other) : Held(other.object_) {}
  Held(Held&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Held& operator=(Held other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Held() {
    if (object_ != nullptr) let_go(object_);
  }
  // Takes over a reference that was held before.
  static Held adopt(Object* object) {
    Held held;
    held.object_ = object;
    return held;
  }
  Object* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  Object* object_ = nullptr;
};

// Whether an argument is an object of this class, alive. A violation if not; null is one too.
bool expect(Object* object, const char* type_name, const char* what);

// A mistake of the program under test, as a sentence.
void violation(std::string text);

// One function for each file of classes, which fills its tables.
void add_foundation_types();
void add_device_types();
void add_buffer_types();
void add_queue_types();
void add_command_buffer_types();
void add_blit_types();
void add_compute_types();
void add_event_types();
void add_residency_types();
void add_library_types();

}  // namespace metal_double
