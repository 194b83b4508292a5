// order_for_memory. The graph is cut where every order must pass through one node. Each part is searched exactly if it
// is small. A large part starts from the best of several rules, and windows around its peak are then searched.
#include "berth/plan/order.h"

#include <algorithm>
#include <queue>

#include "base/try.h"
#include "plan/order/order_window.h"

namespace berth {

using namespace internal;

namespace {

using Node = std::uint32_t;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;
// A part that fits into one window gets a wide beam if the exact search gives up; a window of a large part is only one
// of many.
constexpr std::size_t kPartBeam = 256;
constexpr std::size_t kWindowBeam = 32;
constexpr std::uint64_t kWindowStates = 4000;

// The graph with sorted edges in both directions, each edge once.
class Graph {
 public:
  static Result<Graph> make(const OrderGraph& source) {
    const std::size_t count = source.nodes.size();
    if (count >= 0xFFFFFFFFu)
      return Error(Code::kInvalidArgument, Layer::kSchedule, "{} nodes are more than an order can hold", count);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const OrderNode& node = source.nodes[i];
      const bool small = node.bytes <= kMostBytes && node.scratch <= kMostBytes;
      if (small) sum += node.bytes + node.scratch;
      if (!small || sum > kMostBytes)
        return Error(Code::kInvalidArgument, Layer::kSchedule, "the nodes up to {} hold more than 2^62 bytes", i);
    }
    std::vector<std::pair<Node, Node>> edges;
    edges.reserve(source.edges.size());
    for (const OrderEdge& edge : source.edges) {
      if (edge.from >= count || edge.to >= count)
        return Error(Code::kInvalidArgument, Layer::kSchedule, "the edge {} -> {} leaves the graph's {} nodes",
                     edge.from, edge.to, count);
      edges.emplace_back(edge.from, edge.to);
    }
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    Graph out;
    out.source_ = &source;
    out.fill(edges, out.readers_at_, out.readers_);
    for (auto& edge : edges) std::swap(edge.first, edge.second);
    std::sort(edges.begin(), edges.end());
    out.fill(edges, out.reads_at_, out.reads_);
    return out;
  }

  std::size_t size() const { return source_->nodes.size(); }
  std::uint64_t bytes(Node node) const { return source_->nodes[node].bytes; }
  std::uint64_t scratch(Node node) const { return source_->nodes[node].scratch; }
  std::span<const Node> reads(Node node) const { return slice(reads_at_, reads_, node); }
  std::span<const Node> readers(Node node) const { return slice(readers_at_, readers_, node); }
  bool kept(Node node) const { return source_->nodes[node].keep || readers(node).empty(); }

