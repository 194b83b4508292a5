// The key-value cache: how often prefixes are found under each eviction policy, how fast it is, and what it costs.
//
//   kv_bench [TRACE]    TRACE, or the environment variable BERTH_KV_TRACE, is a file of requests, one JSON object per
//                       line, with "timestamp" in milliseconds and "hash_ids", one for each block of the prompt.
//                       BERTH_KV_SEED draws the synthetic traces from another seed.
//
// Hit rate: blocks of a request that are cached, from the front until the first that is not, over all blocks of all
// requests. "simple" is the best of three simple policies for each row (kv_policies.h). The oracle knows the future and
// evicts what is used again last. The policy was developed with the seeds 1 to 3 of the synthetic traces; other
// seeds are for judging it.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "berth/kv/cache.h"
#include "berth/memory/registry.h"
#include "kv_policies.h"
#include "kv_traces.h"

namespace {

using namespace berth;
using namespace berth::kv;

using bench::Request;
using bench::Trace;

std::unique_ptr<Cache> make_cache(std::size_t pages, std::uint32_t block_tokens, std::vector<Group> groups,
                                  EvictionPolicyPtr eviction) {
  CacheOptions options;
  std::size_t block = 0;
  for (const Group& group : groups) block += group.bytes_per_token * block_tokens;
  options.groups = std::move(groups);
  options.block_tokens = block_tokens;
  options.budget = pages * block;
  options.eviction = std::move(eviction);
  return Cache::make(device("CPU").value(), std::move(options)).value();
}

enum class Policy { kLru, kSegmented, kHalfSegmented, kLfu, kReturn, kOracle };

// `next` is for the oracle.
EvictionPolicyPtr make_policy(Policy policy, const std::vector<std::uint32_t>* next) {
  switch (policy) {
    case Policy::kLru: return make_lru_eviction();
    case Policy::kSegmented: return std::make_unique<bench::SegmentedLru>(0.9);
    case Policy::kHalfSegmented: return std::make_unique<bench::SegmentedLru>(0.5);
    case Policy::kLfu: return std::make_unique<bench::AgeingLfu>();
    case Policy::kReturn: return make_return_eviction();
    case Policy::kOracle: return std::make_unique<bench::Oracle>(next);
  }
  std::abort();
}

double hit_rate(const Trace& trace, std::size_t pages, Policy policy) {
  std::vector<std::vector<std::uint32_t>> next(trace.size());
  if (policy == Policy::kOracle) {
    std::unordered_map<Token, std::uint32_t> due;
    for (std::size_t i = trace.size(); i-- > 0;) {
      for (const Token block : trace[i].blocks) {
        const auto found = due.find(block);
        next[i].push_back(found == due.end() ? 0xffff'fffe : found->second);
      }
      for (const Token block : trace[i].blocks) due[block] = static_cast<std::uint32_t>(i);
    }
  }
  std::vector<std::uint32_t> current;
  const auto cache =
      make_cache(pages, 1, {{.kind = GroupKind::kFull, .bytes_per_token = 64}}, make_policy(policy, &current));
  std::uint64_t hits = 0, all = 0;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    current = next[i];
    all += trace[i].blocks.size();
    const auto opened = cache->open(trace[i].blocks, {.compute_last = false, .now = trace[i].time});
    if (!opened) continue;  // longer than the whole cache
    hits += opened->cached_tokens;
    cache->commit(opened->id).value();
    cache->close(opened->id, trace[i].time).value();
  }
  return static_cast<double>(hits) / static_cast<double>(std::max<std::uint64_t>(all, 1));
}

Trace read_trace(const std::string& path) {
  Trace trace;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_discarded() || !json.contains("timestamp") || !json.contains("hash_ids")) continue;
    Request request;
    request.time = static_cast<std::uint64_t>(json["timestamp"].get<double>());
    for (const auto& id : json["hash_ids"]) request.blocks.push_back(static_cast<Token>(id.get<std::int64_t>()));
    trace.push_back(std::move(request));
  }
  return trace;
}

const char* verdict(bool met) {
  return met ? "met" : "missed";
}

