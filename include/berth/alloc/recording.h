// Records every allocation and free of a program with time, size, alignment, label and thread in a compact file (about
// six bytes per call) that can be replayed against other allocators. A Recorder is an allocator that records the calls
// passing through it; any thread may call, and it must outlive its blocks. A Recording is a plain value.
//
// The file: "BRTHTRC1", then records. Numbers are little-endian base 128, seven bits per byte.
//   1, id, length, text                         a label, before its first use; ids count from 1
//   2, ns, thread, bytes, log2 alignment, label an allocation; ns since the previous record; label 0: none
//   3, ns, thread, back                         a free of the allocation made `back` allocations ago
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
  std::uint32_t label = 0;    // index into Recording::labels; 0: none
  std::uint64_t block = 0;    // allocations are numbered from 0
  std::size_t bytes = 0;
  std::size_t alignment = 1;
};

struct Recording {
  std::vector<RecordedEvent> events;
  std::vector<std::string> labels{""};
  std::uint64_t blocks = 0;
};

// Parses a recording. kInvalidData, with the offset, for a truncated record, a number or label out of range, or a free
// of a block that is not live. O(bytes).
Result<Recording> parse_recording(std::span<const std::byte> file);
// The same for a file. Also fails with kIo.
Result<Recording> read_recording(const std::string& path);

class Recorder : public AllocatorAdaptor {
 public:
  std::string_view name() const noexcept final { return "recorder"; }
  Result<SharedMemory> share(const Block& block, SharedAccess access) override { return inner()->share(block, access); }

  // Writes buffered records. kIo if a write failed, now or earlier; recording stops at the first failure, and
  // allocations continue to work.
  virtual Result<void> flush() = 0;

 protected:
  using AllocatorAdaptor::AllocatorAdaptor;
};

// Creates a recorder that writes a new file at `path`. kIo if the file cannot be created. Requires: inner is not null.
Result<std::shared_ptr<Recorder>> make_recorder(AllocatorPtr inner, const std::string& path);

struct RecordingReport {
  std::size_t peak_live_bytes = 0;  // peak of the requested bytes
  std::size_t peak_held_bytes = 0;  // peak of the bytes that the device provided for them
  double fragmentation = 0;         // the fraction of held bytes that was not requested: 1 - live / held
  double seconds = 0;               // spent in allocate and release
  std::uint64_t failures = 0;       // failed allocations
};

// Replays a recording against an allocator, in the recorded order and on one thread. The figures are exact only if
// nothing else uses the allocator's device at the same time.
RecordingReport run_recording(const Recording& recording, Allocator& allocator);

}  // namespace berth
