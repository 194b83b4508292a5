// Berth's own kernels on METAL: copies and fills at any byte. Blits on macOS copy whole words of four bytes.
#pragma once

#include <cstdint>

namespace berth::internal::metal {

// Bytes that one thread of either kernel works on, and threads of a group.
inline constexpr std::uint64_t kBytesAThread = 16;
inline constexpr std::uint64_t kThreadsAGroup = 64;

struct CopyConstants {
  std::uint64_t from;
  std::uint64_t to;
  std::uint64_t bytes;
};

struct FillConstants {
  std::uint64_t at;
  std::uint64_t bytes;
  std::uint32_t value;
  std::uint32_t unused;
};

inline constexpr const char* kByteKernels = R"(
#include <metal_stdlib>
using namespace metal;

struct CopyConstants { ulong from; ulong to; ulong bytes; };
struct FillConstants { ulong at; ulong bytes; uint value; uint unused; };

kernel void berth_copy_bytes(device const uchar* source [[buffer(0)]],
                             device uchar* target [[buffer(1)]],
                             constant CopyConstants& copy [[buffer(2)]],
                             uint thread_index [[thread_position_in_grid]]) {
  const ulong begin = ulong(thread_index) * 16;
  const ulong end = min(begin + 16, copy.bytes);
  for (ulong i = begin; i < end; ++i) target[copy.to + i] = source[copy.from + i];
}

kernel void berth_fill_bytes(device uchar* target [[buffer(0)]],
                             constant FillConstants& fill [[buffer(1)]],
                             uint thread_index [[thread_position_in_grid]]) {
  const ulong begin = ulong(thread_index) * 16;
  const ulong end = min(begin + 16, fill.bytes);
  for (ulong i = begin; i < end; ++i) target[fill.at + i] = uchar(fill.value);
}
)";

}  // namespace berth::internal::metal
