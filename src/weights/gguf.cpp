#include "weights/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/try.h"
#include "base/utf8.h"

namespace berth::internal::formats {
namespace {

struct TypeNumber {
  std::uint32_t number;
  DType dtype;
};
constexpr std::array kTypes = {
    TypeNumber{0, DType::kF32},     TypeNumber{1, DType::kF16},      TypeNumber{2, DType::kQ4_0},
    TypeNumber{3, DType::kQ4_1},    TypeNumber{6, DType::kQ5_0},     TypeNumber{7, DType::kQ5_1},
    TypeNumber{8, DType::kQ8_0},    TypeNumber{9, DType::kQ8_1},     TypeNumber{10, DType::kQ2_K},
    TypeNumber{11, DType::kQ3_K},   TypeNumber{12, DType::kQ4_K},    TypeNumber{13, DType::kQ5_K},
    TypeNumber{14, DType::kQ6_K},   TypeNumber{15, DType::kQ8_K},    TypeNumber{16, DType::kIQ2_XXS},
    TypeNumber{17, DType::kIQ2_XS}, TypeNumber{18, DType::kIQ3_XXS}, TypeNumber{19, DType::kIQ1_S},
    TypeNumber{20, DType::kIQ4_NL}, TypeNumber{21, DType::kIQ3_S},   TypeNumber{22, DType::kIQ2_S},
    TypeNumber{23, DType::kIQ4_XS}, TypeNumber{24, DType::kI8},      TypeNumber{25, DType::kI16},
    TypeNumber{26, DType::kI32},    TypeNumber{27, DType::kI64},     TypeNumber{28, DType::kF64},
    TypeNumber{29, DType::kIQ1_M},  TypeNumber{30, DType::kBF16},    TypeNumber{34, DType::kTQ1_0},
    TypeNumber{35, DType::kTQ2_0},  TypeNumber{39, DType::kMXFP4},   TypeNumber{40, DType::kNVFP4},
    TypeNumber{41, DType::kQ1_0},   TypeNumber{42, DType::kQ2_0},
};

constexpr std::size_t kMaxRank = 8;
constexpr int kMaxArrayDepth = 4;
constexpr std::uint64_t kMaxEntries = std::uint64_t{1} << 20;
constexpr std::uint64_t kLeastEntry = 8 + 4 + 1;       // empty key, type, one byte
constexpr std::uint64_t kLeastTensor = 8 + 4 + 4 + 8;  // empty name, no dimensions

// Parses the part of the header that has been read. If it ends before the header does, `starved` is set, and the caller
// reads more and starts again.
class GgufHeaderReader {
 public:
  GgufHeaderReader(std::span<const char> text, std::uint64_t file_bytes, GgufHeader& header) noexcept
      : text_(text), file_bytes_(file_bytes), header_(header) {}

  bool starved() const noexcept { return starved_; }

  Result<void> read() {
    BERTH_TRY(need(24, "the magic, the version and the two counts"));
    if (next<std::uint32_t>() != kGgufMagic)
      return Error(Code::kInvalidData, Layer::kFormat, "GGUF at byte 0: the magic is missing; not a GGUF file");
    BERTH_TRY(read_version());
    const auto tensors = next<std::uint64_t>();
    const auto entries = next<std::uint64_t>();
    BERTH_TRY(check_count(tensors, kLeastTensor, 8, "tensors"));
    BERTH_TRY(check_count(entries, kLeastEntry, 16, "metadata entries"));
    if (entries > kMaxEntries)
      return Error(Code::kUnsupported, Layer::kFormat, "GGUF at byte 16: {} metadata entries are more than {}", entries,
                   kMaxEntries);
    for (std::uint64_t i = 0; i < entries; ++i) BERTH_TRY(read_entry());
    header_.table.reserve(std::min(tensors, text_.size() / kLeastTensor));  // never for a count that cannot be
    for (std::uint64_t i = 0; i < tensors; ++i) BERTH_TRY(read_tensor());
    return place_data(tensors);
  }

 private:
  Result<void> read_version() {
    header_.version = next<std::uint32_t>();
    if ((header_.version & 0xFFFF) == 0 && header_.version != 0)
      return Error(Code::kUnsupported, Layer::kFormat,
                   "GGUF at byte 4: the version is byte-swapped; this is a big-endian file, convert it to "
                   "little-endian first");
    if (header_.version != 2 && header_.version != 3)
      return Error(Code::kUnsupported, Layer::kFormat, "GGUF at byte 4: version {}; versions 2 and 3 can be read",
                   header_.version);
    return {};
  }

