// The state behind the driver double: devices, contexts, memory, streams, and the happens-before order among
// everything that was submitted. One mutex guards it all; the bytes themselves are moved outside it, on the
// thread of the stream that moves them. The state is made at the first call and never destroyed, so that stream
// threads may still wait on it when the process ends.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "devices/cuda/cuda_abi.h"
#include "support/cuda_double.h"

namespace cuda_double {

using namespace berth::internal::cuda;  // NOLINT: the double speaks the driver's own vocabulary throughout

inline constexpr unsigned char kFreshByte = 0xCD;
inline constexpr unsigned char kFreedByte = 0xDD;
inline constexpr unsigned char kRaceByte = 0xDB;
inline constexpr std::size_t kAllocationAlignment = 512;
inline constexpr std::size_t kGranularityBytes = std::size_t{2} << 20;

// How far each stream is known to have come, by stream number.
class Clock {
 public:
  std::uint64_t at(std::size_t stream) const { return stream < ticks_.size() ? ticks_[stream] : 0; }
  void tick(std::size_t stream);
  void join(const Clock& other);

 private:
  std::vector<std::uint64_t> ticks_;
};

struct DeviceContext {
  Ordinal device = 0;
  int retained = 0;
  bool alive = true;
  Status lost = kSuccess;
};

// Bytes, wherever their address is.
struct Physical {
  // Null in `host` if the system has no memory. Shareable bytes are those of a file in memory.
  Physical(Ordinal on, std::size_t size, bool shareable = false);
  // Bytes that another double exported; null if the descriptor is no such file.
  static std::shared_ptr<Physical> import(Ordinal on, int descriptor);
  ~Physical();
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  Ordinal device;
  std::size_t bytes;
  unsigned char* host;
  int file = -1;
  bool imported = false;

 private:
  Physical(Ordinal on, std::size_t size, int from);
};

enum class MemoryKind { kPlain, kPooled, kManaged, kPinned, kMapped };

struct Access {
  std::size_t stream;
  std::uint64_t tick;
  std::uint64_t begin;
  std::uint64_t end;
  bool writes;
  bool advice;  // moves pages and changes no bytes: conflicts with nothing but a free
};

// A range of addresses with bytes behind it.
struct Mapping {
  std::uint64_t start = 0;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::kPlain;
  std::shared_ptr<Physical> physical;
  DeviceContext* context = nullptr;
  Ordinal device = 0;
  bool accessible = true;
  bool free_submitted = false;
  MemoryPoolTag* pool = nullptr;
  std::size_t made_on = 0;    // pooled: the stream and tick of its allocation
  std::uint64_t made_at = 0;  // 0: usable everywhere at once
  std::vector<Access> accesses;
};

struct PoolState {
  DeviceContext* context = nullptr;
  Ordinal device = 0;
  std::uint64_t threshold = 0;
};

struct Operation {
  std::uint64_t sequence = 0;
  std::function<Status(std::unique_lock<std::mutex>&)> run;
};

// A piece of memory an operation touches.
struct Range {
  std::uint64_t begin;
  std::size_t bytes;
  bool writes;
  bool advice = false;
};

using Run = std::function<Status(std::unique_lock<std::mutex>&, bool raced)>;

// One operation of a graph, and the stream and tick at which it was captured.
struct Node {
  std::vector<Range> ranges;
  Run run;
  std::size_t stream;
  std::uint64_t tick;
};

struct StreamState;

// What a stream, and those that joined it, capture. Its clocks are its own: captured work happens at no time.
struct CaptureState {
  CaptureMode mode = kCaptureGlobal;
  std::thread::id thread;
  const StreamState* origin = nullptr;
  bool active = true;    // until its end
  bool invalid = false;  // a call broke its rules; every later one fails
  std::vector<Node> nodes;
};

struct GraphState {
  DeviceContext* context = nullptr;
  std::shared_ptr<const std::vector<Node>> nodes;
  std::size_t stream = 0;  // of the last launch, with its tick
  std::uint64_t tick = 0;  // 0: never launched
};

struct StreamState {
  DeviceContext* context = nullptr;
  std::size_t number = 0;
  Clock clock;
  std::deque<Operation> queue;
  std::uint64_t submitted = 0;
  std::uint64_t demanded = 0;
  std::uint64_t completed = 0;
  bool destroyed = false;
  std::shared_ptr<CaptureState> capture;  // null unless the stream captures
  Clock capture_clock;
};

struct EventState {
  DeviceContext* context = nullptr;
  std::shared_ptr<StreamState> stream;  // null until recorded
  std::uint64_t sequence = 0;
  Clock clock;
  int asked = 0;
  std::shared_ptr<CaptureState> capture;  // null unless recorded by a capturing stream
  Clock capture_clock;
};

struct FunctionState {
  std::string name;
  std::vector<std::size_t> parameter_bytes;
  std::vector<std::size_t> parameter_offsets;
};

struct ModuleState {
  DeviceContext* context = nullptr;
  std::map<std::string, std::unique_ptr<FunctionState>> functions;
};

struct Failure {
  std::string name;  // empty: any
  std::uint64_t left;
  Status status;
  bool lose_device;
};

class State {
 public:
  static State& get();

