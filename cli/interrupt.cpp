#include "interrupt.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>

namespace berth::cli {
namespace {

constexpr std::chrono::milliseconds kLookUp{50};
constexpr std::array kStopSignals{SIGINT, SIGTERM, SIGHUP};

std::atomic<int> stopped_by{0};

extern "C" void note_stop(int signal) {
  stopped_by.store(signal, std::memory_order_relaxed);
  std::signal(signal, SIG_DFL);
}

}  // namespace

InterruptStop::InterruptStop() {
  static_assert(kStopSignals.size() == kSignals);
  stopped_by.store(0);
  for (std::size_t i = 0; i < kSignals; ++i) {
    previous_[i] = std::signal(kStopSignals[i], note_stop);
    if (previous_[i] == SIG_IGN) std::signal(kStopSignals[i], SIG_IGN);
  }
  // A signal handler may only access an atomic, so a thread forwards the request.
  watcher_ = std::jthread([this](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, stop, kLookUp, [&] { return stop.stop_requested(); }))
      if (signal() != 0) source_.request_stop();
  });
}

InterruptStop::~InterruptStop() {
  watcher_.request_stop();
  watcher_.join();
  for (std::size_t i = 0; i < kSignals; ++i)
    std::signal(kStopSignals[i], previous_[i] == SIG_ERR ? SIG_DFL : previous_[i]);
}

int InterruptStop::signal() const {
  return stopped_by.load(std::memory_order_relaxed);
}

}  // namespace berth::cli
