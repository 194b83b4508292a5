#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "berth/kv/eviction.h"
#include "kv/policy_duel.h"
#include "kv/return_model.h"

namespace berth::kv {
using namespace berth::internal::kv_cache;
namespace {

constexpr std::uint32_t kWatches = 24576;  // sequences and blocks whose return is awaited, evicted or not
constexpr auto kLists = static_cast<std::uint32_t>(kClasses);
constexpr std::uint32_t kNever = 0xffff'ffff;
// The horizon of the prediction: this many times the time in which new blocks would fill the cache. The watches must
// reach further back than that, or nothing is learned. A cache that is young looks less far, to learn from the start.
constexpr double kHorizon = 1.5;
constexpr double kShareOfAge = 1.0 / 3;
constexpr std::uint32_t kRefreshEvery = 128;
// A block can be watched twice: as the end of a sequence, and for its own history. This tells the hashes apart.
constexpr std::uint32_t kOfHistory = 0x5bd1'e995;
constexpr int kMostSteps = 64;        // to find the place of a block in its list
constexpr std::size_t kMostRuns = 8;  // of one sequence that are watched
// New blocks of a sequence are divided into parts that double in length, because others may share its beginning alone.
// The last block is a part of its own: it is often not full, and then no other sequence repeats it.
constexpr int kLastBlock = 0;
constexpr int kMostParts = 11;
constexpr int kUsedBefore = 12;

// A place in the tree that was used. If another sequence passes it, it has returned.
struct Watch {
  std::uint32_t hash = 0;
  std::uint32_t time = 0;
  std::uint32_t age = kNever;  // at which it returned
  std::uint32_t blocks = 0;    // of the sequence
  float mean_log_gap = 0;      // of the times between its turns or uses, as a power of two of seconds
  std::uint16_t turns = 0;     // of the sequence; for a history, uses of the block
  std::uint8_t group = 0;      // the class
  Features features{};
};

class ReturnEviction final : public EvictionPolicy {
 public:
  std::string_view name() const noexcept override { return "expected return"; }
  std::uint32_t lists() const noexcept override { return kLists; }

  Result<void> reserve(std::uint32_t nodes) override {
    nodes_ = nodes;
    watches_.resize(kWatches);
    table_.assign(std::size_t{2} * kWatches, kNever);
    duel_.reserve(nodes);
    return {};
  }

  void visited(const Visit& visit, Blocks& blocks) noexcept override;

  // Lists are in the order of last use. A block that an eviction exposes was used long ago: its place is near the end.
  Place place(Node node, Node evicted, Blocks& blocks) noexcept override {
    const std::uint32_t list = blocks.notes(node).list;
    if (evicted == kNoNode) return {list};
    const std::uint32_t age = blocks.now() - blocks.notes(node).last;
    Node newer = blocks.oldest(list);
    for (int step = 0; step < kMostSteps && newer != kNoNode; ++step) {
      if (blocks.now() - blocks.notes(newer).last <= age) break;
      newer = blocks.newer(newer);
    }
    return {list, newer};
  }

  Node victim(Blocks& blocks) noexcept override;

  std::size_t bookkeeping_bytes() const noexcept override {
    return sizeof *this + watches_.capacity() * sizeof(Watch) + table_.capacity() * sizeof(std::uint32_t) +
           duel_.bookkeeping_bytes();
  }

 private:
  const Watch* find(std::uint32_t hash) const noexcept {
    const std::uint32_t number = table_[hash % table_.size()];
    if (number == kNever || next_ - number > kWatches) return nullptr;
    const Watch& watch = watches_[number % kWatches];
    return watch.hash == hash ? &watch : nullptr;
  }
  Watch* find(std::uint32_t hash) noexcept { return const_cast<Watch*>(std::as_const(*this).find(hash)); }
  void add(const Watch& watch) noexcept {
    watches_[next_ % kWatches] = watch;
    table_[watch.hash % table_.size()] = next_;
    ++next_;
  }
  void count_those_at_risk(std::uint32_t now) noexcept;
  void restore_histories(std::span<const Node> path, std::uint32_t turns, Blocks& blocks) const noexcept;
  // Lists are classes: those of sequences, then those of histories.
  float worth(std::uint32_t list, std::uint32_t age) const noexcept {
    return model_.worth(static_cast<std::uint8_t>(list), age_bucket(age));
  }

