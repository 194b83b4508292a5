// The cache against a plain model: every sequence is a vector of tokens, and the bytes of its pages are compared with
// what was written, so that pages that are shared, copied, moved or reused wrongly show.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <random>

#include "berth/alloc/fault.h"
#include "berth/kv/cache.h"
#include "berth/memory/registry.h"
#include "berth/testing.h"

namespace berth::kv {
namespace {

// What a kernel writes for a token: its position, and a digest of all tokens up to it.
struct Written {
  std::uint64_t position;
  std::uint64_t digest;
};

struct Modelled {
  std::vector<Token> tokens{};
  std::uint64_t written = 0;  // tokens whose bytes are in the pages
  std::uint64_t salt = 0;
};

class Harness {
 public:
  // Sequences also have contiguous addresses if `contiguous` is not 0.
  Harness(DevicePtr device, std::vector<Group> groups, std::uint32_t block, std::size_t budget,
          EvictionPolicyPtr policy, std::vector<Tier> tiers = {}, std::uint64_t contiguous = 0)
      : groups_(groups), block_(block), contiguous_(contiguous != 0) {
    CacheOptions options;
    options.groups = std::move(groups);
    options.block_tokens = block;
    options.budget = budget;
    options.alignment = 16;
    options.eviction = std::move(policy);
    options.tiers = std::move(tiers);
    options.contiguous_tokens = contiguous;
    auto made = Cache::make(std::move(device), std::move(options));
    if (made) cache_ = std::move(*made);
  }
  explicit operator bool() const { return cache_ != nullptr; }
  Cache& cache() { return *cache_; }

  static std::vector<std::uint64_t> digests(const Modelled& sequence) {
    std::vector<std::uint64_t> all;
    std::uint64_t digest = sequence.salt * 31 + 7;
    for (const Token token : sequence.tokens) {
      digest = digest * 6364136223846793005u + static_cast<std::uint32_t>(token) + 1;
      all.push_back(digest);
    }
    return all;
  }

  // Plays the kernels: writes the tokens from `first` on where the cache says.
  void write(SequenceId id, Modelled& sequence, std::uint64_t first) {
    const auto bytes = cache_->buffer().as_host_bytes_mut().value();
    const auto digest = digests(sequence);
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].kind == GroupKind::kState) continue;
      std::vector<std::int64_t> slots(sequence.tokens.size() - first);
      ASSERT_TRUE(cache_->write_slots(g, id, first, slots).has_value());
      for (std::size_t i = 0; i < slots.size(); ++i) {
        ASSERT_GE(slots[i], 0);
        const Written value{first + i, digest[first + i]};
        std::memcpy(&bytes[at(g, slots[i])], &value, sizeof value);
      }
    }
    sequence.written = sequence.tokens.size();
  }

  // The tokens from `from` on at the contiguous addresses of the sequence. Where the device fails they are not there.
  std::string compare_contiguous(SequenceId id, const std::vector<std::uint64_t>& digest, std::uint32_t g,
                                 std::uint64_t from, std::uint64_t end, bool may_fail) {
    const auto found = cache_->contiguous(g, id);
    if (!found) return may_fail ? "" : found.error().message();
    if (found->tokens.size() == 0) return from == end ? "" : "no contiguous tokens";
    const auto bytes = found->tokens.as_host_bytes().value();
    if (found->first > from) return "contiguous tokens begin behind the window";
    for (std::uint64_t i = from; i < end; ++i) {
      Written value{};
      std::memcpy(&value, &bytes[(i - found->first) * groups_[g].bytes_per_token], sizeof value);
      if (value.position != i || value.digest != digest[i])
        return "token " + std::to_string(i) + " of group " + std::to_string(g) + " has other bytes at its address";
    }
    return {};
  }

  // What attention would read: everything in a full group, the window in others.
  std::string compare(SequenceId id, const Modelled& sequence, bool may_fail) {
    const auto bytes = cache_->buffer().as_host_bytes().value();
    const auto digest = digests(sequence);
    if (cache_->length(id).value() != sequence.tokens.size()) return "another length";
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].kind == GroupKind::kState) continue;
      std::vector<std::int64_t> slots(sequence.tokens.size());
      if (!cache_->write_slots(g, id, 0, slots)) return "no slots";
      const std::uint64_t next = sequence.written;
      const std::uint64_t from =
          groups_[g].kind == GroupKind::kWindow && next + 1 > groups_[g].window ? next + 1 - groups_[g].window : 0;
      for (std::uint64_t i = from; i < sequence.written; ++i) {
        if (slots[i] < 0) return "a page inside the window is gone";
        Written value{};
        std::memcpy(&value, &bytes[at(g, slots[i])], sizeof value);
        if (value.position != i || value.digest != digest[i])
          return "token " + std::to_string(i) + " of group " + std::to_string(g) + " has other bytes";
      }
      if (!contiguous_) continue;
      if (auto wrong = compare_contiguous(id, digest, g, from, next, may_fail); !wrong.empty()) return wrong;
    }
    return {};
  }

 private:
  std::size_t at(std::uint32_t group, std::int64_t slot) const {
    const auto page = static_cast<std::size_t>(slot) / block_, offset = static_cast<std::size_t>(slot) % block_;
    return page * cache_->page_bytes(group) + offset * groups_[group].bytes_per_token;
  }

  std::vector<Group> groups_;
  std::uint32_t block_;
  bool contiguous_;
  std::unique_ptr<Cache> cache_;
};

