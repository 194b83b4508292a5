#include "weights/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <random>

#include "base/try.h"
#include "base/utf8.h"

namespace berth::internal::formats {
namespace {

__extension__ typedef unsigned __int128 Wide;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t process_seed() noexcept {
  static const std::uint64_t seed = [] {
    std::random_device device;
    return (static_cast<std::uint64_t>(device()) << 32 | device()) | 1;
  }();
  return seed;
}

Error overlap(const TensorTable::Rules& rules, const TensorInfo& a, const TensorInfo& b) {
  return Error::with_text(
      Code::kInvalidData, Layer::kFormat,
      fmt::format("{}: tensor {} at bytes [{}, {}) overlaps tensor {} at bytes [{}, {})", rules.format, quoted(b.name),
                  b.offset, b.offset + b.bytes, quoted(a.name), a.offset, a.offset + a.bytes));
}

}  // namespace

void* StableBytes::take(std::size_t bytes) {
  bytes = (bytes + 7) / 8 * 8;
  if (bytes > left_) {
    const std::size_t grown = chunks_.empty() ? std::size_t{4096} : chunks_.back().size() * 2;
    PageVector<std::byte>& chunk = chunks_.emplace_back(std::max(bytes, grown));
    next_ = chunk.data();
    left_ = chunk.size();
  }
  std::byte* const taken = next_;
  next_ += bytes;
  left_ -= bytes;
  return taken;
}

std::uint64_t NameIndex::hash(std::string_view name) noexcept {
  const std::uint64_t seed = process_seed();
  std::uint64_t state = mix(seed ^ 0x9E3779B97F4A7C15u, name.size() + 0xD6E8FEB86659FD93u);
  const char* at = name.data();
  std::size_t left = name.size();
  while (left >= 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    state = mix(state ^ word, seed ^ 0xA0761D6478BD642Fu);
    at += 8;
    left -= 8;
  }
  std::uint64_t tail = 0;
  std::memcpy(&tail, at, left);
  return mix(state ^ tail, seed ^ 0xE7037ED1A0B428DBu);
}

template <class NameOf>
std::optional<std::uint32_t> NameIndex::build(std::size_t count, NameOf name_of) {
  const std::size_t slots = std::bit_ceil(count * 2 + 1);
  slots_.assign(slots, 0);
  const std::size_t mask = slots - 1;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view name = name_of(i);
    const std::uint64_t hashed = hash(name);
    const std::uint64_t tag = hashed >> 32 << 32;
    std::size_t at = hashed & mask;
    for (; slots_[at] != 0; at = (at + 1) & mask) {
      if ((slots_[at] >> 32 << 32) != tag) continue;
      if (name_of((slots_[at] & 0xFFFFFFFFu) - 1) == name) return static_cast<std::uint32_t>(i);
    }
    slots_[at] = tag | (i + 1);
  }
  return std::nullopt;
}