  Result<void> check_count(std::uint64_t count, std::uint64_t least, std::uint64_t place, std::string_view what) {
    if (count <= file_bytes_ / least) return {};
    return Error::with_text(
        Code::kInvalidData, Layer::kFormat,
        fmt::format("GGUF at byte {}: {} {} need more than the file's {} bytes", place, count, what, file_bytes_));
  }

  Result<void> read_entry() {
    const std::uint64_t place = at_;
    BERTH_TRY_ASSIGN(const std::string_view key, name("a metadata key"));
    BERTH_TRY(need(4, "the type of a metadata value"));
    BERTH_TRY_ASSIGN(const MetadataType type, value_type());
    BERTH_TRY_ASSIGN(const MetadataValue value, read_value(type, 0));
    if (key == "general.alignment") {
      const auto alignment = value.type() == MetadataType::kU32 ? value.as_uint().value() : 0;
      if (!std::has_single_bit(alignment))
        return error_at(place, fmt::format("general.alignment is {} of type {}, not a power of two of type u32",
                                           value.to_string(), berth::to_string(value.type())));
      header_.alignment = static_cast<std::uint32_t>(alignment);
    }
    header_.table.add(MetadataEntry{key, value});
    return {};
  }

  Result<MetadataType> value_type() {
    const std::uint64_t place = at_;
    const auto number = next<std::uint32_t>();
    if (number > static_cast<std::uint32_t>(MetadataType::kF64))
      return error_at(place, fmt::format("unknown metadata type {}", number));
    return static_cast<MetadataType>(number);
  }

  Result<MetadataValue> read_value(MetadataType type, int depth) {
    if (const std::size_t size = fixed_size(type); size != 0) {
      BERTH_TRY(need(size, "a metadata value"));
      return MetadataValue::encoded(type, take(size));
    }
    if (type == MetadataType::kString) {
      BERTH_TRY(need(8, "the length of a string"));
      const auto length = next<std::uint64_t>();
      BERTH_TRY(need(length, "a metadata string"));
      return MetadataValue::encoded(type, take(length));
    }
    const std::uint64_t place = at_;
    if (depth == kMaxArrayDepth) return error_at(place, "arrays are nested more than 4 deep");
    BERTH_TRY(need(12, "the type and length of an array"));
    BERTH_TRY_ASSIGN(const MetadataType element, value_type());
    const auto count = next<std::uint64_t>();
    const std::uint64_t first = at_;
    if (const std::size_t size = fixed_size(element); size != 0) {
      if (count > file_bytes_ / size)
        return error_at(place, fmt::format("an array of {} elements is longer than the file", count));
      BERTH_TRY(need(count * size, "the elements of an array"));
      at_ += count * size;
    } else {
      if (count > file_bytes_ / 8)
        return error_at(place, fmt::format("an array of {} elements is longer than the file", count));
      for (std::uint64_t i = 0; i < count; ++i) BERTH_TRY(read_value(element, depth + 1));
    }
    return MetadataValue::array(element, count, std::as_bytes(text_.subspan(first, at_ - first)));
  }

  Result<void> read_tensor() {
    const std::uint64_t place = at_;
    TensorInfo tensor;
    BERTH_TRY_ASSIGN(tensor.name, name("a tensor's name"));
    BERTH_TRY(need(4, "a tensor's number of dimensions"));
    const auto rank = next<std::uint32_t>();
    if (rank > kMaxRank)
      return error_at(place, fmt::format("tensor {} has {} dimensions, more than 8", quoted(tensor.name), rank));
    BERTH_TRY(need(rank * 8 + 12, "a tensor's shape, type and offset"));
    const std::span<std::size_t> shape = header_.table.own_shape(rank);
    for (std::size_t i = rank; i-- > 0;) shape[i] = next<std::uint64_t>();  // the file has the innermost first
    tensor.shape = shape;
    const auto number = next<std::uint32_t>();
    const auto dtype = dtype_of_gguf(number);
    if (!dtype)
      return error_at(place, fmt::format("tensor {} has type {}, which is unknown or withdrawn from the format",
                                         quoted(tensor.name), number));
    tensor.dtype = *dtype;
    const auto bytes = checked_bytes(tensor.dtype, shape);
    if (!bytes)
      return error_at(place, fmt::format("tensor {} of type {}: {}", quoted(tensor.name),
                                         berth::to_string(tensor.dtype), bytes.error().message()));
    tensor.bytes = *bytes;
    tensor.offset = next<std::uint64_t>();  // from the start of the data; made absolute below
    if (tensor.offset > file_bytes_)
      return error_at(place, fmt::format("tensor {} has offset {}, which is past the end of the file at {}; it is "
                                         "truncated or its header is wrong",
                                         quoted(tensor.name), tensor.offset, file_bytes_));
    if (tensor.offset % header_.alignment != 0)
      return error_at(place, fmt::format("tensor {} has offset {}, which is not a multiple of the alignment {}",
                                         quoted(tensor.name), tensor.offset, header_.alignment));
    header_.table.add(tensor);
    return {};
  }

