#include "state.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

namespace cuda_double {
namespace {

constexpr const char* kExportName = "cuda_double_export";

}  // namespace

void Clock::tick(std::size_t stream) {
  if (ticks_.size() <= stream) ticks_.resize(stream + 1);
  ++ticks_[stream];
}

void Clock::join(const Clock& other) {
  if (ticks_.size() < other.ticks_.size()) ticks_.resize(other.ticks_.size());
  for (std::size_t i = 0; i < other.ticks_.size(); ++i) ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
}

Physical::Physical(Ordinal on, std::size_t size, bool shareable) : device(on), bytes(size) {
  if (shareable) {
    file = memfd_create(kExportName, MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
      host = nullptr;
      return;
    }
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      shareable ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, file, 0);
  host = memory == MAP_FAILED ? nullptr : static_cast<unsigned char*>(memory);
  if (host != nullptr) std::memset(host, kFreshByte, bytes);
}

Physical::Physical(Ordinal on, std::size_t size, int from) : device(on), bytes(size), imported(true) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, from, 0);
  host = memory == MAP_FAILED ? nullptr : static_cast<unsigned char*>(memory);
}

std::shared_ptr<Physical> Physical::import(Ordinal on, int descriptor) {
  char link[64] = {};
  const ssize_t length = readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), link, sizeof link - 1);
  if (length <= 0 || std::string(link).find(kExportName) == std::string::npos) return nullptr;
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || status.st_size == 0) return nullptr;
  std::shared_ptr<Physical> made(new Physical(on, static_cast<std::size_t>(status.st_size), descriptor));
  return made->host == nullptr ? nullptr : made;
}

Physical::~Physical() {
  if (host != nullptr) munmap(host, bytes);
  if (file >= 0) close(file);
}

State& State::get() {
  static State* state = new State;
  return *state;
}

std::vector<DeviceContext*>& context_stack() {
  // A key instead of thread_local: the thread-local memory of a library opened at run time is recycled between threads
  // where a thread sanitizer cannot see it.
  using Stack = std::vector<DeviceContext*>;
  static const pthread_key_t key = [] {
    pthread_key_t made{};
    pthread_key_create(&made, [](void* last) { delete static_cast<Stack*>(last); });
    return made;
  }();
  auto* stack = static_cast<Stack*>(pthread_getspecific(key));
  if (stack == nullptr) {
    stack = new Stack;
    pthread_setspecific(key, stack);
  }
  return *stack;
}

std::string spell(std::uint64_t begin, std::size_t bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "0x%llx + %zu", static_cast<unsigned long long>(begin), bytes);
  return text;
}

void State::violation(std::string text) {
  violations.push_back(std::move(text));
}

Status State::misuse(const char* call, const std::string& what, Status status) {
  violation(std::string("misuse: ") + call + ": " + what);
  return status;
}

Status State::enter(const char* name) {
  ++calls[name];
  for (auto failure = failures.begin(); failure != failures.end(); ++failure) {
    if (!failure->name.empty() && failure->name != name) continue;
    if (--failure->left != 0) continue;
    const Status status = failure->status;
    if (failure->lose_device && !context_stack().empty()) context_stack().back()->lost = status;
    failures.erase(failure);
    failed_call = name;
    return status;
  }
  return kSuccess;
}

Status State::current(const char* call, DeviceContext** context) {
  if (!initialised) return misuse(call, "called before cuInit", kErrorNotInitialized);
  if (context_stack().empty()) return misuse(call, "no context is current on this thread", kErrorInvalidContext);
  *context = context_stack().back();
  if (!(*context)->alive) return misuse(call, "the current context is destroyed", kErrorContextIsDestroyed);
  return (*context)->lost;
}

std::uint64_t State::reserve_addresses(std::size_t bytes, std::size_t alignment) {
  constexpr std::size_t kSpace = std::size_t{256} << 30;
  if (addresses_ == 0) {
    // By system call, so that a sanitizer keeps no shadow for addresses that nobody can touch.
    const long base = syscall(SYS_mmap, nullptr, kSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == -1) return 0;
    addresses_ = static_cast<std::uint64_t>(base);
    addresses_end_ = addresses_ + kSpace;
  }
  const std::uint64_t start = (addresses_ + alignment - 1) / alignment * alignment;
  if (bytes > addresses_end_ - start) return 0;
  // A gap behind every range, so that running over an end never lands in a neighbour.
  addresses_ = start + bytes + kAllocationAlignment;
  return start;
}