  PolicyDuel duel_;
  ReturnModel model_;
  std::vector<Watch> watches_;
  std::vector<std::uint32_t> table_;            // numbers of watches by hash
  std::uint32_t next_ = 0;                      // the number of the next watch
  std::array<std::uint32_t, kAges> risk_at_{};  // for each bucket, the first watch that has not reached it
  std::uint32_t learned_at_ = 0;
  std::uint32_t nodes_ = 0;
  std::uint32_t visits_ = 0;
  std::uint32_t first_time_ = 0;
  double new_blocks_ = 0;
};

// Notes::pace is the mean time between uses, in eighths of an octave of milliseconds.
double pace_seconds(std::uint8_t pace) noexcept {
  return std::exp2(pace / 8.0) / 1000;
}
std::uint8_t pace_of(double seconds) noexcept {
  return static_cast<std::uint8_t>(std::clamp(8 * std::log2(std::max(seconds * 1000, 1.0)), 0.0, 255.0));
}

std::uint32_t age_start(std::size_t bucket) noexcept {
  return bucket == 0
             ? 0
             : static_cast<std::uint32_t>(std::min(500 * std::exp2(static_cast<double>(bucket - 1) * 0.5), 4.0e9));
}

void ReturnEviction::count_those_at_risk(std::uint32_t now) noexcept {
  const std::uint32_t oldest = next_ > kWatches ? next_ - kWatches : 0;
  for (std::size_t b = 0; b < kAges; ++b) {
    const std::uint32_t start = age_start(b);
    std::uint32_t& at = risk_at_[b];
    at = std::max(at, oldest);
    for (; at != next_; ++at) {
      const Watch& watch = watches_[at % kWatches];
      if (now - watch.time < start) break;
      if (watch.age >= start) model_.at_risk(watch.group, b);
    }
  }
  const double seconds = std::max(1.0, (now - first_time_) / 1000.0);
  const double furthest = std::clamp(seconds * kShareOfAge, 5.0, 4.0e6);
  const double horizon = std::clamp(kHorizon * nodes_ / std::max(1e-9, new_blocks_ / seconds), 5.0, furthest);
  const auto wait = static_cast<std::uint32_t>(horizon * 1000);
  for (learned_at_ = std::max(learned_at_, oldest); learned_at_ != next_; ++learned_at_) {
    const Watch& watch = watches_[learned_at_ % kWatches];
    if (now - watch.time < wait) break;
    if (watch.group < kVisitClasses) model_.learn(watch.features, watch.age < wait);
  }
}

// A block that was evicted and is computed again has lost its notes. If the end of its run of blocks was watched, that
// watch still knows how often the run was used. A block before the end was used at least as often.
void ReturnEviction::restore_histories(std::span<const Node> path, std::uint32_t turns, Blocks& blocks) const noexcept {
  const Watch* most = nullptr;
  for (std::size_t i = path.size(); i-- > 0;) {
    const Watch* const history = find(blocks.hash(path[i]) ^ kOfHistory);
    if (history != nullptr && (most == nullptr || history->turns > most->turns)) most = history;
    Notes& notes = blocks.notes(path[i]);
    if (notes.visits != 0 || most == nullptr || most->turns < turns) continue;
    notes.visits = static_cast<std::uint8_t>(most->turns);
    notes.pace = pace_of(std::exp2(static_cast<double>(most->mean_log_gap)));
    notes.last = most->time;
  }
}

void ReturnEviction::visited(const Visit& visit, Blocks& blocks) noexcept {
  const std::span<const Node> path = visit.path;
  const std::uint32_t now = visit.closed;
  if (visits_++ == 0) first_time_ = now;
  // What has returned, and the sequence that this one continues.
  const Watch* before = nullptr;
  std::size_t known = 0;  // blocks of the path up to the deepest place that is remembered
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (Watch* const history = find(blocks.hash(path[i]) ^ kOfHistory); history != nullptr && history->age == kNever) {
      history->age = visit.opened - history->time;
      model_.returned(history->group, age_bucket(history->age));
    }
    Watch* const watch = find(blocks.hash(path[i]));
    if (watch == nullptr) continue;
    if (watch->age == kNever) {
      watch->age = visit.opened - watch->time;
      model_.returned(watch->group, age_bucket(watch->age));
    }
    before = watch;
    known = i + 1;
  }
  const double since_shared = before == nullptr ? 0 : (visit.opened - before->time) / 1000.0;
  // A sequence that shares less than half of another one only shares its beginning.
  if (before != nullptr && known * 2 <= before->blocks) before = nullptr;

