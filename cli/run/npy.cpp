#include "run/npy.h"

#include <cstring>
#include <string_view>

#include "base/atomic_file.h"
#include "base/input_file.h"
#include "base/try.h"

namespace berth::cli {

using namespace internal;

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 34;  // more than an input of a model that is run here

struct Descr {
  int element_type;
  const char* text;
};
constexpr Descr kDescrs[] = {
    {ort::kElementF32, "<f4"}, {ort::kElementF64, "<f8"},   {ort::kElementF16, "<f2"}, {ort::kElementI8, "|i1"},
    {ort::kElementI16, "<i2"}, {ort::kElementI32, "<i4"},   {ort::kElementI64, "<i8"}, {ort::kElementU8, "|u1"},
    {ort::kElementU16, "<u2"}, {ort::kElementU32, "<u4"},   {ort::kElementU64, "<u8"}, {ort::kElementBool, "|b1"},
    {ort::kElementC64, "<c8"}, {ort::kElementC128, "<c16"},
};

// The text after 'key': in the header's dictionary, up to `end`.
std::string_view value_of(std::string_view header, std::string_view key, char begin, char end) {
  const std::size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  const std::size_t first = header.find(begin, at + key.size() + 2);
  if (first == std::string_view::npos) return {};
  const std::size_t last = header.find(end, first + 1);
  return last == std::string_view::npos ? std::string_view{} : header.substr(first + 1, last - first - 1);
}

}  // namespace

Result<ort::Tensor> read_npy(const std::string& path) {
  BERTH_TRY_ASSIGN(const std::string bytes, internal::read_whole_file(path, kMostBytes));
  const auto invalid = [&](const std::string& why) {
    return Error::with_text(Code::kInvalidData, Layer::kProgram, path + " " + why + "; save it with numpy.save");
  };
  if (!bytes.starts_with(kMagic) || bytes.size() < 12) return invalid("is no .npy file");
  const bool version_1 = bytes[6] == 1;
  const std::size_t length_bytes = version_1 ? 2 : 4, start = 8 + length_bytes;
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i)
    length |= static_cast<std::size_t>(static_cast<unsigned char>(bytes[8 + i])) << (8 * i);
  if (length > bytes.size() - start) return invalid("ends inside its header");
  const std::string_view header = std::string_view(bytes).substr(start, length);

  ort::Tensor tensor;
  const std::string_view descr = value_of(header, "'descr'", '\'', '\'');
  for (const Descr& known : kDescrs)
    if (descr.size() == std::strlen(known.text) && descr.substr(1) == std::string_view(known.text).substr(1) &&
        descr[0] != '>')
      tensor.element_type = known.element_type;
  if (tensor.element_type == ort::kElementUndefined)
    return invalid("holds elements of type '" + std::string(descr) + "', which are not little-endian numbers");
  if (header.find("'fortran_order': True") != std::string_view::npos) return invalid("is in Fortran order");
  std::size_t elements = 1;
  std::string shape(value_of(header, "'shape'", '(', ')'));
  for (const char* at = shape.c_str(); *at != '\0';) {
    char* end = nullptr;
    const long long size = std::strtoll(at, &end, 10);
    if (end == at) break;
    if (size < 0 || (size > 0 && elements > bytes.size() * 8 / static_cast<std::size_t>(size)))
      return invalid("names a shape larger than itself");
    tensor.shape.push_back(size);
    elements *= static_cast<std::size_t>(size);
    at = *end == ',' ? end + 1 : end;
    while (*at == ' ') ++at;
  }
  const std::size_t wanted = elements * ort::element_bytes(tensor.element_type);
  if (bytes.size() - start - length < wanted) return invalid("ends before its last element");
  tensor.bytes.resize(wanted);
  std::memcpy(tensor.bytes.data(), bytes.data() + start + length, wanted);
  return tensor;
}

Result<void> write_npy(const std::string& path, int element_type, const std::vector<std::int64_t>& shape,
                       std::span<const std::byte> bytes) {
  const char* descr = nullptr;
  for (const Descr& known : kDescrs)
    if (known.element_type == element_type) descr = known.text;
  if (descr == nullptr)
    return Error::with_text(Code::kUnsupported, Layer::kProgram,
                            path + ": NumPy has no type for " + ort::element_name(element_type));
  std::string header = std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': (";
  for (const std::int64_t size : shape) header += std::to_string(size) + ",";
  header += "), }";
  // The data starts at a multiple of 64 bytes; the header ends with a newline.
  while ((10 + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string file(kMagic);
  file += {'\x01', '\0', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  file += header;
  file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return internal::write_whole_file(path, file);
}

}  // namespace berth::cli
