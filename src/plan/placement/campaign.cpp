#include "plan/placement/campaign.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "plan/placement/bounds.h"
#include "plan/placement/bundles.h"
#include "plan/placement/crew.h"
#include "plan/placement/random.h"
#include "plan/placement/search_input.h"
#include "plan/placement/sections.h"
#include "plan/placement/strategies.h"

namespace berth::internal::planner {
namespace {

constexpr std::uint64_t kRestartsAtOnce = 8;
constexpr std::size_t kGuides = 4;
constexpr std::uint64_t kGuidedPatience = 200;  // guided restarts for which a line may stand still
constexpr std::uint64_t kStraight = 256;        // first restarts, by their work, that aim at nothing but the goal
constexpr double kGrowth = 1.5;                 // of restarts, from one round of the portfolio to the next
constexpr std::uint64_t kUndecided = std::numeric_limits<std::uint64_t>::max();

enum class ValueRule : std::uint8_t { kTallest, kLongest, kLargest, kHottest, kSmallest };

struct Rules {
  SectionRule section;
  ValueRule value;
};
// No pair of rules is enough. The order is by how often each is the first to succeed on problems of many kinds.
constexpr Rules kPortfolio[] = {
    {SectionRule::kFewest, ValueRule::kTallest},           {SectionRule::kFewest, ValueRule::kLongest},
    {SectionRule::kSlackPerFailure, ValueRule::kHottest},  {SectionRule::kFewestPerFailure, ValueRule::kLargest},
    {SectionRule::kLowest, ValueRule::kLongest},           {SectionRule::kSlackPerFailure, ValueRule::kLongest},
    {SectionRule::kFewest, ValueRule::kHottest},           {SectionRule::kLeastSlack, ValueRule::kLargest},
    {SectionRule::kFewestPerFailure, ValueRule::kLongest}, {SectionRule::kFewestPerFailure, ValueRule::kSmallest},
    {SectionRule::kFewestPerFailure, ValueRule::kTallest}, {SectionRule::kLowest, ValueRule::kLargest},
};

template <class Unit>
class Campaign {
 public:
  Campaign(const Model& model, const Scale& scale, ScaledModel<Unit> scaled, const CampaignLimits& limits,
           CampaignMemory& memory)
      : model_(model),
        scale_(scale),
        scaled_(std::move(scaled)),
        limits_(limits),
        memory_(memory),
        crew_(limits.threads) {
    searches_.resize(limits.threads);
    bundlers_.resize(limits.threads);
    make_blocks();
  }

  CampaignResult run(const Layout& start, std::uint64_t lower_bound, const CampaignProgress& progress) {
    CampaignResult result{start, lower_bound, 0, {}};
    if (start.top < memory_.least_top) {
      if (memory_.guides.empty()) memory_.first = start;
      remember(start);
    }
    while (!reached(result) && result.work < limits_.work) {
      if (limits_.interrupt.out_of_time()) break;
      const std::uint64_t before_top = result.best.top, before_bound = result.lower_bound;
      run_batch(memory_.restarts, result);
      memory_.restarts += kRestartsAtOnce;
      leave_a_line_that_stands_still();
      if (progress && (result.best.top != before_top || result.lower_bound != before_bound)) progress(result);
    }
    return result;
  }

 private:
  struct Restart {
    Unit capacity = 0;
    std::vector<double> keys;  // of the items: what is tried first
    SearchStyle style;
    bool bundled = false;  // then it draws its own keys, from these
    ValueRule value = ValueRule::kTallest;
    double noise = 0;
    Random random{0};
    std::uint64_t blocks = 0;
    std::string_view name;
    SearchOutcome outcome = SearchOutcome::kLimit;
    std::uint64_t nodes = 0;
    std::vector<Unit> offsets;
  };

  Unit units(std::uint64_t bytes) const noexcept { return static_cast<Unit>(bytes / scale_.unit); }

