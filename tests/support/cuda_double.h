// The control side of the CUDA driver double. The double is a shared library with the driver's own symbols;
// production code opens it as it would open libcuda.so.1, and a test steers it through the functions below,
// reached with `double_control()`. Any thread may call them. The double lives until the process ends.
//
// What the double does differently from a GPU, on purpose:
//  - Nothing that was put on a stream runs before somebody waits for it (or asks twice and again whether it is
//    done). So a host that reads too early reads poison, every time. `eager` turns that around: everything runs
//    as soon as it can, on one thread for each stream.
//  - Device addresses are reserved and unreadable; the bytes live elsewhere. A host access faults.
//  - Addresses are never used twice. Fresh memory is 0xCD, freed memory is gone or 0xDD.
//  - Every use of memory is checked against the happens-before order given by streams, events and host waits.
//    Two uses that conflict without an order are a violation when the second is submitted, however the threads
//    fall out, and the second then also writes poison instead of data.
//  - Every refusal that only a bug can cause (unknown handles, wrong contexts, double frees, ranges outside their
//    allocation) is an error as with the driver, and a violation besides.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct CudaDoubleOptions {
  int devices = 2;
  std::size_t memory_bytes = std::size_t{1} << 30;
  int driver_version = 13000;
  int pools = 1;
  int virtual_memory = 1;
  int managed = 1;
  int eager = 0;
};

// A launch as the double's kernels see it: one host pointer for each range that the kernel declared.
struct CudaDoubleLaunch {
  unsigned grid[3];
  unsigned block[3];
  const void* const* parameters;
  void* const* ranges;
};

struct CudaDoubleRange {
  unsigned long long pointer;
  std::size_t bytes;
  int writes;
};

// The host's implementation of a kernel that a loaded module declares under the same name.
struct CudaDoubleKernel {
  const char* name;
  // Writes the ranges that a launch with these parameters touches, at most 8, and returns how many.
  int (*ranges)(const void* const* parameters, CudaDoubleRange* out);
  void (*run)(const CudaDoubleLaunch* launch);
};

struct CudaDoubleTraffic {
  std::uint64_t host_to_device;
  std::uint64_t device_to_host;
  std::uint64_t device_to_device;
  std::uint64_t filled;
};

// The table of control functions, from the symbol "cuda_double_control".
struct CudaDoubleControl {
  // Starts afresh with these options. Returns 0, changing nothing, while a primary context is retained.
  int (*reset)(const CudaDoubleOptions* options);
  // The nth call from now (1 is the next) of `name`, or of any function when null, fails with `status` and has no
  // effect. With `lose_device`, the current context then fails every later call with the same status.
  void (*fail)(const char* name, std::uint64_t nth, unsigned status, int lose_device);
  // The nth operation executed from now fails on its stream, and its context is lost.
  void (*fail_execution)(std::uint64_t nth, unsigned status);
  // Takes back what `fail` and `fail_execution` asked for; returns 1 if any had not happened yet.
  int (*stop_failing)();
  // Calls of `name`, or of every function when null, since the last clear_calls.
  std::uint64_t (*calls)(const char* name);
  void (*clear_calls)();
  // Violations so far, and the text of one. The text lives until clear_violations or reset.
  std::size_t (*violation_count)();
  const char* (*violation)(std::size_t index);
  void (*clear_violations)();
  // What is alive now: allocations of any kind (device, pinned, managed, physical, reservations), streams, events,
  // modules, pools and retained contexts.
  std::size_t (*live_objects)();
  std::size_t (*live_bytes)(int device);
  CudaDoubleTraffic (*traffic)();
  void (*register_kernel)(const CudaDoubleKernel* kernel);
  void (*set_eager)(int eager);
  // Ends a device's primary context, however often it is retained, with everything in it. For after a failure that kept
  // somebody from releasing it.
  void (*drop_context)(int device);
  // The function that `fail` made fail last; "" when none did since reset. The text lives until the process ends.
  const char* (*failed_call)();
};

}  // extern "C"
