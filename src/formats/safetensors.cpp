#include "formats/safetensors.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "core/try.h"
#include "formats/json_cursor.h"
#include "formats/utf8.h"

namespace berth::formats {
namespace {

struct DTypeName {
  std::string_view text;
  DType dtype;
};
constexpr std::array<DTypeName, 22> kNames = {{
    {"F32", DType::kF32},        {"BF16", DType::kBF16},
    {"F16", DType::kF16},        {"U8", DType::kU8},
    {"I8", DType::kI8},          {"I32", DType::kI32},
    {"I64", DType::kI64},        {"BOOL", DType::kBool},
    {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2},
    {"F64", DType::kF64},        {"U16", DType::kU16},
    {"I16", DType::kI16},        {"U32", DType::kU32},
    {"U64", DType::kU64},        {"C64", DType::kC64},
    {"F8_E8M0", DType::kF8E8M0}, {"F8_E4M3FNUZ", DType::kF8E4M3FNUZ},
    {"F4", DType::kF4E2M1},      {"F8_E5M2FNUZ", DType::kF8E5M2FNUZ},
    {"F6_E2M3", DType::kF6E2M3}, {"F6_E3M2", DType::kF6E3M2},
}};

class HeaderReader {
 public:
  HeaderReader(std::string_view text, std::uint64_t data_begin, TensorTable& table) noexcept
      : cursor_(text, 8, "safetensors header", table), data_begin_(data_begin), table_(table) {}

  Result<void> read() {
    BERTH_TRY(cursor_.expect('{', "at the start"));
    if (!cursor_.take('}')) {
      do {
        BERTH_TRY_ASSIGN(const std::string_view key, cursor_.string());
        BERTH_TRY(cursor_.expect(':', "after a tensor's name"));
        if (key == "__metadata__") {
          BERTH_TRY(read_metadata());
        } else {
          BERTH_TRY(read_tensor(key));
        }
      } while (cursor_.take(','));
      BERTH_TRY(cursor_.expect('}', "or ',' after a tensor"));
    }
    return cursor_.finish();
  }

 private:
  enum Field : unsigned { kDType = 1, kShape = 2, kOffsets = 4, kAll = 7 };

  Result<void> read_metadata() {
    if (has_metadata_) return cursor_.error("a second __metadata__");
    has_metadata_ = true;
    BERTH_TRY(cursor_.expect('{', "after __metadata__"));
    if (cursor_.take('}')) return {};
    do {
      BERTH_TRY_ASSIGN(const std::string_view key, cursor_.string());
      BERTH_TRY(cursor_.expect(':', "after a metadata key"));
      BERTH_TRY_ASSIGN(const std::string_view value, cursor_.string());
      table_.add(MetadataEntry{key, MetadataValue::string(value)});
    } while (cursor_.take(','));
    return cursor_.expect('}', "or ',' after a metadata value");
  }

  Result<void> read_tensor(std::string_view name) {
    TensorInfo tensor;
    tensor.name = name;
    const char* const place = cursor_.position();
    std::uint64_t end = 0;
    unsigned seen = 0;
    BERTH_TRY(cursor_.expect('{', "after a tensor's name"));
    if (!cursor_.take('}')) {
      do {
        BERTH_TRY_ASSIGN(const std::string_view key, cursor_.string());
        BERTH_TRY(cursor_.expect(':', "after a key"));
        Field field;
        if (key == "dtype") {
          field = kDType;
          BERTH_TRY(read_dtype(tensor));
        } else if (key == "shape") {
          field = kShape;
          BERTH_TRY(read_shape(tensor));
        } else if (key == "data_offsets") {
          field = kOffsets;
          BERTH_TRY(read_offsets(tensor, end));
        } else {
          BERTH_TRY(cursor_.skip_value());
          continue;
        }
        if ((seen & field) != 0)
          return cursor_.error_at(place, fmt::format("tensor {} has {} twice", quoted(name), key));
        seen |= field;
      } while (cursor_.take(','));
      BERTH_TRY(cursor_.expect('}', "or ',' in a tensor's description"));
    }
    if (seen != kAll)
      return cursor_.error_at(place, fmt::format("tensor {} has no {}", quoted(name),
                                                 (seen & kDType) == 0   ? "dtype"
                                                 : (seen & kShape) == 0 ? "shape"
                                                                        : "data_offsets"));
    const auto bytes = checked_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return cursor_.error_at(place, fmt::format("tensor {}: {}", quoted(name), bytes.error().message()));
    if (end < tensor.offset || end - tensor.offset != *bytes)
      return cursor_.error_at(
          place, fmt::format("tensor {} of {} bytes by its dtype and shape has data_offsets [{}, {}]", quoted(name),
                             *bytes, tensor.offset, end));
    if (__builtin_add_overflow(tensor.offset, data_begin_, &tensor.offset) || end + data_begin_ < end)
      return cursor_.error_at(place, fmt::format("tensor {} has data_offsets past 2^64", quoted(name)));
    tensor.bytes = *bytes;
    table_.add(tensor);
    return {};
  }

  Result<void> read_dtype(TensorInfo& tensor) {
    const char* const place = cursor_.position();
    BERTH_TRY_ASSIGN(const std::string_view text, cursor_.string());
    for (const DTypeName& known : kNames) {
      if (known.text != text) continue;
      tensor.dtype = known.dtype;
      return {};
    }
    return cursor_.error_at(place,
                            fmt::format("tensor {} has the unknown dtype {}", quoted(tensor.name), quoted(text)));
  }

