// A bar on the terminal for work that takes a while. Silent when standard error is no terminal. One thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace berth::cli {

class ProgressBar {
 public:
  explicit ProgressBar(std::string title);
  ~ProgressBar();  // ends the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(std::uint64_t done, std::uint64_t total);

 private:
  std::string title_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace berth::cli
