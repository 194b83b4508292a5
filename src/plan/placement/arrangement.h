// A complete layout of plain nodes that follows changes. A node that comes, goes or changes costs time in proportion to
// what lives together with it: unchanged nodes stay where they are unless they are in the way. It is used by one thread
// at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/placement/live_load.h"
#include "plan/placement/model.h"
#include "plan/placement/time_index.h"

namespace berth::internal::planner {

class Arrangement {
 public:
  struct Node {
    LevelRange levels;
    std::uint64_t bytes = 0;          // 0: it is not there
    std::uint64_t alignment = 1;      // power of two
    std::uint64_t offset = kNowhere;  // kNowhere: it is to get one
  };

  // Nodes with bytes and an offset must not overlap. The others get an offset by settle(). All alignments that will
  // ever be are at least `alignment`, a power of two.
  explicit Arrangement(std::vector<Node> nodes, std::uint64_t alignment = 1);

  std::size_t size() const noexcept { return nodes_.size(); }
  const Node& node(std::uint32_t i) const noexcept { return nodes_[i]; }
  // The largest sum of live bytes, with the padding that the common alignment forces between nodes: what to aim at. And
  // a bound that no layout beats: which node is on top, and needs no padding, is not known.
  std::uint64_t load() const noexcept { return load_.peak(); }
  std::uint64_t bound() const noexcept { return load_.peak() - (padded_ > 0 ? unit_ - 1 : 0); }
  // Where the highest node ends.
  std::uint64_t top();

  // Node `i`, which may be the next new one, is now like this. Its offset is a wish.
  void set(std::uint32_t i, const Node& node);

  // Gives every node an offset. If one then ends above `limit`, tries to get all of them to end at or below `goal`, and
  // if that is too much, `limit`, with up to `work` nodes looked at. Requires: goal <= limit.
  void settle(std::uint64_t goal, std::uint64_t limit, std::int64_t work);

  // Moves every node that has bytes to its offset of another complete layout.
  void replace(std::span<const std::uint64_t> offsets);

  // The nodes whose offsets changed since the last time this was asked, ascending, without those that are gone.
  std::vector<std::uint32_t> take_moved();

  // How many nodes came or went since this was made: after as many as there are nodes, it should be made anew.
  std::size_t changes() const noexcept { return changes_; }

 private:
  struct Obstacle {
    std::uint64_t low, high;
    std::uint32_t node;
  };
  struct Edge {
    std::uint64_t at;
    double price;
  };
  struct Move {
    std::uint32_t node;
    std::uint64_t from;
  };

  std::int32_t first_rank(const Node& node) const noexcept { return load_.rank(node.levels.first); }
  std::int32_t last_rank(const Node& node) const noexcept;
  void place_at(std::uint32_t i, std::uint64_t offset);
  void move(std::uint32_t i, std::uint64_t offset);
  void undo(std::size_t moves);
  void collect(std::uint32_t i);
  bool free_at(std::uint32_t i, std::uint64_t offset);
  std::uint64_t gap_for(std::uint32_t i, std::uint64_t lid);
  std::uint64_t cheapest(std::uint32_t i, std::uint64_t lid);
  void take_out(std::uint32_t i);
  std::uint32_t hardest_out();
  bool squeeze(std::uint64_t lid, std::int64_t& work);

  std::uint64_t padded_bytes(const Node& node) const noexcept { return (node.bytes + unit_ - 1) & ~(unit_ - 1); }

  std::uint64_t unit_ = 1;  // the common alignment
  std::size_t padded_ = 0;  // nodes whose bytes are no multiple of it
  std::vector<Node> nodes_;
  std::vector<double> difficulty_;
  std::vector<float> thrown_;  // how often each was thrown out in this attempt
  LiveLoad load_;
  TimeIndex index_;  // by ranks of levels: those of a new node are rounded outwards
  std::vector<std::pair<std::uint64_t, std::uint32_t>> ends_;  // a heap; entries that are no longer true are skipped
  std::vector<std::uint32_t> fresh_, out_, touched_;
  std::vector<std::uint64_t> wishes_;  // of fresh_
  std::vector<Move> log_;              // since the last take_moved()
  std::vector<Obstacle> obstacles_;
  std::vector<Edge> ends_there_;  // of obstacles_
  std::size_t changes_ = 0;
};

}  // namespace berth::internal::planner
