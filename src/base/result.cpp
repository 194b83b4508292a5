#include "berth/base/result.h"

#include <cstdio>

namespace berth {

std::string_view to_string(Code code) noexcept {
  switch (code) {
    case Code::kOutOfMemory: return "OutOfMemory";
    case Code::kInvalidView: return "InvalidView";
    case Code::kSizeMismatch: return "SizeMismatch";
    case Code::kTypeMismatch: return "TypeMismatch";
    case Code::kMisaligned: return "Misaligned";
    case Code::kNotCpuAccessible: return "NotCpuAccessible";
    case Code::kNotAllocated: return "NotAllocated";
    case Code::kReadOnly: return "ReadOnly";
    case Code::kInvalidArgument: return "InvalidArgument";
    case Code::kInvalidUsage: return "InvalidUsage";
    case Code::kNotFound: return "NotFound";
    case Code::kNotOwned: return "NotOwned";
    case Code::kAlreadyExists: return "AlreadyExists";
    case Code::kInvalidData: return "InvalidData";
    case Code::kIo: return "Io";
    case Code::kUnsupported: return "Unsupported";
    case Code::kDeviceUnavailable: return "DeviceUnavailable";
    case Code::kDeviceLost: return "DeviceLost";
    case Code::kDriver: return "Driver";
    case Code::kInfeasible: return "Infeasible";
    case Code::kCancelled: return "Cancelled";
    case Code::kCycle: return "Cycle";
  }
  return "Unknown";
}

std::string format_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024.0 && unit < 6) {
    value /= 1024.0;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", value, kUnits[unit]);
  return text;
}

Error Error::with_text(Code code, Layer layer, std::string text) {
  return with_detail(code, layer, {.text = std::move(text), .out_of_memory = nullptr});
}

Error Error::with_detail(Code code, Layer layer, ErrorDetail detail) {
  Error error(code, layer, "");
  error.detail_ = std::make_shared<const ErrorDetail>(std::move(detail));
  return error;
}

std::string Error::message() const {
  if (detail_) return detail_->text;
  std::string text;
  std::size_t next = 0;
  for (const char* at = format_; *at != '\0'; ++at) {
    const std::string_view rest(at);
    if (rest.starts_with("{}") && next < numbers_.size()) {
      const std::int64_t number = numbers_[next];
      text +=
          (unsigned_ >> next & 1) != 0 ? std::to_string(static_cast<std::uint64_t>(number)) : std::to_string(number);
      ++next;
      at += 1;
    } else if (rest.starts_with("{b}") && next < numbers_.size()) {
      text += format_bytes(static_cast<std::uint64_t>(numbers_[next++]));
      at += 2;
    } else {
      text += *at;
    }
  }
  return text;
}

}  // namespace berth