  bool reached(const CampaignResult& result) const noexcept {
    return result.best.top <= std::max(limits_.goal, result.lower_bound) ||
           (!limits_.minimise && limits_.goal < static_cast<std::uint64_t>(floor(result)) * scale_.unit) ||
           (result.best.top != kNowhere && scale_.up(result.best.top) <= static_cast<std::uint64_t>(floor(result)));
  }

  // The least capacity that is not known to be impossible for the items.
  Unit floor(const CampaignResult& result) const noexcept {
    return std::max(static_cast<Unit>(scale_.up(result.lower_bound)), static_cast<Unit>(memory_.impossible + 1));
  }

  // Now and then a restart is long, and the next one twice as long, so that the search is complete in the end. Where
  // that end is near it gets half of the work, elsewhere a small part.
  std::uint64_t proof_share() const noexcept { return scaled_.free.size() <= kProvable ? 1 : 16; }

  // Takes a layout into the present line of guides.
  void remember(const Layout& layout) {
    memory_.guides.push_back(layout);
    if (memory_.guides.size() > kGuides) memory_.guides.erase(memory_.guides.begin());
    if (layout.top < memory_.line_top) memory_.lowered = memory_.work;
    memory_.line_top = std::min(memory_.line_top, layout.top);
    memory_.least_top = std::min(memory_.least_top, layout.top);
  }

  // Guided restarts go down quickly or, in some lines, hardly at all. A line that has stood still for as long as it
  // went down is left for a new one, which chance leads elsewhere.
  void leave_a_line_that_stands_still() {
    if (memory_.guides.empty() || memory_.work < memory_.lowered + kGuidedPatience * guided_limit()) {
      return;
    }
    memory_.guides.clear();
    memory_.line_top = kNowhere;
    remember(memory_.first);
    memory_.lowered = memory_.work;
  }

  std::uint64_t guided_limit() const noexcept { return std::max<std::uint64_t>(600, 6 * scaled_.free.size()); }

  // The items as blocks. Lengths are those of time, not of sections: a long life is hard to place even where little
  // happens in it.
  void make_blocks() {
    const std::vector<std::uint64_t> loads = section_loads(model_);
    const std::vector<std::uint32_t> fullest = fullest_sections(model_, loads);
    blocks_.reserve(scaled_.free.size());
    for (std::size_t i = 0; i < scaled_.free.size(); ++i) {
      const auto& item = scaled_.input.items[i];
      const std::uint32_t whole = scaled_.free[i];
      blocks_.push_back({item.first, item.last, static_cast<std::int64_t>(item.height),
                         static_cast<double>(model_.items[whole].levels),
                         static_cast<double>(loads[fullest[whole]]) / static_cast<double>(scale_.unit)});
      most_area_ = std::max(most_area_, area(blocks_.back()));
      most_height_ = std::max(most_height_, static_cast<double>(item.height));
    }
  }

  static double area(const Block& block) noexcept { return static_cast<double>(block.height) * block.length; }

  // The value orders, as keys of which the least goes first.
  double key(ValueRule rule, const Block& block, double noise, Random& random) const {
    const auto height = static_cast<double>(block.height);
    double key = 0;
    switch (rule) {
      case ValueRule::kTallest: key = -height; break;
      case ValueRule::kLongest: key = -block.length * (1.0 + height / (2 * most_height_)); break;
      case ValueRule::kLargest: key = -area(block); break;
      case ValueRule::kHottest: key = -block.heat - area(block) / (2 * most_area_); break;
      case ValueRule::kSmallest: key = height; break;
    }
    return noise > 0 ? key * (1.0 + noise * (random.unit() - 0.5)) : key;
  }

