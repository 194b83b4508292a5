#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>

namespace metal_double {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{64} << 30;

struct Arena {
  std::mutex mutex;
  int file = -1;
  unsigned char* host = nullptr;
  unsigned char* gpu = nullptr;
  std::size_t used = kArenaBytes;
};

Arena& arena() {
  static auto* const own = new Arena;
  return *own;
}

unsigned char* map(int file) {
  void* view = mmap(nullptr, kArenaBytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
  return view == MAP_FAILED ? nullptr : static_cast<unsigned char*>(view);
}

// A full arena stays mapped: what is in it is still alive, and what was is never mapped again.
bool start_another(Arena& own) {
  const int file = memfd_create("metal double", MFD_CLOEXEC);
  if (file < 0) return false;
  if (ftruncate(file, static_cast<off_t>(kArenaBytes)) != 0) {
    close(file);
    return false;
  }
  unsigned char* host = map(file);
  unsigned char* gpu = map(file);
  if (host == nullptr || gpu == nullptr) {
    if (host != nullptr) munmap(host, kArenaBytes);
    if (gpu != nullptr) munmap(gpu, kArenaBytes);
    close(file);
    return false;
  }
  own.file = file;
  own.host = host;
  own.gpu = gpu;
  own.used = 0;
  return true;
}

}  // namespace

bool take_piece(std::size_t bytes, Piece& out) {
  const std::size_t whole = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  Arena& own = arena();
  const std::lock_guard<std::mutex> guard(own.mutex);
  if (whole > kArenaBytes) return false;
  if (whole > kArenaBytes - own.used && !start_another(own)) return false;
  if (mprotect(own.host + own.used, whole, PROT_READ | PROT_WRITE) != 0) return false;
  out = {own.host + own.used, own.gpu + own.used, whole, own.file, own.used};
  own.used += whole;
  return true;
}

void give_piece_back(const Piece& piece) {
  mprotect(piece.host, piece.bytes, PROT_NONE);
  mprotect(piece.gpu, piece.bytes, PROT_NONE);
  fallocate(piece.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(piece.offset),
            static_cast<off_t>(piece.bytes));
}

void open_to_gpu(const Piece& piece) {
  mprotect(piece.gpu, piece.bytes, PROT_READ | PROT_WRITE);
}
void close_to_gpu(const Piece& piece) {
  mprotect(piece.gpu, piece.bytes, PROT_NONE);
}

}  // namespace metal_double