// All sizes are `scale` times as large.
std::vector<Group> groups_of(int kind, std::size_t scale = 1) {
  const Group full{.name = Name("full"), .kind = GroupKind::kFull, .bytes_per_token = 16 * scale};
  const Group wide{.name = Name("wide"), .kind = GroupKind::kFull, .bytes_per_token = 48 * scale};
  const Group window{.name = Name("window"), .kind = GroupKind::kWindow, .bytes_per_token = 32 * scale, .window = 7};
  const Group state{.name = Name("state"), .kind = GroupKind::kState, .state_bytes = 80 * scale};
  switch (kind) {
    case 0: return {full};
    case 1: return {full, window};
    case 2: return {window};
    case 3: return {full, wide, state};
    default: return {wide, window, state};
  }
}

// Runs random operations; returns what went wrong, or nothing. `faults` may make copies and allocations fail.
// `contiguous`: in the contiguous way, where a token fills a page of the system.
std::string play(std::uint32_t seed, int kind, const FaultTriggerPtr& faults, bool contiguous = false) {
  std::mt19937 random(seed);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  const std::uint32_t block = 1 + below(5);
  const DevicePtr device = faults ? faulty_device(faults) : berth::device("CPU").value();
  std::vector<Tier> tiers;
  if (kind < 3 && below(3) != 0) {
    // Memory of the same device, which may fail too, or of the host; then a file.
    tiers.push_back({.allocator = below(2) == 0 ? device : berth::device("CPU").value(), .budget = 600 + below(3000)});
    if (below(2) == 0)
      tiers.push_back({.folder = std::filesystem::temp_directory_path().string(), .budget = 600 + below(3000)});
  }
  const std::size_t scale = contiguous ? 256 : 1;
  for (Tier& tier : tiers) tier.budget *= scale;
  constexpr std::uint64_t kLongest = 40;
  Harness harness(device, groups_of(kind, scale), block, (1500 + below(6000)) * scale,
                  below(2) == 0 ? make_lru_eviction() : make_return_eviction(), std::move(tiers),
                  contiguous ? kLongest : 0);
  if (!harness) return {};
  Cache& cache = harness.cache();
  const bool exact = !faults;
  if (faults) faults->fail_every(5 + below(9));
  const bool has_state = kind >= 3;
  std::map<std::uint64_t, Modelled> open;
  std::vector<std::vector<Token>> prompts;
  for (int i = 0; i < 6; ++i) {
    // Prompts that begin like others.
    std::vector<Token> prompt;
    if (i > 0 && below(3) != 0) {
      const auto& other = prompts[below(static_cast<std::uint32_t>(prompts.size()))];
      prompt.assign(other.begin(), other.begin() + below(static_cast<std::uint32_t>(other.size() + 1)));
    }
    for (std::uint32_t n = below(20); n > 0; --n) prompt.push_back(static_cast<Token>(below(3)));
    prompts.push_back(prompt);
  }
  std::uint64_t now = 1000;
  for (int step = 0; step < 150; ++step) {
    now += below(3000);
    const auto pick = [&] { return std::next(open.begin(), below(static_cast<std::uint32_t>(open.size()))); };
    const std::uint32_t what = below(12);
    if (what < 3 || open.empty()) {
      Modelled model;
      model.tokens = prompts[below(6)];
      model.salt = below(4) == 0 ? 9 : 0;
      const OpenOptions options{.salt = model.salt, .max_new_tokens = below(3) == 0 ? below(12) : 0, .now = now};
      const Admission admission = cache.can_admit(model.tokens, options);
      const auto opened = cache.open(model.tokens, options);
      if (exact && admission.fits != opened.has_value()) return "can_admit and open disagree";
      if (exact && opened && opened->cached_tokens != admission.cached_tokens) return "can_admit found another prefix";
      if (!opened) {
        const bool too_long = contiguous && model.tokens.size() + options.max_new_tokens > kLongest;
        if (exact && opened.error().code() != (too_long ? Code::kInvalidArgument : Code::kOutOfMemory))
          return opened.error().message();
        if (exact && admission.sequences_to_close > open.size()) return "more to close than is open";
      } else {
        model.written = opened->cached_tokens;
        if (const auto wrong = harness.compare(opened->id, model, !exact); !wrong.empty())
          return "after open: " + wrong;
        // Sometimes the kernels run in the next step, and sometimes never.
        if (below(8) != 0) {
          harness.write(opened->id, model, opened->cached_tokens);
          open[opened->id.bits] = model;
        } else if (!cache.close(opened->id, now)) {
          return "close failed";
        }
      }
    } else if (what < 8) {
      // One token for some sequences.
      std::vector<SequenceId> ids;
      std::vector<Token> tokens;
      for (auto& [bits, model] : open)
        if (below(3) != 0) {
          ids.push_back({bits});
          tokens.push_back(static_cast<Token>(below(3)));
        }
      std::vector<std::int64_t> slots(ids.size() * groups_of(kind).size());
      const auto done = cache.append(ids, tokens, slots);
      for (std::size_t i = 0; i < ids.size() && done; ++i) {
        Modelled& model = open[ids[i].bits];
        model.tokens.push_back(tokens[i]);
        for (std::uint32_t g = 0; g < groups_of(kind).size(); ++g) {
          std::int64_t slot = 0;
          if (!cache.write_slots(g, ids[i], model.tokens.size() - 1, {&slot, 1}) || slot != slots[g * ids.size() + i])
            return "append returned another slot than the table has";
        }
        harness.write(ids[i], model, model.tokens.size() - 1);
      }
      if (!done && exact && done.error().code() != Code::kOutOfMemory) {
        bool full = false;
        for (const SequenceId id : ids) full |= contiguous && open[id.bits].tokens.size() == kLongest;
        if (!full || done.error().code() != Code::kInvalidArgument) return done.error().message();
      }
    } else if (what == 8) {
      const auto at = pick();
      std::vector<Token> more(below(9));
      for (Token& token : more) token = static_cast<Token>(below(3));
      std::vector<std::int64_t> slots(more.size() * groups_of(kind).size());
      if (cache.extend({at->first}, more, slots)) {
        const std::uint64_t first = at->second.tokens.size();
        at->second.tokens.insert(at->second.tokens.end(), more.begin(), more.end());
        std::vector<std::int64_t> now_at(more.size());
        for (std::uint32_t g = 0; g < groups_of(kind).size(); ++g) {
          if (!cache.write_slots(g, {at->first}, first, now_at) ||
              !std::equal(now_at.begin(), now_at.end(), slots.begin() + static_cast<std::ptrdiff_t>(g * more.size())))
            return "extend returned other slots than the table has";
        }
        harness.write({at->first}, at->second, first);
      }
    } else if (what == 9) {
      const auto at = pick();
      const auto forked = cache.fork({at->first});
      if (forked) open[forked->bits] = Modelled(at->second);
    } else if (what == 10) {
      const auto at = pick();
      if (below(2) == 0) {
        const std::uint64_t keep = below(static_cast<std::uint32_t>(at->second.tokens.size() + 1));
        if (cache.truncate({at->first}, keep)) {
          at->second.tokens.resize(keep);
          at->second.written = keep;
        } else if (!has_state && kind == 0) {
          return "truncate failed";
        }
      } else if (!cache.commit({at->first})) {
        return "commit failed";
      } else if (has_state) {
        static_cast<void>(cache.keep_state({at->first}));
      }
    } else {
      const auto at = pick();
      if (!cache.close({at->first}, now)) return "close failed";
      if (cache.close({at->first}, now)) return "closed twice";
      open.erase(at);
    }
    if (const auto whole = cache.check(); !whole)
      return "step " + std::to_string(step) + ": " + whole.error().message();
    for (const auto& [bits, model] : open)
      if (const auto wrong = harness.compare({bits}, model, !exact); !wrong.empty())
        return "step " + std::to_string(step) + ", operation " + std::to_string(what) + ": " + wrong;
  }
  if (faults) faults->fail_every(0);
  // What could not be mapped while the device failed is mapped now.
  for (const auto& [bits, model] : open)
    if (const auto wrong = harness.compare({bits}, model, false); !wrong.empty()) return "at the end: " + wrong;
  for (const auto& [bits, model] : open)
    if (!cache.close({bits})) return "close failed at the end";
  cache.drop_cached();
  const CacheCounters counters = cache.counters();
  for (const auto& group : counters.groups)
    if (group.pages_in_use + group.pages_cached + group.pages_set_aside != 0) return "pages are lost";
  if (const auto whole = cache.check(); !whole) return whole.error().message();
  return {};
}

