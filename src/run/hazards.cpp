#include "run/hazards.h"

#include <algorithm>

namespace berth::internal {
namespace {

// A token is a step or a join.
using Token = std::uint32_t;

// No value was written yet, or the values of the children differ.
constexpr std::uint32_t kAnybody = kNobody;
constexpr std::uint32_t kSeveral = kNobody - 1;

// One segment of the tree. Unsplit: `writer` was the last writer of all of it. Split: see the children; `writer` is
// then a join of all last writers below, and `known` tells whether it is up to date. `readers` have read all of it
// since.
struct Segment {
  Token writer = kNobody;
  std::uint32_t readers = kNobody;  // head of a list
  std::uint32_t value = kAnybody;
  bool split = false;
  bool known = true;
  bool bare = true;  // some byte was never written
};

struct Reader {
  Token token;
  std::uint32_t next;
};

// The tree of one storage: `pieces` leaves, segments in preorder from `root`, cuts from `cut`.
struct Tree {
  std::uint64_t storage;
  std::size_t root, cut, pieces;
};

// Pieces [low, high) of the tree, and where an access begins and ends among them.
struct Span {
  std::size_t low, high;
};

class Builder {
 public:
  Builder(std::span<const Touch> touches, std::span<const std::uint32_t> first, std::span<const Touch> kept)
      : touches_(touches), first_(first), waits_(first.size() - 1), seen_(first.size() - 1, kNobody) {
    make_trees(kept);
    result_.reads_before_written.assign(touches.size(), false);
  }

  void add(Token step) {
    current_ = step;
    for (std::uint32_t i = first_[step]; i < first_[step + 1]; ++i) {
      const Touch& touch = touches_[i];
      if (touch.writes || touch.begin == touch.end) continue;
      const Place at = place(touch);
      bare_ = false;
      value_ = touch.value;
      wait_for_writers(at.tree->root, {0, at.tree->pieces}, at.span);
      result_.reads_before_written[i] = bare_;
    }
    for (std::uint32_t i = first_[step]; i < first_[step + 1]; ++i) {
      const Touch& touch = touches_[i];
      if (!touch.writes || touch.begin == touch.end) continue;
      const Place at = place(touch);
      value_ = touch.value;
      write(at.tree->root, {0, at.tree->pieces}, at.span);
    }
    // The step becomes a reader only now: joined with other readers earlier, it would wait for itself.
    for (std::uint32_t i = first_[step]; i < first_[step + 1]; ++i) {
      const Touch& touch = touches_[i];
      if (touch.writes || touch.begin == touch.end) continue;
      const Place at = place(touch);
      note_reader(at.tree->root, {0, at.tree->pieces}, at.span);
    }
  }

  void check_kept(std::span<const Touch> kept) {
    current_ = kNobody;
    for (const Touch& touch : kept) {
      if (touch.begin == touch.end) continue;
      const Place at = place(touch);
      value_ = touch.value;
      check_value(at.tree->root, {0, at.tree->pieces}, at.span);
    }
  }

  void wait(Token step, Token other) { waits_[step].push_back(other); }

  Hazards finish();

 private:
  struct Place {
    const Tree* tree;
    Span span;
  };

  void make_trees(std::span<const Touch> kept) {
    struct Cut {
      std::uint64_t storage, at;
      auto operator<=>(const Cut&) const = default;
    };
    std::vector<Cut> cuts;
    cuts.reserve(2 * (touches_.size() + kept.size()));
    for (const std::span<const Touch> list : {touches_, kept})
      for (const Touch& touch : list)
        if (touch.begin != touch.end)
          cuts.insert(cuts.end(), {{touch.storage, touch.begin}, {touch.storage, touch.end}});
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::size_t segments = 0;
    for (std::size_t i = 0; i < cuts.size();) {
      const std::size_t begin = i;
      while (i < cuts.size() && cuts[i].storage == cuts[begin].storage) cuts_.push_back(cuts[i++].at);
      const std::size_t pieces = i - begin - 1;
      trees_.push_back({cuts[begin].storage, segments, begin, pieces});
      segments += 2 * pieces - 1;
    }
    segments_.resize(segments);
  }

