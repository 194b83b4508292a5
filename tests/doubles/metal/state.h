// What the double knows beside its objects: options, what it was told to fail, violations, kernels, and the queues. One
// mutex guards the state; bytes are moved and blocks are called outside it, and no object is let go of while it is
// held. The state is made at the first call and never destroyed, so that threads may still wait on it when the process
// ends.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "objects.h"
#include "support/metal_double.h"

namespace metal_double {

struct Line;

struct State {
  static State& get();

  std::mutex mutex;
  std::condition_variable changed;
  MetalDoubleOptions options;
  bool lost = false;
  std::uint64_t executions_to_failure = 0;
  unsigned execution_failure = 0;
  std::map<std::string, MetalDoubleKernel> kernels;
  std::set<Line*> lines;                                   // of every queue
  std::map<int, Object*> devices;                          // not held
  std::size_t bytes = 0;                                   // in buffers
  std::size_t resident_bytes = 0;                          // in committed sets
  std::size_t running = 0;                                 // command buffers committed and not over
  std::vector<std::pair<Object*, std::uint64_t>> awaited;  // events and values with a waiter
};

using Guard = std::lock_guard<std::mutex>;
using Lock = std::unique_lock<std::mutex>;

// Methods and messages.
void for_each_method(const std::function<void(Type&, Selector, Method&)>& visit);
void for_each_type(const std::function<void(const Type&)>& visit);
bool has_residency_sets();
void count_nil_message();
// Counts a creating message, and whether it is the one that was told to fail. Functions have an empty class.
bool told_to_fail(const std::string& type_name, const std::string& selector);

// Foundation. The makers give one owned reference.
Object* make_string(std::string text);
Object* make_error(const char* domain, std::int64_t code, std::string text);
Object* make_array(const std::vector<Object*>& members);
// A string that only the double holds.
Held held_string(std::string text);
// Violation and "" if it is no string. Null gives "".
std::string text_of(Object* string);
// The path of an NSURL.
std::string path_of(Object* url);
// The bytes of dispatch data; empty with a violation if it is none.
std::string_view bytes_of(Object* data);

// Runs a task on the thread of the listeners, in order, inside a pool.
void notify(std::function<void()> task);
void drain_notifications();

// A block of the program under test, as the compiler lays it out. Copied when kept.
class Callback {
 public:
  Callback() = default;
  explicit Callback(const void* block);
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;
  Callback(Callback&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  Callback& operator=(Callback&& other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~Callback();
  explicit operator bool() const { return block_ != nullptr; }

  template <typename... Arguments>
  void operator()(Arguments... arguments) const {
    reinterpret_cast<void (*)(void*, Arguments...)>(entry())(block_, arguments...);
  }

 private:
  void (*entry() const)();
  void* block_ = nullptr;
};
std::size_t live_blocks();

}  // namespace metal_double
