#include "plan/placement/search_kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define BERTH_SEARCH_AVX2 1
#include <immintrin.h>

#include <bit>
#endif

namespace berth::internal::planner {
namespace {

#ifdef BERTH_SEARCH_AVX2
#define BERTH_AVX2 __attribute__((target("avx2")))

const bool kAvx2 = __builtin_cpu_supports("avx2") != 0;

BERTH_AVX2 __m256i load(const std::int32_t* at) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// The lanes of a group that begins at `i` which are before `end`.
BERTH_AVX2 __m256i lanes_before(std::uint32_t i, std::uint32_t end) noexcept {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<std::int32_t>(end - i)), lanes);
}

BERTH_AVX2 std::uint32_t bits_of(__m256i mask) noexcept {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(mask)));
}

BERTH_AVX2 std::int32_t least_low_avx2(const std::int32_t* last, const std::int32_t* low, std::uint32_t begin,
                                       std::uint32_t end, std::int32_t section, std::int32_t none,
                                       std::uint32_t& which) noexcept {
  const __m256i at = _mm256_set1_epi32(section), far = _mm256_set1_epi32(none);
  __m256i least = far;
  std::uint32_t i = begin;
  for (; i + 8 <= end; i += 8) {
    const __m256i live = _mm256_cmpgt_epi32(load(last + i), at);
    least = _mm256_min_epi32(least, _mm256_blendv_epi8(far, load(low + i), live));
  }
  if (i < end) {
    const __m256i live = _mm256_and_si256(_mm256_cmpgt_epi32(load(last + i), at), lanes_before(i, end));
    least = _mm256_min_epi32(least, _mm256_blendv_epi8(far, load(low + i), live));
  }
  __m128i half = _mm_min_epi32(_mm256_castsi256_si128(least), _mm256_extracti128_si256(least, 1));
  half = _mm_min_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_min_epi32(half, _mm_shuffle_epi32(half, 0xb1));
  const std::int32_t result = _mm_cvtsi128_si32(half);
  if (result == none) return none;
  const __m256i wanted = _mm256_set1_epi32(result);
  for (i = begin; i < end; i += 8) {
    const __m256i live = _mm256_and_si256(_mm256_cmpgt_epi32(load(last + i), at), lanes_before(i, end));
    const std::uint32_t bits = bits_of(_mm256_and_si256(live, _mm256_cmpeq_epi32(load(low + i), wanted)));
    if (bits != 0) {
      which = i + static_cast<std::uint32_t>(std::countr_zero(bits));
      break;
    }
  }
  return result;
}

BERTH_AVX2 std::uint32_t select_below_avx2(const std::int32_t* last, const std::int32_t* low, std::uint32_t begin,
                                           std::uint32_t end, std::int32_t section, std::int32_t level,
                                           std::uint32_t* out) noexcept {
  const __m256i at = _mm256_set1_epi32(section), top = _mm256_set1_epi32(level);
  std::uint32_t count = 0;
  for (std::uint32_t i = begin; i < end; i += 8) {
    __m256i mask = _mm256_and_si256(_mm256_cmpgt_epi32(load(last + i), at), _mm256_cmpgt_epi32(top, load(low + i)));
    if (end - i < 8) mask = _mm256_and_si256(mask, lanes_before(i, end));
    for (std::uint32_t bits = bits_of(mask); bits != 0; bits &= bits - 1) {
      out[count++] = i + static_cast<std::uint32_t>(std::countr_zero(bits));
    }
  }
  return count;
}

BERTH_AVX2 std::uint32_t select_standing_avx2(const std::int32_t* first, const std::int32_t* last,
                                              const std::int32_t* low, const std::int32_t* floor, std::uint32_t begin,
                                              std::uint32_t end, std::uint32_t* out) noexcept {
  std::uint32_t count = 0, i = begin;
  for (; i + 8 <= end; i += 8) {
    const __m256i here = load(low + i);
    const __m256i left = _mm256_i32gather_epi32(floor, load(first + i), 4);
    const __m256i right = _mm256_i32gather_epi32(floor - 1, load(last + i), 4);
    const __m256i mask = _mm256_and_si256(_mm256_cmpeq_epi32(here, left), _mm256_cmpeq_epi32(here, right));
    for (std::uint32_t bits = bits_of(mask); bits != 0; bits &= bits - 1) {
      out[count++] = i + static_cast<std::uint32_t>(std::countr_zero(bits));
    }
  }
  return count + portable::select_standing(first, last, low, floor, i, end, out + count);
}

