// A state is the set of steps that ran; what is live follows from the set alone. The search goes depth first and
// remembers the sets from which it found no way on.
//
// Most of its strength is knowing which steps need no decision. Let f be the live bytes of a set. A value becomes live
// with the first of its writers and ceases with the last of its users, so f is submodular:
// f(A + B) + f(A * B) <= f(A) + f(B) for the union and the intersection. Suppose a few steps lead from S to T without
// exceeding the limit, and f(T) is at most f of every set between the two. Then T can be taken at once: any way from S
// to the end that passes through U can pass through U + T instead, with f(U + T) <= f(U), and each of its steps finds
// no more live than before. The sets between S and the end of a chain, in which each step waits for the one before, are
// its beginnings; so a chain that comes back to f(S) for the first time can always be taken.
#include "plan/graph/order_search.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

namespace berth::internal::graphs {
namespace {

using Step = std::uint32_t;

constexpr std::size_t kLongestChain = 24;
constexpr std::size_t kMostSets = 4'000'000;

// Two numbers for each step: the sum over a set, without carry, stands for the set.
struct SetHash {
  std::uint64_t a = 0, b = 0;
  friend bool operator==(const SetHash&, const SetHash&) = default;
};

std::uint64_t scattered(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

struct HashOfHash {
  std::size_t operator()(const SetHash& hash) const noexcept { return static_cast<std::size_t>(hash.a); }
};

class Search {
 public:
  Search(const StepGraph& graph, std::uint64_t limit, std::uint64_t most, SearchBudget& budget)
      : graph_(graph), limit_(limit), state_(graph), most_(std::min(most, budget.work)), budget_(budget) {
    for (Step step = 0; step < graph.steps; ++step)
      if (state_.ready(step)) add_ready(step);
  }

  SearchResult run() {
    SearchResult out;
    if (state_.live() > limit_) {  // what is there from the beginning
      out.end = SearchEnd::kImpossible;
      out.next = state_.live();
      return out;
    }
    out.end = descend();
    if (out.end == SearchEnd::kFound) out.order = path_;
    out.next = lowest_refused_;
    budget_.work -= std::min(budget_.work, work_);
    return out;
  }

 private:
  // A decision: the steps that can come next, best first, and how long the path was.
  struct Frame {
    std::size_t path = 0;
    SetHash set;
    std::vector<Step> choices;
    std::size_t next = 0;
  };

  SearchEnd descend() {
    std::vector<Frame> frames;
    bool back = false;
    for (;;) {
      if (!back) {
        if (!take_what_is_free()) return SearchEnd::kStopped;
        if (path_.size() == graph_.steps) return SearchEnd::kFound;
        Frame frame{path_.size(), set_, {}, 0};
        back = failed_.contains(set_) || !choose(frame);
        if (stopped()) return SearchEnd::kStopped;
        if (!back) frames.push_back(std::move(frame));
      }
      if (back) {
        while (!frames.empty() && frames.back().next == frames.back().choices.size()) {
          if (failed_.size() < kMostSets) failed_.insert(frames.back().set);
          frames.pop_back();
        }
        if (frames.empty()) return SearchEnd::kImpossible;
        back = false;
      }
      Frame& frame = frames.back();
      while (path_.size() > frame.path) undo();
      run(frame.choices[frame.next++]);
    }
  }

  bool stopped() {
    if (work_ >= most_) return true;
    if (work_ >= next_question_) {
      next_question_ = work_ + 20'000;
      if (budget_.stop && budget_.stop()) return true;
    }
    return false;
  }

  // Takes chains that come back to the present bytes, until none does. False: out of budget.
  bool take_what_is_free() {
    for (bool taken = true; taken;) {
      taken = false;
      for (std::size_t i = ready_.size(); i > 0 && !taken; --i) {
        if (stopped()) return false;
        taken = take_chain(ready_[i - 1]);
      }
    }
    return true;
  }

  // Runs the chain that begins with `step` if it comes back; leaves everything as it was otherwise.
  bool take_chain(Step step) {
    const std::uint64_t live = state_.live();
    const std::size_t begin = path_.size();
    for (std::size_t length = 0; length < kLongestChain; ++length) {
      const std::uint64_t need = state_.need(step);
      ++work_;
      if (need > limit_) {
        if (length == 0) lowest_refused_ = std::min(lowest_refused_, need);
        break;
      }
      run(step);
      if (state_.live() <= live) return true;
      step = follower(step);
      if (step == kNone) break;
    }
    while (path_.size() > begin) undo();
    return false;
  }

  // Of the steps that `step` made ready, the one after which least is live.
  Step follower(Step step) {
    Step best = kNone;
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
    for (const Step next : graph_.next[step]) {
      if (!state_.ready(next)) continue;
      if (state_.need(next) > limit_) continue;
      state_.run(next);
      ++work_;
      const std::uint64_t live = state_.live();
      state_.undo(next);
      if (live < least) {
        least = live;
        best = next;
      }
    }
    return best;
  }

  // What could come next, in the order in which to try it. False: nothing.
  bool choose(Frame& frame) {
    struct Choice {
      std::uint64_t valley;  // the least that is live on the chain it begins
      std::uint64_t hill;    // the most that is needed until then
      Step step;
    };
    std::vector<Choice> choices;
    for (const Step first : std::vector<Step>(ready_)) {
      const std::uint64_t need = state_.need(first);
      ++work_;
      if (need > limit_) {
        lowest_refused_ = std::min(lowest_refused_, need);
        continue;
      }
      Choice choice{std::numeric_limits<std::uint64_t>::max(), need, first};
      const std::size_t begin = path_.size();
      std::uint64_t hill = 0;
      Step step = first;
      for (std::size_t length = 0; length < kLongestChain && step != kNone; ++length) {
        hill = std::max(hill, state_.need(step));
        if (hill > limit_) break;
        run(step);
        ++work_;
        if (state_.live() < choice.valley) {
          choice.valley = state_.live();
          choice.hill = hill;
        }
        step = follower(step);
      }
      while (path_.size() > begin) undo();
      choices.push_back(choice);
    }
    std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
      if (a.valley != b.valley) return a.valley < b.valley;
      return a.hill != b.hill ? a.hill < b.hill : a.step < b.step;
    });
    for (const Choice& choice : choices) frame.choices.push_back(choice.step);
    return !frame.choices.empty();
  }

