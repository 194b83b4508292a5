// Recordings of caches from anywhere: parsing must neither crash nor accept what a replay could trip over, and a replay
// must leave a cache whole.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "berth/kv/recording.h"
#include "berth/memory/registry.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto recording = berth::kv::parse_cache_recording(std::as_bytes(std::span(data, size)));
  if (!recording) return 0;
  for (const auto& call : recording->calls)
    for (const std::uint64_t sequence : call.sequences)
      if (sequence >= recording->sequences) std::abort();
  berth::kv::CacheOptions options;
  options.groups = {{.bytes_per_token = 16}};
  options.block_tokens = 2;
  options.budget = 64 * 32;
  options.alignment = 16;
  auto cache = berth::kv::Cache::make(berth::device("CPU").value(), std::move(options));
  static_cast<void>(berth::kv::run_cache_recording(*recording, **cache));
  if (!(*cache)->check() || (*cache)->counters().sequences != 0) std::abort();
  return 0;
}
