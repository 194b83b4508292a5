#include "planner/campaign.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>

#include "planner/crew.h"
#include "planner/random.h"
#include "planner/search_input.h"

namespace berth::planner {
namespace {

constexpr std::uint64_t kBatch = 8;
constexpr std::size_t kGuides = 4;
constexpr std::uint64_t kUndecided = std::numeric_limits<std::uint64_t>::max();

struct Rules {
  SectionRule section;
  ValueRule value;
};
// No pair of rules is enough. The order is by how often each is the first to succeed on graphs of many kinds.
constexpr Rules kPortfolio[] = {
    {SectionRule::kFewest, ValueRule::kTallest},
    {SectionRule::kFewest, ValueRule::kLongest},
    {SectionRule::kFewest, ValueRule::kShortest},
    {SectionRule::kFewestPerFailure, ValueRule::kLargest},
    {SectionRule::kLowest, ValueRule::kLongest},
    {SectionRule::kLeastSlack, ValueRule::kLongest},
    {SectionRule::kFewestPerFailure, ValueRule::kTallest},
    {SectionRule::kFewestPerFailure, ValueRule::kLongest},
    {SectionRule::kFewestPerFailure, ValueRule::kShortest},
    {SectionRule::kLowest, ValueRule::kLargest},
    {SectionRule::kLeastSlack, ValueRule::kTallest},
    {SectionRule::kSlackPerFailure, ValueRule::kLargest},
};

template <class Unit>
class Campaign {
 public:
  Campaign(const Model& model, const Scale& scale, ScaledModel<Unit> scaled, const CampaignLimits& limits)
      : model_(model), scale_(scale), scaled_(std::move(scaled)), limits_(limits), crew_(limits.threads) {
    searches_.resize(limits.threads);
  }

  CampaignResult run(const Layout& start, std::uint64_t lower_bound, const CampaignProgress& progress) {
    CampaignResult result{start, lower_bound, 0, {}};
    if (start.top != kNowhere) remember(start);
    if (limits_.hint) remember(*limits_.hint);
    for (std::uint64_t first = 0; !reached(result) && result.work < limits_.work; first += kBatch) {
      if (limits_.interrupt.out_of_time()) break;
      const std::uint64_t before_top = result.best.top, before_bound = result.lower_bound;
      run_batch(first, result);
      if (progress && (result.best.top != before_top || result.lower_bound != before_bound)) progress(result);
    }
    return result;
  }

 private:
  struct Guide {
    std::vector<Unit> upright, flipped;
  };
  struct Restart {
    Unit capacity = 0;
    std::span<const Unit> guide;
    SearchStyle style;
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
    return std::max(static_cast<Unit>(scale_.up(result.lower_bound)), static_cast<Unit>(impossible_ + 1));
  }

  // Keeps a layout to guide later restarts, as it is and upside down: what was built from below is dense at the bottom
  // and loose at the top, so building it again from its top makes the loose end dense.
  void remember(const Layout& layout) {
    Guide guide;
    for (std::size_t i = 0; i < scaled_.free.size(); ++i) {
      const Unit offset = units(layout.offsets[scaled_.free[i]]);
      guide.upright.push_back(offset);
      guide.flipped.push_back(units(layout.top) - offset - scaled_.input.items[i].height);
    }
    if (guides_.size() < kGuides) {
      guides_.push_back(std::move(guide));
    } else {
      guides_[remembered_ % kGuides] = std::move(guide);
    }
    ++remembered_;
  }

  Restart design(std::uint64_t index, const CampaignResult& result) const {
    Restart restart;
    Random random(limits_.seed, index);
    const auto count = static_cast<std::uint64_t>(scaled_.free.size());
    const Unit goal = std::max(floor(result), units(limits_.goal));
    const Unit high =
        result.best.top == kNowhere ? goal : std::max(goal, static_cast<Unit>(scale_.up(result.best.top) - 1));
    constexpr std::uint64_t kRules = std::size(kPortfolio);
    const bool guided = limits_.minimise && index >= kRules && index % 8 != 0 && !guides_.empty();
    const Rules& rules = kPortfolio[(guided ? random.below(kRules) : index) % kRules];
    SearchStyle& style = restart.style;
    style.section = rules.section;
    style.value = guided ? ValueRule::kGuided : rules.value;
    style.mirrored = random.below(2) == 1;
    style.noise = index < kRules ? (limits_.seed == 0 ? 0.0 : 0.02)
                  : guided       ? 0.3 * std::pow(random.unit(), 3.0)
                                 : 0.4 * random.unit();
    style.seed = random.next();
    style.node_limit = std::max<std::uint64_t>(400, guided ? 4 * count : count + count / 2);
    if (index % 16 == 15) style.node_limit <<= std::min<std::uint64_t>(index / 16, 24);  // to be complete in the end
    // Aim low first: a hit saves many small steps. Guided restarts stay near what guides them, or look for another
    // layout of the same size to be guided by.
    restart.capacity = goal;
    if (limits_.minimise && index >= kRules) {
      const double part = guided ? std::exp2(-2.0 - 6.0 * random.unit()) : random.unit();
      restart.capacity =
          std::max(goal, static_cast<Unit>(high - static_cast<Unit>(part * static_cast<double>(high - goal))));
    }
    if (guided) {
      const Guide& guide = guides_[random.below(guides_.size())];
      restart.guide = random.below(10) != 0 ? guide.upright : guide.flipped;
      if (random.below(4) == 0) restart.capacity = high + 1;
    }
    restart.name = guided ? "guided_search" : "search";
    return restart;
  }