  void add_ready(Step step) { ready_.push_back(step); }

  void run(Step step) {
    state_.run(step);
    path_.push_back(step);
    // The order of the list is part of the state, so that undoing restores it.
    const auto at = std::find(ready_.begin(), ready_.end(), step);
    removed_at_.push_back(static_cast<std::size_t>(at - ready_.begin()));
    *at = ready_.back();
    ready_.pop_back();
    for (const Step next : graph_.next[step])
      if (state_.ready(next)) add_ready(next);
    toggle(step);
  }

  void undo() {
    const Step step = path_.back();
    path_.pop_back();
    for (const Step next : graph_.next[step])
      if (state_.ready(next)) ready_.pop_back();
    const std::size_t at = removed_at_.back();
    removed_at_.pop_back();
    if (at == ready_.size()) {
      ready_.push_back(step);
    } else {
      ready_.push_back(ready_[at]);
      ready_[at] = step;
    }
    state_.undo(step);
    toggle(step);
  }

  void toggle(Step step) {
    set_.a ^= scattered(2 * std::uint64_t{step});
    set_.b ^= scattered(2 * std::uint64_t{step} + 1);
  }

  const StepGraph& graph_;
  const std::uint64_t limit_;
  State state_;
  const std::uint64_t most_;
  SearchBudget& budget_;
  std::uint64_t work_ = 0;
  std::uint64_t next_question_ = 0;
  std::uint64_t lowest_refused_ = std::numeric_limits<std::uint64_t>::max();
  std::vector<Step> path_, ready_;
  std::vector<std::size_t> removed_at_;
  SetHash set_;
  std::unordered_set<SetHash, HashOfHash> failed_;
};

}  // namespace

SearchResult find_order(const StepGraph& graph, std::uint64_t limit, std::uint64_t most, SearchBudget& budget) {
  return Search(graph, limit, most, budget).run();
}

}  // namespace berth::internal::graphs
