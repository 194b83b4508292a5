// The control side of the Metal double. The double is a shared library with the Objective-C runtime's entry points and
// the Foundation and Metal classes that metal-cpp sends messages to, over host memory; code that uses metal-cpp links
// it in the place of Apple's frameworks, and a test steers it through the table below. Any thread may call it. The
// double lives until the process ends.
//
// What the double does differently from a GPU, on purpose:
//  - Committed work runs late, on one thread for each queue: when somebody waits for it, or asks for its state again
//    and again, or else after a pause. `pace` changes that.
//  - What the GPU sees of a buffer is another mapping of the same bytes, unreadable unless the buffer is resident.
//    Where a queue has residency sets, only committed members of them are.
//  - Addresses of objects and of buffers are never used twice, and memory that was freed is unreadable.
//  - Every mistake that Metal leaves undefined, or reports only with its validation layer, is a violation: a sentence
//    that a test reads when it is over.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

enum MetalDoublePace {
  kMetalLate = 0,   // when waited for, or after a pause
  kMetalEager = 1,  // as soon as the queue's thread gets to it
  kMetalHeld = 2,   // not at all, until the pace is changed; waits block
};

enum MetalDoubleResidency {
  kMetalResidencyFree = 0,    // whatever a command names is resident, as with Metal when no set is used
  kMetalResidencySets = 1,    // where the queue or the command buffer has residency sets, only their committed members
  kMetalResidencyStrict = 2,  // only committed members, always
};

struct MetalDoubleOptions {
  int devices = 1;
  std::size_t memory_bytes = std::size_t{4} << 30;  // newBuffer gives nil past this much in all
  std::size_t max_buffer_bytes = std::size_t{2} << 30;
  std::size_t working_set_bytes = std::size_t{3} << 30;
  int unified_memory = 1;
  int private_memory = 1;  // 0: every private buffer is refused with nil
  int residency_sets = 1;  // 0: an OS without them, neither class nor selectors
  int residency = kMetalResidencySets;
  int pace = kMetalLate;
  int abort_on_violation = 0;    // 1: the first violation is printed and ends the process
  unsigned char fresh_byte = 0;  // what new buffers hold; Metal clears them
  // How long committed work waits for somebody to ask for it; 0: for ever. Nothing depends on the figure: it only has
  // to end, because a program may wait by other means, such as its own completion handler.
  unsigned pause_milliseconds = 30;
};

// A buffer or a block of constants, as a kernel sees it. Null where nothing was bound.
struct MetalDoubleArgument {
  void* data;
  std::size_t bytes;
};

struct MetalDoubleLaunch {
  std::size_t threads[3];      // in the whole grid
  std::size_t threadgroup[3];  // in one threadgroup
  MetalDoubleArgument arguments[31];
};

// The host's implementation of a kernel that a library declares under the same name. Runs on the queue's thread.
struct MetalDoubleKernel {
  const char* name;
  void (*run)(const MetalDoubleLaunch* launch);
};

// The table of control functions. Names of messages are "selector" or "Class selector"; class is "MTLDevice",
// "MTLBuffer", "MTLResidencySet" and so on, as the protocols are called.
struct MetalDoubleControl {
  // Starts afresh with these options, and without kernels. Returns 0, changing nothing, while objects are alive.
  int (*reset)(const MetalDoubleOptions* options);

  // The nth creating message from now (1 is the next) with this name gives nil, and an NSError where it has one to
  // give. Null: any message that creates a Metal object, and MTLCreateSystemDefaultDevice and MTLCopyAllDevices, which
  // are their own names.
  void (*fail)(const char* name, std::uint64_t nth);
  // The nth command buffer executed from now ends with status error and this MTLCommandBufferError.
  void (*fail_execution)(std::uint64_t nth, unsigned code);
  // Takes back what the two asked for; returns 1 if any had not happened yet.
  int (*stop_failing)();
  // From now on every command buffer ends with the error DeviceRemoved, until reset.
  void (*lose_device)();
  // How many messages since the last clear could have been failed with a null name: the length of a sweep.
  std::uint64_t (*creations)();

  // Messages with this name since the last clear; null: all. Messages to nil are none of them.
  std::uint64_t (*messages)(const char* name);
  std::uint64_t (*messages_to_nil)();
  void (*clear_messages)();

  // Violations so far, and the text of one. The text lives until clear_violations or reset.
  std::size_t (*violation_count)();
  const char* (*violation)(std::size_t index);
  void (*clear_violations)();

  // Objects alive now: of a class, or of all when null. Blocks on the heap count as class "Block".
  std::size_t (*live_objects)(const char* class_name);
  // "MTLBuffer 3, MTLDevice 1", or "" when nothing is alive. The text lives until the thread asks again.
  const char* (*live_report)();
  // What buffers hold now, and how much of it is in committed residency sets.
  std::size_t (*live_bytes)();
  std::size_t (*resident_bytes)();

  void (*register_kernel)(const MetalDoubleKernel* kernel);
  void (*set_pace)(int pace);
  void (*set_residency)(int residency);
  // This buffer counts as resident everywhere: somebody else's memory, which no set of ours has.
  void (*keep_resident)(const void* buffer);
  // Returns when everything committed is over. Not while held.
  void (*drain)();
};

extern const MetalDoubleControl metal_double_control;

}  // extern "C"
