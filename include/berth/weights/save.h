// Writing weight files: buffers of any device to safetensors or GGUF. Files are written as a stream to a temporary
// name beside the target, flushed, and renamed over it at the end: a reader sees the old file or the whole new one,
// and a failed or cancelled call leaves nothing behind. Buffers may be views of files larger than memory. Any
// thread may call.
#pragma once

#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "berth/base/result.h"
#include "berth/tensor/buffer.h"
#include "berth/weights/metadata.h"
#include "berth/weights/weights.h"

namespace berth {

struct NamedBuffer {
  std::string_view name;
  Buffer buffer;
};

struct SaveOptions {
  // Called about every 8 MiB; returning false cancels.
  std::function<bool(const LoadProgress&)> progress{};
  std::stop_token cancel{};
  // Waits until the disk has the bytes before the rename.
  bool flush = true;
};

// In the order that the format's own writer uses (largest elements first, then by name), so that every tensor is
// aligned to its element. Metadata must be strings: kTypeMismatch otherwise. kUnsupported for a dtype that the format
// does not have; kInvalidArgument for a name that is not UTF-8, comes twice or is "__metadata__"; kNotAllocated for a
// buffer without contents; kIo; kCancelled.
Result<void> save_safetensors(const std::string& path, std::span<const NamedBuffer> tensors,
                              const Metadata& metadata = {}, const SaveOptions& options = {});

// GGUF version 3, in the order given. Alignment is general.alignment of the metadata, or 32. Also kInvalidArgument for
// a general.alignment that is no power of two of type u32, and kUnsupported for more than four dimensions.
Result<void> save_gguf(const std::string& path, std::span<const NamedBuffer> tensors, const Metadata& metadata = {},
                       const SaveOptions& options = {});

// Writes `source` in the format that `path` ends with, .safetensors or .gguf. Metadata comes along: typed values
// become JSON text in safetensors, "format"-like strings stay strings in GGUF. Tensors that the format cannot hold are
// kUnsupported and named.
Result<void> convert_weights(const WeightFile& source, const std::string& path, const SaveOptions& options = {});

}  // namespace berth
