// The calls of a cache as a file, and their replay: to compare budgets, policies and tiers with the requests of a real
// program. CacheOptions::record_to names the file to write. A CacheRecording is a plain value.
//
// The file: "BRTHKVC1", then records. Numbers are little-endian base 128, seven bits per byte. open() and fork() number
// the sequences from 0, also those that were refused; ms are those since the last record that has them.
//   1, ms, salt, max_new_tokens, compute_last, n, n tokens    open
//   2, n, n times (sequence, token)                           append
//   3, sequence, n, n tokens                                  extend
//   4, sequence    commit          5, sequence    fork        6, sequence, tokens    truncate
//   7, sequence    keep_state      8, ms, sequence            close
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "berth/base/result.h"
#include "berth/kv/cache.h"

namespace berth::kv {

struct RecordedCall {
  enum class Kind : std::uint8_t {
    kOpen = 1,
    kAppend = 2,
    kExtend = 3,
    kCommit = 4,
    kFork = 5,
    kTruncate = 6,
    kKeepState = 7,
    kClose = 8
  };
  Kind kind = Kind::kOpen;
  std::uint64_t now = 0;                   // kOpen, kClose: milliseconds since the first
  OpenOptions options{};                   // kOpen, without the time
  std::uint64_t length = 0;                // kTruncate
  std::vector<std::uint64_t> sequences{};  // one for each token of kAppend; none for kOpen; otherwise one
  std::vector<Token> tokens{};
};

struct CacheRecording {
  std::vector<RecordedCall> calls{};
  std::uint64_t sequences = 0;  // all that were opened or forked
};

// Parses a recording. kInvalidData, with the offset, for a truncated record, a number out of range, or a call on a
// sequence that is not open. O(bytes).
Result<CacheRecording> parse_cache_recording(std::span<const std::byte> file);
// The same for a file. Also fails with kNotFound and kIo.
Result<CacheRecording> read_cache_recording(const std::string& path);

struct CacheReplay {
  std::uint64_t opened = 0, refused = 0;  // calls of open()
  std::uint64_t other_refused = 0;        // of all other calls
  std::uint64_t prompt_tokens = 0, cached_tokens = 0, tier_tokens = 0;
  double seconds = 0;  // in calls of the cache
};

// Makes the calls of a recording on a cache, in their order. Calls on sequences that this cache refused are left out;
// sequences that the recording leaves open are closed. The pages have no contents. O(tokens).
CacheReplay run_cache_recording(const CacheRecording& recording, Cache& cache);

}  // namespace berth::kv
