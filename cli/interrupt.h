// Ctrl-C, and the signals that ask a program to end, as a stop request. One object at a time, of the main thread.
#pragma once

#include <array>
#include <cstddef>
#include <stop_token>
#include <thread>

namespace berth::cli {

// A stop request by Ctrl-C, or by a signal that asks the program to end (SIGTERM, SIGHUP), during the lifetime of this
// object. The second one ends the program as usual. A signal that was ignored before stays ignored.
class InterruptStop {
 public:
  InterruptStop();
  ~InterruptStop();
  InterruptStop(const InterruptStop&) = delete;
  InterruptStop& operator=(const InterruptStop&) = delete;
  std::stop_token token() const { return source_.get_token(); }
  bool requested() const { return source_.stop_requested(); }
  // The number of the signal; 0 without one.
  int signal() const;

 private:
  static constexpr std::size_t kSignals = 3;
  std::stop_source source_;
  std::array<void (*)(int), kSignals> previous_{};
  std::jthread watcher_;
};

}  // namespace berth::cli
