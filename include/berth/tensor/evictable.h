// Memory that can be given back while its owners keep their addresses. Buffers allocated here carry a tag; evict()
// takes the physical memory of every idle buffer with that tag away, and wake() gives memory again at the same
// addresses, with the contents that were kept or without. So a model that is not being used costs addresses only, and
// no pointer to it changes. An allocator like any other: any thread may call; it lives as long as its blocks and keeps
// its device alive. On CPU and CUDA.
//
//   allocate {.tag = "model a"} ... evict("model a", Contents::kToFile) ... wake("model a")
//
// Between evict and wake the memory must not be touched: on CPU that faults, on CUDA the driver reports an error. Each
// buffer takes whole pages (CPU) or the driver's granularity, 2 MiB (CUDA), so this is for large ones.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "berth/memory/allocator.h"
#include "berth/memory/device.h"
#include "berth/tensor/buffer.h"

namespace berth {

// What becomes of the bytes.
enum class Contents : std::uint8_t {
  kDrop,    // they are gone; after waking the memory is undefined
  kToHost,  // kept in host memory; on CPU Unsupported, since it would free nothing
  kToFile,  // kept in an unnamed file in EvictableOptions::folder
};

struct EvictableOptions {
  std::string folder{};  // where spill files go; empty: the system's folder for temporary files
};

struct EvictableCounters {
  std::size_t resident_bytes = 0;  // of memory, in whole pages
  std::size_t evicted_bytes = 0;
  std::size_t spilled_bytes = 0;  // contents kept in host memory or a file
};

class EvictableMemory : public Allocator {
 public:
  // Takes the memory of every resident buffer with this tag; without a tag, of every buffer. Waits for submitted work
  // on the device first. Returns the bytes given back. Buffers whose contents are backed (see back_with) are not copied
  // anywhere unless dropped. Io if a spill file cannot be written, OutOfMemory if host memory cannot hold the contents,
  // the driver's error: what was evicted before the failure stays so, the rest stays as it was.
  // Requires: no work that is recorded and not submitted uses the buffers.
  virtual Result<std::size_t> evict(Name tag, Contents contents) = 0;

  // Gives memory back to every evicted buffer with this tag (without a tag, to all), with its kept contents. Returns
  // the bytes that came back. OutOfMemory, Io or the driver's error: what was woken before the failure stays so, the
  // rest stays evicted and can be woken later.
  virtual Result<std::size_t> wake(Name tag) = 0;

  // Says that `buffer`, allocated here, holds the same bytes as `file` and will not be written: evicting with its
  // contents then costs no copy, and waking reads the file. SizeMismatch; NotOwned for a buffer from elsewhere;
  // InvalidArgument for a view.
  virtual Result<void> back_with(const Buffer& buffer, Buffer file) = 0;

  // Whether a buffer's memory is away. NotOwned for a buffer from elsewhere.
  virtual Result<bool> is_evicted(const Buffer& buffer) const = 0;

  virtual EvictableCounters counters() const = 0;
};

// Unsupported on devices that cannot part addresses and memory.
Result<std::shared_ptr<EvictableMemory>> make_evictable(DevicePtr device, EvictableOptions options = {});

}  // namespace berth