Status State::allocate(DeviceContext* context, MemoryKind kind, std::size_t bytes, Mapping** out) {
  const bool on_device = kind == MemoryKind::kPlain || kind == MemoryKind::kPooled || kind == MemoryKind::kManaged;
  if (on_device && bytes > options.memory_bytes - used[context->device]) return kErrorOutOfMemory;
  auto physical = std::make_shared<Physical>(context->device, bytes);
  if (physical->host == nullptr) return kErrorOutOfMemory;
  Mapping mapping;
  const bool host_address = kind == MemoryKind::kManaged || kind == MemoryKind::kPinned;
  mapping.start =
      host_address ? reinterpret_cast<std::uint64_t>(physical->host) : reserve_addresses(bytes, kAllocationAlignment);
  if (mapping.start == 0) return kErrorOutOfMemory;
  mapping.bytes = bytes;
  mapping.kind = kind;
  mapping.physical = std::move(physical);
  mapping.context = context;
  mapping.device = context->device;
  if (on_device) used[context->device] += bytes;
  *out = &mappings.insert_or_assign(mapping.start, std::move(mapping)).first->second;
  return kSuccess;
}

Mapping* State::mapping_at(std::uint64_t address) {
  auto after = mappings.upper_bound(address);
  if (after == mappings.begin()) return nullptr;
  Mapping& mapping = std::prev(after)->second;
  return address < mapping.start + mapping.bytes ? &mapping : nullptr;
}

bool State::usable(std::uint64_t begin, std::size_t bytes, DeviceContext* context, bool host_side) {
  const std::uint64_t end = begin + bytes;
  if (end < begin) return false;
  for (std::uint64_t at = begin; at < end;) {
    const Mapping* mapping = mapping_at(at);
    if (mapping == nullptr || mapping->free_submitted || !mapping->accessible) return false;
    const bool device_only = mapping->kind != MemoryKind::kPinned && mapping->kind != MemoryKind::kManaged;
    if (host_side && device_only) return false;
    if (device_only && context != nullptr && mapping->device != context->device) return false;
    if (at != begin && mapping->kind != MemoryKind::kMapped) return false;
    at = mapping->start + mapping->bytes;
    if (at < end && mapping->kind != MemoryKind::kMapped) return false;
  }
  return true;
}

bool State::waited_for(const Mapping& mapping) const {
  return std::all_of(mapping.accesses.begin(), mapping.accesses.end(),
                     [&](const Access& access) { return is_over(access); });
}

void State::erase(std::uint64_t start) {
  auto found = mappings.find(start);
  if (found == mappings.end()) return;
  Mapping& mapping = found->second;
  std::memset(mapping.physical->host, kFreedByte, mapping.physical->bytes);
  mappings.erase(found);
}

std::vector<State::Piece> State::pieces(std::uint64_t begin, std::size_t bytes) {
  std::vector<Piece> result;
  const std::uint64_t end = begin + bytes;
  for (std::uint64_t at = begin; at < end;) {
    Mapping* mapping = mapping_at(at);
    if (mapping == nullptr || !mapping->accessible) return {};
    const std::uint64_t stop = std::min(end, mapping->start + mapping->bytes);
    result.push_back({mapping->physical, mapping->physical->host + (at - mapping->start), stop - at});
    at = stop;
  }
  return result;
}

std::shared_ptr<StreamState> State::stream_of(Stream stream) {
  auto found = streams.find(stream);
  return found == streams.end() ? nullptr : found->second;
}

bool State::ordered(const char* call, const StreamState& stream, const Range& range, std::uint64_t tick) {
  bool good = true;
  const std::uint64_t end = range.begin + range.bytes;
  for (std::uint64_t at = range.begin; at < end;) {
    Mapping* mapping = mapping_at(at);
    if (mapping == nullptr) return good;
    at = mapping->start + mapping->bytes;
    const Access made{mapping->made_on, mapping->made_at, 0, 0, false, false};
    if (mapping->made_at != 0 && stream.clock.at(mapping->made_on) < mapping->made_at && !is_over(made)) {
      violation(std::string("race: ") + call + " uses " + spell(range.begin, range.bytes) +
                " with no order after its allocation on another stream");
      good = false;
    }
    std::vector<Access> kept;
    for (const Access& access : mapping->accesses) {
      const bool before = stream.clock.at(access.stream) >= access.tick || is_over(access);
      const bool meets = access.begin < end && range.begin < access.end;
      if (!before && meets && !access.advice && !range.advice && (access.writes || range.writes)) {
        violation(std::string("race: ") + call + " and an earlier operation on another stream both use " +
                  spell(range.begin, range.bytes) + " with no order between them");
        good = false;
      }
      const bool covered = before && range.writes && range.begin <= access.begin && access.end <= end;
      const bool same = access.stream == stream.number && access.begin == range.begin && access.end == end &&
                        access.writes == range.writes && access.advice == range.advice;
      if (!covered && !same && !is_over(access)) kept.push_back(access);
    }
    kept.push_back({stream.number, tick, range.begin, end, range.writes, range.advice});
    mapping->accesses = std::move(kept);
  }
  return good;
}

