// Terminal output: progress, tables, bars, byte sizes. In a pipe or a file the output is plain text: no control
// characters, no progress. On a terminal, progress appears only for work that takes more than two seconds.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace berth::cli {

// True if `stream` is a terminal that supports cursor movement.
bool is_terminal(std::FILE* stream);

// One line on standard error that is redrawn in place and erased by the destructor. Silent unless standard error is a
// terminal. Any thread may call update(). The environment variable BERTH_PROGRESS overrides the two seconds: "now"
// shows it at once, "never" not at all.
class Progress {
 public:
  explicit Progress(std::string title);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `text` follows the bar. `fraction` in [0, 1] is how much is done; without it, the line shows the time alone.
  void update(std::optional<double> fraction, std::string text);

  // For work that stops after a known time: the bar then follows the clock between updates.
  void expect_seconds(double seconds);

 private:
  void redraw();
  void run(const std::stop_token& stop, std::chrono::milliseconds delay);

  const std::string title_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::optional<double> fraction_;
  std::optional<double> expected_;
  std::string text_;
  bool drawn_ = false;
  std::jthread thread_;  // last: it uses all of the above
};

// Columns of text, padded. The first row is the header. A column whose cells all start with a digit or are empty is
// aligned right.
class Table {
 public:
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string str() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// A horizontal bar, `fraction` of `width` columns long, in eighths of a column. Plain text: fit for a pipe as well.
std::string bar(double fraction, int width);

// How many columns a text takes, for text made of one-column characters.
std::size_t columns(std::string_view utf8);

// "1,048,576".
std::string with_thousands(std::uint64_t number);

// "2.31 ms", "4.20 s".
std::string format_seconds(double seconds);

// "4096", "256K", "256KiB", "1.5MiB", "2G": powers of 1024. Nothing if it is none of these or exceeds 64 bits.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace berth::cli
