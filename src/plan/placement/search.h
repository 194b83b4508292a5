// The exact search: can these items be packed below a capacity? It fills the packing from below. The skyline gives each
// section the lowest level at which an item may still be put there; a node of the search takes a section inside a local
// minimum of the skyline and asks which item covers that point: one child for each, and one for "none", which lifts
// the section to the next level that can be reached. That is complete and needs no global order of offsets. After each
// step the items still to place fall apart into components that share no section; each is solved alone.
//
// Items are in order of their first section, so a component is a range of them, and the inner loops run over flat
// arrays (search_kernels.h). A placed item stays in its range, above everything, where no loop selects it.
//
// A Search holds all its memory, made in the constructor and grown while it is young, so a node allocates nothing. One
// thread uses a Search at a time; the SearchInput is shared and only read.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "plan/placement/interrupt.h"

namespace berth::internal::planner {

// A packing problem in small numbers. Offsets and heights are in units chosen by the caller; Unit is int32 or int64.
template <class Unit>
struct SearchInput {
  struct Part {
    std::int32_t first, last;
    Unit height;
  };
  struct Range {  // an open interval of offsets that an item cannot start in
    Unit low, high;
  };
  struct Item {
    std::uint32_t part_begin, part_end;
    std::int32_t first, last;
    Unit height;
    Unit alignment;
    std::uint32_t forbidden_begin, forbidden_end;  // into forbidden: ascending, disjoint
  };
  std::vector<Item> items;  // in ascending order of `first`
  std::vector<Part> parts;
  std::vector<Range> forbidden;
  std::int32_t sections = 0;
  bool simple = true;  // one part an item, alignment 1, nothing forbidden
};

enum class SearchOutcome : std::uint8_t { kFound, kImpossible, kLimit };

enum class SectionRule : std::uint8_t { kLowest, kLeastSlack, kSlackPerFailure, kFewest, kFewestPerFailure };

struct SearchStyle {
  SectionRule section = SectionRule::kLowest;
  bool mirrored = false;  // ties go to the later section instead of the earlier
  std::uint64_t node_limit = 0;
  // How many candidates of a node, the first by their keys, are tried before one is chosen: what wastes least goes
  // first. Waste is what the skyline rises by beyond what was put there, the dearer the less slack a section has;
  // that of an item counts per area to this power.
  std::uint32_t look_ahead = 0;
  double area_power = 1;
};

template <class Unit>
class Search {
 public:
  explicit Search(const SearchInput<Unit>& input);

  // Looks for offsets such that every item ends at or below `capacity`. Of several items that could be put in one place
  // that with the least of `keys`, which has one for each item, is tried first. kImpossible is a proof. An interrupt
  // ends it with kLimit.
  SearchOutcome run(Unit capacity, const SearchStyle& style, std::span<const double> keys,
                    const Interrupt* interrupt = nullptr);

  // After kFound: the offset of each item.
  std::span<const Unit> offsets() const noexcept { return offset_; }
  std::uint64_t nodes() const noexcept { return nodes_; }
  // Candidates that were tried by looking ahead. Each takes about as long as a node.
  std::uint64_t tried() const noexcept { return tried_; }

 private:
  struct Component {
    std::int32_t first, last;  // sections
    std::uint32_t begin, end;  // items; some of them are placed
    std::uint32_t count;       // those that are not
  };
  struct Frame {
    Component where;
    std::uint32_t candidate_begin, candidate_end, candidate_next;
    std::uint32_t component_begin, component_next, component_end;
    std::uint32_t trail;
    std::int32_t section;
    Unit level;
    bool active;
  };
  struct TrailEntry {
    std::uint32_t item;   // its low_ was `old`; with kPlaced set: and it was not placed
    std::uint32_t watch;  // with kFloor set: the entry is a section, its floor was `old` and this its watch_
    Unit old;
  };
  static constexpr Unit kFar = std::numeric_limits<Unit>::max() / 2;
  static constexpr Unit kGone = kFar + 1;  // low_ of a placed item
  static constexpr std::uint32_t kPlaced = 0x80000000u;
  static constexpr std::uint32_t kLift = 0xffffffffu;  // a child that puts nothing here
  static constexpr std::uint32_t kFloor = 0x40000000u;

  void reset(Unit capacity);
  Unit legal(std::uint32_t item, Unit level) const noexcept;
  bool put(std::uint32_t item, Unit level);
  bool raise(std::uint32_t item, Unit level);
  bool raise_over(const Component& where, std::uint32_t placed, Unit level);
  bool lift(const Component& where, std::int32_t section, Unit level);
  Unit lowest_over(const Component& where, std::int32_t section, std::uint32_t& which) const noexcept;
  bool paint(const Component& where);
  void fail_at(std::int32_t section) noexcept { failures_[static_cast<std::size_t>(section)] += trying_ ? 0 : 1; }
  void undo(std::uint32_t mark) noexcept;
  void split(const Component& where);
  void open(const Component& where);
  bool advance(Frame& frame);
  std::int32_t choose_section(const Component& where);
  void look_ahead(const Component& where, std::uint32_t begin, std::uint32_t end, Unit level);
  double waste_of(std::uint32_t item, std::size_t mark) const noexcept;
  void list_candidates(const Component& where, std::int32_t section, Unit level);
  Unit next_level(const Component& where, std::int32_t section, Unit level) const noexcept;
  // The items of a component that begin before this section are those from its begin to here.
  std::uint32_t end_before(const Component& where, std::int32_t section) const noexcept {
    const std::uint32_t end = start_[static_cast<std::size_t>(section)];
    return end < where.end ? end : where.end;
  }
  bool covers(std::uint32_t item, std::int32_t section) const noexcept {
    if (section < first_[item] || section >= last_[item]) return false;
    if (input_.simple) return true;
    const auto& it = input_.items[item];
    for (std::uint32_t p = it.part_begin; p < it.part_end; ++p) {
      if (input_.parts[p].first <= section && section < input_.parts[p].last) return true;
    }
    return false;
  }

  const SearchInput<Unit>& input_;
  SearchStyle style_;
  std::span<const double> keys_;
  Unit capacity_ = 0;
  std::uint64_t nodes_ = 0, tried_ = 0;
  bool trying_ = false;                            // what fails now is not counted
  std::int32_t stale_first_ = 0, stale_last_ = 0;  // where the skyline may have risen

  std::vector<Unit> offset_;
  // Of each item, with padding behind the last.
  std::vector<std::int32_t> first_, last_;
  std::vector<Unit> height_;
  std::vector<Unit> low_;             // the lowest offset it can still have
  std::vector<std::uint32_t> start_;  // of each section, and one more: the first item that begins there or later
  // Of each section.
  std::vector<Unit> floor_;                                 // the skyline
  std::vector<std::uint32_t> watch_;                        // an item whose low_ the floor is
  std::vector<Unit> remaining_, load_;                      // heights still to place, and at first
  std::vector<std::int32_t> crossing_, crossing_at_first_;  // items still to place that are in it and in the one before
  std::vector<std::uint32_t> failures_;                     // how often it ended a branch
  std::vector<std::int32_t> count_;                         // scratch: candidates
  std::vector<std::uint32_t> selected_;                     // scratch: items
  std::vector<std::pair<double, std::uint32_t>> scored_;    // scratch of look_ahead
  std::vector<Component> components_;
  std::vector<Frame> frames_;
  std::vector<std::uint32_t> candidates_;
  std::vector<TrailEntry> trail_;
};

extern template class Search<std::int32_t>;
extern template class Search<std::int64_t>;

}  // namespace berth::internal::planner
