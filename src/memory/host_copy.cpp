#include "memory/host_copy.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "base/across_fork.h"
#include "base/thread_handoff.h"

#if defined(__SSE2__) && !BERTH_THREAD_SANITIZER
#include <emmintrin.h>
#endif

namespace berth::internal {
namespace {

// Pieces are whole huge pages, so that no two threads fault in the same one.
constexpr std::size_t kPiece = std::size_t{2} << 20;

// From this size on, the target of a copy would not stay in the caches anyway.
constexpr std::size_t kPastCaches = std::size_t{32} << 20;

// A range of pieces, which oneTBB copies from task to task. A thread that splits a task makes copies that another
// thread runs, so copying is a handoff between threads too. Each object, and each loop for what comes back, is a token
// of its own, so that the sanitizer does not take two loops for ordered.
template <class Body>
class Pieces {
 public:
  Pieces(std::size_t bytes, const Body& body) : bytes_(bytes), body_(&body) { hand_over(this); }
  Pieces(const Pieces& other) : bytes_((take_over(&other), other.bytes_)), body_(other.body_) { hand_over(this); }
  Pieces& operator=(const Pieces&) = delete;

  void operator()(const tbb::blocked_range<std::size_t>& range) const {
    take_over(this);
    const std::size_t begin = range.begin() * kPiece;
    (*body_)(begin, std::min(bytes_, range.end() * kPiece) - begin);
    hand_over(body_);
  }

 private:
  std::size_t bytes_;
  const Body* body_;
};

template <class Body>
void parallel_pieces(std::size_t bytes, const Body& body) {
  // The worker threads of oneTBB do not exist in the child of a fork.
  if (is_forked_child()) return body(0, bytes);
  const std::size_t pieces = (bytes + kPiece - 1) / kPiece;
  tbb::parallel_for(tbb::blocked_range<std::size_t>(0, pieces, 4), Pieces<Body>(bytes, body));
  take_over(&body);
}

#if defined(__SSE2__) && !BERTH_THREAD_SANITIZER
constexpr std::size_t kLine = 64;

void stream_line(std::byte* to, const std::byte* from) noexcept {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
  const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
  _mm_stream_si128(target, a);
  _mm_stream_si128(target + 1, b);
  _mm_stream_si128(target + 2, c);
  _mm_stream_si128(target + 3, d);
}
#endif

// A copy with non-temporal stores: a cache line that is written completely need not be read first, which saves a third
// of the traffic. memcpy does the same, but only for sizes larger than a piece. Four pages are copied at the same time,
// because the processor prefetches within a page and four streams use more memory banks than one. The thread sanitizer
// does not see non-temporal stores, so memcpy is used under it.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
#if defined(__SSE2__) && !BERTH_THREAD_SANITIZER
  constexpr std::size_t kPage = 4096, kPages = 4;
  const std::size_t head = std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= kPages * kPage; to += kPages * kPage, from += kPages * kPage, bytes -= kPages * kPage) {
    for (std::size_t timeline = 0; timeline < kPage; timeline += kLine) {
      for (std::size_t page = 0; page < kPages; ++page)
        stream_line(to + page * kPage + timeline, from + page * kPage + timeline);
    }
  }
  _mm_sfence();
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace

void copy_host(void* target, const void* source, std::size_t bytes) noexcept {
  if (bytes == 0) return;
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  const bool overlapping = to < from + bytes && from < to + bytes;
  if (overlapping) {
    std::memmove(to, from, bytes);
  } else if (bytes < kParallelCopyBytes) {
    std::memcpy(to, from, bytes);
  } else {
    const bool past_caches = bytes >= kPastCaches;
    parallel_pieces(bytes, [&](std::size_t offset, std::size_t count) {
      if (past_caches)
        copy_past_caches(to + offset, from + offset, count);
      else
        std::memcpy(to + offset, from + offset, count);
    });
  }
}

void fill_host(void* target, std::uint8_t value, std::size_t bytes) noexcept {
  if (bytes == 0) return;
  auto* to = static_cast<std::byte*>(target);
  if (bytes < kParallelCopyBytes) {
    std::memset(to, value, bytes);
  } else {
    parallel_pieces(bytes, [&](std::size_t offset, std::size_t count) { std::memset(to + offset, value, count); });
  }
}

Result<void> for_each_piece(std::size_t bytes, const std::function<Result<void>(std::size_t, std::size_t)>& piece) {
  if (bytes < kParallelCopyBytes) return piece(0, bytes);
  const std::size_t pieces = (bytes + kPiece - 1) / kPiece;
  std::vector<std::optional<Error>> errors(pieces);
  parallel_pieces(bytes, [&](std::size_t offset, std::size_t count) {
    if (auto done = piece(offset, count); !done) errors[offset / kPiece] = std::move(done).error();
  });
  for (const auto& error : errors)
    if (error) return *error;
  return {};
}

}  // namespace berth::internal
