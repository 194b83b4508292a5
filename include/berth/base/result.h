// Errors as values. Every function that can fail returns a Result<T>, which holds either a T or an Error. An Error is
// small and cheap to create: a code, the layer that reported it, a static format string and up to four numbers. Its
// message is built only when message() is called, so a failure on a hot path allocates nothing and builds no string.
// Cold paths (files, drivers, out of memory) attach an ErrorDetail. Errors and results are plain values: any thread may
// copy and read them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <type_traits>
#include <utility>

#include "berth/base/print.h"

namespace berth {

enum class Code : std::uint8_t {
  kOutOfMemory,        // capacity, budget, fragmentation or pending frees: see OutOfMemory
  kInvalidView,        // a window outside its parent
  kSizeMismatch,       // two sizes that must agree do not
  kTypeMismatch,       // the element type asked for is not the buffer's
  kMisaligned,         // a pointer or offset that the type or device cannot use
  kNotCpuAccessible,   // host access to memory that only the device can reach
  kNotAllocated,       // a read of a buffer that has no memory yet
  kReadOnly,           // a write to read-only memory
  kInvalidArgument,    // a value outside its documented range
  kInvalidUsage,       // a buffer used in a way its usage bits do not allow
  kNotFound,           // a name, node or file that is not there
  kNotOwned,           // released to a pool that does not own it, or released twice
  kAlreadyExists,      // a name or registration that is taken
  kInvalidData,        // a file or message that violates its format
  kIo,                 // the operating system failed a read, write or map
  kUnsupported,        // this device or build cannot do it
  kDeviceUnavailable,  // no such device here; the text says what would make it available
  kDeviceLost,         // the driver no longer serves the device
  kDriver,             // any other failure reported by a driver, with the driver's text
  kInfeasible,         // proven impossible
  kCancelled,          // the caller asked to stop
  kCycle,              // a dependency that leads back to itself
};

// The stable name of a code, such as "OutOfMemory".
std::string_view to_string(Code code) noexcept;

enum class Layer : std::uint8_t {
  kDevice,
  kAllocator,
  kBuffer,
  kQueue,
  kPlan,
  kArena,
  kSchedule,
  kFormat,
  kInterop,
  kEngine,
  kProgram
};

struct OutOfMemory;  // out_of_memory.h: what was asked, why it failed, who holds the memory, what would help

// Data of an error that does not fit in four numbers: text known only at run time, or an out-of-memory report.
struct ErrorDetail {
  std::string text{};
  std::shared_ptr<const OutOfMemory> out_of_memory{};
};

class Error {
 public:
  // `format` must be a string literal. "{}" prints the next number; "{b}" prints it as a byte size such as "64.0 MiB".
  template <class... Numbers>
  constexpr Error(Code code, Layer layer, const char* format, Numbers... numbers) noexcept
      : format_(format), numbers_{static_cast<std::int64_t>(numbers)...}, code_(code), layer_(layer) {
    static_assert(sizeof...(Numbers) <= 4, "an Error carries at most four numbers");
    int at = 0;
    ((unsigned_ = static_cast<std::uint8_t>(unsigned_ | std::is_unsigned_v<Numbers> << at++)), ...);
    static_cast<void>(at);  // unused without numbers
  }

  // For cold paths: the message is built by the caller.
  static Error with_text(Code code, Layer layer, std::string text);
  static Error with_detail(Code code, Layer layer, ErrorDetail detail);

  Code code() const noexcept { return code_; }
  Layer layer() const noexcept { return layer_; }
  const std::array<std::int64_t, 4>& numbers() const noexcept { return numbers_; }

  // The complete message: what was requested, what was available, and what to do.
  std::string message() const;

  // The report attached to a kOutOfMemory error, or null if the layer that failed attached none.
  const OutOfMemory* out_of_memory() const noexcept { return detail_ ? detail_->out_of_memory.get() : nullptr; }

 private:
  const char* format_;
  std::array<std::int64_t, 4> numbers_{};
  std::shared_ptr<const ErrorDetail> detail_;
  Code code_;
  Layer layer_;
  std::uint8_t unsigned_ = 0;  // bit i: number i prints as unsigned
};

// Thrown by Result::value() for callers that prefer exceptions.
class BadResult : public std::runtime_error {
 public:
  explicit BadResult(Error error) : std::runtime_error(error.message()), error_(std::move(error)) {}
  const Error& error() const noexcept { return error_; }

 private:
  Error error_;
};

// tl::expected with three differences: the type is [[nodiscard]]; value() throws BadResult with our message, also for
// void; value() and operator* of a temporary return by value, so `for (x : f().value())` does not dangle.
template <class T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
  using Base = tl::expected<T, Error>;

 public:
  using Base::Base;
  Result(Error error) : Base(tl::unexpect, std::move(error)) {}

  T& value() & {
    require();
    return Base::operator*();
  }
  const T& value() const& {
    require();
    return Base::operator*();
  }
  T value() && {
    require();
    return std::move(Base::operator*());
  }

  T& operator*() & noexcept { return Base::operator*(); }
  const T& operator*() const& noexcept { return Base::operator*(); }
  T operator*() && { return std::move(Base::operator*()); }

 private:
  void require() const {
    if (!this->has_value()) throw BadResult(this->error());
  }
};

template <>
class [[nodiscard]] Result<void> : public tl::expected<void, Error> {
  using Base = tl::expected<void, Error>;

 public:
  using Base::Base;
  Result() = default;
  Result(Error error) : Base(tl::unexpect, std::move(error)) {}

  void value() const {
    if (!has_value()) throw BadResult(error());
  }
};

// Formats a byte count: "512 B" (exact) below 1 KiB, "64.0 MiB" (one decimal) above.
std::string format_bytes(std::uint64_t bytes);

}  // namespace berth
