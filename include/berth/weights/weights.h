// Weight files: safetensors (one file, or shards with an index), GGUF (one file or a split set), and NumPy's .npy and
// uncompressed .npz, with one interface. Opening reads headers only. tensor() returns a zero-copy view of the mapped
// file on the DISK device; load() reads into new memory of any device, in parallel.
//
// A WeightFile is a shared handle that is cheap to copy. Names, shapes and metadata live as long as any copy of it (the
// compiler rejects asking a temporary for them); buffers live independently. All functions are const and may be called
// from any thread.
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

namespace internal::formats {
struct WeightAccess;
}  // namespace internal::formats

enum class WeightFormat : std::uint8_t { kSafetensors, kGguf, kNpy, kNpz };
std::string_view to_string(WeightFormat format) noexcept;  // "safetensors", "gguf", "npy", "npz"

struct LoadProgress {
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;
};

struct LoadOptions {
  // The number of reader threads; 0: one per processor, at most 8.
  unsigned threads = 0;
  // Bypasses the page cache (O_DIRECT if the file system supports it), for files larger than memory.
  bool direct = false;
  // Computes the CRC-32 (as zlib) of every loaded tensor.
  bool checksums = false;
  // Called about every 8 MiB, by one thread at a time but not always the same one; return false to cancel.
  std::function<bool(const LoadProgress&)> progress{};
  // Cancels the load, from any thread.
  std::stop_token cancel{};
  // Tensors smaller than this share storages of up to 64 MiB, which use huge pages and need few system calls; a shared
  // storage is freed with the last of its tensors. 0 gives every tensor its own storage.
  std::size_t share_below = std::size_t{8} << 20;
  // Options of the new buffers.
  BufferOptions buffer{};
};

struct LoadedTensors {
  std::vector<Buffer> buffers;             // in the requested order
  std::vector<std::uint32_t> checksums{};  // in the same order; empty unless requested
};

// A part of a tensor: indices [begin, end) of one axis.
struct AxisSlice {
  std::size_t axis = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
};

class WeightFile {
 public:
  // An empty handle: it has no tensors, and lookups fail with kNotFound.
  WeightFile() = default;

  WeightFormat format() const noexcept;
  // All tensors, in the order of their bytes, shard after shard.
  std::span<const TensorInfo> tensors() const& noexcept;
  // The tensor with this name, or null. O(1).
  const TensorInfo* find(std::string_view name) const& noexcept;
  // Entries in file order; of a sharded or split set, those of the first file.
  std::span<const MetadataEntry> metadata() const& noexcept;
  const MetadataValue* find_metadata(std::string_view key) const& noexcept;
  // The paths of the open files; TensorInfo::file is an index into this.
  std::span<const std::string> files() const& noexcept;
  // The sum over all tensors.
  std::uint64_t total_bytes() const noexcept;
  // `for (t : open_weights(path).value().tensors())` would read freed memory: keep the file in a variable.
  void tensors() const&& = delete;
  void find(std::string_view name) const&& = delete;
  void metadata() const&& = delete;
  void find_metadata(std::string_view key) const&& = delete;
  void files() const&& = delete;

  // A read-only view of the mapped file: no copy, and nothing is read until it is accessed. The view keeps the file
  // mapped. kNotFound; kIo; kUnsupported for more than kMaxRank dimensions. O(1).
  Result<Buffer> tensor(std::string_view name) const;
  Result<Buffer> tensor(const TensorInfo& info) const;

  // New buffers from `allocator` with the bytes of the tensors. Loads all or nothing: kNotFound for a name,
  // kOutOfMemory, kIo, kCancelled. Data is read directly into memory that the host can write; for other devices it goes
  // through staging memory while the next pieces are read.
  Result<LoadedTensors> load(std::span<const std::string_view> names, const AllocatorPtr& allocator,
                             const LoadOptions& options = {}) const;
  Result<Buffer> load(std::string_view name, const AllocatorPtr& allocator, const LoadOptions& options = {}) const;
  // All tensors, in the order of tensors().
  Result<LoadedTensors> load_all(const AllocatorPtr& allocator, const LoadOptions& options = {}) const;

  // Loads a part of a tensor along one axis and reads only its bytes (and gaps smaller than a page). kInvalidArgument
  // for a slice outside the shape or through a quantised block.
  Result<Buffer> load_slice(std::string_view name, const AxisSlice& slice, const AllocatorPtr& allocator,
                            const LoadOptions& options = {}) const;

  // Reads bytes of one of the open files, whatever they are. kNotFound for a file that is not one of files();
  // kInvalidData past its end; kIo. O(bytes).
  Result<void> read(std::uint32_t file, std::uint64_t offset, std::span<std::byte> into) const;

 private:
  struct Opened;
  explicit WeightFile(std::shared_ptr<const Opened> opened) noexcept : opened_(std::move(opened)) {}
  friend Result<WeightFile> open_weights(const std::string& path);
  friend struct internal::formats::WeightAccess;

  std::shared_ptr<const Opened> opened_;
};

// Opens a weight file. The format is detected from the contents, not from the name. An index ("*.index.json"), any file
// of a split GGUF set, or a folder with model.safetensors(.index.json) opens all its files. kNotFound or kIo;
// kInvalidData, with the position, for a file that violates its format; kUnsupported for any other format or feature.
// O(header).
Result<WeightFile> open_weights(const std::string& path);

}  // namespace berth
