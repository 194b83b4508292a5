#include "plan/placement/ejection.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>

#include "plan/placement/random.h"
#include "plan/placement/search_input.h"
#include "plan/placement/time_index.h"

namespace berth::internal::planner {
namespace {

constexpr std::uint64_t kAttemptsAtOnce = 4;  // attempts that threads share
constexpr double kUnaffordable = 1e300;

// One attempt to get under a lid. Holds all its memory; used again and again by one thread.
class Ejector {
 public:
  Ejector(const Model& model, const TimeIndex& index) : model_(model), index_(index), difficulty_(model.items.size()) {
    for (std::size_t i = 0; i < difficulty_.size(); ++i) {
      const Item& it = model.items[i];
      difficulty_[i] = static_cast<double>(it.height) * std::sqrt(static_cast<double>(it.last - it.first));
    }
  }

  std::vector<std::uint64_t> offsets;
  std::uint64_t work = 0;

  // `offsets` must be those of a complete layout. True when all of them are under the lid.
  bool run(std::uint64_t lid, std::uint64_t steps, std::uint64_t seed, const Interrupt& interrupt) {
    lid_ = static_cast<std::int64_t>(lid);
    random_ = Random(seed);
    thrown_.assign(model_.items.size(), 0.0f);
    out_.clear();
    work = 0;
    for (std::uint32_t i = 0; i < offsets.size(); ++i) {
      if (offsets[i] + model_.items[i].height <= lid) continue;
      if (model_.items[i].fixed != kNowhere) return false;
      take_out(i);
    }
    steps += 4 * out_.size();
    for (std::uint64_t step = 0; !out_.empty(); ++step) {
      if (step >= steps || ((step & 31) == 31 && interrupt.requested())) return false;
      if (!put_back(next())) return false;
    }
    return true;
  }

 private:
  struct Obstacle {  // offsets strictly between would overlap the item
    std::int64_t low, high;
    std::uint32_t item;
  };
  struct Edge {
    std::int64_t at;
    double cost;  // added from here on
  };

  bool harder(std::uint32_t a, std::uint32_t b) const {
    return difficulty_[a] != difficulty_[b] ? difficulty_[a] > difficulty_[b] : a < b;
  }
  void take_out(std::uint32_t item) {
    offsets[item] = kNowhere;
    out_.push_back(item);
    std::push_heap(out_.begin(), out_.end(), [&](auto a, auto b) { return harder(b, a); });
  }
  std::uint32_t next() {
    std::pop_heap(out_.begin(), out_.end(), [&](auto a, auto b) { return harder(b, a); });
    const std::uint32_t item = out_.back();
    out_.pop_back();
    return item;
  }

  void collect(std::uint32_t item) {
    obstacles_.clear();
    const auto mine = model_.parts_of(item);
    index_.alive(model_.items[item].first, model_.items[item].last, [&](std::uint32_t other) {
      if (offsets[other] == kNowhere) return;
      const auto at = static_cast<std::int64_t>(offsets[other]);
      for (const Part& theirs : model_.parts_of(other)) {
        for (const Part& ours : mine) {
          if (theirs.first >= ours.last || ours.first >= theirs.last) continue;
          obstacles_.push_back(
              {at - static_cast<std::int64_t>(ours.height), at + static_cast<std::int64_t>(theirs.height), other});
        }
      }
    });
  }

  std::int64_t align_up(std::int64_t at, std::int64_t alignment) const {
    return (at + alignment - 1) & ~(alignment - 1);
  }

