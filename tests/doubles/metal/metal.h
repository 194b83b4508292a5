// What Metal's objects are made of. Members are guarded by the state's mutex unless they never change.
#pragma once

#include <chrono>
#include <memory>

#include "memory.h"
#include "state.h"

namespace metal_double {

enum Status : std::uintptr_t { kNotEnqueued, kEnqueued, kCommitted, kScheduled, kCompleted, kError };
inline constexpr unsigned kPageFault = 3;
inline constexpr unsigned kDeviceRemoved = 11;

struct NSRange {
  std::uintptr_t location;
  std::uintptr_t length;
};

struct Size {
  std::uintptr_t width;
  std::uintptr_t height;
  std::uintptr_t depth;
} __attribute__((packed));

struct Device : Body {
  ~Device() override;
  int ordinal = 0;
  Held name;
};

struct Buffer : Body {
  ~Buffer() override;
  void disowned() override;

  Object* self = nullptr;
  Held device;
  std::size_t length = 0;
  std::uintptr_t storage = 0;  // shared 0, managed 1, private 2
  std::uintptr_t options = 0;
  Piece piece;  // none when the memory is the program's own
  unsigned char* host = nullptr;
  unsigned char* gpu = nullptr;
  Callback deallocator;
  std::string label;
  int in_flight_unretained = 0;
  int openings = 0;
  int memberships = 0;  // committed, of all sets
  bool always_resident = false;
};

// What it takes of memory, in whole pages.
std::size_t bytes_of(const Buffer& buffer);
// Requires: the state's mutex.
void open(Buffer& buffer);
void close(Buffer& buffer);

struct Event : Body {
  struct Waiting {
    std::uint64_t value;
    Callback block;
  };
  Held device;
  Object* self = nullptr;
  bool shared = false;
  std::uint64_t value = 0;
  int asked = 0;
  std::vector<Waiting> waiting;
  std::string label;
};

// Sets the value, wakes who waits and hands over the notifications that are due. Requires: not the state's mutex.
void signal(Event& event, std::uint64_t value);

struct ResidencySet : Body {
  ~ResidencySet() override;
  Held device;
  std::string label;
  std::map<Object*, Held> members;    // as they will be at the next commit
  std::map<Object*, Held> committed;  // as the GPU has them
};

// The order of a queue's command buffers. Its thread keeps it until the queue is gone.
struct Line {
  std::deque<Held> order;
  std::uint64_t next = 1;
  std::uint64_t demanded = 0;
  bool closed = false;
  bool started = false;
};

struct Queue : Body {
  ~Queue() override;
  Held device;
  std::size_t limit = 64;
  std::size_t outstanding = 0;
  std::vector<Held> sets;
  std::shared_ptr<Line> line = std::make_shared<Line>();
  std::string label;
};

struct Fault {
  unsigned code;
  std::string text;
};

struct CommandBuffer : Body {
  ~CommandBuffer() override;
  void disowned() override;

  Object* self = nullptr;
  Held queue;
  bool retains = true;
  Status status = kNotEnqueued;
  bool finished = false;
  bool enqueued = false;
  std::uint64_t place = 0;  // in the line, once committed
  std::chrono::system_clock::time_point late;
  int asked = 0;
  Object* encoder = nullptr;  // the open one
  std::vector<std::function<std::optional<Fault>(CommandBuffer&)>> operations;
  std::vector<Held> kept;
  std::set<Object*> uses;     // buffers that commands name
  std::set<Object*> granted;  // made resident by useResource
  std::set<Object*> evicted;  // used, and found not resident at the commit
  std::vector<Held> sets;
  std::vector<std::pair<Object*, std::uint64_t>> signals;
  std::vector<Callback> scheduled_handlers;
  std::vector<Callback> completed_handlers;
  Held error;
  std::string label;
};

struct Encoder : Body {
  ~Encoder() override;
  Object* self = nullptr;
  Held commands;
  bool ended = false;
  std::string label;
};

// The messages label and setLabel: of every class that has one.
template <typename T>
Object* get_label(Object* self, Selector) {
  std::string text;
  {
    const Guard guard(State::get().mutex);
    text = body<T>(self).label;
  }
  return text.empty() ? nullptr : autorelease(make_string(text));
}

template <typename T>
void set_label(Object* self, Selector, Object* label) {
  const std::string text = text_of(label);
  const Guard guard(State::get().mutex);
  body<T>(self).label = text;
}

Encoder* new_blit_encoder();
Encoder* new_compute_encoder();

Object* device_of(const CommandBuffer& commands);

// Whether a command may still be added by this encoder; a violation if not.
bool may_encode(Object* encoder, Selector selector);
// The commands of an encoder that may encode.
CommandBuffer& commands_of(Object* encoder);
// Ends an encoder, telling its command buffer.
void end_encoding(Object* encoder, Selector selector);
// Checks a buffer that a command names: its class, its device, and the range. Then the command buffer uses it.
bool use_buffer(CommandBuffer& commands, Object* buffer, std::uint64_t offset, std::uint64_t bytes, const char* what);
// The bytes as the GPU sees them, or the fault of a buffer that is not resident.
std::optional<Fault> reach(const CommandBuffer& commands, Object* buffer);

// Requires: the state's mutex.
void demand(State& state, Line& line, std::uint64_t place);
void demand_signal(State& state, Object* event, std::uint64_t value);
// Waits until the event has the value, the device is lost, or the time is over. False if it has it not.
bool await(State& state, Lock& lock, Object* event, std::uint64_t value,
           std::optional<std::chrono::system_clock::time_point> until);
// Starts the thread of a line, unless it runs already.
void start(const std::shared_ptr<Line>& line);
}  // namespace metal_double
