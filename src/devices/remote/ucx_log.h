// Keeps UCX from writing to the output of the program. UCX prints warnings and errors by itself, among others whenever
// a peer goes away, which here is an error that the caller gets. While a thread is inside a call of UCX that Berth
// made, what UCX logs on it is kept for the error text instead, and what UCX's own thread logs is dropped. Messages of
// other users of the same library (MPI, for example) on their threads are printed as before, and so is everything if
// the variable UCX_LOG_LEVEL is set. Any thread may call.
#pragma once

#include <string>
#include <utility>

namespace berth::internal::ucx {

// While one exists, this thread is inside a call of UCX.
class Hushed {
 public:
  Hushed() noexcept { ++depth_; }
  ~Hushed() { --depth_; }
  Hushed(const Hushed&) = delete;
  Hushed& operator=(const Hushed&) = delete;
  static bool here() noexcept { return depth_ > 0; }

 private:
  static thread_local int depth_;
};

// A function of the library, which is hushed while it runs.
template <class Signature>
class Function;
template <class R, class... Parameters>
class Function<R(Parameters...)> {
 public:
  using Raw = R (*)(Parameters...);
  R operator()(Parameters... parameters) const {
    const Hushed hushed;
    return raw(parameters...);
  }
  Raw raw = nullptr;
};

// Puts a handler of messages into an open library, if it has the function for that. Call it once for each library.
void keep_quiet(void* library);

// The last message that was kept on this thread, which is forgotten; empty if there is none.
std::string take_last_words();

}  // namespace berth::internal::ucx
