#include "base/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace berth::internal {
namespace {

// How long a pipe may stay without a writer: the program at its other end may be starting.
constexpr int kPatience = 200, kNapMs = 10;

Error failed(const std::string& name, const char* what, int reason) {
  return Error::with_text(reason == ENOENT ? Code::kNotFound : Code::kIo, Layer::kFormat,
                          fmt::format("{}: {}: {}", name, what, std::strerror(reason)));
}

class Descriptor {
 public:
  explicit Descriptor(int opened) noexcept : value(opened) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(value); }
  const int value;
};

// Reads to the end. A pipe without a byte gets `naps` more chances.
Result<std::string> read_to_end(int descriptor, const std::string& name, std::uint64_t most, int naps) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return failed(name, "cannot be read", errno);
  const bool regular = S_ISREG(status.st_mode), pipe = S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode);
  // A terminal ends when its user says so. Other devices, such as /dev/zero, may never end.
  if (!regular && !pipe && ::isatty(descriptor) != 1)
    return Error::with_text(Code::kIo, Layer::kFormat,
                            fmt::format("{}: it is {}; name a file, or use a pipe", name,
                                        S_ISDIR(status.st_mode) ? "a directory" : "a device"));
  const auto too_large = [&](std::uint64_t bytes) {
    return Error::with_text(Code::kInvalidData, Layer::kFormat,
                            fmt::format("{}: it has {} bytes or more, and at most {} are read", name, bytes, most));
  };
  const auto size = static_cast<std::uint64_t>(std::max<off_t>(status.st_size, 0));
  if (regular && size > most) return too_large(size);
  std::string text;
  if (regular) text.reserve(size);
  std::string piece(std::size_t{1} << 16, '\0');
  for (;;) {
    const ssize_t got = ::read(descriptor, piece.data(), piece.size());
    if (got > 0) {
      if (text.size() + static_cast<std::size_t>(got) > most) return too_large(text.size() + piece.size());
      text.append(piece, 0, static_cast<std::size_t>(got));
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else if (got < 0 && errno == EAGAIN) {
      pollfd ready{.fd = descriptor, .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, -1) < 0 && errno != EINTR) return failed(name, "cannot be read", errno);
    } else if (got < 0) {
      return failed(name, "cannot be read", errno);
    } else if (text.empty() && S_ISFIFO(status.st_mode) && naps > 0) {
      --naps;
      static_cast<void>(::poll(nullptr, 0, kNapMs));
    } else {
      break;
    }
  }
  if (text.empty() && S_ISFIFO(status.st_mode))
    return Error::with_text(Code::kIo, Layer::kFormat, fmt::format("{}: nothing was written to this pipe", name));
  return text;
}

}  // namespace

Result<std::string> read_whole_stream(int descriptor, const std::string& name, std::uint64_t most) {
  return read_to_end(descriptor, name, most, 0);
}

Result<std::string> read_whole_file(const std::string& path, std::uint64_t most) {
  // Opening a pipe waits for a writer unless told otherwise. Regular files are not affected.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return failed(path, "cannot be opened", errno);
  const Descriptor file(descriptor);
  return read_to_end(descriptor, path, most, kPatience);
}

Result<int> open_regular_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return failed(path, "cannot be read", errno);
  struct stat status {};
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) return descriptor;
  ::close(descriptor);
  return Error::with_text(Code::kIo, Layer::kFormat, fmt::format("{}: cannot be read: it is not a regular file", path));
}

}  // namespace berth::internal
