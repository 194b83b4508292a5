#include "launch/lines.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

namespace berth::cli {
namespace {

// A line that is longer is passed on in parts.
constexpr std::size_t kLongestLine = std::size_t{64} << 10;

}  // namespace

LabelledLines::LabelledLines(int from, std::FILE* to, unsigned rank)
    : from_(from), to_(to), label_(fmt::format("[{}] ", rank)) {
  fcntl(from_, F_SETFL, O_NONBLOCK);
}

LabelledLines::LabelledLines(LabelledLines&& other) noexcept {
  *this = std::move(other);
}

LabelledLines& LabelledLines::operator=(LabelledLines&& other) noexcept {
  std::swap(from_, other.from_);
  std::swap(to_, other.to_);
  label_.swap(other.label_);
  text_.swap(other.text_);
  return *this;
}

LabelledLines::~LabelledLines() {
  if (from_ >= 0) close(from_);
}

bool LabelledLines::take() {
  char chunk[16 << 10];
  const ssize_t n = ::read(from_, chunk, sizeof chunk);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  if (n > 0) {
    text_.append(chunk, static_cast<std::size_t>(n));
    return write_lines(false);
  }
  close(std::exchange(from_, -1));
  return write_lines(true);
}

void LabelledLines::finish() {
  char chunk[16 << 10];
  for (ssize_t n; from_ >= 0 && (n = ::read(from_, chunk, sizeof chunk)) > 0;)
    text_.append(chunk, static_cast<std::size_t>(n));
  if (to_ != nullptr) write_lines(true);
}

bool LabelledLines::write_lines(bool all) {
  std::string_view rest = text_;
  std::string lines;
  for (std::size_t end; !rest.empty(); rest.remove_prefix(end)) {
    end = rest.find('\n');
    if (end == std::string_view::npos && !all && rest.size() < kLongestLine) break;
    end = end == std::string_view::npos ? rest.size() : end + 1;
    lines.append(label_).append(rest.substr(0, end));
    if (lines.back() != '\n') lines.push_back('\n');
  }
  text_.erase(0, text_.size() - rest.size());
  return std::fwrite(lines.data(), 1, lines.size(), to_) == lines.size() && std::fflush(to_) == 0;
}

}  // namespace berth::cli