template <class NameOf>
std::optional<std::uint32_t> NameIndex::find(std::string_view name, NameOf name_of) const noexcept {
  if (slots_.empty()) return std::nullopt;
  const std::size_t mask = slots_.size() - 1;
  const std::uint64_t hashed = hash(name);
  const std::uint64_t tag = hashed >> 32 << 32;
  for (std::size_t at = hashed & mask; slots_[at] != 0; at = (at + 1) & mask) {
    if ((slots_[at] >> 32 << 32) != tag) continue;
    const std::uint32_t entry = static_cast<std::uint32_t>(slots_[at] & 0xFFFFFFFFu) - 1;
    if (name_of(entry) == name) return entry;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> TensorTable::find(std::string_view name) const noexcept {
  return index_.find(name, [&](std::size_t i) { return tensors_[i].name; });
}

const MetadataValue* TensorTable::find_metadata(std::string_view key) const noexcept {
  const auto found = metadata_index_.find(key, [&](std::size_t i) { return metadata_[i].key; });
  return found ? &metadata_[*found].value : nullptr;
}

std::span<char> TensorTable::own_text(std::size_t bytes) {
  PageVector<char>& text = texts_.emplace_back(bytes + kPadding);
  std::memset(text.data() + bytes, 0, kPadding);
  return std::span(text).first(bytes);
}

std::span<char> TensorTable::own_name(std::size_t bytes) {
  return {static_cast<char*>(kept_.take(bytes)), bytes};
}

std::span<std::size_t> TensorTable::own_shape(std::size_t rank) {
  return {static_cast<std::size_t*>(kept_.take(rank * sizeof(std::size_t))), rank};
}

void TensorTable::append(TensorTable&& other, std::uint32_t file) {
  tensors_.reserve(tensors_.size() + other.tensors_.size());
  for (TensorInfo tensor : other.tensors_) {
    tensor.file = file;
    tensors_.push_back(tensor);
  }
  // Names and shapes point into these; moving the owners leaves the bytes where they are.
  for (PageVector<char>& text : other.texts_) texts_.push_back(std::move(text));
  for (StableBytes& kept : other.adopted_) adopted_.push_back(std::move(kept));
  adopted_.push_back(std::move(other.kept_));
}

Result<void> TensorTable::check_ranges(const Rules& rules) {
  const auto before = [](const TensorInfo& a, const TensorInfo& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  };
  if (!std::is_sorted(tensors_.begin(), tensors_.end(), before))
    std::stable_sort(tensors_.begin(), tensors_.end(), before);
  std::uint64_t end = rules.data_begin;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& tensor : tensors_) {
    if (tensor.offset > rules.file_bytes || tensor.bytes > rules.file_bytes - tensor.offset)
      return Error::with_text(Code::kInvalidData, Layer::kFormat,
                              fmt::format("{}: tensor {} takes bytes [{}, {}), but the file ends at {}; it is "
                                          "truncated or its header is wrong",
                                          rules.format, quoted(tensor.name), tensor.offset,
                                          tensor.offset + tensor.bytes, rules.file_bytes));
    if (tensor.offset < end && (tensor.bytes != 0 || rules.contiguous)) {
      if (previous != nullptr) return overlap(rules, *previous, tensor);
      return Error::with_text(Code::kInvalidData, Layer::kFormat,
                              fmt::format("{}: tensor {} begins at byte {}, inside the header, which ends at {}",
                                          rules.format, quoted(tensor.name), tensor.offset, end));
    }
    if (rules.contiguous && tensor.offset != end)
      return Error::with_text(Code::kInvalidData, Layer::kFormat,
                              fmt::format("{}: bytes [{}, {}) before tensor {} belong to no tensor", rules.format, end,
                                          tensor.offset, quoted(tensor.name)));
    if (tensor.bytes != 0) previous = &tensor;
    end = std::max(end, tensor.offset + tensor.bytes);
  }
  if (rules.contiguous && end != rules.file_bytes)
    return Error::with_text(Code::kInvalidData, Layer::kFormat,
                            fmt::format("{}: the last {} bytes of the file, from {}, belong to no tensor", rules.format,
                                        rules.file_bytes - end, end));
  return {};
}

Result<void> TensorTable::index_names(std::string_view format) {
  if (tensors_.size() >= std::numeric_limits<std::uint32_t>::max())
    return Error::with_text(Code::kUnsupported, Layer::kFormat,
                            fmt::format("{}: {} tensors are more than 2^32", format, tensors_.size()));
  const auto twice = index_.build(tensors_.size(), [&](std::size_t i) { return tensors_[i].name; });
  if (twice)
    return Error::with_text(Code::kInvalidData, Layer::kFormat,
                            fmt::format("{}: two tensors are named {}; the second has its bytes at {}", format,
                                        quoted(tensors_[*twice].name), tensors_[*twice].offset));
  const auto key_twice = metadata_index_.build(metadata_.size(), [&](std::size_t i) { return metadata_[i].key; });
  if (key_twice)
    return Error::with_text(Code::kInvalidData, Layer::kFormat,
                            fmt::format("{}: the metadata has the key {} twice, the second time as entry {}", format,
                                        quoted(metadata_[*key_twice].key), *key_twice));
  return {};
}

Result<void> TensorTable::finish(const Rules& rules) {
  BERTH_TRY(check_ranges(rules));
  return index_names(rules.format);
}

Result<std::uint64_t> checked_bytes(DType dtype, std::span<const std::size_t> shape) {
  const DTypeInfo& type = info(dtype);
  std::uint64_t elements = 1;
  for (const std::size_t dimension : shape) {
    if (__builtin_mul_overflow(elements, dimension, &elements))
      return Error(Code::kInvalidData, Layer::kFormat, "its number of elements does not fit 64 bits");
  }
  // Sub-byte floats are packed through the whole tensor, quantised blocks along the innermost dimension.
  const std::uint64_t run = type.block_elements > 4 ? (shape.empty() ? 1 : shape.back()) : elements;
  if (run % type.block_elements != 0)
    return Error(Code::kInvalidData, Layer::kFormat, "{} elements are not whole blocks of {}", run,
                 type.block_elements);
  std::uint64_t bytes;
  if (__builtin_mul_overflow(elements / type.block_elements, std::uint64_t{type.block_bytes}, &bytes) ||
      bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return Error(Code::kInvalidData, Layer::kFormat, "its size in bytes does not fit 63 bits");
  return bytes;
}

}  // namespace berth::internal::formats
