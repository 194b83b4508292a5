#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/try.h"
#include "base/utf8.h"
#include "weights/safetensors.h"
#include "weights/save.h"

namespace berth {

using namespace internal;

namespace {

// The reference writer's order of dtypes, the widest first: every tensor then starts at a multiple of its element.
constexpr std::array kWidestFirst = {
    DType::kU64,        DType::kI64,    DType::kF64,    DType::kC64,    DType::kF32, DType::kU32,
    DType::kI32,        DType::kBF16,   DType::kF16,    DType::kU16,    DType::kI16, DType::kF8E5M2FNUZ,
    DType::kF8E4M3FNUZ, DType::kF8E8M0, DType::kF8E4M3, DType::kF8E5M2, DType::kI8,  DType::kU8,
    DType::kF6E3M2,     DType::kF6E2M3, DType::kF4E2M1, DType::kBool};

std::size_t rank_of(DType dtype) {
  return static_cast<std::size_t>(std::find(kWidestFirst.begin(), kWidestFirst.end(), dtype) - kWidestFirst.begin());
}

Result<std::string> header_of(std::span<const NamedBuffer* const> tensors, const Metadata& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const MetadataEntry& entry : metadata.entries()) {
      BERTH_TRY_ASSIGN(const std::string_view text, entry.value.as_string());
      if (json.back() != '{') json += ',';
      json += formats::json_string(entry.key) + ":" + formats::json_string(text);
    }
    json += '}';
  }
  std::uint64_t offset = 0;
  for (const NamedBuffer* tensor : tensors) {
    const Buffer& buffer = tensor->buffer;
    if (json.size() > 1) json += ',';
    json += formats::json_string(tensor->name);
    json += fmt::format(":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        formats::safetensors_dtype(buffer.dtype()), fmt::join(buffer.shape().extents(), ","), offset,
                        offset + buffer.size());
    offset += buffer.size();
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  if (json.size() > formats::kMaxSafetensorsHeader)
    return Error(Code::kInvalidArgument, Layer::kFormat, "a header of {b} is more than the {b} that safetensors allows",
                 json.size(), formats::kMaxSafetensorsHeader);
  return json;
}

}  // namespace

Result<void> save_safetensors(const std::string& path, std::span<const NamedBuffer> tensors, const Metadata& metadata,
                              const SaveOptions& options) {
  BERTH_TRY(formats::check_tensors(tensors));
  std::vector<const NamedBuffer*> sorted;
  sorted.reserve(tensors.size());
  for (const NamedBuffer& tensor : tensors) {
    if (tensor.name == "__metadata__")
      return Error(Code::kInvalidArgument, Layer::kFormat, "safetensors keeps the name __metadata__ for itself");
    if (formats::safetensors_dtype(tensor.buffer.dtype()).empty())
      return Error::with_text(Code::kUnsupported, Layer::kFormat,
                              fmt::format("tensor {} is of {}, which safetensors cannot hold; GGUF can",
                                          quoted(tensor.name), to_string(tensor.buffer.dtype())));
    sorted.push_back(&tensor);
  }
  std::sort(sorted.begin(), sorted.end(), [](const NamedBuffer* a, const NamedBuffer* b) {
    const std::size_t rank_a = rank_of(a->buffer.dtype());
    const std::size_t rank_b = rank_of(b->buffer.dtype());
    return rank_a != rank_b ? rank_a < rank_b : a->name < b->name;
  });
  BERTH_TRY_ASSIGN(const std::string header, header_of(sorted, metadata));
  BERTH_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path));
  const std::uint64_t length = header.size();
  BERTH_TRY(file.write(std::as_bytes(std::span(&length, 1))));
  BERTH_TRY(file.write(header));
  formats::BufferStream stream(file, tensors, options);
  for (const NamedBuffer* tensor : sorted) BERTH_TRY(stream.write(tensor->buffer));
  return file.commit(options.flush);
}

}  // namespace berth
