// The result of every parser: a flat list of tensors in file order, an index by name and the metadata, with all bytes
// that names, shapes and values point into. Created by one thread, then immutable. Moving a table moves no bytes, so
// views into it stay valid.
//
// Memory is bounded by a small multiple of the header: each entry takes more bytes in the file than the few dozen it
// takes here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/page_memory.h"
#include "berth/base/result.h"
#include "berth/weights/metadata.h"
#include "berth/weights/tensor_info.h"

namespace berth::internal::formats {

// Stores small objects at stable addresses; grows by doubling chunks.
class StableBytes {
 public:
  // `bytes` uninitialised bytes, aligned to 8.
  void* take(std::size_t bytes);

 private:
  std::vector<PageVector<std::byte>> chunks_;
  std::byte* next_ = nullptr;
  std::size_t left_ = 0;
};

// Open addressing over 64-bit slots: the hash's upper half beside the entry's number, so that a probe
// seldom touches a name. Seeded per process: a file cannot choose colliding names.
class NameIndex {
 public:
  // Indexes all names. The number of the second of two equal names when there are such. O(names).
  template <class NameOf>
  std::optional<std::uint32_t> build(std::size_t count, NameOf name_of);
  // O(1).
  template <class NameOf>
  std::optional<std::uint32_t> find(std::string_view name, NameOf name_of) const noexcept;

 private:
  static std::uint64_t hash(std::string_view name) noexcept;
  PageVector<std::uint64_t> slots_;
};

class TensorTable {
 public:
  std::span<const TensorInfo> tensors() const noexcept { return tensors_; }
  std::span<const MetadataEntry> metadata() const noexcept { return metadata_; }
  // The tensor's position in tensors(). O(1).
  std::optional<std::uint32_t> find(std::string_view name) const noexcept;
  // Null when the key is not there. O(1).
  const MetadataValue* find_metadata(std::string_view key) const noexcept;

  // For parsers: add the pieces, then call finish() once.
  std::span<char> own_text(std::size_t bytes);         // header bytes, followed by kPadding zero bytes
  std::span<std::size_t> own_shape(std::size_t rank);  // uninitialised
  std::span<char> own_name(std::size_t bytes);         // uninitialised
  void adopt(PageVector<char>&& text) { texts_.push_back(std::move(text)); }
  void reserve(std::size_t tensors) { tensors_.reserve(tensors); }
  void add(const TensorInfo& tensor) { tensors_.push_back(tensor); }
  void add(const MetadataEntry& entry) { metadata_.push_back(entry); }
  // Adds `by` to the offset of every tensor so far.
  void shift(std::uint64_t by) noexcept {
    for (TensorInfo& tensor : tensors_) tensor.offset += by;
  }
  // Moves the tensors and bytes of `other` into this table, as coming from file number `file`.
  void append(TensorTable&& other, std::uint32_t file);

  struct Rules {
    std::string_view format;   // for messages
    std::uint64_t file_bytes;  // ranges must end at or before
    std::uint64_t data_begin;  // and begin at or after
    bool contiguous = false;   // no holes, and the last ends at file_bytes
  };
  // Sorts into file order, checks ranges (in bounds, none overlapping) and names (none twice). kInvalidData.
  Result<void> finish(const Rules& rules);
  // Only the index: for tables joined from checked ones.
  Result<void> index_names(std::string_view format);

  static constexpr std::size_t kPadding = 32;

 private:
  Result<void> check_ranges(const Rules& rules);

  PageVector<TensorInfo> tensors_;
  std::vector<MetadataEntry> metadata_;
  NameIndex index_;
  NameIndex metadata_index_;
  StableBytes kept_;
  std::vector<StableBytes> adopted_;
  std::vector<PageVector<char>> texts_;
};

// Bytes of a tensor, checked: whole blocks along the innermost dimension, no overflow. The text says why not.
Result<std::uint64_t> checked_bytes(DType dtype, std::span<const std::size_t> shape);

}  // namespace berth::internal::formats
