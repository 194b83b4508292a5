#include "terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <condition_variable>
#include <cstdlib>

namespace berth::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDelay{2000};
constexpr milliseconds kFrame{100};

std::size_t terminal_columns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

// Sleeps until the time has passed or a stop is requested. True if it was requested.
bool sleep_unless_stopped(const std::stop_token& stop, milliseconds time) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  return wake.wait_for(lock, stop, time, [&] { return stop.stop_requested(); });
}

}  // namespace

bool is_terminal(std::FILE* stream) {
  const char* const term = std::getenv("TERM");
  return isatty(fileno(stream)) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

Progress::Progress(std::string title) : title_(std::move(title)) {
  const char* const setting = std::getenv("BERTH_PROGRESS");
  const std::string_view wish = setting == nullptr ? "" : setting;
  if (wish == "never" || !is_terminal(stderr)) return;
  thread_ = std::jthread(
      [this, delay = wish == "now" ? milliseconds(0) : kDelay](const std::stop_token& stop) { run(stop, delay); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
  // Returns to the start of the line and erases it: the result takes its place.
  if (drawn_) std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

void Progress::update(std::optional<double> fraction, std::string text) {
  const std::lock_guard lock(mutex_);
  fraction_ = fraction;
  text_ = std::move(text);
}

void Progress::expect_seconds(double seconds) {
  const std::lock_guard lock(mutex_);
  expected_ = seconds;
}

void Progress::run(const std::stop_token& stop, milliseconds delay) {
  if (sleep_unless_stopped(stop, delay)) return;
  do redraw();
  while (!sleep_unless_stopped(stop, kFrame));
}

void Progress::redraw() {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  std::string line = title_ + "  ";
  {
    const std::lock_guard lock(mutex_);
    std::optional<double> done = fraction_;
    if (!done && expected_ && *expected_ > 0) done = seconds / *expected_;
    if (done) {
      const double fraction = std::clamp(*done, 0.0, 1.0);
      line += fmt::format("{}{:3.0f} %  ", bar(fraction, 20), fraction * 100);
    }
    line += fmt::format("{:.1f} s  {}", seconds, text_);
  }
  // Never wrap: a wrapped line cannot be redrawn in place.
  const std::size_t room = terminal_columns() - 1;
  while (columns(line) > room) {
    line.pop_back();
    while (!line.empty() && (static_cast<unsigned char>(line.back()) & 0xC0) == 0xC0) line.pop_back();
  }
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

std::size_t columns(std::string_view utf8) {
  return static_cast<std::size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string Table::str() const {
  std::vector<std::size_t> widths;
  std::vector<bool> right;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    widths.resize(std::max(widths.size(), rows_[r].size()), 0);
    right.resize(widths.size(), true);
    for (std::size_t c = 0; c < rows_[r].size(); ++c) {
      const std::string& cell = rows_[r][c];
      widths[c] = std::max(widths[c], columns(cell));
      if (r > 0 && !cell.empty() && (cell[0] < '0' || cell[0] > '9')) right[c] = false;
    }
  }
  std::string out;
  for (const auto& cells : rows_) {
    std::string line;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const std::string padding(widths[c] - columns(cells[c]), ' ');
      if (c > 0) line += "  ";
      line += right[c] ? padding + cells[c] : cells[c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

std::string bar(double fraction, int width) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * width * 8));
  std::string out;
  for (int i = 0; i < eighths / 8; ++i) out += "█";
  out += kEighths[eighths % 8];
  const int used = eighths / 8 + (eighths % 8 != 0 ? 1 : 0);
  return out + std::string(static_cast<std::size_t>(width - used), ' ');
}

std::string with_thousands(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  double value = 0;
  std::uint64_t whole = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc{} || !(value >= 0) || !std::isfinite(value)) return std::nullopt;
  const std::string_view unit(stop, static_cast<std::size_t>(end - stop));
  if (unit.empty() || unit == "B") {
    // Exact beyond 2^53, where a double is not.
    const auto [last, bad] = std::from_chars(text.data(), end, whole);
    if (bad != std::errc{} || last != stop) return std::nullopt;
    return whole;
  }
  const std::size_t power = std::string_view("KMGTPE").find(unit[0]);
  const std::string_view rest = unit.substr(1);
  if (power == std::string_view::npos || !(rest.empty() || rest == "iB" || rest == "B")) return std::nullopt;
  const double bytes = value * std::ldexp(1.0, static_cast<int>(power + 1) * 10);
  if (bytes >= 18446744073709551616.0) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace berth::cli
