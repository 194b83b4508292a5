#include <fmt/format.h>

#include <bit>
#include <string>

#include "base/round_up.h"
#include "base/try.h"
#include "base/utf8.h"
#include "weights/gguf.h"
#include "weights/save.h"

namespace berth {

using namespace internal;

namespace {

constexpr std::size_t kMaxGgufRank = 4;  // what other readers take

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_string(std::string& out, std::string_view text) {
  put<std::uint64_t>(out, text.size());
  out += text;
}

void put_entry(std::string& out, const MetadataEntry& entry) {
  const MetadataValue& value = entry.value;
  put_string(out, entry.key);
  put<std::uint32_t>(out, static_cast<std::uint32_t>(value.type()));
  if (value.type() == MetadataType::kString) return put_string(out, value.text());
  if (value.type() == MetadataType::kArray) {
    put<std::uint32_t>(out, static_cast<std::uint32_t>(value.element_type()));
    put<std::uint64_t>(out, value.size());
  }
  out.append(reinterpret_cast<const char*>(value.bytes().data()), value.bytes().size());
}

Result<std::uint32_t> alignment_of(const Metadata& metadata) {
  const MetadataValue* value = metadata.find("general.alignment");
  if (value == nullptr) return formats::kGgufAlignment;
  if (value->type() == MetadataType::kU32 && std::has_single_bit(*value->as_uint()))
    return static_cast<std::uint32_t>(*value->as_uint());
  return Error::with_text(Code::kInvalidArgument, Layer::kFormat,
                          fmt::format("general.alignment is {} of type {}; it must be a power of two of type u32",
                                      value->to_string(), to_string(value->type())));
}

}  // namespace

Result<void> save_gguf(const std::string& path, std::span<const NamedBuffer> tensors, const Metadata& metadata,
                       const SaveOptions& options) {
  BERTH_TRY(formats::check_tensors(tensors));
  BERTH_TRY_ASSIGN(const std::uint32_t alignment, alignment_of(metadata));
  std::string header;
  put(header, formats::kGgufMagic);
  put<std::uint32_t>(header, 3);
  put<std::uint64_t>(header, tensors.size());
  put<std::uint64_t>(header, metadata.entries().size());
  for (const MetadataEntry& entry : metadata.entries()) put_entry(header, entry);
  std::uint64_t offset = 0;
  for (const NamedBuffer& tensor : tensors) {
    const Buffer& buffer = tensor.buffer;
    const auto type = formats::gguf_type(buffer.dtype());
    if (!type)
      return Error::with_text(Code::kUnsupported, Layer::kFormat,
                              fmt::format("tensor {} is of {}, which GGUF cannot hold; safetensors can",
                                          quoted(tensor.name), to_string(buffer.dtype())));
    const std::size_t rank = buffer.shape().rank();
    if (rank > kMaxGgufRank)
      return Error::with_text(Code::kUnsupported, Layer::kFormat,
                              fmt::format("tensor {} has {} dimensions, GGUF at most 4", quoted(tensor.name), rank));
    if (rank > 0 && buffer.shape()[rank - 1] % info(buffer.dtype()).block_elements != 0)
      return Error::with_text(Code::kInvalidArgument, Layer::kFormat,
                              fmt::format("tensor {} of {} has rows of {} elements, which are not whole blocks",
                                          quoted(tensor.name), to_string(buffer.dtype()), buffer.shape()[rank - 1]));
    put_string(header, tensor.name);
    put<std::uint32_t>(header, static_cast<std::uint32_t>(rank));
    for (std::size_t axis = rank; axis-- > 0;) put<std::uint64_t>(header, buffer.shape()[axis]);
    put<std::uint32_t>(header, *type);
    put<std::uint64_t>(header, offset);
    offset = round_up(offset + buffer.size(), alignment);
  }
  header.append(round_up(header.size(), alignment) - header.size(), '\0');
  BERTH_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path));
  BERTH_TRY(file.write(header));
  formats::BufferStream stream(file, tensors, options);
  for (const NamedBuffer& tensor : tensors) {
    BERTH_TRY(stream.write(tensor.buffer));
    BERTH_TRY(file.pad(round_up(file.written(), alignment) - file.written(), '\0'));
  }
  return file.commit(options.flush);
}

}  // namespace berth
