// The memory map: one self-contained HTML file that shows where every buffer is and when. The horizontal axis is time,
// the vertical axis is the offset, each buffer is a rectangle, and the live bytes with their bound are drawn below.
// Several panels share one scale, so that two layouts of the same tensors can be compared. Everything here is a plain
// value or a pure function; any thread may call it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "berth/base/result.h"
#include "berth/plan/plan.h"

namespace berth {

// Bytes [offset, offset + bytes) of a block, in use during [first, last).
struct MapRectangle {
  std::uint32_t node = 0;  // index into MapPanel::names; a node with gaps has several rectangles
  std::uint32_t block = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::int64_t first = 0;
  std::int64_t last = 0;
};

struct MapBlock {
  std::string name = {};
  std::uint64_t bytes = 0;
};

// One chart.
struct MapPanel {
  std::string title = {};
  std::vector<MapRectangle> rectangles = {};
  std::vector<std::string> names = {};  // by node; missing or empty: "buffer 7"
  std::vector<MapBlock> blocks = {};    // drawn one above the other; empty: one block as high as its rectangles
  std::optional<std::uint64_t> held = std::nullopt;             // total bytes held; default: the sum of the blocks
  std::optional<std::uint64_t> bound = std::nullopt;            // no plan can be smaller
  std::vector<std::pair<std::string, std::string>> facts = {};  // name and value, in a row above the chart
  std::vector<std::string> notes = {};                          // sentences below it
};

struct MemoryMap {
  std::string title = "Memory map";
  std::string subtitle = {};
  std::string time_unit = "level";  // in the singular
  std::vector<MapPanel> panels = {};
};

// The panel of a plan: one rectangle per interval in which a node holds data (an alias has none, because it lies inside
// its root), the blocks, the bound, and facts about the plan. `names` are used for nodes without a label. O(n log n).
// Requires: the plan is valid for the problem.
MapPanel map_panel(const PlanProblem& problem, const MemoryPlan& plan, std::span<const std::string> names = {});

// The page as text. O(rectangles), about 30 bytes each.
std::string memory_map_html(const MemoryMap& map);

// Writes the page to a file. kIo if it cannot be written.
Result<void> write_memory_map(const std::string& path, const MemoryMap& map);

}  // namespace berth
