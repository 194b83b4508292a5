#include "berth/weights/metadata.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/try.h"
#include "base/utf8.h"

namespace berth {

using namespace internal;

namespace {

static_assert(std::endian::native == std::endian::little, "weight files are little-endian; swap on read first");

template <class T>
T load(std::span<const std::byte> bytes) noexcept {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

Error wrong_kind(const MetadataValue& value, std::string_view wanted) {
  return Error::with_text(
      Code::kTypeMismatch, Layer::kFormat,
      fmt::format("metadata value {} is of type {}, not {}", value.to_string(4), to_string(value.type()), wanted));
}

// The bytes of the next element of an array that begins at `rest`, which it moves on. The encoding was
// checked when the file was read.
MetadataValue next_element(MetadataType type, std::span<const std::byte>& rest) noexcept {
  if (const std::size_t size = fixed_size(type); size != 0) {
    const MetadataValue value = MetadataValue::encoded(type, rest.first(size));
    rest = rest.subspan(size);
    return value;
  }
  if (type == MetadataType::kString) {
    const auto length = load<std::uint64_t>(rest);
    const MetadataValue value = MetadataValue::encoded(type, rest.subspan(8, length));
    rest = rest.subspan(8 + length);
    return value;
  }
  const auto element = static_cast<MetadataType>(load<std::uint32_t>(rest));
  const auto count = load<std::uint64_t>(rest.subspan(4));
  rest = rest.subspan(12);
  std::span<const std::byte> inner = rest;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (const std::size_t size = fixed_size(element); size != 0) {
      rest = rest.subspan(size * count);
      break;
    }
    next_element(element, rest);
  }
  return MetadataValue::array(element, count, inner.first(inner.size() - rest.size()));
}

}  // namespace

std::string_view to_string(MetadataType type) noexcept {
  static constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<std::size_t>(type)];
}

std::size_t fixed_size(MetadataType type) noexcept {
  static constexpr std::uint8_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kSizes[static_cast<std::size_t>(type)];
}

MetadataValue MetadataValue::string(std::string_view text) noexcept {
  return encoded(MetadataType::kString, std::as_bytes(std::span(text)));
}

MetadataValue MetadataValue::encoded(MetadataType type, std::span<const std::byte> bytes) noexcept {
  MetadataValue value;
  value.type_ = value.element_ = type;
  value.bytes_ = bytes;
  return value;
}

MetadataValue MetadataValue::array(MetadataType element, std::uint64_t count,
                                   std::span<const std::byte> bytes) noexcept {
  MetadataValue value;
  value.type_ = MetadataType::kArray;
  value.element_ = element;
  value.count_ = count;
  value.bytes_ = bytes;
  return value;
}

Result<std::uint64_t> MetadataValue::as_uint() const {
  if (type_ == MetadataType::kU64) return load<std::uint64_t>(bytes_);
  BERTH_TRY_ASSIGN(const std::int64_t value, as_int());
  if (value < 0) return wrong_kind(*this, "an unsigned integer");
  return static_cast<std::uint64_t>(value);
}

Result<std::int64_t> MetadataValue::as_int() const {
  switch (type_) {
    case MetadataType::kU8: return load<std::uint8_t>(bytes_);
    case MetadataType::kI8: return load<std::int8_t>(bytes_);
    case MetadataType::kU16: return load<std::uint16_t>(bytes_);
    case MetadataType::kI16: return load<std::int16_t>(bytes_);
    case MetadataType::kU32: return load<std::uint32_t>(bytes_);
    case MetadataType::kI32: return load<std::int32_t>(bytes_);
    case MetadataType::kI64: return load<std::int64_t>(bytes_);
    case MetadataType::kU64: {
      const auto value = load<std::uint64_t>(bytes_);
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return wrong_kind(*this, "a signed 64-bit integer");
      return static_cast<std::int64_t>(value);
    }
    default: return wrong_kind(*this, "an integer");
  }
}

Result<double> MetadataValue::as_double() const {
  switch (type_) {
    case MetadataType::kF32: return static_cast<double>(load<float>(bytes_));
    case MetadataType::kF64: return load<double>(bytes_);
    case MetadataType::kU64: return static_cast<double>(load<std::uint64_t>(bytes_));
    case MetadataType::kBool:
    case MetadataType::kString:
    case MetadataType::kArray: return wrong_kind(*this, "a number");
    default: return static_cast<double>(*as_int());
  }
}

Result<bool> MetadataValue::as_bool() const {
  if (type_ != MetadataType::kBool) return wrong_kind(*this, "a bool");
  return load<std::uint8_t>(bytes_) != 0;
}

std::string_view MetadataValue::text() const noexcept {
  if (type_ != MetadataType::kString) return {};
  return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
}