  // The offsets of a remembered layout, now and then upside down: what was built from below is dense at the bottom and
  // loose at the top, so building it again from its top makes the loose end dense. A few items, chosen at random, are
  // sent anywhere. That leads further than a little noise on all of them, which mostly repairs itself.
  std::vector<double> design_guide(Random& random) const {
    const bool hinted = limits_.hint && random.below(8) == 0;
    const Layout& layout = hinted ? *limits_.hint : memory_.guides[random.below(memory_.guides.size())];
    const bool flipped = random.below(10) == 0;
    const auto top = static_cast<double>(units(layout.top));
    const double share = 0.2 * random.unit(), distance = 2.0 * random.unit() * top;
    std::vector<double> guide;
    guide.reserve(scaled_.free.size());
    for (std::size_t i = 0; i < scaled_.free.size(); ++i) {
      auto offset = static_cast<double>(units(layout.offsets[scaled_.free[i]]));
      if (flipped) offset = top - offset - static_cast<double>(scaled_.input.items[i].height);
      if (random.unit() < share) offset += distance * (random.unit() - 0.5);
      guide.push_back(offset);
    }
    return guide;
  }

  // The nodes of a restart by the rules alone. Longer with every round of the portfolio.
  std::uint64_t plain_limit(std::uint64_t round) const noexcept {
    const double first = std::max(600.0, 2.0 * static_cast<double>(scaled_.free.size()));
    return static_cast<std::uint64_t>(first *
                                      std::pow(kGrowth, static_cast<double>(std::min<std::uint64_t>(round, 40))));
  }

  // Half of the work is on bundles, little of it where little can be joined. Long restarts, which are to prove, are
  // not.
  bool bundles_at(std::uint64_t index) const noexcept {
    if (!scaled_.input.simple || index % 8 == 0 || index % 16 == 15) return false;
    const bool worthwhile = 4 * memory_.fewest_blocks <= 3 * scaled_.free.size();
    return worthwhile ? index % 2 == 1 || 2 * memory_.bundled_work < memory_.work : index % 16 == 1;
  }

  Restart design(std::uint64_t index, const CampaignResult& result) const {
    Restart restart;
    Random random(limits_.seed, index);
    const Unit goal = std::max(floor(result), units(limits_.goal));
    const std::uint64_t top = memory_.line_top;
    const Unit high = top == kNowhere ? goal : std::max(goal, static_cast<Unit>(scale_.up(top) - 1));
    constexpr std::uint64_t kRules = std::size(kPortfolio);
    // Where only the goal counts it is mostly met at once; only if not, most of the restarts climb down to it.
    const bool climbing =
        limits_.minimise ? index >= kRules : memory_.work >= kStraight * plain_limit(0) && index % 4 != 0;
    restart.bundled = bundles_at(index);
    const bool guided = climbing && !restart.bundled && index % 8 != 0 && !memory_.guides.empty();
    // Where most restarts are guided, those that are not still go through the portfolio one after the other.
    const std::uint64_t plain = memory_.plain_restarts;
    const std::uint64_t round = plain / kRules;
    const Rules& rules = kPortfolio[restart.bundled ? random.below(kRules) : plain % kRules];
    SearchStyle& style = restart.style;
    style.section = !guided                ? rules.section
                    : random.below(2) == 0 ? SectionRule::kFewest
                                           : SectionRule::kFewestPerFailure;
    style.mirrored = guided || restart.bundled ? random.below(2) == 1 : round % 2 == 1;
    // Among guided restarts those by the rules alone do not grow: they would soon take nearly all of the work.
    style.node_limit = guided     ? guided_limit()
                       : climbing ? std::min(plain_limit(round), guided_limit())
                                  : plain_limit(round);
    // The first round is without noise, except that a seed must lead somewhere else.
    const double noise = round == 0 ? (limits_.seed == 0 ? 0.0 : 0.02) : 0.4 * random.unit();
    // Aim low first: a hit saves many small steps. Every other guided restart stays near what guides it, or looks for
    // another layout of the same size to be guided by.
    restart.capacity = goal;
    if (climbing) {
      const double part = guided && random.below(2) == 0 ? 0.0 : random.unit();
      restart.capacity =
          std::max(goal, static_cast<Unit>(high - static_cast<Unit>(part * static_cast<double>(high - goal))));
    }
    if (guided) {
      restart.keys = design_guide(random);
      if (random.below(10) == 0) restart.capacity = high + 1;
    } else if (restart.bundled) {
      if (random.below(2) == 0) restart.capacity = goal;
      style.node_limit = plain_limit(0);
      restart.value = rules.value;
      restart.noise = random.below(2) == 0 ? 0.0 : noise;
      restart.random = random;
    } else {
      restart.keys.reserve(blocks_.size());
      for (const Block& block : blocks_) restart.keys.push_back(key(rules.value, block, noise, random));
      ++memory_.plain_restarts;
    }
    restart.name = guided ? "guided_search" : restart.bundled ? "bundled_search" : "search";
    return restart;
  }

