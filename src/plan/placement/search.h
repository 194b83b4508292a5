// The exact search: can these items be packed below a capacity? It fills the packing from below. The skyline gives each
// section the lowest level at which an item may still be put there; a node of the search takes a section inside a local
// minimum of the skyline and asks which item covers that point: one child for each, and one for "none", which lifts
// the section to the next level that can be reached. That is complete and needs no global order of offsets. After each
// step the items still to place fall apart into components that share no section; each is solved alone.
//
// A Search holds all its memory, made in the constructor and grown while it is young, so a node allocates nothing. One
// thread uses a Search at a time; the SearchInput is shared and only read.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "plan/placement/interrupt.h"
#include "plan/placement/random.h"

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
  std::vector<Item> items;
  std::vector<Part> parts;
  std::vector<Range> forbidden;
  std::int32_t sections = 0;
  bool simple = true;  // one part an item, alignment 1, nothing forbidden
};

enum class SearchOutcome : std::uint8_t { kFound, kImpossible, kLimit };

enum class SectionRule : std::uint8_t { kLowest, kLeastSlack, kSlackPerFailure, kFewest, kFewestPerFailure };
enum class ValueRule : std::uint8_t { kTallest, kLongest, kLargest, kGuided, kShortest };

struct SearchStyle {
  SectionRule section = SectionRule::kLowest;
  ValueRule value = ValueRule::kTallest;
  bool mirrored = false;  // ties go to the later section instead of the earlier
  double noise = 0;       // of the value order, relative; a guide is taken as it is
  std::uint64_t seed = 0;
  std::uint64_t node_limit = 0;
};

template <class Unit>
class Search {
 public:
  explicit Search(const SearchInput<Unit>& input);

  // Looks for offsets such that every item ends at or below `capacity`. `guide`: offsets to prefer when
  // style.value is kGuided, one for each item. kImpossible is a proof. An interrupt ends it with kLimit.
  SearchOutcome run(Unit capacity, const SearchStyle& style, std::span<const Unit> guide,
                    const Interrupt* interrupt = nullptr);

  // After kFound: the offset of each item.
  std::span<const Unit> offsets() const noexcept { return offset_; }
  std::uint64_t nodes() const noexcept { return nodes_; }

 private:
  struct Component {
    std::int32_t first, last;
    std::uint32_t begin, end;  // slice of active_
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
    std::uint32_t item;  // with kPlaced set: the item was placed; else its low_ was `old`
    Unit old;
  };
  static constexpr Unit kFar = std::numeric_limits<Unit>::max() / 2;
  static constexpr std::uint32_t kPlaced = 0x80000000u;
  static constexpr std::uint32_t kLift = 0xffffffffu;   // a child that puts nothing here
  static constexpr std::uint32_t kFloor = 0x40000000u;  // the entry is a section and its floor was `old`

  void reset(Unit capacity);
  Unit legal(std::uint32_t item, Unit level) const noexcept;
  bool raise_over(const Component& where, std::uint32_t placed, Unit level);
  bool lift(const Component& where, std::int32_t section, Unit level);
  void widen(std::int32_t first, std::int32_t last, Unit low) noexcept;
  bool paint(const Component& where);
  void fail_at(std::int32_t section) noexcept;
  void undo(std::uint32_t mark) noexcept;
  void split(const Component& where);
  void open(const Component& where);
  bool advance(Frame& frame);
  std::int32_t choose_section(const Component& where);
  void list_candidates(const Component& where, std::int32_t section, Unit level);
  Unit next_level(const Component& where, std::int32_t section, Unit level) const noexcept;
  std::uint64_t random() noexcept { return random_ = mix(random_); }
  bool covers(std::uint32_t item, std::int32_t section) const noexcept {
    const auto& it = input_.items[item];
    if (section < it.first || section >= it.last) return false;
    if (input_.simple) return true;
    for (std::uint32_t p = it.part_begin; p < it.part_end; ++p) {
      if (input_.parts[p].first <= section && section < input_.parts[p].last) return true;
    }
    return false;
  }
  bool single(std::uint32_t item) const noexcept {
    return input_.items[item].part_end - input_.items[item].part_begin == 1;
  }

  const SearchInput<Unit>& input_;
  SearchStyle style_;
  std::span<const Unit> guide_;
  Unit capacity_ = 0;
  std::uint64_t nodes_ = 0;
  std::int32_t stale_first_ = 0, stale_last_ = 0;  // where the skyline must be drawn anew
  std::uint64_t random_ = 0;

  std::vector<Unit> offset_;
  std::vector<Unit> low_;                // of each item: the lowest offset it can still have
  std::vector<std::uint32_t> active_;    // items to place; a component owns a slice of it
  std::vector<Unit> floor_;              // of each section: the skyline
  std::vector<Unit> remaining_;          // of each section: heights still to place
  std::vector<std::uint32_t> failures_;  // of each section: how often it ended a branch
  std::vector<std::int32_t> count_;      // scratch: candidates of each section
  std::vector<std::int32_t> reach_;      // scratch of split
  std::vector<std::uint32_t> sorted_;    // scratch of split
  std::vector<Component> components_;
  std::vector<Frame> frames_;
  std::vector<std::uint32_t> candidates_;
  std::vector<double> keys_;  // scratch: value order of the candidates
  std::vector<TrailEntry> trail_;
};

extern template class Search<std::int32_t>;
extern template class Search<std::int64_t>;

}  // namespace berth::internal::planner
