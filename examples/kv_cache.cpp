// Three requests share one key-value cache. Kernels are left out: a real engine writes keys and values to the slots,
// and reads them through the block table.
#include <berth/berth.h>

#include <cstdio>
#include <vector>

int main() {
  using namespace berth::kv;

  // A model with 4 layers of full attention and 12 with a sliding window, of 2 x 8 heads x 64 values of 2 bytes each.
  CacheOptions options;
  options.groups = {
      {.name = berth::Name("full"), .kind = GroupKind::kFull, .bytes_per_token = 4 * 2048},
      {.name = berth::Name("window"), .kind = GroupKind::kWindow, .bytes_per_token = 12 * 2048, .window = 64}};
  options.block_tokens = 16;
  options.budget = std::size_t{64} << 20;
  const auto cache = Cache::make(berth::device("CPU").value(), std::move(options)).value();

  // The first request computes its whole prompt.
  std::vector<Token> prompt(100);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<Token>(i * i % 1000);
  const Opened first = cache->open(prompt, {.max_new_tokens = 50}).value();
  std::vector<std::int64_t> slots(prompt.size() - first.cached_tokens);
  cache->write_slots(0, first.id, first.cached_tokens, slots).value();
  // ... record the kernels of the prompt on cache->queue() ...
  cache->commit(first.id).value();

  // The second one begins in the same way, and computes only what is new.
  prompt.push_back(7);
  const Opened second = cache->open(prompt).value();

  // A third one continues the first in another way, without a copy until it writes.
  const SequenceId third = cache->fork(first.id).value();

  // One step of decoding for all of them.
  const std::vector<SequenceId> batch{first.id, second.id, third};
  const std::vector<Token> tokens{11, 12, 13};
  std::vector<std::int64_t> next(2 * batch.size());
  cache->append(batch, tokens, next).value();
  std::vector<std::int32_t> table(batch.size() * 8), lengths(batch.size());
  cache->write_block_table(0, batch, 8, table).value();
  cache->write_seq_lens(batch, lengths).value();

  const CacheCounters counters = cache->counters();
  std::printf("%llu of %llu prompt tokens were cached; 3 sequences use %llu pages\n",
              static_cast<unsigned long long>(counters.cached_tokens),
              static_cast<unsigned long long>(counters.prompt_tokens),
              static_cast<unsigned long long>(counters.groups[0].pages_in_use));
  for (const SequenceId id : batch) cache->close(id).value();
  return second.cached_tokens == 96 && cache->check() ? 0 : 1;
}
