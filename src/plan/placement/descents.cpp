#include "plan/placement/descents.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "plan/placement/random.h"
#include "plan/placement/search.h"
#include "plan/placement/search_input.h"

namespace berth::internal::planner {
namespace {

constexpr std::uint64_t kDescentsAtOnce = 4;  // descents that threads share
constexpr std::uint64_t kFirstDescents = 8;   // descents in turn that may lower nothing at first
constexpr std::uint64_t kIdleDescents = 24;   // and later
constexpr std::uint64_t kComingBack = 200;    // nodes of a descent beyond those that place the items
constexpr std::uint64_t kUsualItems = 512;    // items of the problems that a unit of work is a node of
// Of what is above the goal, the part that the descents of a batch leave: the boldest first. The second row is for
// when the last batch lowered nothing.
constexpr double kLeftAbove[2][kDescentsAtOnce] = {{0.4, 0.6, 0.75, 0.9}, {0.7, 0.8, 0.9, 0.95}};
constexpr std::uint64_t kMostDescentUnits = std::uint64_t{1} << 28;

struct Descent {
  std::int32_t capacity = 0;
  SearchStyle style;
  double noise = 0;
  Random random{0};
  std::uint64_t work = 0;
  std::vector<std::int32_t> offsets;
};

class Descents {
 public:
  Descents(const Model& model, const Scale& scale, ScaledModel<std::int32_t> scaled, const ImprovementLimits& limits,
           Crew& crew)
      : model_(model), scale_(scale), scaled_(std::move(scaled)), limits_(limits), crew_(crew) {
    searches_.resize(crew.size());
  }

  Improvement run(Layout start) {
    Improvement result{std::move(start), 0};
    std::uint64_t idle = 0;
    bool lowered = false;
    for (std::uint64_t first = 0; result.best.top > limits_.goal && result.work < limits_.work;
         first += kDescentsAtOnce) {
      if (idle >= (lowered ? kIdleDescents : kFirstDescents) || limits_.interrupt.out_of_time()) break;
      const bool lower = run_batch(first, idle > 0, result);
      lowered = lowered || lower;
      idle = lower ? 0 : idle + kDescentsAtOnce;
    }
    return result;
  }

 private:
  Descent design(std::uint64_t index, bool careful, std::uint64_t top) const {
    constexpr SectionRule kSectionRules[] = {SectionRule::kSlackPerFailure, SectionRule::kLowest,
                                             SectionRule::kLeastSlack};
    constexpr std::uint32_t kLooks[] = {4, 8, 12, 24};
    constexpr double kPowers[] = {0.7, 1.0, 1.2};
    Descent descent;
    descent.random = Random(limits_.seed, index);
    Random& random = descent.random;
    const double above = kLeftAbove[careful ? 1 : 0][index % kDescentsAtOnce] * static_cast<double>(top - limits_.goal);
    descent.capacity = static_cast<std::int32_t>((limits_.goal + static_cast<std::uint64_t>(above)) / scale_.unit);
    descent.style.section = kSectionRules[index % 3];
    descent.style.mirrored = index / 3 % 2 == 1;
    descent.style.node_limit = scaled_.free.size() + kComingBack;
    descent.style.look_ahead = index < 3 ? 12 : kLooks[random.below(4)];
    descent.style.area_power = index < 3 ? 1.0 : kPowers[random.below(3)];
    descent.noise = index < 3 ? 0.0 : 0.3 * random.unit();
    return descent;
  }

  void descend(Descent& descent, Search<std::int32_t>& search, const Interrupt& interrupt) const {
    std::vector<double> keys;
    keys.reserve(scaled_.free.size());
    for (const std::uint32_t item : scaled_.free) {
      const auto length = static_cast<double>(model_.items[item].levels);
      keys.push_back(-length * (1.0 + descent.noise * (descent.random.unit() - 0.5)));
    }
    const SearchOutcome outcome = search.run(descent.capacity, descent.style, keys, &interrupt);
    descent.work = (search.nodes() + search.tried()) * (1 + scaled_.free.size() / kUsualItems);
    if (outcome == SearchOutcome::kFound) descent.offsets.assign(search.offsets().begin(), search.offsets().end());
  }

  // Several descents, of which the first that succeeds counts. True if one did.
  bool run_batch(std::uint64_t first, bool careful, Improvement& result) {
    std::vector<Descent> batch;
    for (std::uint64_t i = 0; i < kDescentsAtOnce; ++i) batch.push_back(design(first + i, careful, result.best.top));
    std::atomic<std::uint64_t> next{0}, decisive{std::numeric_limits<std::uint64_t>::max()};
    crew_.run([&](unsigned who) {
      if (!searches_[who]) searches_[who] = std::make_unique<Search<std::int32_t>>(scaled_.input);
      for (std::uint64_t i; (i = next.fetch_add(1)) < kDescentsAtOnce;) {
        if (decisive.load() < i) return;
        Interrupt interrupt = limits_.interrupt;
        interrupt.decisive = &decisive;
        interrupt.index = i;
        descend(batch[i], *searches_[who], interrupt);
        if (batch[i].offsets.empty()) continue;
        std::uint64_t lowest = decisive.load();
        while (i < lowest && !decisive.compare_exchange_weak(lowest, i)) {
        }
      }
    });
    const std::uint64_t winner = decisive.load();
    for (std::uint64_t i = 0; i < kDescentsAtOnce && i <= winner; ++i) result.work += batch[i].work;
    if (winner >= kDescentsAtOnce) return false;
    std::vector<std::uint64_t> offsets(model_.items.size());
    for (std::size_t i = 0; i < scaled_.free.size(); ++i) {
      offsets[scaled_.free[i]] = static_cast<std::uint64_t>(batch[winner].offsets[i]) * scale_.unit;
    }
    const std::uint64_t top = top_of(model_, offsets);
    if (top >= result.best.top) return false;
    result.best = {std::move(offsets), top};
    return true;
  }

  const Model& model_;
  const Scale scale_;
  const ScaledModel<std::int32_t> scaled_;
  const ImprovementLimits& limits_;
  Crew& crew_;
  std::vector<std::unique_ptr<Search<std::int32_t>>> searches_;
};

}  // namespace

Improvement improve_by_descents(const Model& model, Layout start, const ImprovementLimits& limits, Crew& crew) {
  const Scale scale = scale_of(model);
  if (model.has_fixed || scale.up(start.top) >= kMostDescentUnits) return {std::move(start), 0};
  auto scaled = scale_model<std::int32_t>(model, scale);
  if (!scaled) return {std::move(start), 0};
  return Descents(model, scale, std::move(*scaled), limits, crew).run(std::move(start));
}

}  // namespace berth::internal::planner