  Result<void> place_data(std::uint64_t tensors) {
    const std::uint64_t mask = header_.alignment - 1;
    header_.data_begin = (at_ + mask) & ~mask;
    if (tensors == 0) header_.data_begin = std::min(header_.data_begin, file_bytes_);
    header_.table.shift(header_.data_begin);
    return header_.table.finish({.format = "GGUF", .file_bytes = file_bytes_, .data_begin = header_.data_begin});
  }

  Result<std::string_view> name(std::string_view what) {
    const std::uint64_t place = at_;
    BERTH_TRY(need(8, what));
    const auto length = next<std::uint64_t>();
    if (length > 0xFFFF) return error_at(place, fmt::format("{} of {} bytes is longer than 65535", what, length));
    BERTH_TRY(need(length, what));
    const std::span<const std::byte> bytes = take(length);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (const std::size_t bad = first_invalid_utf8(text); bad != text.size())
      return error_at(place + 8 + bad, fmt::format("{} is not UTF-8: {}", what, quoted(text)));
    return text;
  }

  Result<void> need(std::uint64_t bytes, std::string_view what) {
    if (bytes <= text_.size() - at_) return {};
    starved_ = bytes <= file_bytes_ - at_;
    if (starved_) return Error(Code::kInvalidData, Layer::kFormat, "GGUF: the header goes on");
    return error_at(at_,
                    fmt::format("{} of {} bytes reaches past the end of the file at {}", what, bytes, file_bytes_));
  }

  template <class T>
  T next() noexcept {
    T value;
    std::memcpy(&value, text_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::span<const std::byte> take(std::uint64_t bytes) noexcept {
    at_ += bytes;
    return std::as_bytes(text_.subspan(at_ - bytes, bytes));
  }
  static Error error_at(std::uint64_t place, std::string_view message) {
    return Error::with_text(Code::kInvalidData, Layer::kFormat, fmt::format("GGUF at byte {}: {}", place, message));
  }

  std::span<const char> text_;
  std::uint64_t at_ = 0;
  std::uint64_t file_bytes_;
  GgufHeader& header_;
  bool starved_ = false;
};

// The size of the first read: enough for the header of most files without a vocabulary.
std::uint64_t first_guess(const ByteSource& source) {
  std::array<std::uint64_t, 3> start{};
  std::uint64_t guess = 1 << 16;
  if (source.size() >= sizeof start && source.read(0, std::as_writable_bytes(std::span(start))))
    guess += std::min<std::uint64_t>(start[1], 1 << 20) * 128;
  return guess;
}

}  // namespace

std::optional<std::uint32_t> gguf_type(DType dtype) noexcept {
  for (const TypeNumber& type : kTypes)
    if (type.dtype == dtype) return type.number;
  return std::nullopt;
}

std::optional<DType> dtype_of_gguf(std::uint32_t number) noexcept {
  const auto at = std::lower_bound(kTypes.begin(), kTypes.end(), number,
                                   [](const TypeNumber& type, std::uint32_t n) { return type.number < n; });
  if (at == kTypes.end() || at->number != number) return std::nullopt;
  return at->dtype;
}

Result<GgufHeader> read_gguf(const ByteSource& source) {
  for (std::uint64_t bytes = first_guess(source);; bytes *= 4) {
    bytes = std::min({bytes, source.size(), kMaxGgufHeader});
    GgufHeader header;
    const std::span<char> text = header.table.own_text(bytes);
    BERTH_TRY(source.read(0, std::as_writable_bytes(text)));
    GgufHeaderReader reader(text, source.size(), header);
    Result<void> done = reader.read();
    if (done) return header;
    if (!reader.starved()) return std::move(done).error();
    if (bytes == kMaxGgufHeader)
      return Error(Code::kUnsupported, Layer::kFormat, "GGUF: the header is longer than {b}", kMaxGgufHeader);
  }
}

}  // namespace berth::internal::formats