 private:
  void fill(const std::vector<std::pair<Node, Node>>& edges, std::vector<std::size_t>& at,
            std::vector<Node>& to) const {
    at.assign(size() + 1, 0);
    for (const auto& edge : edges) ++at[edge.first + std::size_t{1}];
    for (std::size_t i = 1; i < at.size(); ++i) at[i] += at[i - 1];
    for (const auto& edge : edges) to.push_back(edge.second);
  }
  static std::span<const Node> slice(const std::vector<std::size_t>& at, const std::vector<Node>& to, Node node) {
    return std::span(to).subspan(at[node], at[node + std::size_t{1}] - at[node]);
  }
  const OrderGraph* source_ = nullptr;
  std::vector<std::size_t> reads_at_, readers_at_;
  std::vector<Node> reads_, readers_;
};

using Order = std::vector<Node>;

// A topological order that prefers small indices; it is the order by index if that is valid.
Result<Order> any_order(const Graph& graph) {
  std::vector<std::size_t> missing(graph.size());
  std::priority_queue<Node, std::vector<Node>, std::greater<>> ready;
  for (Node node = 0; node < graph.size(); ++node) {
    missing[node] = graph.reads(node).size();
    if (missing[node] == 0) ready.push(node);
  }
  Order out;
  while (!ready.empty()) {
    const Node node = ready.top();
    ready.pop();
    out.push_back(node);
    for (const Node reader : graph.readers(node))
      if (--missing[reader] == 0) ready.push(reader);
  }
  if (out.size() == graph.size()) return out;
  const auto stuck = std::find_if(missing.begin(), missing.end(), [](std::size_t count) { return count > 0; });
  return Error(Code::kCycle, Layer::kSchedule, "no order exists: node {} waits for itself or for a cycle",
               stuck - missing.begin());
}

Result<std::vector<Node>> positions_of(const Graph& graph, std::span<const Node> order) {
  if (order.size() != graph.size())
    return Error(Code::kInvalidArgument, Layer::kSchedule, "the order has {} nodes, the graph {}", order.size(),
                 graph.size());
  constexpr Node kUnset = 0xFFFFFFFFu;
  std::vector<Node> position(graph.size(), kUnset);
  for (std::size_t at = 0; at < order.size(); ++at) {
    if (order[at] >= graph.size() || position[order[at]] != kUnset)
      return Error(Code::kInvalidArgument, Layer::kSchedule, "the order names node {} at position {}, {}", order[at],
                   at, order[at] >= graph.size() ? 0 : 1);
    position[order[at]] = static_cast<Node>(at);
  }
  for (Node node = 0; node < graph.size(); ++node)
    for (const Node read : graph.reads(node))
      if (position[read] >= position[node])
        return Error(Code::kInvalidArgument, Layer::kSchedule, "the order runs node {} before node {}, which it reads",
                     node, read);
  return position;
}

// Live bytes during each step and after it.
struct Profile {
  std::vector<std::uint64_t> during;
  std::vector<std::uint64_t> after;
};

// Simulates consecutive steps of an order, starting with `live` bytes. `unread` counts the readers still to come.
void follow(const Graph& graph, std::span<const Node> steps, std::uint64_t live, std::vector<Node>& unread,
            std::uint64_t* during, std::uint64_t* after) {
  for (std::size_t at = 0; at < steps.size(); ++at) {
    const Node node = steps[at];
    live += graph.bytes(node);
    during[at] = live + graph.scratch(node);
    for (const Node read : graph.reads(node))
      if (--unread[read] == 0 && !graph.kept(read)) live -= graph.bytes(read);
    after[at] = live;
  }
}

std::vector<Node> reader_counts(const Graph& graph) {
  std::vector<Node> out(graph.size());
  for (Node node = 0; node < graph.size(); ++node) out[node] = static_cast<Node>(graph.readers(node).size());
  return out;
}

Profile profile_of(const Graph& graph, std::span<const Node> order) {
  Profile out{std::vector<std::uint64_t>(order.size()), std::vector<std::uint64_t>(order.size())};
  std::vector<Node> unread = reader_counts(graph);
  follow(graph, order, 0, unread, out.during.data(), out.after.data());
  return out;
}

std::uint64_t most_of(std::span<const std::uint64_t> values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// ---- rules -----------------------------------------------------------------------------------------------------

// kSmallestGrowth frees as early as possible. kSmallestNeed does not let a step that frees much hide a large need of
// its own. kDeepest finishes one branch before it starts the next, which suits networks with parallel branches.
enum class Rule { kSmallestGrowth, kSmallestNeed, kDeepest };

// Repeatedly takes the ready step with the smallest key. The growth of a step changes when it becomes the last reader
// of a value, which happens once per value, so the heap has O(n + e) entries.
Order by_rule(const Graph& graph, Rule rule) {
  struct Entry {
    std::int64_t key;
    std::int64_t second;
    Node node;
    bool operator>(const Entry& other) const {
      if (key != other.key) return key > other.key;
      return second != other.second ? second > other.second : node > other.node;
    }
  };
  const std::size_t count = graph.size();
  std::vector<std::size_t> missing(count);
  std::vector<Node> unread = reader_counts(graph);
  std::vector<Node> last_reader(count, 0);  // XOR of the readers still to come: the reader itself when one is left
  std::vector<std::int64_t> growth(count);
  std::vector<std::int64_t> made_ready(count, 0);
  std::vector<bool> done(count, false);
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  std::int64_t clock = 0;
  const auto push = [&](Node node) {
    const std::int64_t need = static_cast<std::int64_t>(graph.bytes(node) + graph.scratch(node));
    switch (rule) {
      case Rule::kSmallestGrowth: ready.push({growth[node], need, node}); break;
      case Rule::kSmallestNeed: ready.push({std::max<std::int64_t>(growth[node], 0), need, node}); break;
      case Rule::kDeepest: ready.push({growth[node] <= 0 ? -1 : 0, -made_ready[node], node}); break;
    }
  };
  for (Node node = 0; node < count; ++node) {
    missing[node] = graph.reads(node).size();
    growth[node] = static_cast<std::int64_t>(graph.bytes(node));
    for (const Node reader : graph.readers(node)) last_reader[node] ^= reader;
  }
  for (Node node = 0; node < count; ++node)
    if (unread[node] == 1 && !graph.kept(node))
      growth[last_reader[node]] -= static_cast<std::int64_t>(graph.bytes(node));
  for (Node node = 0; node < count; ++node)
    if (missing[node] == 0) push(node);
  Order out;
  out.reserve(count);
  while (!ready.empty()) {
    const Node node = ready.top().node;
    ready.pop();
    if (done[node]) continue;
    done[node] = true;
    out.push_back(node);
    ++clock;
    for (const Node read : graph.reads(node)) {
      last_reader[read] ^= node;
      if (--unread[read] != 1 || graph.kept(read)) continue;
      const Node last = last_reader[read];
      growth[last] -= static_cast<std::int64_t>(graph.bytes(read));
      if (missing[last] == 0) push(last);
    }
    for (const Node reader : graph.readers(node)) {
      if (--missing[reader] != 0) continue;
      made_ready[reader] = clock;
      push(reader);
    }
  }
  return out;
}

// ---- parts -----------------------------------------------------------------------------------------------------

// The number of nodes that are left when `node` is the only ready one, walking forwards (or backwards); 0 if it never
// is. All nodes that are left are then its descendants (ancestors).
std::vector<std::size_t> alone_with(const Graph& graph, bool forwards) {
  std::vector<std::size_t> missing(graph.size()), out(graph.size(), 0);
  std::vector<Node> ready;
  for (Node node = 0; node < graph.size(); ++node) {
    missing[node] = (forwards ? graph.reads(node) : graph.readers(node)).size();
    if (missing[node] == 0) ready.push_back(node);
  }
  for (std::size_t left = graph.size(); !ready.empty(); --left) {
    const Node node = ready.back();
    if (ready.size() == 1) out[node] = left;
    ready.pop_back();
    for (const Node next : forwards ? graph.readers(node) : graph.reads(node))
      if (--missing[next] == 0) ready.push_back(next);
  }
  return out;
}

// Positions at which every order of the graph has the same set of nodes before it: after a node to which all other
// nodes are ancestors or descendants. The parts between these positions can be ordered independently, because what is
// live at a cut does not depend on the order before it.
std::vector<std::size_t> cuts_of(const Graph& graph, std::span<const Node> order) {
  const std::vector<std::size_t> after = alone_with(graph, true);
  const std::vector<std::size_t> before = alone_with(graph, false);
  std::vector<std::size_t> out;
  for (std::size_t at = 0; at < order.size(); ++at)
    if (after[order[at]] == order.size() - at && before[order[at]] == at + 1) out.push_back(at + 1);
  if (out.empty() || out.back() != order.size()) out.push_back(order.size());
  return out;
}

// ---- windows ---------------------------------------------------------------------------------------------------

class Improver {
 public:
  Improver(const Graph& graph, Order& order, std::vector<Node>& position)
      : graph_(graph),
        order_(order),
        position_(position),
        profile_(profile_of(graph, order)),
        local_(graph.size(), 0),
        last_(graph.size(), 0) {
    for (std::size_t at = 0; at < order.size(); ++at)
      for (const Node read : graph.reads(order[at])) last_[read] = static_cast<Node>(at);
  }

  const Profile& profile() const { return profile_; }
  const std::vector<Node>& last_readers() const { return last_; }

  // Reorders [begin, end) if that lowers its peak.
  WindowOrder improve(std::size_t begin, std::size_t end, std::uint64_t states, std::size_t beam) {
    const std::span<const std::uint64_t> during(profile_.during.data() + begin, end - begin);
    WindowOrder better = improve_window(window(begin, end), most_of(during), states, beam);
    if (!better.order.empty()) {
      const Order old(order_.begin() + static_cast<std::ptrdiff_t>(begin),
                      order_.begin() + static_cast<std::ptrdiff_t>(end));
      for (std::size_t i = 0; i < old.size(); ++i) set(begin + i, old[better.order[i]]);
      refresh(begin, end);
    }
    return better;
  }

  // Replaces the steps from `begin` on by another order of the same set.
  void replace(std::size_t begin, std::span<const Node> steps) {
    for (std::size_t i = 0; i < steps.size(); ++i) set(begin + i, steps[i]);
    refresh(begin, begin + steps.size());
  }

  // Lowers the peak of a part that is too large for one search: searches a window around the highest step, then around
  // the next highest, until one cannot be lowered or `budget` states were visited.
  void improve_peaks(std::size_t begin, std::size_t end, std::uint64_t budget) {
    std::priority_queue<std::pair<std::uint64_t, std::size_t>> peaks;
    const auto push = [&](std::size_t from, std::size_t to) {
      for (std::size_t at = from; at < to; ++at) peaks.emplace(profile_.during[at], at);
    };
    push(begin, end);
    while (budget > 0 && !peaks.empty()) {
      const auto [value, at] = peaks.top();
      if (profile_.during[at] != value) {
        peaks.pop();
        continue;
      }
      bool lower = false;
      // The steps that must move may be before the peak, after it, or on both sides.
      for (const auto& [back, ahead] :
           {std::pair<std::size_t, std::size_t>{16, 16}, {40, 8}, {8, 40}, {32, 32}, {56, 8}, {8, 56}}) {
        const std::size_t from = at - std::min(at - begin, back), to = std::min(end, at + ahead);
        const WindowOrder better = improve(from, to, std::min(budget, kWindowStates), kWindowBeam);
        std::size_t edges = 0;
        for (std::size_t k = from; k < to; ++k) edges += graph_.reads(order_[k]).size();
        budget -= std::min<std::uint64_t>(budget, better.states + edges / 4 + 1);
        if (better.order.empty()) continue;
        push(from, to);
        lower = true;
        break;
      }
      if (!lower) return;
    }
  }

 private:
  void set(std::size_t at, Node node) {
    order_[at] = node;
    position_[node] = static_cast<Node>(at);
  }

  // Recomputes the profile of [begin, end) after its steps were permuted: a value whose last reader was inside still
  // has its last reader inside.
  void refresh(std::size_t begin, std::size_t end) {
    for (std::size_t at = begin; at < end; ++at)
      for (const Node read : graph_.reads(order_[at]))
        if (last_[read] >= begin && last_[read] < end) last_[read] = static_cast<Node>(at);
    std::uint64_t live = begin == 0 ? 0 : profile_.after[begin - 1];
    for (std::size_t at = begin; at < end; ++at) {
      const Node node = order_[at];
      live += graph_.bytes(node);
      profile_.during[at] = live + graph_.scratch(node);
      for (const Node read : graph_.reads(node))
        if (!graph_.kept(read) && last_[read] == at) live -= graph_.bytes(read);
      profile_.after[at] = live;
    }
  }

  // The window as a self-contained problem of at most 64 steps, so that a set of steps is one machine word. Only values
  // that die inside it can change its peak; all others are part of the constant base.
  OrderWindow window(std::size_t begin, std::size_t end) {
    OrderWindow out;
    out.base = begin == 0 ? 0 : profile_.after[begin - 1];
    const auto inside = [&](Node node) { return position_[node] >= begin && position_[node] < end; };
    std::vector<Node> touched;
    for (std::size_t at = begin; at < end; ++at) {
      const Node node = order_[at];
      OrderWindow::Step step{.before = 0, .bytes = graph_.bytes(node), .scratch = graph_.scratch(node), .reads = {}};
      for (const Node read : graph_.reads(node)) {
        if (inside(read)) step.before |= std::uint64_t{1} << (position_[read] - begin);
        if (graph_.kept(read) || last_[read] >= end) continue;
        if (local_[read] == 0) {
          out.dying.push_back({.readers = 0, .bytes = graph_.bytes(read), .inside = inside(read)});
          local_[read] = static_cast<Node>(out.dying.size());
          touched.push_back(read);
        }
        out.dying[local_[read] - 1].readers |= std::uint64_t{1} << (at - begin);
        step.reads.push_back(local_[read] - 1);
      }
      out.steps.push_back(std::move(step));
    }
    for (const Node node : touched) local_[node] = 0;
    return out;
  }

  const Graph& graph_;
  Order& order_;
  std::vector<Node>& position_;
  Profile profile_;
  std::vector<Node> local_;  // 1 + index of a dying value in the window being made
  std::vector<Node> last_;   // position of the last reader of each value
};

// A lower bound for the part [begin, end) in any order: each step needs what it reads, what it writes and its scratch,
// in addition to what is live throughout the part.
std::uint64_t part_bound(const Graph& graph, const Order& order, const std::vector<Node>& position,
                         const std::vector<Node>& last, std::uint64_t base, std::size_t begin, std::size_t end) {
  const auto dies_here = [&](Node node) { return position[node] < begin && !graph.kept(node) && last[node] < end; };
  std::vector<Node> outside;
  for (std::size_t at = begin; at < end; ++at)
    for (const Node read : graph.reads(order[at]))
      if (dies_here(read) && last[read] == at) outside.push_back(read);
  std::uint64_t dying = 0;
  for (const Node node : outside) dying += graph.bytes(node);
  std::uint64_t most = base;
  for (std::size_t at = begin; at < end; ++at) {
    std::uint64_t need = base - dying + graph.bytes(order[at]) + graph.scratch(order[at]);
    for (const Node read : graph.reads(order[at]))
      if (position[read] >= begin || std::binary_search(outside.begin(), outside.end(), read))
        need += graph.bytes(read);
    most = std::max(most, need);
  }
  return most;
}

}  // namespace

Result<std::uint64_t> order_peak(const OrderGraph& source, std::span<const std::uint32_t> order) {
  BERTH_TRY_ASSIGN(const Graph graph, Graph::make(source));
  BERTH_TRY(any_order(graph));
  BERTH_TRY(positions_of(graph, order));
  return most_of(profile_of(graph, order).during);
}

Result<std::vector<Lifetime>> lifetimes_of(const OrderGraph& source, std::span<const std::uint32_t> order) {
  BERTH_TRY_ASSIGN(const Graph graph, Graph::make(source));
  BERTH_TRY(any_order(graph));
  BERTH_TRY_ASSIGN(const std::vector<Node> position, positions_of(graph, order));
  std::vector<Lifetime> out(graph.size());
  for (Node node = 0; node < graph.size(); ++node) {
    out[node].bytes = graph.bytes(node);
    out[node].first = position[node];
    out[node].last = graph.kept(node) ? static_cast<std::int64_t>(graph.size()) : 0;
    for (const Node reader : graph.readers(node))
      out[node].last = std::max(out[node].last, std::int64_t{position[reader]} + 1);
  }
  for (Node node = 0; node < graph.size(); ++node) {
    if (graph.scratch(node) == 0) continue;
    Lifetime scratch;
    scratch.bytes = graph.scratch(node);
    scratch.first = position[node];
    scratch.last = scratch.first + 1;
    out.push_back(std::move(scratch));
  }
  return out;
}

Result<MemoryOrder> order_for_memory(const OrderGraph& source, const OrderOptions& options) {
  BERTH_TRY_ASSIGN(const Graph graph, Graph::make(source));
  MemoryOrder out;
  BERTH_TRY_ASSIGN(out.order, any_order(graph));
  if (!options.given.empty()) out.order.assign(options.given.begin(), options.given.end());
  BERTH_TRY_ASSIGN(std::vector<Node> position, positions_of(graph, out.order));
  out.given_peak = most_of(profile_of(graph, out.order).during);

  const std::vector<std::size_t> cuts = cuts_of(graph, out.order);
  std::vector<std::pair<Order, Profile>> candidates;
  const bool has_large_part = [&] {
    for (std::size_t i = 0, begin = 0; i < cuts.size(); begin = cuts[i++])
      if (cuts[i] - begin > kMostWindowSteps) return true;
    return false;
  }();
  if (has_large_part) {
    for (const Rule rule : {Rule::kSmallestGrowth, Rule::kSmallestNeed, Rule::kDeepest}) {
      Order order = by_rule(graph, rule);
      Profile profile = profile_of(graph, order);
      candidates.emplace_back(std::move(order), std::move(profile));
    }
  }

  Improver improver(graph, out.order, position);
  std::size_t begin = 0;
  for (const std::size_t end : cuts) {
    const std::size_t size = end - begin;
    const auto peak_of = [&](const Profile& profile) { return most_of({profile.during.data() + begin, size}); };
    std::uint64_t bound = 0;
    if (size == 1) {
      bound = improver.profile().during[begin];
    } else if (size <= kMostWindowSteps) {
      const std::size_t beam = std::clamp<std::uint64_t>(options.work_limit / 256, 8, kPartBeam);
      bound = improver.improve(begin, end, options.work_limit, beam).lower_bound;
    } else {
      // A part has the same nodes in every order, so each part can use a different candidate.
      for (const auto& [order, profile] : candidates)
        if (peak_of(profile) < peak_of(improver.profile()))
          improver.replace(begin, std::span(order).subspan(begin, size));
      improver.improve_peaks(begin, end, options.work_limit);
      const std::uint64_t base = begin == 0 ? 0 : improver.profile().after[begin - 1];
      bound = part_bound(graph, out.order, position, improver.last_readers(), base, begin, end);
    }
    out.lower_bound = std::max(out.lower_bound, bound);
    begin = end;
  }
  out.peak = most_of(improver.profile().during);
  out.optimal = out.peak == out.lower_bound;
  return out;
}

}  // namespace berth
