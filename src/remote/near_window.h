// A window of another process of this machine, without a transport between them: the kernel copies its bytes, and both
// processes see a note of how many submits have arrived. The owner keeps a note for each rank that imports a window, on
// a board, which is a file in memory; the other rank learns from the answer to its import where it is.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/os/process_memory.h"

namespace berth::internal::remote {

// Shared. Each field has one writer.
struct alignas(64) Note {
  std::atomic<std::uint64_t> generation;  // of the window, 0 when it is closed; by the owner
  std::atomic<std::uint64_t> listens;     // whether a thread waits for arrivals and needs a message; by the owner
  std::atomic<std::uint64_t> arrived;     // submits of the other rank that are complete; by the other rank
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(Note) == 64, "both ranks lay it out alike");

// The notes of one owner. Under the lock of the caller.
class NoteBoard {
 public:
  NoteBoard() = default;
  ~NoteBoard();
  NoteBoard(const NoteBoard&) = delete;
  NoteBoard& operator=(const NoteBoard&) = delete;

  // A note that nobody else uses, or null if the system has no such files, or the board is full.
  Note* take() noexcept;
  // Requires: no other rank uses it any more.
  void give_back(Note* note) { free_.push_back(note); }

  // What another rank needs to find a note: the descriptor of the board, and the place of the note on it.
  std::uint64_t place_of(const Note& note) const noexcept;

 private:
  int descriptor_ = -1;
  Note* notes_ = nullptr;
  std::size_t used_ = 0;  // notes from here on were never taken
  std::vector<Note*> free_;
};

// The side of the rank that imports. Any thread may read and write; arrive() is under the lock of the caller.
class NearWindow {
 public:
  struct Place {
    pid_t process = 0;             // of the owner, as it calls itself
    std::uint64_t address = 0;     // of the note there; 0: there is none
    std::uint64_t note = 0;        // NoteBoard::place_of
    std::uint64_t generation = 0;  // of the window
  };
  // Null if the kernel does not let this process at the memory of the owner, or if there is no such note: the number of
  // the process may mean another one here, as it does in containers.
  static std::unique_ptr<NearWindow> open(const Place& place);
  ~NearWindow();
  NearWindow(const NearWindow&) = delete;
  NearWindow& operator=(const NearWindow&) = delete;

  enum class Outcome {
    kDone,
    kClosed,   // by the owner
    kGone,     // the owner has ended
    kRefused,  // by the kernel
  };
  // At an address of the owner. Before it touches anything, each checks that the owner is alive and the window open.
  Outcome read(std::uint64_t address, std::span<std::byte> target) noexcept;
  Outcome write(std::uint64_t address, std::span<const std::byte> source) noexcept;

  // Counts one more submit, whose writes are done. True if a thread of the owner sleeps, and wants a message.
  bool arrive() noexcept;

 private:
  NearWindow(std::uint64_t generation, std::unique_ptr<ProcessMemory> memory)
      : generation_(generation), memory_(std::move(memory)) {}
  bool map(const Place& place) noexcept;
  Outcome check() noexcept;

  const std::uint64_t generation_;
  const std::unique_ptr<ProcessMemory> memory_;
  Note* board_ = nullptr;
  Note* note_ = nullptr;
};

}  // namespace berth::internal::remote
