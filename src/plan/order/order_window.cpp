// A state is the set of completed steps. The live bytes depend only on the set, so the best path to a set is the one
// with the lowest peak, and a search that always continues from the lowest peak reaches the end first by a best order.
// Two arguments keep the number of states small: a path at or above the present peak is dropped, and a step that raises
// neither the peak nor the live bytes is taken at once. (Taking it early is never worse: the more values have been
// read, the more the step frees, so if it frees enough now it also does later, and all steps in between run with no
// more bytes live.)
#include "plan/order/order_window.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <unordered_map>

namespace berth::internal {
namespace {

using Mask = std::uint64_t;

struct Reached {
  std::uint64_t peak;
  std::uint64_t live;
  std::uint8_t last;  // the step that led here
};

// Mixes the bits of a set; std::hash of an integer is the integer itself.
struct MaskHash {
  std::size_t operator()(Mask mask) const noexcept {
    mask ^= mask >> 31;
    mask *= 0x9E3779B97F4A7C15ull;
    return static_cast<std::size_t>(mask ^ (mask >> 29));
  }
};

using States = std::unordered_map<Mask, Reached, MaskHash>;

class WindowSearch {
 public:
  WindowSearch(const OrderWindow& window, std::uint64_t present)
      : window_(window),
        present_(present),
        all_(window.steps.size() == 64 ? ~Mask{0} : (Mask{1} << window.steps.size()) - 1) {}

  WindowOrder run(std::uint64_t most_states, std::size_t beam) {
    WindowOrder out;
    out.peak = present_;
    out.lower_bound = single_step_bound();
    if (out.lower_bound >= present_) {
      out.lower_bound = present_;
      return out;
    }
    bool finished = false;
    bool found = exact(most_states, out.lower_bound, finished);
    out.states = states_.size();
    if (!found && !finished && beam > 0) {
      found = beam_search(beam);
      out.states += states_.size();
    }
    if (found) {
      out.order = path();
      out.peak = states_.at(all_).peak;
    }
    return out;
  }

 private:
  struct Move {
    std::uint64_t peak;
    std::uint64_t live;
  };

  // In any order, a step needs what it reads, what it writes and its scratch.
  std::uint64_t single_step_bound() const {
    std::uint64_t always = window_.base;
    for (const auto& value : window_.dying)
      if (!value.inside) always -= value.bytes;
    std::uint64_t most = window_.base;
    for (const auto& step : window_.steps) {
      std::uint64_t need = always + step.bytes + step.scratch;
      for (const std::uint32_t value : step.reads) need += window_.dying[value].bytes;
      most = std::max(most, need);
    }
    return most;
  }

  Move move(Mask done, const Reached& from, unsigned step) const {
    const auto& it = window_.steps[step];
    Move out{std::max(from.peak, from.live + it.bytes + it.scratch), from.live + it.bytes};
    const Mask after = done | Mask{1} << step;
    for (const std::uint32_t value : it.reads)
      if ((window_.dying[value].readers & ~after) == 0) out.live -= window_.dying[value].bytes;
    return out;
  }

  // Calls visit(step, move) for each step that may come next, or for a single one if taking it cannot be worse.
  template <class Visit>
  void expand(Mask done, const Reached& from, Visit visit) const {
    Move moves[kMostWindowSteps];
    unsigned ready[kMostWindowSteps];
    std::size_t count = 0;
    for (Mask left = all_ & ~done; left != 0; left &= left - 1) {
      const auto step = static_cast<unsigned>(std::countr_zero(left));
      if ((window_.steps[step].before & ~done) != 0) continue;
      const Move next = move(done, from, step);
      if (next.peak <= from.peak && next.live <= from.live) {
        visit(step, next);
        return;
      }
      moves[count] = next;
      ready[count++] = step;
    }
    for (std::size_t i = 0; i < count; ++i)
      if (moves[i].peak < present_) visit(ready[i], moves[i]);
  }