  Result<void> read_shape(TensorInfo& tensor) {
    BERTH_TRY(cursor_.expect('[', "after shape"));
    std::array<std::size_t, 64> shape;  // NumPy's limit too
    std::size_t rank = 0;
    if (!cursor_.take(']')) {
      do {
        if (rank == shape.size()) return cursor_.error("a shape of more than 64 dimensions");
        BERTH_TRY_ASSIGN(shape[rank++], cursor_.integer());
      } while (cursor_.take(','));
      BERTH_TRY(cursor_.expect(']', "or ',' in a shape"));
    }
    const std::span<std::size_t> kept = table_.own_shape(rank);
    std::copy_n(shape.begin(), rank, kept.begin());
    tensor.shape = kept;
    return {};
  }

  Result<void> read_offsets(TensorInfo& tensor, std::uint64_t& end) {
    BERTH_TRY(cursor_.expect('[', "after data_offsets"));
    BERTH_TRY_ASSIGN(tensor.offset, cursor_.integer());
    BERTH_TRY(cursor_.expect(',', "between the two data_offsets"));
    BERTH_TRY_ASSIGN(end, cursor_.integer());
    return cursor_.expect(']', "after the two data_offsets");
  }

  JsonCursor cursor_;
  std::uint64_t data_begin_;
  TensorTable& table_;
  bool has_metadata_ = false;
};

}  // namespace

std::string_view safetensors_dtype(DType dtype) noexcept {
  for (const DTypeName& known : kNames)
    if (known.dtype == dtype) return known.text;
  return {};
}

Result<TensorTable> read_safetensors(const ByteSource& source) {
  if (source.size() < 8)
    return Error(Code::kInvalidData, Layer::kFormat,
                 "safetensors at byte 0: the file has {} bytes, too few for the 8 of its header's length",
                 source.size());
  std::uint64_t length = 0;
  BERTH_TRY(source.read(0, std::as_writable_bytes(std::span(&length, 1))));
  if (length > kMaxSafetensorsHeader || length > source.size() - 8)
    return Error::with_text(
        Code::kInvalidData, Layer::kFormat,
        fmt::format("safetensors at byte 0: a header of {} bytes, but the file has {} after its length and the format "
                    "allows {}; it is truncated or not a safetensors file",
                    length, source.size() - 8, kMaxSafetensorsHeader));
  TensorTable table;
  const std::span<char> text = table.own_text(length);
  BERTH_TRY(source.read(8, std::as_writable_bytes(text)));
  table.reserve(length / 80);
  BERTH_TRY(HeaderReader({text.data(), text.size()}, 8 + length, table).read());
  BERTH_TRY(table.finish(
      {.format = "safetensors", .file_bytes = source.size(), .data_begin = 8 + length, .contiguous = true}));
  return table;
}

Result<SafetensorsIndex> read_safetensors_index(const ByteSource& source) {
  constexpr std::string_view kFormat = "safetensors index";
  if (source.size() > kMaxSafetensorsHeader)
    return Error(Code::kInvalidData, Layer::kFormat, "safetensors index: {b} is more than the {b} allowed",
                 source.size(), kMaxSafetensorsHeader);
  SafetensorsIndex index;
  const std::span<char> text = index.keeper.own_text(source.size());
  BERTH_TRY(source.read(0, std::as_writable_bytes(text)));
  JsonCursor cursor({text.data(), text.size()}, 0, kFormat, index.keeper);
  std::map<std::string_view, std::uint32_t> known;
  bool has_map = false;
  BERTH_TRY(cursor.expect('{', "at the start"));
  if (!cursor.take('}')) {
    do {
      BERTH_TRY_ASSIGN(const std::string_view key, cursor.string());
      BERTH_TRY(cursor.expect(':', "after a key"));
      if (key != "weight_map") {
        BERTH_TRY(cursor.skip_value());
        continue;
      }
      if (has_map) return cursor.error("a second weight_map");
      has_map = true;
      BERTH_TRY(cursor.expect('{', "after weight_map"));
      if (cursor.take('}')) continue;
      do {
        BERTH_TRY_ASSIGN(const std::string_view tensor, cursor.string());
        BERTH_TRY(cursor.expect(':', "after a tensor's name"));
        const char* const place = cursor.position();
        BERTH_TRY_ASSIGN(const std::string_view file, cursor.string());
        if (file.empty() || file == "." || file == ".." || file.find('/') != file.npos || file.find('\0') != file.npos)
          return cursor.error_at(place, fmt::format("{} is not the name of a file beside the index", quoted(file)));
        const auto [at, fresh] = known.emplace(file, static_cast<std::uint32_t>(index.files.size()));
        if (fresh) index.files.emplace_back(file);
        index.weight_map.emplace_back(tensor, at->second);
      } while (cursor.take(','));
      BERTH_TRY(cursor.expect('}', "or ',' in weight_map"));
    } while (cursor.take(','));
    BERTH_TRY(cursor.expect('}', "or ',' at the end"));
  }
  BERTH_TRY(cursor.finish());
  if (!has_map) return Error(Code::kInvalidData, Layer::kFormat, "safetensors index: it has no weight_map");
  return index;
}

}  // namespace berth::formats
