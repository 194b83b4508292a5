#include "progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "berth/result.h"

namespace berth::cli {

ProgressBar::ProgressBar(std::string title)
    : title_(std::move(title)), terminal_(::isatty(2) == 1), start_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() {
  if (shown_) fmt::print(stderr, "\n");
}

void ProgressBar::show(std::uint64_t done, std::uint64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || total == 0 || (done < total && now - last_ < std::chrono::milliseconds(50))) return;
  last_ = now;
  shown_ = true;
  constexpr std::size_t kWidth = 30;
  const auto filled = static_cast<std::size_t>(static_cast<double>(done) / static_cast<double>(total) * kWidth);
  std::string bar;
  for (std::size_t i = 0; i < kWidth; ++i) bar += i < filled ? "█" : "·";
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const auto rate = static_cast<std::uint64_t>(seconds > 0 ? static_cast<double>(done) / seconds : 0);
  fmt::print(stderr, "\r{} {} {} of {}, {}/s   ", title_, bar, format_bytes(done), format_bytes(total),
             format_bytes(rate));
  std::fflush(stderr);
}

}  // namespace berth::cli