namespace {

// Two operations of one graph that conflict need an order in the graph itself.
void capture_node(State& state, const char* call, StreamState& stream, std::vector<Range> ranges, Run run) {
  stream.capture_clock.tick(stream.number);
  CaptureState& capture = *stream.capture;
  for (const Range& range : ranges)
    for (const Node& node : capture.nodes) {
      if (stream.capture_clock.at(node.stream) >= node.tick) continue;
      for (const Range& other : node.ranges)
        if ((range.writes || other.writes) && range.begin < other.begin + other.bytes &&
            other.begin < range.begin + range.bytes)
          state.violation(std::string("race: ") + call + " and an earlier operation of the graph both use " +
                          spell(range.begin, range.bytes) + " with no order between them");
    }
  capture.nodes.push_back({std::move(ranges), std::move(run), stream.number, stream.capture_clock.at(stream.number)});
}

}  // namespace

Status State::conflict(const char* call, const std::string& what, CaptureState& capture, Status status) {
  capture.invalid = true;
  return misuse(call, what, status);
}

Status State::unsafe(const char* call) {
  const auto me = std::this_thread::get_id();
  const auto found = capture_modes.find(me);
  const CaptureMode mode = found == capture_modes.end() ? kCaptureGlobal : found->second;
  if (mode == kCaptureRelaxed) return kSuccess;
  Status status = kSuccess;
  for (const auto& capture : captures) {
    const bool mine = capture->thread == me && capture->mode != kCaptureRelaxed;
    const bool theirs = mode == kCaptureGlobal && capture->thread != me && capture->mode == kCaptureGlobal;
    if (mine || theirs)
      status = conflict(call, "potentially unsafe while a stream captures", *capture, kErrorCaptureUnsupported);
  }
  return status;
}

std::uint64_t State::submit(const char* call, const std::shared_ptr<StreamState>& stream, std::vector<Range> ranges,
                            Run run) {
  if (stream->capture != nullptr) {
    capture_node(*this, call, *stream, std::move(ranges), std::move(run));
    return stream->submitted;
  }
  stream->clock.join(host);
  stream->clock.tick(stream->number);
  bool raced = false;
  for (const Range& range : ranges) {
    if (!ordered(call, *stream, range, stream->clock.at(stream->number))) raced = true;
  }
  Operation operation;
  operation.sequence = ++stream->submitted;
  operation.run = [run = std::move(run), raced](std::unique_lock<std::mutex>& lock) { return run(lock, raced); };
  stream->queue.push_back(std::move(operation));
  if (options.eager != 0) demand(*stream, stream->submitted);
  return stream->submitted;
}

void State::demand(StreamState& stream, std::uint64_t sequence) {
  if (stream.demanded >= sequence) return;
  stream.demanded = sequence;
  changed.notify_all();
}

void State::drain(std::unique_lock<std::mutex>& lock, StreamState& stream, std::uint64_t sequence) {
  demand(stream, sequence);
  changed.wait(lock, [&] { return stream.completed >= sequence; });
}

void State::start(const std::shared_ptr<StreamState>& stream) {
  std::thread([this, stream] {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(
          lock, [&] { return stream->completed < stream->demanded || (stream->destroyed && stream->queue.empty()); });
      if (stream->queue.empty()) return;
      Operation operation = std::move(stream->queue.front());
      stream->queue.pop_front();
      Status status = stream->context->lost;
      if (status == kSuccess && executions_to_failure != 0 && --executions_to_failure == 0) status = execution_failure;
      if (status == kSuccess) status = operation.run(lock);
      if (status != kSuccess) stream->context->lost = status;
      stream->completed = operation.sequence;
      changed.notify_all();
    }
  }).detach();
}

}  // namespace cuda_double
