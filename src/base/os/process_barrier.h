// A memory barrier that every running thread of the process passes, so that one thread can pay for the order of all.
// Any thread may call.
#pragma once

namespace berth::internal {

// Whether this system has such a barrier at all. Where it has none, each thread needs barriers of its own.
#ifdef __linux__
inline constexpr bool kHasProcessBarrier = true;
#else
inline constexpr bool kHasProcessBarrier = false;
#endif

// To be called once before the first barrier. False if the system should have it and refuses, as an old kernel or a
// strict sandbox does.
bool prepare_process_barrier() noexcept;

// On return every other thread of the process has passed a full memory barrier since the call began. Does nothing
// where kHasProcessBarrier is false. Ends the process with a message if the system refuses it after all, as a sandbox
// that begins later does: memory would be corrupted otherwise. Requires: prepare_process_barrier() returned true.
void process_barrier() noexcept;

}  // namespace berth::internal
