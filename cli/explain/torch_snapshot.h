// Reads a memory snapshot of PyTorch, as torch.cuda.memory._dump_snapshot() writes it: a pickle of a dict with
// "segments" (what is there at the end) and "device_traces" (what happened, for each device). Only the fields that a
// RequestTrace needs are kept, while the file is read.
#pragma once

#include <cstddef>
#include <cstdio>
#include <optional>
#include <span>

#include "explain/request_trace.h"

namespace berth::cli {

// kInvalidData: not such a snapshot; kNotFound: no such device; kIo. O(bytes) time; about 50 bytes of memory for each
// event of the trace.
Result<RequestTrace> read_torch_snapshot(std::FILE* file, std::optional<std::uint32_t> device);
Result<RequestTrace> parse_torch_snapshot(std::span<const std::byte> bytes, std::optional<std::uint32_t> device);

}  // namespace berth::cli