  // At the head of every driver call: counts it, and tells if it was told to fail.
  Status enter(const char* name);
  // The context current on this thread, or what is wrong with it. Records a violation when there is none.
  Status current(const char* call, DeviceContext** context);
  Status misuse(const char* call, const std::string& what, Status status);
  void violation(std::string text);

  // Memory.
  Status allocate(DeviceContext* context, MemoryKind kind, std::size_t bytes, Mapping** out);
  std::uint64_t reserve_addresses(std::size_t bytes, std::size_t alignment);
  Mapping* mapping_at(std::uint64_t address);
  // Whether [begin, begin + bytes) is inside live mappings that `device` may use.
  bool usable(std::uint64_t begin, std::size_t bytes, DeviceContext* context, bool host_side);
  bool waited_for(const Mapping& mapping) const;
  void erase(std::uint64_t start);
  // The host bytes behind a range now, in order; empty if some of it is gone.
  struct Piece {
    std::shared_ptr<Physical> keep;
    unsigned char* host;
    std::size_t bytes;
  };
  std::vector<Piece> pieces(std::uint64_t begin, std::size_t bytes);

  // Streams.
  std::shared_ptr<StreamState> stream_of(Stream stream);
  // Puts an operation on a stream: checks its ranges against the order, and wakes the stream when eager. On a stream
  // that captures, adds it to the graph instead.
  std::uint64_t submit(const char* call, const std::shared_ptr<StreamState>& stream, std::vector<Range> ranges,
                       Run run);
  void demand(StreamState& stream, std::uint64_t sequence);
  // Runs the stream up to `sequence` on its own thread and returns when that is done.
  void drain(std::unique_lock<std::mutex>& lock, StreamState& stream, std::uint64_t sequence);
  void start(const std::shared_ptr<StreamState>& stream);
  bool ordered(const char* call, const StreamState& stream, const Range& range, std::uint64_t tick);

  // Captures. At the head of a call that is potentially unsafe during a capture: fails if the modes of this thread and
  // of the captures in progress forbid it, which also invalidates those captures.
  Status unsafe(const char* call);
  // A call that conflicts with the capture of this stream in every mode.
  Status conflict(const char* call, const std::string& what, CaptureState& capture, Status status);
  // What a call on a stream finds if its capture is invalid.
  static Status usable_stream(const StreamState& stream) {
    return stream.capture != nullptr && stream.capture->invalid ? kErrorCaptureInvalidated : kSuccess;
  }

  std::mutex mutex;
  std::condition_variable changed;
  CudaDoubleOptions options;
  bool initialised = false;
  std::map<std::string, std::uint64_t> calls;
  std::vector<Failure> failures;
  const char* failed_call = "";
  std::uint64_t executions_to_failure = 0;
  Status execution_failure = kSuccess;
  std::deque<std::string> violations;
  CudaDoubleTraffic traffic{};
  std::map<int, DeviceContext*> primary;
  std::set<DeviceContext*> contexts;
  std::map<std::uint64_t, Mapping> mappings;
  std::map<std::uint64_t, std::size_t> reservations;
  std::map<MemoryHandle, std::shared_ptr<Physical>> handles;
  MemoryHandle next_handle = 0x1000;
  std::map<Stream, std::shared_ptr<StreamState>> streams;
  std::vector<std::shared_ptr<StreamState>> all_streams;
  std::map<Event, std::unique_ptr<EventState>> events;
  std::map<Module, std::unique_ptr<ModuleState>> modules;
  std::map<MemoryPool, PoolState> pools;
  std::vector<std::shared_ptr<CaptureState>> captures;  // in progress
  std::map<std::thread::id, CaptureMode> capture_modes;
  std::map<Graph, GraphState> graphs;
  std::map<GraphExec, GraphState> graph_execs;
  std::uintptr_t next_object = 0x100000;
  std::map<int, std::size_t> used;  // bytes in use by device
  std::map<std::string, CudaDoubleKernel> kernels;
  Clock host;  // what some host thread has waited for
  std::size_t streams_made = 0;
  std::vector<const DeviceContext*> context_of_stream;  // by stream number; contexts are never deleted

  // Whether an access lies behind everything that can still run: waited for, or lost with its context.
  bool is_over(const Access& access) const {
    const DeviceContext* context = context_of_stream[access.stream];
    return host.at(access.stream) >= access.tick || context->lost != kSuccess || !context->alive;
  }

 private:
  std::uint64_t addresses_ = 0;
  std::uint64_t addresses_end_ = 0;
};

// The stack of current contexts of this thread.
std::vector<DeviceContext*>& context_stack();

// Finds the kernels of a PTX text or a cubin. False if the image is neither.
bool read_module(const void* image, ModuleState& module);

// A name for messages such as "0x7f00 + 4096".
std::string spell(std::uint64_t begin, std::size_t bytes);

}  // namespace cuda_double
