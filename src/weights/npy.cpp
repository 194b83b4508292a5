#include "weights/npy.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string>

#include "base/try.h"
#include "base/utf8.h"

namespace berth::internal::formats {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr std::size_t kMaxHeader = std::size_t{1} << 20;
constexpr std::size_t kMaxNpyRank = 64;

Error npy_error_at(std::uint64_t place, std::string_view message, Code code = Code::kInvalidData) {
  return Error::with_text(code, Layer::kFormat, fmt::format("npy at byte {}: {}", place, message));
}

// The literal of a Python dict with the three keys that the format has, in any order.
class NpyHeaderReader {
 public:
  NpyHeaderReader(std::string_view text, std::uint64_t place) noexcept : text_(text), place_(place) {}

  Result<void> read() {
    BERTH_TRY(expect('{'));
    unsigned seen = 0;
    while (!take('}')) {
      BERTH_TRY_ASSIGN(const std::string_view key, string());
      BERTH_TRY(expect(':'));
      unsigned field;
      if (key == "descr") {
        field = 1;
        BERTH_TRY(read_descr());
      } else if (key == "fortran_order") {
        field = 2;
        BERTH_TRY_ASSIGN(fortran_order_, boolean());
      } else if (key == "shape") {
        field = 4;
        BERTH_TRY(read_shape());
      } else {
        return error(fmt::format("unknown key {}", quoted(key)));
      }
      if ((seen & field) != 0) return error(fmt::format("the key {} comes twice", quoted(key)));
      seen |= field;
      if (take(',')) continue;
      BERTH_TRY(expect('}'));
      break;
    }
    skip_space();
    if (at_ != text_.size()) return error("expected nothing after '}'");
    if (seen != 7) return error("descr, fortran_order and shape must all be there");
    return {};
  }

  DType dtype() const noexcept { return dtype_; }
  bool fortran_order() const noexcept { return fortran_order_; }
  std::span<const std::size_t> shape() const noexcept { return std::span(shape_).first(rank_); }

 private:
  Result<void> read_descr() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[')
      return error("a structured dtype; save its fields as arrays of their own", Code::kUnsupported);
    BERTH_TRY_ASSIGN(const std::string_view descr, string());
    if (descr.size() < 3) return error(fmt::format("malformed descr {}", quoted(descr)));
    const char order = descr[0];
    const std::string_view kind = descr.substr(1);
    if (order == '>' && kind != "b1" && kind != "i1" && kind != "u1")
      return error(
          fmt::format("descr {} is big-endian; save it with arr.astype(arr.dtype.newbyteorder('<'))", quoted(descr)),
          Code::kUnsupported);
    static constexpr std::pair<std::string_view, DType> kKinds[] = {
        {"b1", DType::kBool}, {"i1", DType::kI8},  {"i2", DType::kI16}, {"i4", DType::kI32}, {"i8", DType::kI64},
        {"u1", DType::kU8},   {"u2", DType::kU16}, {"u4", DType::kU32}, {"u8", DType::kU64}, {"f2", DType::kF16},
        {"f4", DType::kF32},  {"f8", DType::kF64}, {"c8", DType::kC64}};
    for (const auto& [text, dtype] : kKinds) {
      if (text != kind || (order != '<' && order != '|' && order != '>' && order != '=')) continue;
      dtype_ = dtype;
      return {};
    }
    return error(fmt::format("descr {} is not a type Berth holds{}", quoted(descr),
                             kind.starts_with('V')   ? "; NumPy stores 16- and 8-bit brain floats so, use safetensors"
                             : kind.starts_with('O') ? "; it is a pickled object"
                                                     : ""),
                 Code::kUnsupported);
  }

  Result<void> read_shape() {
    BERTH_TRY(expect('('));
    while (!take(')')) {
      if (rank_ == kMaxNpyRank) return error("a shape of more than 64 dimensions");
      skip_space();
      const std::size_t first = at_;
      std::uint64_t value = 0;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
        if (__builtin_mul_overflow(value, std::uint64_t{10}, &value) ||
            __builtin_add_overflow(value, static_cast<std::uint64_t>(text_[at_] - '0'), &value))
          return error("a dimension does not fit 64 bits");
        ++at_;
      }
      if (at_ == first) return error("expected a non-negative integer in shape");
      if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // written by Python 2
      shape_[rank_++] = value;
      if (take(',')) continue;
      BERTH_TRY(expect(')'));
      break;
    }
    return {};
  }

