#include "remote/near_window.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <new>

#include "base/os/shared_file.h"

namespace berth::internal::remote {
namespace {

constexpr std::size_t kNotes = 4096;  // a page of memory for each 64 that are in use
constexpr std::size_t kBoardBytes = kNotes * sizeof(Note);

Note* map_board(int descriptor) noexcept {
  void* const mapped = mmap(nullptr, kBoardBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<Note*>(mapped);
}

}  // namespace

NoteBoard::~NoteBoard() {
  if (notes_ != nullptr) munmap(notes_, kBoardBytes);
  if (descriptor_ >= 0) close(descriptor_);
}

Note* NoteBoard::take() noexcept {
  if (notes_ == nullptr) {
    if (descriptor_ < 0) descriptor_ = make_shared_file(kBoardBytes);
    if (descriptor_ >= 0) notes_ = map_board(descriptor_);
    if (notes_ == nullptr) return nullptr;
  }
  if (free_.empty() && used_ == kNotes) return nullptr;
  Note* note = free_.empty() ? notes_ + used_++ : free_.back();
  if (!free_.empty()) free_.pop_back();
  return new (note) Note{};
}

std::uint64_t NoteBoard::place_of(const Note& note) const noexcept {
  return static_cast<std::uint64_t>(descriptor_) << 32 | static_cast<std::uint64_t>(&note - notes_);
}

std::unique_ptr<NearWindow> NearWindow::open(const Place& place) {
  if (place.address == 0 || place.generation == 0) return nullptr;
  std::unique_ptr<ProcessMemory> memory = ProcessMemory::open(place.process);
  if (memory == nullptr) return nullptr;
  // The generation is a random number of 64 bits, so the process that has it at this address is the owner, and was
  // when it was opened. The calls that copy may be forbidden: each is tried once.
  std::uint64_t found = 0, count = 0;
  const std::uint64_t arrived = place.address + offsetof(Note, arrived);
  if (!memory->read(place.address + offsetof(Note, generation), std::as_writable_bytes(std::span(&found, 1))) ||
      found != place.generation || !memory->read(arrived, std::as_writable_bytes(std::span(&count, 1))) ||
      !memory->write(arrived, std::as_bytes(std::span(&count, 1))))
    return nullptr;
  std::unique_ptr<NearWindow> window(new NearWindow(place.generation, std::move(memory)));
  if (!window->map(place) || window->check() != Outcome::kDone) return nullptr;
  return window;
}

bool NearWindow::map(const Place& place) noexcept {
  const std::uint64_t index = place.note & 0xffff'ffff;
  const int file = memory_->open_file(static_cast<int>(place.note >> 32));
  if (file < 0) return false;
  struct stat about {};
  if (index < kNotes && fstat(file, &about) == 0 && about.st_size == static_cast<off_t>(kBoardBytes) &&
      cannot_shrink(file))
    board_ = map_board(file);
  close(file);
  if (board_ != nullptr) note_ = board_ + index;
  return board_ != nullptr;
}

NearWindow::~NearWindow() {
  if (board_ != nullptr) munmap(board_, kBoardBytes);
}

NearWindow::Outcome NearWindow::check() noexcept {
  if (!memory_->is_alive()) return Outcome::kGone;
  return note_->generation.load(std::memory_order_acquire) == generation_ ? Outcome::kDone : Outcome::kClosed;
}

NearWindow::Outcome NearWindow::read(std::uint64_t address, std::span<std::byte> target) noexcept {
  if (const Outcome now = check(); now != Outcome::kDone) return now;
  if (memory_->read(address, target)) return Outcome::kDone;
  const Outcome now = check();
  return now == Outcome::kDone ? Outcome::kRefused : now;
}

NearWindow::Outcome NearWindow::write(std::uint64_t address, std::span<const std::byte> source) noexcept {
  if (const Outcome now = check(); now != Outcome::kDone) return now;
  if (memory_->write(address, source)) return Outcome::kDone;
  const Outcome now = check();
  return now == Outcome::kDone ? Outcome::kRefused : now;
}

bool NearWindow::arrive() noexcept {
  // The bytes are there before the count, and the count before the question: the owner listens first and then counts.
  note_->arrived.fetch_add(1, std::memory_order_seq_cst);
  return note_->listens.load(std::memory_order_seq_cst) != 0;
}

}  // namespace berth::internal::remote