  // A restart on bundles of the items. That a bundling has no packing proves nothing.
  void run_bundled(Restart& restart, Bundler& bundler, const Interrupt& interrupt) const {
    bundler.join(static_cast<std::int64_t>(restart.capacity), restart.random);
    const std::span<const std::uint32_t> blocks = bundler.blocks();
    std::vector<LevelRange> ranges;
    std::vector<SectionRange> sections(blocks.size());
    for (const std::uint32_t block : blocks) ranges.push_back({bundler[block].first, bundler[block].last});
    SearchInput<Unit> input;
    input.sections = compress(ranges, sections);
    for (std::uint32_t i = 0; i < blocks.size(); ++i) {
      const Block& block = bundler[blocks[i]];
      const auto height = static_cast<Unit>(block.height);
      input.parts.push_back({sections[i].first, sections[i].last, height});
      input.items.push_back({i, i + 1, sections[i].first, sections[i].last, height, 1, 0, 0});
      restart.keys.push_back(key(restart.value, block, restart.noise, restart.random));
    }
    restart.style.node_limit = std::min(restart.style.node_limit, std::max<std::uint64_t>(600, 2 * blocks.size()));
    Search<Unit> search(input);
    const SearchOutcome outcome = search.run(restart.capacity, restart.style, restart.keys, &interrupt);
    restart.nodes = search.nodes() + blocks_.size();
    restart.blocks = blocks.size();
    if (outcome != SearchOutcome::kFound) return;
    restart.outcome = outcome;
    restart.offsets.resize(blocks_.size());
    bundler.spread<Unit>(search.offsets(), restart.offsets);
  }

  void run_batch(std::uint64_t first, CampaignResult& result) {
    std::vector<Restart> batch;
    std::uint64_t planned = result.work;
    for (std::uint64_t i = 0; i < kRestartsAtOnce && planned < limits_.work; ++i) {
      batch.push_back(design(first + i, result));
      std::uint64_t& limit = batch.back().style.node_limit;
      if ((first + i) % 16 == 15 && memory_.work >= proof_share() * memory_.proof) {
        limit = std::max(limit, std::exchange(memory_.proof, 2 * memory_.proof));
      }
      limit = std::min(limit, limits_.work - planned);
      planned += limit;
    }
    std::atomic<std::uint64_t> next{0}, decisive{kUndecided};
    const auto work = [&](unsigned who) {
      if (!searches_[who]) {
        searches_[who] = std::make_unique<Search<Unit>>(scaled_.input);
        bundlers_[who] = std::make_unique<Bundler>(blocks_, scaled_.input.sections);
      }
      Search<Unit>& search = *searches_[who];
      for (std::uint64_t i; (i = next.fetch_add(1)) < batch.size();) {
        if (decisive.load() < i) return;
        Restart& restart = batch[i];
        Interrupt interrupt = limits_.interrupt;
        interrupt.decisive = &decisive;
        interrupt.index = i;
        if (restart.bundled) {
          run_bundled(restart, *bundlers_[who], interrupt);
        } else {
          restart.outcome = search.run(restart.capacity, restart.style, restart.keys, &interrupt);
          restart.nodes = search.nodes();
          if (restart.outcome == SearchOutcome::kFound) {
            restart.offsets.assign(search.offsets().begin(), search.offsets().end());
          }
        }
        if (restart.outcome == SearchOutcome::kLimit) continue;
        std::uint64_t lowest = decisive.load();
        while (i < lowest && !decisive.compare_exchange_weak(lowest, i)) {
        }
      }
    };
    // The first batches are often all it takes: not worth waking anybody for.
    if (first < kRestartsAtOnce || crew_.size() == 1) {
      work(0);
    } else {
      crew_.run(work);
    }
    const std::uint64_t winner = decisive.load();
    for (std::uint64_t i = 0; i < batch.size() && i <= winner; ++i) {
      result.work += batch[i].nodes;
      memory_.work += batch[i].nodes;
      if (batch[i].bundled) memory_.bundled_work += batch[i].nodes;
      const std::uint64_t blocks = batch[i].blocks, fewest = memory_.fewest_blocks;
      if (blocks > 0 && (fewest == 0 || blocks < fewest)) memory_.fewest_blocks = blocks;
    }
    if (winner != kUndecided) accept(batch[winner], result);
  }