void print_rates(const std::string& name, const Trace& trace, const std::vector<std::size_t>& sizes) {
  const double most = hit_rate(trace, 400'000, Policy::kLru);
  for (const std::size_t pages : sizes) {
    const double lru = hit_rate(trace, pages, Policy::kLru), ours = hit_rate(trace, pages, Policy::kReturn),
                 oracle = hit_rate(trace, pages, Policy::kOracle);
    const double simple =
        std::max({hit_rate(trace, pages, Policy::kSegmented), hit_rate(trace, pages, Policy::kHalfSegmented),
                  hit_rate(trace, pages, Policy::kLfu)});
    const double way = oracle > lru ? 100 * (ours - lru) / (oracle - lru) : 100.0;
    fmt::print("{:<28} {:>7} {:>8.3f} {:>8.3f} {:>8.3f} {:>8.3f} {:>8.3f}   {:>5.0f} % of the way: {}{}{}\n", name,
               pages, lru, simple, ours, oracle, most, way, verdict(way >= 50),
               ours + 0.0005 < simple ? ", below the best simple policy" : "",
               ours + 0.0005 < lru ? ", BELOW LRU" : "");
  }
}

// --- Times ---

template <class F>
double best_of(int rounds, F&& f) {
  double best = 1e30;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

std::vector<Token> random_tokens(std::mt19937& random, std::size_t n) {
  std::vector<Token> tokens(n);
  for (Token& token : tokens) token = static_cast<Token>(random() % 128'000);
  return tokens;
}

void print_times() {
  std::mt19937 random(1);
  constexpr std::size_t kPages = 1'000'000;
  const auto cache = make_cache(kPages, 16, {{.kind = GroupKind::kFull, .bytes_per_token = 4}}, make_return_eviction());
  {
    std::vector<SequenceId> ids;
    for (int i = 0; i < 256; ++i) ids.push_back(cache->open(random_tokens(random, 100 + random() % 4000)).value().id);
    std::vector<Token> tokens(256, 7);
    std::vector<std::int64_t> slots(256);
    std::vector<double> times;
    for (int i = 0; i < 2000; ++i) {
      const auto start = std::chrono::steady_clock::now();
      cache->append(ids, tokens, slots).value();
      times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    fmt::print(
        "append of one token to each of 256 sequences      median {:.2f} us, best {:.2f} us   (goal: under 5): {}\n",
        times[times.size() / 2], times[0], verdict(times[times.size() / 2] < 5));
    for (const SequenceId id : ids) cache->close(id).value();
  }
  {
    const auto prompt = random_tokens(random, 10'000);
    const auto first = cache->open(prompt).value();
    cache->commit(first.id).value();
    cache->close(first.id).value();
    std::vector<double> times;
    std::vector<Token> longer = prompt;
    longer.push_back(1);
    for (int i = 0; i < 500; ++i) {
      const auto start = std::chrono::steady_clock::now();
      const auto opened = cache->open(longer).value();
      times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
      if (opened.cached_tokens != 10'000) std::abort();
      cache->close(opened.id).value();
    }
    std::sort(times.begin(), times.end());
    fmt::print(
        "open with a prefix of 10,000 cached tokens         median {:.2f} us, best {:.2f} us   (goal: under 50): {}\n",
        times[times.size() / 2], times[0], verdict(times[times.size() / 2] < 50));
  }
  // The whole cache full of sequences.
  while (cache->counters().groups[0].pages_cached < kPages - 1000) {
    const auto opened = cache->open(random_tokens(random, 16'000)).value();
    cache->commit(opened.id).value();
    cache->close(opened.id).value();
  }
  const double bytes = static_cast<double>(cache->counters().bookkeeping_bytes) / kPages;
  fmt::print("bookkeeping for 1,000,000 pages                    {:.1f} bytes a page   (goal: at most 32): {}\n", bytes,
             verdict(bytes <= 32));
  const double evicting = best_of(20, [&] {
    const auto opened = cache->open(random_tokens(random, 10'000)).value();
    cache->close(opened.id).value();
  });
  fmt::print("open and close of 10,000 new tokens, evicting      {:.1f} us\n", evicting);
}

void print_waste() {
  std::mt19937 random(2);
  const auto measure = [&](const char* name, std::vector<Group> groups, double goal) {
    std::size_t token_bytes = 0;
    for (const Group& group : groups) token_bytes += group.bytes_per_token;
    const auto cache = make_cache(200'000, 16, groups, make_lru_eviction());
    std::uint64_t needed = 0;
    for (int i = 0; i < 256; ++i) {
      const std::size_t n = 1 + random() % 2048;
      cache->open(random_tokens(random, n)).value();
      needed += n * token_bytes;
    }
    const CacheCounters counters = cache->counters();
    std::uint64_t held = 0;
    for (const auto& group : counters.groups) held += group.pages_in_use * group.page_bytes;
    const double waste = 100 * (1 - static_cast<double>(needed) / static_cast<double>(held));
    fmt::print("waste of 256 sequences of 1 to 2,048 tokens, {:<14} {:.2f} %   (goal: at most {:.0f}): {}\n", name,
               waste, goal, verdict(waste <= goal));
  };
  measure("one group", {{.kind = GroupKind::kFull, .bytes_per_token = 64}}, 4);
  measure("mixed groups",
          {{.kind = GroupKind::kFull, .bytes_per_token = 320},
           {.kind = GroupKind::kFull, .bytes_per_token = 192},
           {.kind = GroupKind::kFull, .bytes_per_token = 72}},
          5);
}

}  // namespace

int main(int count, char** arguments) {
  const char* const named = std::getenv("BERTH_KV_TRACE");
  const std::string path = count > 1 ? arguments[1] : named != nullptr ? named : "";
  fmt::print("{:<28} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8}\n", "hit rate", "pages", "LRU", "simple", "return", "oracle",
             "no limit");
  fmt::print("goal: half of the way from LRU to the oracle; nowhere below LRU or the best simple policy\n");
  if (path.empty()) {
    fmt::print("no trace: give a file as the argument, or name it in BERTH_KV_TRACE\n");
  } else {
    const Trace trace = read_trace(path);
    if (trace.empty()) {
      fmt::print(stderr, "kv_bench: {} has no requests\n", path);
      return 1;
    }
    print_rates("trace", trace, {1'000, 5'000, 10'000, 30'000});
  }
  const char* const given = std::getenv("BERTH_KV_SEED");
  std::vector<std::uint64_t> seeds{1, 2};
  if (given != nullptr) seeds = {std::strtoull(given, nullptr, 10)};
  for (const bench::Family& family : bench::kFamilies)
    for (const std::uint64_t seed : seeds)
      print_rates(fmt::format("{}, seed {}", family.name, seed), bench::draw_trace(family.name, seed),
                  {500, 2'000, 8'000});
  print_times();
  print_waste();
}