  Watch own;
  own.time = now;
  own.blocks = static_cast<std::uint32_t>(path.size());
  double gap = 0;
  if (before != nullptr) {
    gap = std::max(1.0, since_shared);
    own.turns = static_cast<std::uint16_t>(std::min(before->turns + 1, 60'000));
    own.mean_log_gap = before->mean_log_gap +
                       (static_cast<float>(std::log2(gap)) - before->mean_log_gap) / static_cast<float>(own.turns);
  }
  const auto some = [&](double value) {
    return own.turns == 0 ? 0 : std::min<int>(1 + half_octaves(value), kFeatureValues - 1);
  };
  std::size_t fresh = 0;
  for (std::size_t i = path.size(); i-- > 0 && blocks.notes(path[i]).visits == 0;) ++fresh;
  const double grown = before == nullptr ? 0 : std::max(0.0, static_cast<double>(path.size()) - before->blocks);
  const double produced = static_cast<double>(visit.tokens - std::min(visit.tokens, visit.prompt_tokens));
  const int values[kFeatures] = {std::min<int>(own.turns, kFeatureValues - 1),
                                 half_octaves(static_cast<double>(path.size())),
                                 half_octaves(produced),
                                 some(gap),
                                 some(std::exp2(static_cast<double>(own.mean_log_gap))),
                                 some(1 + grown),
                                 half_octaves(static_cast<double>(fresh)),
                                 0};  // the part: see below
  for (std::size_t f = 0; f < kFeatures; ++f) own.features[f] = static_cast<std::uint8_t>(values[f]);
  new_blocks_ += static_cast<double>(fresh);

  restore_histories(path, own.turns, blocks);
  for (std::size_t i = 0; i < path.size(); ++i) {
    Notes& notes = blocks.notes(path[i]);
    if (notes.visits == 0) {
      // New, or evicted and computed again: then the sequence that it continues, or shares, may know its history.
      notes.visits = 1;
      if (before == nullptr && i < known) {
        notes.visits = 2;
        notes.pace = pace_of(since_shared);
      } else if (i < known) {
        notes.visits = static_cast<std::uint8_t>(std::min(own.turns + 1, 255));
        notes.pace = pace_of(std::exp2(static_cast<double>(own.mean_log_gap)));
      }
    } else {
      const double passed = (visit.opened - notes.last) / 1000.0;
      const double share = 1.0 / std::min<double>(notes.visits, 8);
      // A geometric mean: one long break does not make a busy block look idle.
      const double mean =
          notes.visits == 1 ? passed
                            : std::pow(pace_seconds(notes.pace), 1 - share) * std::pow(std::max(passed, 0.001), share);
      notes.pace = pace_of(mean);
      notes.visits = static_cast<std::uint8_t>(std::min(notes.visits + 1, 255));
    }
    notes.last = now;
  }
  // Each block goes by its own history if it has one, otherwise by its part of the sequence.
  std::size_t first_new = path.size();
  while (first_new > 0 && blocks.notes(path[first_new - 1]).visits < 2) --first_new;
  const auto part_of = [&](std::size_t i) {
    if (i + 1 == path.size()) return kLastBlock;
    if (i < first_new) return kUsedBefore;
    return std::min<int>(std::bit_width((i - first_new) / 2 + 1), kMostParts);
  };
  const auto watch_part = [&](std::size_t end) {
    own.hash = blocks.hash(path[end]);
    add(own);
  };
  std::size_t watched = 0;
  bool sequence_watched = false;  // at the block before the last
  for (std::size_t i = 0; i < path.size(); ++i) {
    Notes& notes = blocks.notes(path[i]);
    const int part = part_of(i);
    if (notes.visits >= 2) {
      const std::uint8_t group = ReturnModel::classify(notes.visits, pace_seconds(notes.pace));
      notes.list = group;
      // One watch for a run of blocks with the same history, at its end.
      const bool ends = i + 1 == path.size() || blocks.notes(path[i + 1]).visits != notes.visits;
      if (ends && watched++ < kMostRuns) {
        Watch watch;
        watch.hash = blocks.hash(path[i]) ^ kOfHistory;
        watch.time = now;
        watch.group = group;
        watch.blocks = own.blocks;
        watch.turns = notes.visits;
        watch.mean_log_gap = static_cast<float>(std::log2(pace_seconds(notes.pace)));
        add(watch);
      }
    } else {
      if (i == first_new || part != part_of(i - 1)) {
        own.features[kFeatures - 1] = static_cast<std::uint8_t>(part);
        own.group = model_.classify(own.features);
      }
      notes.list = own.group;
      if (i + 1 == path.size() || part != part_of(i + 1)) {
        watch_part(i);
        sequence_watched = sequence_watched || i + 2 == path.size();
      }
    }
  }
  if (!path.empty() && !sequence_watched) {
    const std::size_t end = path.size() - std::min<std::size_t>(path.size(), 2);
    own.features[kFeatures - 1] = static_cast<std::uint8_t>(part_of(end));
    own.group = model_.classify(own.features);
    watch_part(end);
  }
  duel_.visited(path, now, blocks, [&](std::uint32_t list, std::uint32_t last) { return worth(list, now - last); });
  count_those_at_risk(now);
  if (visits_ % kRefreshEvery == 0 || (visits_ < kRefreshEvery && (visits_ & (visits_ - 1)) == 0)) model_.refresh();
}

Node ReturnEviction::victim(Blocks& blocks) noexcept {
  // What a page earns may rise with its age and then falls, so the least of a list is at one of its ends. Where nothing
  // is known to be worth more, the oldest goes.
  Node worst = kNoNode;
  float least = 0;
  std::uint32_t last = 0;
  const auto consider = [&](Node node, std::uint32_t list) {
    const std::uint32_t age = blocks.now() - blocks.notes(node).last;
    const float value = duel_.model_leads() ? worth(list, age) : 0;
    if (worst != kNoNode && (value > least || (value == least && age <= last))) return;
    worst = node;
    least = value;
    last = age;
  };
  for (std::uint32_t list = 0; list < kLists; ++list) {
    const Node oldest = blocks.oldest(list);
    if (oldest == kNoNode) continue;
    consider(oldest, list);
    if (blocks.newest(list) != oldest) consider(blocks.newest(list), list);
  }
  return worst;
}

}  // namespace

EvictionPolicyPtr make_return_eviction() {
  return std::make_unique<ReturnEviction>();
}

}  // namespace berth::kv
