// What a program asked of an allocator, on record: every allocation and free with time, size, alignment, label and
// thread, in a compact file (about six bytes a call) that can be replayed against other policies. A Recorder allocator
// records whatever passes through it; any thread; it lives as long as its blocks. A Recording is a plain value.
//
// The file: "BRTHTRC1", then records. All numbers are little-endian base 128, seven bits a byte.
//   1, id, length, text                         a label, before its first use; ids count from 1
//   2, ns, thread, bytes, log2 alignment, label an allocation; ns since the record before; label 0: none
//   3, ns, thread, back                         a free of the allocation that came `back` allocations ago
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "berth/alloc/adaptor.h"

namespace berth {

struct RecordedEvent {
  bool is_free = false;
  std::uint64_t time_ns = 0;  // since the recording began
  std::uint32_t thread = 0;   // in order of appearance
  std::uint32_t label = 0;    // into Recording::labels; 0: none
  std::uint64_t block = 0;    // allocations are numbered from 0
  std::size_t bytes = 0;
  std::size_t alignment = 1;
};

struct Recording {
  std::vector<RecordedEvent> events;
  std::vector<std::string> labels{""};
  std::uint64_t blocks = 0;
};

// InvalidData with the offset of what breaks the format: a cut record, a number or label out of range, a free of a
// block that is not live. O(bytes).
Result<Recording> parse_recording(std::span<const std::byte> file);
// Also Io.
Result<Recording> read_recording(const std::string& path);

class Recorder : public AllocatorAdaptor {
 public:
  std::string_view name() const noexcept final { return "recorder"; }

  // Writes what is buffered. Io when a write failed, now or before; recording stops at the first failure, and the
  // program goes on.
  virtual Result<void> flush() = 0;

 protected:
  using AllocatorAdaptor::AllocatorAdaptor;
};

// Records what passes through, to a new file at `path`. Io if it cannot be made. Requires: inner is not null.
Result<std::shared_ptr<Recorder>> make_recorder(AllocatorPtr inner, const std::string& path);

struct RecordingReport {
  std::size_t peak_live_bytes = 0;  // what the program asked for, at its highest
  std::size_t peak_held_bytes = 0;  // what the device gave for it, at its highest
  double fragmentation = 0;         // the part of the held bytes that was not asked for: 1 - live / held
  double seconds = 0;               // in allocate and release
  std::uint64_t failures = 0;       // allocations that were refused
};

// Runs a recording against an allocator, in the order recorded and on one thread. The figures are the stack's own
// as long as nobody else uses its device meanwhile.
RecordingReport run_recording(const Recording& recording, Allocator& allocator);

}  // namespace berth
