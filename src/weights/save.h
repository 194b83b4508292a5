// Functions that the writers share: checks of names and contents, and streaming of buffers into a file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/atomic_file.h"
#include "berth/weights/save.h"

namespace berth::internal::formats {

// kInvalidArgument for names that are not UTF-8 or not unique, kNotAllocated for buffers without contents.
Result<void> check_tensors(std::span<const NamedBuffer> tensors);

// Streams buffers and counts progress over all of them.
class BufferStream {
 public:
  BufferStream(AtomicFile& file, std::span<const NamedBuffer> tensors, const SaveOptions& options) noexcept;
  Result<void> write(const Buffer& buffer);

 private:
  Result<void> advance(std::uint64_t bytes);

  AtomicFile& file_;
  const SaveOptions& options_;
  std::string staging_;
  std::uint64_t done_ = 0;
  std::uint64_t told_ = 0;  // of done_, to the caller's callback
  std::uint64_t total_ = 0;
};

// `text` as a JSON string with its quotes.
std::string json_string(std::string_view text);
// A metadata value as JSON text.
std::string json_value(const MetadataValue& value);

}  // namespace berth::internal::formats