Result<std::string_view> MetadataValue::as_string() const {
  if (type_ != MetadataType::kString) return wrong_kind(*this, "a string");
  if (const std::size_t bad = first_invalid_utf8(text()); bad != text().size())
    return Error(Code::kInvalidData, Layer::kFormat, "metadata string is not UTF-8 at its byte {} of {}", bad,
                 bytes_.size());
  return text();
}

Result<MetadataValue> MetadataValue::at(std::uint64_t index) const {
  if (type_ != MetadataType::kArray) return wrong_kind(*this, "an array");
  if (index >= count_)
    return Error(Code::kInvalidArgument, Layer::kFormat, "element {} is past the array's {} elements", index, count_);
  if (const std::size_t size = fixed_size(element_); size != 0)
    return encoded(element_, bytes_.subspan(index * size, size));
  std::span<const std::byte> rest = bytes_;
  for (std::uint64_t i = 0; i < index; ++i) next_element(element_, rest);
  return next_element(element_, rest);
}

std::vector<MetadataValue> MetadataValue::elements() const {
  if (type_ != MetadataType::kArray) return {*this};
  std::vector<MetadataValue> all;
  all.reserve(count_);
  std::span<const std::byte> rest = bytes_;
  for (std::uint64_t i = 0; i < count_; ++i) all.push_back(next_element(element_, rest));
  return all;
}

std::string MetadataValue::to_string(std::size_t limit) const {
  switch (type_) {
    case MetadataType::kBool: return *as_bool() ? "true" : "false";
    case MetadataType::kF32: return fmt::format("{}", load<float>(bytes_));
    case MetadataType::kF64: return fmt::format("{}", load<double>(bytes_));
    case MetadataType::kU64: return fmt::format("{}", load<std::uint64_t>(bytes_));
    case MetadataType::kString: return quoted(text());
    case MetadataType::kArray: {
      std::string all = "[";
      std::span<const std::byte> rest = bytes_;
      for (std::uint64_t i = 0; i < count_ && i < limit; ++i) {
        if (i != 0) all += ", ";
        all += next_element(element_, rest).to_string(limit);
      }
      if (count_ > limit) all += fmt::format(", ... {} elements", count_);
      return all + "]";
    }
    default: return fmt::format("{}", *as_int());
  }
}

Metadata::Metadata(const Metadata& other) {
  for (const MetadataEntry& entry : other.entries_) static_cast<void>(add(entry.key, entry.value));
}

Metadata& Metadata::operator=(Metadata other) noexcept {
  kept_.swap(other.kept_);
  entries_.swap(other.entries_);
  return *this;
}

std::string_view Metadata::keep(std::string_view text) {
  return kept_.emplace_back(text);
}

const MetadataValue* Metadata::find(std::string_view key) const noexcept {
  for (const MetadataEntry& entry : entries_)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

Result<void> Metadata::add(std::string_view key, const MetadataValue& value) {
  if (find(key) != nullptr)
    return Error::with_text(Code::kAlreadyExists, Layer::kFormat,
                            fmt::format("metadata key {} exists already", quoted(key)));
  const std::span<const std::byte> bytes = value.bytes();
  const std::string_view kept = keep({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const auto own = std::as_bytes(std::span(kept));
  entries_.push_back({keep(key), value.type() == MetadataType::kArray
                                     ? MetadataValue::array(value.element_type(), value.size(), own)
                                     : MetadataValue::encoded(value.type(), own)});
  return {};
}

Result<void> Metadata::add(std::string_view key, std::string_view text) {
  return add(key, MetadataValue::string(text));
}

Result<void> Metadata::add(std::string_view key, bool value) {
  const std::uint8_t byte = value ? 1 : 0;
  return add_number(key, MetadataType::kBool, &byte, 1);
}

Result<void> Metadata::add_number(std::string_view key, MetadataType type, const void* number, std::size_t bytes) {
  return add(key, MetadataValue::encoded(type, {static_cast<const std::byte*>(number), bytes}));
}

Result<void> Metadata::add_array(std::string_view key, MetadataType element, std::size_t count,
                                 std::span<const std::byte> bytes) {
  return add(key, MetadataValue::array(element, count, bytes));
}

Result<void> Metadata::add(std::string_view key, std::span<const std::string> texts) {
  std::string encoded;
  for (const std::string& text : texts) {
    const std::uint64_t length = text.size();
    encoded.append(reinterpret_cast<const char*>(&length), sizeof length);
    encoded += text;
  }
  return add_array(key, MetadataType::kString, texts.size(), std::as_bytes(std::span(encoded)));
}

void Metadata::set(std::string_view key, std::string_view text) {
  for (MetadataEntry& entry : entries_) {
    if (entry.key != key) continue;
    entry.value = MetadataValue::string(keep(text));
    return;
  }
  static_cast<void>(add(key, text));
}

}  // namespace berth