  Place place(const Touch& touch) const {
    const auto tree = std::lower_bound(trees_.begin(), trees_.end(), touch.storage,
                                       [](const Tree& t, std::uint64_t storage) { return t.storage < storage; });
    const auto begin = cuts_.begin() + static_cast<std::ptrdiff_t>(tree->cut);
    const auto end = begin + static_cast<std::ptrdiff_t>(tree->pieces) + 1;
    const auto low = static_cast<std::size_t>(std::lower_bound(begin, end, touch.begin) - begin);
    const auto high = static_cast<std::size_t>(std::lower_bound(begin, end, touch.end) - begin);
    return {&*tree, {low, high}};
  }

  static bool covers(Span wanted, Span here) { return wanted.low <= here.low && here.high <= wanted.high; }
  static std::size_t middle(Span here) { return (here.low + here.high) / 2; }
  static std::size_t left(std::size_t segment) { return segment + 1; }
  // The left subtree over k pieces has 2k - 1 segments.
  static std::size_t right(std::size_t segment, Span here) { return segment + 2 * (middle(here) - here.low); }

  // Calls visit(child, its span) for the children that `wanted` reaches.
  template <class Visit>
  static void descend(std::size_t segment, Span here, Span wanted, const Visit& visit) {
    const std::size_t half = middle(here);
    if (wanted.low < half) visit(left(segment), Span{here.low, half});
    if (wanted.high > half) visit(right(segment, here), Span{half, here.high});
  }

  Token new_join() {
    waits_.emplace_back();
    seen_.push_back(kNobody);
    return static_cast<Token>(waits_.size() - 1);
  }

  void wait_for(Token token) {
    if (token == kNobody || token == current_ || seen_[token] == current_) return;
    seen_[token] = current_;
    waits_[current_].push_back(token);
  }

  // Copies the state of an unsplit segment to its children.
  void split(std::size_t segment, Span here) {
    Segment& parent = segments_[segment];
    if (parent.split) return;
    for (const std::size_t child : {left(segment), right(segment, here)})
      segments_[child] = {.writer = parent.writer, .value = parent.value, .bare = parent.bare};
    parent.split = true;
  }

  // All last writers of the segment as one token.
  Token writer_of(std::size_t segment, Span here) {
    if (segments_[segment].known) return segments_[segment].writer;
    const Token a = writer_of(left(segment), {here.low, middle(here)});
    const Token b = writer_of(right(segment, here), {middle(here), here.high});
    Token both = a == kNobody ? b : a;
    if (a != kNobody && b != kNobody && a != b) {
      both = new_join();
      waits_[both] = {a, b};
    }
    segments_[segment].writer = both;
    segments_[segment].known = true;
    return both;
  }

  void check_value(std::size_t segment, Span here, Span wanted) {
    if (value_ == kNobody || result_.clobbered) return;
    const std::uint32_t there = segments_[segment].value;
    if (there == kAnybody || there == value_) return;
    if (covers(wanted, here)) {
      result_.clobbered = Clobbered{current_, value_};
      return;
    }
    if (!segments_[segment].split) {
      result_.clobbered = Clobbered{current_, value_};
      return;
    }
    descend(segment, here, wanted, [&](std::size_t child, Span span) { check_value(child, span, wanted); });
  }

  void wait_for_writers(std::size_t segment, Span here, Span wanted) {
    if (covers(wanted, here)) {
      check_value(segment, here, wanted);
      bare_ = bare_ || segments_[segment].bare;
      wait_for(writer_of(segment, here));
      return;
    }
    split(segment, here);
    descend(segment, here, wanted, [&](std::size_t child, Span span) { wait_for_writers(child, span, wanted); });
  }

  void add_reader(std::size_t segment, Token token) {
    std::uint32_t& head = segments_[segment].readers;
    if (head != kNobody && readers_[head].token == token) return;
    readers_.push_back({token, head});
    head = static_cast<std::uint32_t>(readers_.size() - 1);
  }

  void note_reader(std::size_t segment, Span here, Span wanted) {
    if (covers(wanted, here)) {
      add_reader(segment, current_);
      return;
    }
    split(segment, here);
    descend(segment, here, wanted, [&](std::size_t child, Span span) { note_reader(child, span, wanted); });
  }

  // Before a write to a part: the readers of the whole become one token, which is a reader of each child.
  void hand_down_readers(std::size_t segment, Span here) {
    const std::uint32_t head = segments_[segment].readers;
    if (head == kNobody) return;
    Token token = readers_[head].token;
    if (readers_[head].next != kNobody) {
      token = new_join();
      for (std::uint32_t i = head; i != kNobody; i = readers_[i].next) waits_[token].push_back(readers_[i].token);
    }
    segments_[segment].readers = kNobody;
    add_reader(left(segment), token);
    add_reader(right(segment, here), token);
  }