RC_GTEST_PROP(KvCacheProperty, AgreesWithAPlainModel, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  const auto kind = *rc::gen::inRange(0, 5);
  const std::string wrong = play(seed, kind, nullptr);
  if (!wrong.empty()) RC_FAIL(wrong);
}

RC_GTEST_PROP(KvCacheProperty, LosesNothingWhenTheDeviceFails, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  const auto kind = *rc::gen::inRange(0, 5);
  const std::string wrong = play(seed, kind, std::make_shared<FaultTrigger>());
  if (!wrong.empty()) RC_FAIL(wrong);
}

RC_GTEST_PROP(KvCacheProperty, AgreesWithAPlainModelAtContiguousAddresses, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  const auto kind = *rc::gen::inRange(0, 5);
  const std::string wrong = play(seed, kind, nullptr, true);
  if (!wrong.empty()) RC_FAIL(wrong);
}

RC_GTEST_PROP(KvCacheProperty, LosesNothingAtContiguousAddressesWhenTheDeviceFails, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  const auto kind = *rc::gen::inRange(0, 5);
  const std::string wrong = play(seed, kind, std::make_shared<FaultTrigger>(), true);
  if (!wrong.empty()) RC_FAIL(wrong);
}

TEST(KvCacheFaults, SurvivesEveryFailedCallOfTheDevice) {
  const SweepReport report = fail_each([](const DevicePtr& device) -> Result<void> {
    Harness harness(device, groups_of(3), 4, 4000, make_lru_eviction());
    if (!harness) return Error(Code::kOutOfMemory, Layer::kAllocator, "no cache");
    const std::vector<Token> tokens(10, 1);
    auto opened = harness.cache().open(tokens);
    if (!opened) return opened.error();
    auto forked = harness.cache().fork(opened->id);
    if (!forked) return forked.error();
    std::vector<std::int64_t> slots(3);
    const Token token = 5;
    if (auto done = harness.cache().append({&*forked, 1}, {&token, 1}, slots); !done) return done.error();
    return harness.cache().check();
  });
  EXPECT_TRUE(report.ok()) << report.to_string();
}

}  // namespace
}  // namespace berth::kv
