#include "weights/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "base/try.h"
#include "base/utf8.h"

namespace berth::internal::formats {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

}  // namespace

Result<void> check_tensors(std::span<const NamedBuffer> tensors) {
  std::unordered_set<std::string_view> names;
  for (const NamedBuffer& tensor : tensors) {
    if (first_invalid_utf8(tensor.name) != tensor.name.size())
      return Error::with_text(Code::kInvalidArgument, Layer::kFormat,
                              fmt::format("the tensor name {} is not UTF-8", quoted(tensor.name)));
    if (!names.insert(tensor.name).second)
      return Error::with_text(Code::kInvalidArgument, Layer::kFormat,
                              fmt::format("two tensors are named {}", quoted(tensor.name)));
    if (tensor.buffer.size() != 0 && !tensor.buffer.is_allocated())
      return Error::with_text(Code::kNotAllocated, Layer::kFormat,
                              fmt::format("tensor {} has no contents yet: write to it first", quoted(tensor.name)));
  }
  return {};
}

BufferStream::BufferStream(AtomicFile& file, std::span<const NamedBuffer> tensors, const SaveOptions& options) noexcept
    : file_(file), options_(options) {
  for (const NamedBuffer& tensor : tensors) total_ += tensor.buffer.size();
}

Result<void> BufferStream::advance(std::uint64_t bytes) {
  done_ += bytes;
  bool go_on = true;
  // Tensors may be small and many: one word for every few MiB of them.
  if (options_.progress && (done_ - told_ >= kPieceBytes || done_ == total_)) {
    told_ = done_;
    go_on = options_.progress({.bytes_done = done_, .bytes_total = total_});
  }
  if (!go_on || options_.cancel.stop_requested())
    return Error(Code::kCancelled, Layer::kFormat, "writing was cancelled; nothing was kept");
  return {};
}

Result<void> BufferStream::write(const Buffer& buffer) {
  const auto host = buffer.as_host_bytes();
  for (std::size_t at = 0; at < buffer.size(); at += kPieceBytes) {
    const std::size_t bytes = std::min(kPieceBytes, buffer.size() - at);
    if (host) {
      BERTH_TRY(file_.write(host->subspan(at, bytes)));
    } else {
      staging_.resize(bytes);
      BERTH_TRY_ASSIGN(const Buffer piece, buffer.view(at, bytes));
      BERTH_TRY(piece.copyout(std::as_writable_bytes(std::span(staging_))));
      BERTH_TRY(file_.write(staging_));
    }
    BERTH_TRY(advance(bytes));
  }
  return {};
}

std::string json_string(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': json += "\\\""; break;
      case '\\': json += "\\\\"; break;
      case '\b': json += "\\b"; break;
      case '\f': json += "\\f"; break;
      case '\n': json += "\\n"; break;
      case '\r': json += "\\r"; break;
      case '\t': json += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          json += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
          json += c;
    }
  }
  return json + "\"";
}

std::string json_value(const MetadataValue& value) {
  switch (value.type()) {
    case MetadataType::kString: {
      const auto text = value.as_string();
      return json_string(text ? *text : quoted(value.text(), value.text().size()));
    }
    case MetadataType::kF32:
    case MetadataType::kF64: {
      const double number = *value.as_double();
      return std::isfinite(number) ? value.to_string() : "null";  // JSON has no infinities
    }
    case MetadataType::kArray: {
      std::string json = "[";
      for (const MetadataValue& element : value.elements()) {
        if (json.size() > 1) json += ',';
        json += json_value(element);
      }
      return json + "]";
    }
    default: return value.to_string();
  }
}

}  // namespace berth::internal::formats