  void run_batch(std::uint64_t first, CampaignResult& result) {
    std::vector<Restart> batch;
    std::uint64_t planned = result.work;
    for (std::uint64_t i = 0; i < kBatch && planned < limits_.work; ++i) {
      batch.push_back(design(first + i, result));
      std::uint64_t& limit = batch.back().style.node_limit;
      limit = std::min(limit, limits_.work - planned);
      planned += limit;
    }
    std::atomic<std::uint64_t> next{0}, decisive{kUndecided};
    const auto work = [&](unsigned who) {
      if (!searches_[who]) searches_[who] = std::make_unique<Search<Unit>>(scaled_.input);
      Search<Unit>& search = *searches_[who];
      for (std::uint64_t i; (i = next.fetch_add(1)) < batch.size();) {
        if (decisive.load() < i) return;
        Restart& restart = batch[i];
        Interrupt interrupt = limits_.interrupt;
        interrupt.decisive = &decisive;
        interrupt.index = i;
        restart.outcome = search.run(restart.capacity, restart.style, restart.guide, &interrupt);
        restart.nodes = search.nodes();
        if (restart.outcome == SearchOutcome::kLimit) continue;
        if (restart.outcome == SearchOutcome::kFound) {
          restart.offsets.assign(search.offsets().begin(), search.offsets().end());
        }
        std::uint64_t lowest = decisive.load();
        while (i < lowest && !decisive.compare_exchange_weak(lowest, i)) {
        }
      }
    };
    // The first batches are often all it takes: not worth waking anybody for.
    if (first < kBatch || crew_.size() == 1) {
      work(0);
    } else {
      crew_.run(work);
    }
    const std::uint64_t winner = decisive.load();
    for (std::uint64_t i = 0; i < batch.size() && i <= winner; ++i) result.work += batch[i].nodes;
    if (winner != kUndecided) accept(batch[winner], result);
  }

  void accept(const Restart& restart, CampaignResult& result) {
    if (restart.outcome == SearchOutcome::kImpossible) {
      // Every plan rounds up to more than this capacity, so it ends above it less what rounding may add to the topmost.
      impossible_ = std::max(impossible_, restart.capacity);
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
    if (layout.top <= result.best.top) remember(layout);
    if (layout.top >= result.best.top) return;
    result.best = std::move(layout);
    result.strategy = restart.name;
  }

  const Model& model_;
  const Scale scale_;
  const ScaledModel<Unit> scaled_;
  const CampaignLimits& limits_;
  Unit impossible_ = 0;
  std::vector<Guide> guides_;
  std::uint64_t remembered_ = 0;
  std::vector<std::unique_ptr<Search<Unit>>> searches_;
  Crew crew_;
};

template <class Unit>
CampaignResult run_in_units(const Model& model, const Layout& start, std::uint64_t lower_bound, const Scale& scale,
                            const CampaignLimits& limits, const CampaignProgress& progress) {
  auto scaled = scale_model<Unit>(model, scale);
  if (!scaled) return {start, lower_bound, 0, {}};
  return Campaign<Unit>(model, scale, std::move(*scaled), limits).run(start, lower_bound, progress);
}

}  // namespace

CampaignResult run_campaign(const Model& model, const Layout& start, std::uint64_t lower_bound,
                            const CampaignLimits& limits, const CampaignProgress& progress) {
  const Scale scale = scale_of(model);
  std::uint64_t highest = start.top == kNowhere ? limits.goal : start.top;
  for (const Item& item : model.items) {
    if (item.fixed != kNowhere) highest = std::max(highest, item.fixed + item.height);
  }
  if (scale.up(highest) < (std::uint64_t{1} << 28)) {
    return run_in_units<std::int32_t>(model, start, lower_bound, scale, limits, progress);
  }
  return run_in_units<std::int64_t>(model, start, lower_bound, scale, limits, progress);
}

}  // namespace berth::planner
