// The metadata of a weight file: keys and typed values. A MetadataValue is a view of bytes owned by an open WeightFile
// or by a Metadata list; it must not outlive that owner. Values are read-only, so any number of threads may read them.
// The types are those of GGUF, which has the most; safetensors has strings only.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "berth/base/result.h"

namespace berth {

// The numbers are those of GGUF.
enum class MetadataType : std::uint8_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// "u8", "string", "array"
std::string_view to_string(MetadataType type) noexcept;

// The size of one encoded value in bytes; 0 for strings and arrays, whose size varies.
std::size_t fixed_size(MetadataType type) noexcept;

class MetadataValue {
 public:
  MetadataValue() = default;

  // A view of a string's characters.
  static MetadataValue string(std::string_view text) noexcept;
  // A view of one encoded value: little-endian numbers, the characters of a string, or the encoded elements of an array
  // (strings are preceded by a 64-bit length).
  static MetadataValue encoded(MetadataType type, std::span<const std::byte> bytes) noexcept;
  static MetadataValue array(MetadataType element, std::uint64_t count, std::span<const std::byte> bytes) noexcept;

  MetadataType type() const noexcept { return type_; }
  // The element type of an array; otherwise type().
  MetadataType element_type() const noexcept { return element_; }
  // The number of elements of an array; otherwise 1.
  std::uint64_t size() const noexcept { return count_; }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

  // The value as the requested type. kTypeMismatch if it has another type or does not fit. as_string fails with
  // kInvalidData for text that is not UTF-8; text() returns its bytes in any case.
  Result<std::int64_t> as_int() const;
  Result<std::uint64_t> as_uint() const;
  Result<double> as_double() const;  // any number
  Result<bool> as_bool() const;
  Result<std::string_view> as_string() const;
  std::string_view text() const noexcept;

  // Element `index` of an array. kInvalidArgument past the end, kTypeMismatch if the value is not an array.
  // O(1) for numbers, O(index) for strings and arrays: use elements() to visit all.
  Result<MetadataValue> at(std::uint64_t index) const;
  // All elements of an array, in order; the value itself if it is not an array.
  std::vector<MetadataValue> elements() const;

  // Readable text: numbers, quoted strings, "[1, 2, 3, ... 32000 elements]" with at most `limit` elements.
  std::string to_string(std::size_t limit = 8) const;

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t count_ = 1;
  MetadataType type_ = MetadataType::kString;
  MetadataType element_ = MetadataType::kString;
};

struct MetadataEntry {
  std::string_view key;
  MetadataValue value;
};

// A list of entries that owns its bytes, for writing files. Not thread-safe while it is changed.
class Metadata {
 public:
  Metadata() = default;
  Metadata(const Metadata& other);
  Metadata(Metadata&&) noexcept = default;
  Metadata& operator=(Metadata other) noexcept;

  // Each of these adds one entry at the end. kAlreadyExists if the key is present.
  Result<void> add(std::string_view key, std::string_view text);
  Result<void> add(std::string_view key, const char* text) { return add(key, std::string_view(text)); }
  Result<void> add(std::string_view key, const std::string& text) { return add(key, std::string_view(text)); }
  Result<void> add(std::string_view key, bool value);
  template <class Number>
  requires((std::integral<Number> ||
            std::floating_point<Number>)&&!std::same_as<Number, bool>) Result<void> add(std::string_view key,
                                                                                        Number number) {
    return add_number(key, type_of<Number>(), &number, sizeof number);
  }
  Result<void> add(std::string_view key, std::span<const std::string> texts);
  template <class Number>
  requires(std::integral<Number> || std::floating_point<Number>) Result<void> add(std::string_view key,
                                                                                  std::span<const Number> numbers) {
    return add_array(key, type_of<Number>(), numbers.size(), std::as_bytes(numbers));
  }
  // Adds a deep copy of a value.
  Result<void> add(std::string_view key, const MetadataValue& value);

  // The value of a key; null if there is none. O(entries).
  const MetadataValue* find(std::string_view key) const noexcept;
  // Sets a string, replacing the entry if the key is present.
  void set(std::string_view key, std::string_view text);

  std::span<const MetadataEntry> entries() const noexcept { return entries_; }
  bool empty() const noexcept { return entries_.empty(); }

 private:
  template <class Number>
  static constexpr MetadataType type_of() {
    if constexpr (std::same_as<Number, bool>) return MetadataType::kBool;
    if constexpr (std::floating_point<Number>) return sizeof(Number) == 4 ? MetadataType::kF32 : MetadataType::kF64;
    switch (sizeof(Number)) {
      case 1: return std::signed_integral<Number> ? MetadataType::kI8 : MetadataType::kU8;
      case 2: return std::signed_integral<Number> ? MetadataType::kI16 : MetadataType::kU16;
      case 4: return std::signed_integral<Number> ? MetadataType::kI32 : MetadataType::kU32;
      default: return std::signed_integral<Number> ? MetadataType::kI64 : MetadataType::kU64;
    }
  }
  Result<void> add_number(std::string_view key, MetadataType type, const void* number, std::size_t bytes);
  Result<void> add_array(std::string_view key, MetadataType element, std::size_t count,
                         std::span<const std::byte> bytes);
  std::string_view keep(std::string_view text);

  std::deque<std::string> kept_;  // addresses of its elements are stable
  std::vector<MetadataEntry> entries_;
};

}  // namespace berth