  Result<std::string_view> string() {
    skip_space();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return error("expected a quoted string");
    const char quote = text_[at_++];
    const std::size_t first = at_;
    while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '\\') ++at_;
    if (at_ >= text_.size() || text_[at_] != quote) return error("a string does not end");
    return text_.substr(first, at_++ - first);
  }

  Result<bool> boolean() {
    skip_space();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return word == "True";
    }
    return error("expected True or False");
  }

  void skip_space() noexcept {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  bool take(char wanted) noexcept {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  Result<void> expect(char wanted) {
    if (take(wanted)) return {};
    return error(fmt::format("expected '{}'", wanted));
  }
  Error error(std::string_view message, Code code = Code::kInvalidData) const {
    return npy_error_at(place_ + at_, message, code);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::uint64_t place_;
  DType dtype_ = DType::kU8;
  bool fortran_order_ = false;
  std::array<std::size_t, kMaxNpyRank> shape_;
  std::size_t rank_ = 0;
};

bool order_matters(std::span<const std::size_t> shape) noexcept {
  std::size_t wide = 0;
  for (const std::size_t dimension : shape) {
    if (dimension == 0) return false;
    if (dimension > 1) ++wide;
  }
  return wide > 1;
}

}  // namespace

Result<void> add_npy(const ByteSource& source, std::uint64_t begin, std::uint64_t end, std::string_view start,
                     std::string_view name, bool exact, TensorTable& table) {
  const std::uint64_t there = end - begin;
  if (there < 10 || start.size() < 10)
    return npy_error_at(begin, fmt::format("{} bytes are too few for a header", there));
  if (!start.starts_with(kMagic)) return npy_error_at(begin, "the magic is missing; not an .npy array");
  const unsigned major = static_cast<unsigned char>(start[6]);
  std::uint64_t prefix = 10;
  std::uint64_t length = 0;
  if (major == 1) {
    length = static_cast<unsigned char>(start[8]) | static_cast<unsigned>(static_cast<unsigned char>(start[9])) << 8;
  } else if (major == 2 || major == 3) {
    prefix = 12;
    if (there < 12 || start.size() < 12) return npy_error_at(begin, "too few bytes for a header");
    std::uint32_t wide;
    std::memcpy(&wide, start.data() + 8, 4);
    length = wide;
  } else {
    return npy_error_at(begin + 6, fmt::format("version {}; versions 1 to 3 can be read", major), Code::kUnsupported);
  }
  if (length > kMaxHeader || length > there - prefix)
    return npy_error_at(begin + 8, fmt::format("a header of {} bytes, but there are {} and at most {} are allowed",
                                               length, there - prefix, kMaxHeader));
  std::string owned;
  std::string_view text = start.substr(prefix);
  if (text.size() < length) {
    owned.resize(length);
    BERTH_TRY(source.read(begin + prefix, std::as_writable_bytes(std::span(owned))));
    text = owned;
  }
  NpyHeaderReader header(text.substr(0, length), begin + prefix);
  BERTH_TRY(header.read());
  if (header.fortran_order() && order_matters(header.shape()))
    return npy_error_at(begin + prefix, "the array is in Fortran order; save it with numpy.ascontiguousarray",
                        Code::kUnsupported);
  const auto bytes = checked_bytes(header.dtype(), header.shape());
  if (!bytes) return npy_error_at(begin + prefix, bytes.error().message());
  const std::uint64_t left = there - prefix - length;
  if (*bytes > left || (exact && *bytes != left))
    return npy_error_at(begin + prefix + length,
                        fmt::format("the array has {} bytes by its dtype and shape, but {} are there", *bytes, left));
  const std::span<std::size_t> shape = table.own_shape(header.shape().size());
  std::copy(header.shape().begin(), header.shape().end(), shape.begin());
  table.add(TensorInfo{.name = name,
                       .shape = shape,
                       .offset = begin + prefix + length,
                       .bytes = *bytes,
                       .file = 0,
                       .dtype = header.dtype()});
  return {};
}

Result<TensorTable> read_npy(const ByteSource& source) {
  TensorTable table;
  std::array<char, 256> start;
  const std::size_t have = std::min<std::uint64_t>(start.size(), source.size());
  BERTH_TRY(source.read(0, std::as_writable_bytes(std::span(start).first(have))));
  BERTH_TRY(add_npy(source, 0, source.size(), {start.data(), have}, "arr_0", false, table));
  BERTH_TRY(table.finish({.format = "npy", .file_bytes = source.size(), .data_begin = 0}));
  return table;
}

}  // namespace berth::internal::formats
