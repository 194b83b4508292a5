// Writes weight files: buffers of any device to safetensors or GGUF. The data is streamed to a temporary file beside
// the target, flushed, and renamed over the target at the end, so a reader sees either the old file or the complete new
// one, and a failed or cancelled call leaves nothing behind. Buffers may be views of files larger than memory. Any
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
  // Called about every 8 MiB; return false to cancel.
  std::function<bool(const LoadProgress&)> progress{};
  std::stop_token cancel{};
  // Flushes the file to disk before the rename.
  bool flush = true;
};

// Writes safetensors, in the order of the format's reference writer (largest element type first, then by name), which
// aligns every tensor to its element size. kTypeMismatch unless all metadata are strings; kUnsupported for a dtype that
// the format does not have; kInvalidArgument for a name that is not UTF-8, is not unique or is "__metadata__";
// kNotAllocated for a buffer without contents; kIo; kCancelled.
Result<void> save_safetensors(const std::string& path, std::span<const NamedBuffer> tensors,
                              const Metadata& metadata = {}, const SaveOptions& options = {});

// Writes GGUF version 3, in the given order. The alignment is general.alignment of the metadata, or 32. Fails like
// save_safetensors except for the type of metadata, with kInvalidArgument for a general.alignment that is not a power
// of two of type u32, and with kUnsupported for more than four dimensions.
Result<void> save_gguf(const std::string& path, std::span<const NamedBuffer> tensors, const Metadata& metadata = {},
                       const SaveOptions& options = {});

// Writes `source` in the format given by the extension of `path`, .safetensors or .gguf. Metadata is converted: typed
// values become JSON text in safetensors, and strings such as "format" stay strings in GGUF. kUnsupported, with its
// name, for a tensor that the format cannot hold.
Result<void> convert_weights(const WeightFile& source, const std::string& path, const SaveOptions& options = {});

}  // namespace berth
