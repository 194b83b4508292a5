// The bytes of buffers: one file in memory, mapped twice. The host has one view of it, the "GPU" the other; each piece
// is unreadable in a view until it is opened there. Addresses are never used twice.
#pragma once

#include <cstddef>
#include <cstdint>

namespace metal_double {

inline constexpr std::size_t kPageBytes = 4096;

struct Piece {
  unsigned char* host = nullptr;
  unsigned char* gpu = nullptr;
  std::size_t bytes = 0;  // whole pages
  int file = -1;
  std::size_t offset = 0;
};

// False if the system has no memory or no mappings left.
bool take_piece(std::size_t bytes, Piece& out);
void give_piece_back(const Piece& piece);
// What the GPU may do with a piece. Calls may come from any thread; openings are counted by the caller.
void open_to_gpu(const Piece& piece);
void close_to_gpu(const Piece& piece);

}  // namespace metal_double