  void accept(const Restart& restart, CampaignResult& result) {
    if (restart.outcome == SearchOutcome::kImpossible) {
      // Every plan rounds up to more than this capacity, so it ends above it less what rounding may add to the topmost.
      memory_.impossible = std::max(memory_.impossible, static_cast<std::uint64_t>(restart.capacity));
      if (model_.exact) {
        const std::uint64_t proven = (static_cast<std::uint64_t>(restart.capacity) + 1) * scale_.unit;
        result.lower_bound = std::max(result.lower_bound, proven - (scale_.rounding - 1));
      }
      return;
    }
    Layout layout{result.best.offsets, 0};
    for (std::size_t i = 0; i < restart.offsets.size(); ++i) {
      layout.offsets[scaled_.free[i]] = static_cast<std::uint64_t>(restart.offsets[i]) * scale_.unit;
    }
    for (std::size_t i = 0; i < layout.offsets.size(); ++i) {
      if (model_.items[i].fixed != kNowhere) layout.offsets[i] = model_.items[i].fixed;
    }
    layout.top = top_of(model_, layout.offsets);
    if (layout.top <= memory_.line_top) remember(layout);
    if (layout.top >= result.best.top) return;
    result.best = std::move(layout);
    result.strategy = restart.name;
  }

  const Model& model_;
  const Scale scale_;
  const ScaledModel<Unit> scaled_;
  std::vector<Block> blocks_;  // each free item
  double most_area_ = 1, most_height_ = 1;
  const CampaignLimits& limits_;
  CampaignMemory& memory_;
  std::vector<std::unique_ptr<Search<Unit>>> searches_;
  std::vector<std::unique_ptr<Bundler>> bundlers_;
  Crew crew_;
};

template <class Unit>
CampaignResult run_in_units(const Model& model, const Layout& start, std::uint64_t lower_bound, const Scale& scale,
                            const CampaignLimits& limits, CampaignMemory& memory, const CampaignProgress& progress) {
  auto scaled = scale_model<Unit>(model, scale);
  if (!scaled) return {start, lower_bound, 0, {}};
  return Campaign<Unit>(model, scale, std::move(*scaled), limits, memory).run(start, lower_bound, progress);
}

}  // namespace

CampaignResult run_campaign(const Model& model, const Layout& start, std::uint64_t lower_bound,
                            const CampaignLimits& limits, CampaignMemory& memory, const CampaignProgress& progress) {
  const Scale scale = scale_of(model);
  std::uint64_t highest = start.top == kNowhere ? limits.goal : start.top;
  for (const Item& item : model.items) {
    if (item.fixed != kNowhere) highest = std::max(highest, item.fixed + item.height);
  }
  if (scale.up(highest) < (std::uint64_t{1} << 28)) {
    return run_in_units<std::int32_t>(model, start, lower_bound, scale, limits, memory, progress);
  }
  return run_in_units<std::int64_t>(model, start, lower_bound, scale, limits, memory, progress);
}

}  // namespace berth::internal::planner
