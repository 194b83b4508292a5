// Weight files: safetensors (one file or shards with an index), GGUF (one file or a split set), and NumPy's .npy
// and uncompressed .npz, behind one interface. Opening reads headers only. tensor() is a zero-copy view of the
// mapped file on the DISK device; load() reads into fresh memory of any device, in parallel.
//
// A WeightFile is a cheap value that shares what it opened; names, shapes and metadata that it hands out live as
// long as any copy of it (they cannot be asked of a temporary), and buffers live on by themselves. All calls are const
// and may run on any thread.
//
//   auto file = berth::open_weights("model.safetensors").value();
//   for (const berth::TensorInfo& t : file.tensors()) ...
//   auto mapped = file.tensor("lm_head.weight").value();                 // nothing read yet
//   auto loaded = file.load("lm_head.weight", berth::device("CPU").value()).value();
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "berth/base/result.h"
#include "berth/tensor/buffer.h"
#include "berth/weights/metadata.h"
#include "berth/weights/tensor_info.h"

namespace berth {

enum class WeightFormat : std::uint8_t { kSafetensors, kGguf, kNpy, kNpz };
std::string_view to_string(WeightFormat format) noexcept;  // "safetensors", "gguf", "npy", "npz"

struct LoadProgress {
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;
};

struct LoadOptions {
  // Readers at once; 0 takes one for each processor, at most 8.
  unsigned threads = 0;
  // Reads past the page cache (O_DIRECT where the file system has it), for files larger than memory.
  bool direct = false;
  // Computes the CRC-32 (as zlib's) of every tensor loaded.
  bool checksums = false;
  // Called about every 8 MiB, by one thread at a time but not always the same; returning false cancels.
  std::function<bool(const LoadProgress&)> progress{};
  // Another way to cancel, from any thread.
  std::stop_token cancel{};
  // Tensors below this size share storages of up to 64 MiB: fully on huge pages, made and read with few system
  // calls, and freed with the last of their tensors. 0 gives every tensor its own storage.
  std::size_t share_below = std::size_t{8} << 20;
  // For the buffers made.
  BufferOptions buffer{};
};

struct LoadedTensors {
  std::vector<Buffer> buffers;             // in the order asked for
  std::vector<std::uint32_t> checksums{};  // the same order; empty unless asked for
};

// A part of a tensor: indices [begin, end) of one axis.
struct AxisSlice {
  std::size_t axis = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
};

class WeightFile {
 public:
  // An empty one, to be assigned to. Everything on it is empty or kNotFound.
  WeightFile() = default;

  WeightFormat format() const noexcept;
  // All tensors, in the order of their bytes; shards one after the other.
  std::span<const TensorInfo> tensors() const& noexcept;
  // DryRun when there is none of this name. O(1).
  const TensorInfo* find(std::string_view name) const& noexcept;
  // Entries in the file's order. Of a sharded or split set: the first file's.
  std::span<const MetadataEntry> metadata() const& noexcept;
  const MetadataValue* find_metadata(std::string_view key) const& noexcept;
  // The paths that were opened; TensorInfo::file counts them.
  std::span<const std::string> files() const& noexcept;
  // Sum over all tensors.
  std::uint64_t total_bytes() const noexcept;
  // `for (t : open_weights(path).value().tensors())` would read what is gone: keep the file in a variable.
  void tensors() const&& = delete;
  void find(std::string_view name) const&& = delete;
  void metadata() const&& = delete;
  void find_metadata(std::string_view key) const&& = delete;
  void files() const&& = delete;

  // A read-only view of the mapped file: no copy, nothing is read until it is touched. Keeps the file mapped.
  // kNotFound; kIo; kUnsupported for more than kMaxRank dimensions. O(1).
  Result<Buffer> tensor(std::string_view name) const;
  Result<Buffer> tensor(const TensorInfo& info) const;

  // Fresh buffers from `allocator` with the tensors' bytes. Everything is loaded or nothing: kNotFound for a name,
  // kOutOfMemory, kIo, kCancelled. Reads go straight into memory that the host can write; other devices are fed
  // through staging memory while the next pieces are read.
  Result<LoadedTensors> load(std::span<const std::string_view> names, const AllocatorPtr& allocator,
                             const LoadOptions& options = {}) const;
  Result<Buffer> load(std::string_view name, const AllocatorPtr& allocator, const LoadOptions& options = {}) const;
  // All tensors, in the order of tensors().
  Result<LoadedTensors> load_all(const AllocatorPtr& allocator, const LoadOptions& options = {}) const;

  // Only a part of a tensor along one axis, reading only its bytes (and gaps below a page). kInvalidArgument for a
  // slice outside the shape or through a quantised block.
  Result<Buffer> load_slice(std::string_view name, const AxisSlice& slice, const AllocatorPtr& allocator,
                            const LoadOptions& options = {}) const;

 private:
  struct Opened;
  explicit WeightFile(std::shared_ptr<const Opened> opened) noexcept : opened_(std::move(opened)) {}
  friend Result<WeightFile> open_weights(const std::string& path);

  std::shared_ptr<const Opened> opened_;
};

// Opens a file by what it holds, whatever its name; an index ("*.index.json"), any file of a split GGUF set, or a
// folder with model.safetensors(.index.json) opens all its files. kNotFound or kIo; kInvalidData with the place in the
// file for one that breaks its format; kUnsupported for what is outside the formats above. O(header).
Result<WeightFile> open_weights(const std::string& path);

}  // namespace berth