BERTH_AVX2 std::uint32_t bits_above(const std::int64_t* values, __m256i level) noexcept {
  const auto four = [&](const std::int64_t* at) BERTH_AVX2 {
    const __m256i above = _mm256_cmpgt_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), level);
    return static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(above)));
  };
  return four(values) | four(values + 4) << 4;
}

BERTH_AVX2 LowestPlace lowest_place_avx2(const std::int32_t* first, const std::int32_t* last, const std::int64_t* low,
                                         const std::int64_t* high, std::uint32_t count, std::int32_t from,
                                         std::int32_t until, std::int64_t height, std::int64_t mask) noexcept {
  const __m256i left = _mm256_set1_epi32(from), right = _mm256_set1_epi32(until);
  std::int64_t at = 0;
  __m256i level = _mm256_setzero_si256();
  for (std::uint32_t i = 0; i < count; i += 8) {
    if (low[i] >= at + height) return {at, i};
    std::uint32_t live =
        bits_of(_mm256_and_si256(_mm256_cmpgt_epi32(right, load(first + i)), _mm256_cmpgt_epi32(load(last + i), left)));
    if (count - i < 8) live &= (1u << (count - i)) - 1;
    live &= bits_above(high + i, level);
    if (live == 0) continue;
    for (; live != 0; live &= live - 1) {  // each may lift it above the next
      const std::uint32_t which = i + static_cast<std::uint32_t>(std::countr_zero(live));
      if (low[which] >= at + height) return {at, which};
      if (high[which] > at) at = (high[which] + mask) & ~mask;
    }
    level = _mm256_set1_epi64x(at);
  }
  return {at, count};
}
#endif

}  // namespace

std::int32_t least_low(const std::int32_t* last, const std::int32_t* low, std::uint32_t begin, std::uint32_t end,
                       std::int32_t section, std::int32_t none, std::uint32_t& which) noexcept {
#ifdef BERTH_SEARCH_AVX2
  if (kAvx2) return least_low_avx2(last, low, begin, end, section, none, which);
#endif
  return portable::least_low(last, low, begin, end, section, none, which);
}

std::int64_t least_low(const std::int32_t* last, const std::int64_t* low, std::uint32_t begin, std::uint32_t end,
                       std::int32_t section, std::int64_t none, std::uint32_t& which) noexcept {
  return portable::least_low(last, low, begin, end, section, none, which);
}

std::uint32_t select_below(const std::int32_t* last, const std::int32_t* low, std::uint32_t begin, std::uint32_t end,
                           std::int32_t section, std::int32_t level, std::uint32_t* out) noexcept {
#ifdef BERTH_SEARCH_AVX2
  if (kAvx2) return select_below_avx2(last, low, begin, end, section, level, out);
#endif
  return portable::select_below(last, low, begin, end, section, level, out);
}

std::uint32_t select_below(const std::int32_t* last, const std::int64_t* low, std::uint32_t begin, std::uint32_t end,
                           std::int32_t section, std::int64_t level, std::uint32_t* out) noexcept {
  return portable::select_below(last, low, begin, end, section, level, out);
}

std::uint32_t select_standing(const std::int32_t* first, const std::int32_t* last, const std::int32_t* low,
                              const std::int32_t* floor, std::uint32_t begin, std::uint32_t end,
                              std::uint32_t* out) noexcept {
#ifdef BERTH_SEARCH_AVX2
  if (kAvx2) return select_standing_avx2(first, last, low, floor, begin, end, out);
#endif
  return portable::select_standing(first, last, low, floor, begin, end, out);
}

std::uint32_t select_standing(const std::int32_t* first, const std::int32_t* last, const std::int64_t* low,
                              const std::int64_t* floor, std::uint32_t begin, std::uint32_t end,
                              std::uint32_t* out) noexcept {
  return portable::select_standing(first, last, low, floor, begin, end, out);
}

LowestPlace lowest_place(const std::int32_t* first, const std::int32_t* last, const std::int64_t* low,
                         const std::int64_t* high, std::uint32_t count, std::int32_t from, std::int32_t until,
                         std::int64_t height, std::int64_t mask) noexcept {
#ifdef BERTH_SEARCH_AVX2
  if (kAvx2) return lowest_place_avx2(first, last, low, high, count, from, until, height, mask);
#endif
  return portable::lowest_place(first, last, low, high, count, from, until, height, mask);
}

}  // namespace berth::internal::planner