  bool put_back(std::uint32_t item) {
    const Item& it = model_.items[item];
    const auto alignment = static_cast<std::int64_t>(it.alignment);
    const std::int64_t highest = lid_ - static_cast<std::int64_t>(it.height);
    if (highest < 0) return false;
    collect(item);
    work += 1 + obstacles_.size() / 64;
    // The cheapest place: costs change only where an obstacle begins or ends to matter.
    edges_.clear();
    double cost = 0;  // at offset 0
    for (const Obstacle& other : obstacles_) {
      double price = kUnaffordable;
      if (model_.items[other.item].fixed == kNowhere) {
        price =
            difficulty_[other.item] * (1.0 + static_cast<double>(thrown_[other.item])) * (1.0 + 0.2 * random_.unit());
      }
      if (other.low < 0) {
        cost += price;
      } else {
        edges_.push_back({other.low + 1, price});
      }
      edges_.push_back({other.high, -price});
    }
    std::sort(edges_.begin(), edges_.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
    double best_cost = std::numeric_limits<double>::infinity();
    std::int64_t best = -1, from = 0;
    // Sums of prices that cancel leave dust: a stretch that nothing covers is counted, not summed.
    std::size_t covering = obstacles_.size() - (edges_.size() - obstacles_.size());
    for (std::size_t e = 0;; ++e) {
      const std::int64_t until = e < edges_.size() ? edges_[e].at : highest + 1;
      const std::int64_t at = align_up(from, alignment);
      if (at < until && at <= highest) {
        const double here = covering == 0 ? 0.0 : cost;
        if (here < best_cost) best_cost = here, best = at;
        if (covering == 0) break;  // the lowest place that is free
      }
      if (e == edges_.size() || until > highest) break;
      from = until;
      cost += edges_[e].cost;
      edges_[e].cost > 0 ? ++covering : --covering;
    }
    if (best < 0 || best_cost >= kUnaffordable) return false;
    for (const Obstacle& other : obstacles_) {
      if (other.low < best && best < other.high && offsets[other.item] != kNowhere) {
        thrown_[other.item] += 1.0f;
        take_out(other.item);
      }
    }
    offsets[item] = static_cast<std::uint64_t>(best);
    return true;
  }

  const Model& model_;
  const TimeIndex& index_;
  std::vector<double> difficulty_;
  std::vector<float> thrown_;  // how often each item was thrown out
  std::vector<std::uint32_t> out_;
  std::vector<Obstacle> obstacles_;
  std::vector<Edge> edges_;
  std::int64_t lid_ = 0;
  Random random_{0};
};

}  // namespace

Improvement improve_by_ejection(const Model& model, Layout start, const ImprovementLimits& limits, Crew& crew,
                                const ImprovementProgress& progress) {
  Improvement result{std::move(start), 0};
  const TimeIndex index(model);
  const std::uint64_t unit = scale_of(model).unit;
  std::vector<std::unique_ptr<Ejector>> ejectors(crew.size());
  const auto step_for = [&] { return std::max(unit, (result.best.top - std::min(result.best.top, limits.goal)) / 3); };
  std::uint64_t step = step_for(), steps = 300, attempts = 0;
  while (result.best.top > limits.goal && result.work < limits.work && !limits.interrupt.out_of_time()) {
    const std::uint64_t lid = std::max(limits.goal, result.best.top - std::min(step, result.best.top));
    struct Outcome {
      bool worked = false;
      std::uint64_t work = 0;
      std::vector<std::uint64_t> offsets;
    };
    std::vector<Outcome> batch(kAttemptsAtOnce);
    std::atomic<std::uint64_t> next{0}, decisive{std::numeric_limits<std::uint64_t>::max()};
    crew.run([&](unsigned who) {
      if (!ejectors[who]) ejectors[who] = std::make_unique<Ejector>(model, index);
      Ejector& ejector = *ejectors[who];
      for (std::uint64_t i; (i = next.fetch_add(1)) < kAttemptsAtOnce;) {
        if (decisive.load() < i) return;
        Interrupt interrupt = limits.interrupt;
        interrupt.decisive = &decisive;
        interrupt.index = i;
        ejector.offsets = result.best.offsets;
        batch[i].worked = ejector.run(lid, steps, mix(limits.seed) + attempts + i, interrupt);
        batch[i].work = ejector.work;
        if (!batch[i].worked) continue;
        batch[i].offsets = ejector.offsets;
        std::uint64_t lowest = decisive.load();
        while (i < lowest && !decisive.compare_exchange_weak(lowest, i)) {
        }
      }
    });
    attempts += kAttemptsAtOnce;
    const std::uint64_t winner = decisive.load();
    for (std::uint64_t i = 0; i < kAttemptsAtOnce && i <= winner; ++i) result.work += 1 + batch[i].work;
    if (winner < kAttemptsAtOnce) {
      result.best.offsets = std::move(batch[winner].offsets);
      result.best.top = top_of(model, result.best.offsets);
      if (progress) progress(result);
      step = step_for();
    } else if (step > unit) {
      step = std::max(unit, step / 2);
    } else {
      steps *= 2;
      step = step_for();
    }
  }
  return result;
}

}  // namespace berth::internal::planner