  // Waits for everything that still matters in the segment. Readers wait for the writer themselves: `read` tells that
  // some step has read all of it.
  void wait_for_all(std::size_t segment, Span here, bool read) {
    const Segment now = segments_[segment];
    for (std::uint32_t i = now.readers; i != kNobody; i = readers_[i].next) wait_for(readers_[i].token);
    read = read || now.readers != kNobody;
    if (!now.split) {
      if (!read) wait_for(now.writer);
      return;
    }
    wait_for_all(left(segment), {here.low, middle(here)}, read);
    wait_for_all(right(segment, here), {middle(here), here.high}, read);
  }

  void write(std::size_t segment, Span here, Span wanted) {
    if (covers(wanted, here)) {
      wait_for_all(segment, here, false);
      segments_[segment] = {.writer = current_, .value = value_, .bare = false};
      return;
    }
    split(segment, here);
    hand_down_readers(segment, here);
    descend(segment, here, wanted, [&](std::size_t child, Span span) { write(child, span, wanted); });
    const Segment& a = segments_[left(segment)];
    const Segment& b = segments_[right(segment, here)];
    Segment& parent = segments_[segment];
    parent.known = false;
    parent.bare = a.bare || b.bare;
    if (a.value == b.value || b.value == kAnybody)
      parent.value = a.value;
    else
      parent.value = a.value == kAnybody ? b.value : kSeveral;
  }

  std::span<const Touch> touches_;
  std::span<const std::uint32_t> first_;
  std::vector<std::uint64_t> cuts_;
  std::vector<Tree> trees_;  // by storage
  std::vector<Segment> segments_;
  std::vector<Reader> readers_;
  std::vector<std::vector<Token>> waits_;  // per token: what it waits for
  std::vector<Token> seen_;                // per token: the last one that waited for it
  Token current_ = kNobody;
  std::uint32_t value_ = kNobody;
  bool bare_ = false;
  Hazards result_;
};

// Removes joins that save no edge, and lists the remaining edges.
Hazards Builder::finish() {
  const auto steps = static_cast<Token>(first_.size() - 1);
  const auto tokens = static_cast<Token>(waits_.size());
  std::vector<std::uint64_t> waited_for(tokens, 0);
  for (const auto& list : waits_)
    for (const Token token : list) ++waited_for[token];
  // A join waits only for older tokens, so walking backwards visits the tokens that wait for a join before the join
  // itself.
  std::vector<bool> dissolved(tokens, false);
  for (Token join = tokens; join-- > steps;) {
    const std::uint64_t in = waits_[join].size(), out = waited_for[join];
    dissolved[join] = in * out <= in + out;
    if (!dissolved[join]) continue;
    for (const Token token : waits_[join]) waited_for[token] += out - 1;  // wraps back for out == 0
  }
  std::vector<Token> number(tokens, kNobody);
  result_.node_count = steps;
  for (Token token = 0; token < tokens; ++token)
    if (!dissolved[token]) number[token] = token < steps ? token : result_.node_count++;
  std::fill(seen_.begin(), seen_.end(), kNobody);
  std::vector<Token> open;
  for (Token token = 0; token < tokens; ++token) {
    if (dissolved[token]) continue;
    open.assign(waits_[token].begin(), waits_[token].end());
    while (!open.empty()) {
      const Token other = open.back();
      open.pop_back();
      if (seen_[other] == token) continue;
      seen_[other] = token;
      if (dissolved[other])
        open.insert(open.end(), waits_[other].begin(), waits_[other].end());
      else
        result_.edges.push_back({number[other], number[token]});
    }
  }
  return std::move(result_);
}

}  // namespace

Hazards find_hazards(std::span<const Touch> touches, std::span<const std::uint32_t> first,
                     std::span<const std::uint32_t> order, std::span<const Edge> after, std::span<const Touch> kept) {
  Builder builder(touches, first, kept);
  for (const std::uint32_t step : order) builder.add(step);
  builder.check_kept(kept);
  for (const Edge& edge : after) builder.wait(edge.to, edge.from);
  return builder.finish();
}

}  // namespace berth::internal
