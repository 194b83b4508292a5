#include "weights/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/try.h"
#include "base/utf8.h"
#include "weights/json_cursor.h"

namespace berth::internal::formats {
namespace {

struct DTypeName {
  std::string_view quoted;  // up to the closing quote, which is part of it
  DType dtype;
  constexpr std::string_view text() const { return quoted.substr(0, quoted.size() - 1); }
};
constexpr std::array<DTypeName, 22> kNames = {{
    {R"(F32")", DType::kF32},        {R"(BF16")", DType::kBF16},
    {R"(F16")", DType::kF16},        {R"(U8")", DType::kU8},
    {R"(I8")", DType::kI8},          {R"(I32")", DType::kI32},
    {R"(I64")", DType::kI64},        {R"(BOOL")", DType::kBool},
    {R"(F8_E4M3")", DType::kF8E4M3}, {R"(F8_E5M2")", DType::kF8E5M2},
    {R"(F64")", DType::kF64},        {R"(U16")", DType::kU16},
    {R"(I16")", DType::kI16},        {R"(U32")", DType::kU32},
    {R"(U64")", DType::kU64},        {R"(C64")", DType::kC64},
    {R"(F8_E8M0")", DType::kF8E8M0}, {R"(F8_E4M3FNUZ")", DType::kF8E4M3FNUZ},
    {R"(F4")", DType::kF4E2M1},      {R"(F8_E5M2FNUZ")", DType::kF8E5M2FNUZ},
    {R"(F6_E2M3")", DType::kF6E2M3}, {R"(F6_E3M2")", DType::kF6E3M2},
}};

class SafetensorsHeaderReader {
 public:
  SafetensorsHeaderReader(std::string_view text, std::uint64_t data_begin, TensorTable& table) noexcept
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
    if (!take_usual_form(tensor, end)) {
      cursor_.return_to(place);
      BERTH_TRY(read_any_form(tensor, end));
    }
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

  // Parses exactly the form {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]} that the reference writer produces for
  // every tensor, at a third of the cost. Returns false for any other form, valid or not; the position of the cursor is
  // then unspecified.
  bool take_usual_form(TensorInfo& tensor, std::uint64_t& end) {
    if (!cursor_.take_exactly(R"({"dtype":")")) return false;
    const DTypeName* type = nullptr;
    for (const DTypeName& known : kNames) {
      if (!cursor_.take_exactly(known.quoted)) continue;
      type = &known;
      break;
    }
    if (type == nullptr || !cursor_.take_exactly(R"(,"shape":[)")) return false;
    std::array<std::size_t, 8> shape;
    std::size_t rank = 0;
    if (!cursor_.take_exactly("]")) {
      do {
        std::uint64_t extent;
        if (rank == shape.size() || !cursor_.take_short_integer(extent)) return false;
        shape[rank++] = extent;
      } while (cursor_.take_exactly(","));
      if (!cursor_.take_exactly("]")) return false;
    }
    if (!cursor_.take_exactly(R"(,"data_offsets":[)") || !cursor_.take_short_integer(tensor.offset) ||
        !cursor_.take_exactly(",") || !cursor_.take_short_integer(end) || !cursor_.take_exactly("]}"))
      return false;
    const std::span<std::size_t> kept = table_.own_shape(rank);
    std::copy_n(shape.begin(), rank, kept.begin());
    tensor.shape = kept;
    tensor.dtype = type->dtype;
    return true;
  }

  Result<void> read_any_form(TensorInfo& tensor, std::uint64_t& end) {
    const std::string_view name = tensor.name;
    const char* const place = cursor_.position();
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
    return {};
  }

  Result<void> read_dtype(TensorInfo& tensor) {
    const char* const place = cursor_.position();
    BERTH_TRY_ASSIGN(const std::string_view text, cursor_.string());
    for (const DTypeName& known : kNames) {
      if (known.text() != text) continue;
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
    if (known.dtype == dtype) return known.text();
  return {};
}

Result<TensorTable> read_safetensors(const ByteSource& source) {
  if (source.size() < 8)
    return Error(Code::kInvalidData, Layer::kFormat,
                 "safetensors at byte 0: the file has {} bytes, too few for the 8 of its header's length",
                 source.size());
  std::uint64_t length = 0;
  BERTH_TRY(source.read(0, std::as_writable_bytes(std::span(&length, 1))));
  if (const std::uint64_t swapped = __builtin_bswap64(length);
      length > kMaxSafetensorsHeader && swapped <= kMaxSafetensorsHeader && swapped <= source.size() - 8)
    return Error(
        Code::kUnsupported, Layer::kFormat,
        "safetensors at byte 0: the header's length is byte-swapped, {} if read the other way round; the format "
        "is little-endian: write the file again",
        swapped);
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
  BERTH_TRY(SafetensorsHeaderReader({text.data(), text.size()}, 8 + length, table).read());
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
  std::vector<std::pair<std::string_view, const char*>> names;  // and where they are
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
        const char* const name_place = cursor.position();
        BERTH_TRY_ASSIGN(const std::string_view tensor, cursor.string());
        names.emplace_back(tensor, name_place);
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
  if (!has_map)
    return Error(Code::kInvalidData, Layer::kFormat, "safetensors index at byte {}: it ends without a weight_map",
                 source.size());
  std::sort(names.begin(), names.end());
  const auto twice =
      std::adjacent_find(names.begin(), names.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != names.end())
    return cursor.error_at(twice[1].second, fmt::format("tensor {} is placed twice", quoted(twice->first)));
  return index;
}

}  // namespace berth::internal::formats
