// An allocator whose memory can be released while buffers keep their addresses. evict() releases the physical memory of
// all idle buffers with a tag, and wake() maps memory again at the same addresses, with or without the previous
// contents. A model that is not in use then occupies only address space, and pointers to it stay valid. Any thread may
// call. It must outlive its blocks and keeps its device alive. Available on CPU and CUDA.
//
//   allocate {.tag = "model a"} ... evict("model a", Contents::kToFile) ... wake("model a")
//                                   evict("model a", device("REMOTE:1").value())
//
// Evicted memory must not be accessed: on CPU an access faults, on CUDA the driver reports an error. Each buffer takes
// whole pages (CPU) or the driver's granularity, 2 MiB (CUDA), so this is meant for large buffers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "berth/memory/allocator.h"
#include "berth/memory/device.h"
#include "berth/tensor/buffer.h"

namespace berth {

// What happens to the contents of evicted memory.
enum class Contents : std::uint8_t {
  kDrop,    // lost; the contents are undefined after wake()
  kToHost,  // copied to host memory; kUnsupported on CPU, where this would free nothing
  kToFile,  // copied to an unnamed file in EvictableOptions::folder
};

struct EvictableOptions {
  std::string folder{};  // for spill files; empty: the system's folder for temporary files
};

struct EvictableCounters {
  std::size_t resident_bytes = 0;  // in whole pages
  std::size_t evicted_bytes = 0;
  std::size_t spilled_bytes = 0;  // contents held in host memory, in a file or by an allocator
};
std::string to_string(const EvictableCounters& counters);

class EvictableMemory : public Allocator {
 public:
  // Releases the memory of every resident buffer with this tag, or of all buffers if the tag is empty. Waits for
  // submitted work on the device first. Returns the bytes released. Backed buffers (see back_with) are evicted without
  // a copy; kDrop loses their contents too. kIo if a spill file cannot be written; kOutOfMemory if host memory cannot
  // hold the contents; the driver's error. After a failure, buffers that were already evicted stay evicted and the
  // others stay resident.
  // Requires: no work that is recorded but not submitted uses the buffers.
  virtual Result<std::size_t> evict(Name tag, Contents contents) = 0;

  // The same, with the contents in buffers of `target`: an allocator of another device, such as the memory of a
  // neighbour (berth/remote/cluster.h) or a pool of host memory behind a CUDA device. wake() copies them back and
  // releases the buffers. Contents that a lost device held are gone: wake() of their tag then fails with kDeviceLost,
  // so give what lies on different devices different tags, and back what has a file. kInvalidArgument without a target;
  // kUnsupported for one on the same device, where this would free nothing; the errors of the target.
  virtual Result<std::size_t> evict(Name tag, const AllocatorPtr& target) = 0;

  // Maps memory for every evicted buffer with this tag (all buffers if the tag is empty) and restores its contents.
  // Returns the bytes restored. kOutOfMemory, kIo or the driver's error: buffers that were already restored stay
  // resident; the others stay evicted and can be woken later.
  virtual Result<std::size_t> wake(Name tag) = 0;

  // Declares that `buffer`, allocated here, holds the same bytes as `file` and will not be written. Evicting it with
  // its contents then copies nothing, and wake() reads the file. kSizeMismatch; kNotOwned for a buffer of another
  // allocator; kInvalidArgument for a view.
  virtual Result<void> back_with(const Buffer& buffer, Buffer file) = 0;

  // True if the buffer is evicted. kNotOwned for a buffer of another allocator.
  virtual Result<bool> is_evicted(const Buffer& buffer) const = 0;

  virtual EvictableCounters counters() const = 0;
};

// kUnsupported if the device has no virtual-memory mapping; kInvalidArgument without a device.
Result<std::shared_ptr<EvictableMemory>> make_evictable(DevicePtr device, EvictableOptions options = {});

}  // namespace berth