  // True if an order below the present peak was found; it is then a best one. `bound` is raised to what is proven, and
  // `finished` tells that no state was left.
  bool exact(std::uint64_t most_states, std::uint64_t& bound, bool& finished) {
    struct Entry {
      std::uint64_t peak;
      int left;  // among equal peaks, deeper states first
      Mask done;
      bool operator>(const Entry& other) const {
        if (peak != other.peak) return peak > other.peak;
        if (left != other.left) return left > other.left;
        return done > other.done;
      }
    };
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
    const int count = static_cast<int>(window_.steps.size());
    states_[0] = {window_.base, window_.base, 0};
    open.push({window_.base, count, 0});
    while (!open.empty()) {
      const Entry entry = open.top();
      open.pop();
      const Reached from = states_.at(entry.done);
      if (from.peak < entry.peak) continue;  // reached with a lower peak since
      bound = std::max(bound, entry.peak);
      if (entry.done == all_) return true;
      if (states_.size() > most_states) return false;
      expand(entry.done, from, [&](unsigned step, Move next) {
        const Mask after = entry.done | Mask{1} << step;
        const auto [known, fresh] =
            states_.try_emplace(after, Reached{next.peak, next.live, static_cast<std::uint8_t>(step)});
        if (!fresh) {
          if (known->second.peak <= next.peak) return;
          known->second = {next.peak, next.live, static_cast<std::uint8_t>(step)};
        }
        open.push({next.peak, count - std::popcount(after), after});
      });
    }
    finished = true;
    bound = present_;
    return false;
  }

  bool beam_search(std::size_t width) {
    struct Entry {
      Mask done;
      Reached reached;
    };
    states_.clear();
    states_[0] = {window_.base, window_.base, 0};
    std::vector<Mask> layer = {0};
    for (std::size_t depth = 0; depth < window_.steps.size(); ++depth) {
      States next;
      for (const Mask done : layer) {
        expand(done, states_.at(done), [&](unsigned step, Move made) {
          const Reached reached{made.peak, made.live, static_cast<std::uint8_t>(step)};
          const auto [known, fresh] = next.try_emplace(done | Mask{1} << step, reached);
          if (!fresh && made.peak < known->second.peak) known->second = reached;
        });
      }
      if (next.empty()) return false;
      std::vector<Entry> entries;
      for (const auto& [done, reached] : next) entries.push_back({done, reached});
      std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
        if (a.reached.peak != b.reached.peak) return a.reached.peak < b.reached.peak;
        if (a.reached.live != b.reached.live) return a.reached.live < b.reached.live;
        return a.done < b.done;
      });
      // Half of the beam is chosen by the peak so far and half by the live bytes: either criterion alone runs into dead
      // ends.
      if (entries.size() > width) {
        const auto half = entries.begin() + static_cast<std::ptrdiff_t>(width / 2);
        const auto end = half + static_cast<std::ptrdiff_t>(width - width / 2);
        std::partial_sort(half, end, entries.end(), [](const Entry& a, const Entry& b) {
          return a.reached.live != b.reached.live ? a.reached.live < b.reached.live : a.done < b.done;
        });
        entries.erase(end, entries.end());
      }
      layer.clear();
      for (const Entry& entry : entries) {
        states_[entry.done] = entry.reached;
        layer.push_back(entry.done);
      }
    }
    return true;
  }

  std::vector<std::uint32_t> path() const {
    std::vector<std::uint32_t> out;
    for (Mask done = all_; done != 0;) {
      const unsigned last = states_.at(done).last;
      out.push_back(last);
      done &= ~(Mask{1} << last);
    }
    std::reverse(out.begin(), out.end());
    return out;
  }

  const OrderWindow& window_;
  const std::uint64_t present_;
  const Mask all_;
  States states_;
};

}  // namespace

WindowOrder improve_window(const OrderWindow& window, std::uint64_t present, std::uint64_t most_states,
                           std::size_t beam) {
  return WindowSearch(window, present).run(most_states, beam);
}

}  // namespace berth::internal
