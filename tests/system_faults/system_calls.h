// The system calls of the library and of parts of the program, as a test wants them: counted, failing, interrupted,
// short, or the last thing that the process does. The linker puts the functions of system_calls.cpp before the real
// ones. One test at a time; the calls may come from any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace berth::test {

enum class SystemFault {
  kNone,       // counts
  kFail,       // the call fails with an errno that fits it
  kForbid,     // the call fails, and so does every later one, as in a sandbox
  kInterrupt,  // the call fails with EINTR, if it is one that signals interrupt; else nothing happens
  kDie,        // the process ends before the call, and loses the writes that were not flushed, as a machine would
};

inline constexpr int kDied = 99;  // exit code of a process that ended by kDie

// Counts the calls from here on; the `number`th (from 1) gets the fault.
void arm(SystemFault fault, std::size_t number = 0);
// Ends it. Returns how many calls there were.
std::size_t disarm();
// The name of the call that got the fault; empty if none did.
std::string faulted_call();

// No read or write moves more than this many bytes at once; 0: no limit.
void limit_transfers(std::size_t bytes);

// Called before each open() with its path and flags; empty: nothing is.
void before_open(std::function<void(const std::string& path, int flags)> hook);

}  // namespace berth::test
