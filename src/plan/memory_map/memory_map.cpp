#include "berth/plan/memory_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/atomic_file.h"
#include "plan/memory_map/memory_map_page.h"

namespace berth {

using namespace internal;

namespace {

using Buffer = fmt::memory_buffer;

// A JSON string that is safe inside a script element: it never contains "<", so no tag can start or end there. Bytes
// that are not UTF-8 become U+FFFD.
void append_string(Buffer& out, std::string_view text) {
  out.push_back('"');
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      if (byte < 0x20 || byte == '"' || byte == '\\' || byte == '<' || byte == '>' || byte == '&' || byte == 0x7F)
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", byte);
      else
        out.push_back(text[i]);
      ++i;
      continue;
    }
    const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    bool sound = byte >= 0xC2 && byte <= 0xF4 && i + length <= text.size();
    for (std::size_t k = 1; sound && k < length; ++k) sound = (static_cast<unsigned char>(text[i + k]) & 0xC0) == 0x80;
    if (sound) {
      out.append(text.substr(i, length));
      i += length;
    } else {
      out.append(std::string_view("\\ufffd"));
      ++i;
    }
  }
  out.push_back('"');
}

template <class Get>
void append_column(Buffer& out, std::string_view key, const std::vector<MapRectangle>& rectangles, Get get) {
  fmt::format_to(std::back_inserter(out), ",\n\"{}\":[", key);
  bool first = true;
  for (const MapRectangle& rectangle : rectangles) {
    if (!first) out.push_back(',');
    first = false;
    fmt::format_to(std::back_inserter(out), FMT_STRING("{}"), get(rectangle));
  }
  out.push_back(']');
}

std::vector<MapBlock> blocks_of(const MapPanel& panel) {
  std::vector<MapBlock> blocks = panel.blocks;
  for (const MapRectangle& rectangle : panel.rectangles) {
    if (rectangle.block >= blocks.size()) blocks.resize(rectangle.block + std::size_t{1});
    // A rectangle is clipped to its block, so that two blocks never appear to overlap.
    blocks[rectangle.block].bytes = std::max(blocks[rectangle.block].bytes, rectangle.offset + rectangle.bytes);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].name.empty()) blocks[i].name = "block " + std::to_string(i);
  return blocks;
}

void append_panel(Buffer& out, const MapPanel& panel) {
  const auto put = [&out](auto value) { fmt::format_to(std::back_inserter(out), FMT_STRING("{}"), value); };
  const std::vector<MapBlock> blocks = blocks_of(panel);
  std::vector<std::uint64_t> bases;
  std::uint64_t total = 0;
  out.append(std::string_view("{\"title\":"));
  append_string(out, panel.title);
  out.append(std::string_view(",\"blocks\":["));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    out.append(std::string_view(i == 0 ? "{\"name\":" : ",{\"name\":"));
    append_string(out, blocks[i].name);
    fmt::format_to(std::back_inserter(out), FMT_STRING(",\"base\":{},\"bytes\":{}}}"), total, blocks[i].bytes);
    bases.push_back(total);
    total += blocks[i].bytes;
  }
  out.append(std::string_view("],\"size\":"));
  put(panel.held.value_or(total));
  out.append(std::string_view(",\"bound\":"));
  if (panel.bound)
    put(*panel.bound);
  else
    out.append(std::string_view("null"));
  out.append(std::string_view(",\"facts\":["));
  for (std::size_t i = 0; i < panel.facts.size(); ++i) {
    out.append(std::string_view(i == 0 ? "[" : ",["));
    append_string(out, panel.facts[i].first);
    out.push_back(',');
    append_string(out, panel.facts[i].second);
    out.push_back(']');
  }
  out.append(std::string_view("],\"notes\":["));
  for (std::size_t i = 0; i < panel.notes.size(); ++i) {
    if (i > 0) out.push_back(',');
    append_string(out, panel.notes[i]);
  }
  out.push_back(']');
  append_column(out, "first", panel.rectangles, [](const MapRectangle& r) { return r.first; });
  append_column(out, "last", panel.rectangles, [](const MapRectangle& r) { return r.last; });
  append_column(out, "offset", panel.rectangles, [&](const MapRectangle& r) { return bases[r.block] + r.offset; });
  append_column(out, "bytes", panel.rectangles, [](const MapRectangle& r) { return r.bytes; });
  // Fields that are equal for all rectangles are left out: most plans have one block and one rectangle per node.
  bool own_node = true;
  for (std::size_t i = 0; i < panel.rectangles.size(); ++i) own_node = own_node && panel.rectangles[i].node == i;
  if (!own_node) append_column(out, "node", panel.rectangles, [](const MapRectangle& r) { return r.node; });
  if (blocks.size() > 1) append_column(out, "block", panel.rectangles, [](const MapRectangle& r) { return r.block; });
  if (std::any_of(panel.names.begin(), panel.names.end(), [](const auto& name) { return !name.empty(); })) {
    out.append(std::string_view(",\n\"names\":["));
    for (std::size_t i = 0; i < panel.names.size(); ++i) {
      if (i > 0) out.push_back(',');
      append_string(out, panel.names[i]);
    }
    out.push_back(']');
  }
  out.push_back('}');
}

std::string map_data(const MemoryMap& map) {
  Buffer out;
  out.append(std::string_view("{\"title\":"));
  append_string(out, map.title);
  out.append(std::string_view(",\"subtitle\":"));
  append_string(out, map.subtitle);
  out.append(std::string_view(",\"unit\":"));
  append_string(out, map.time_unit);
  out.append(std::string_view(",\"panels\":["));
  for (std::size_t i = 0; i < map.panels.size(); ++i) {
    if (i > 0) out.push_back(',');
    append_panel(out, map.panels[i]);
  }
  out.append(std::string_view("]}"));
  return fmt::to_string(out);
}

std::string with_thousands(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

}  // namespace

MapPanel map_panel(const PlanProblem& problem, const MemoryPlan& plan, std::span<const std::string> names) {
  MapPanel panel;
  const std::size_t count = problem.lifetimes.size();
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  std::int64_t end = std::numeric_limits<std::int64_t>::min();
  std::vector<std::uint32_t> roots(count);
  std::vector<std::pair<std::int64_t, std::int64_t>> lives(count);
  std::size_t aliases = 0;
  std::size_t shown = 0;
  for (std::uint32_t node = 0; node < count; ++node) {
    const Lifetime& life = problem.lifetimes[node];
    if (life.bytes > 0 && !life.pinned) {
      begin = std::min(begin, life.first);
      end = std::max(end, life.last);
    }
    panel.names.push_back(!life.label.empty() ? life.label : node < names.size() ? names[node] : std::string());
    std::uint32_t root = node;
    // Chains are short: as long as a graph has consecutive reshapes.
    while (problem.lifetimes[root].alias) root = problem.lifetimes[root].alias->node;
    roots[node] = root;
  }
  if (begin >= end) begin = 0, end = 1;
  constexpr auto kNever = std::pair(std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min());
  std::fill(lives.begin(), lives.end(), kNever);
  for (std::uint32_t node = 0; node < count; ++node) {
    if (problem.lifetimes[node].bytes == 0) continue;
    auto& [first, last] = lives[roots[node]];
    const bool pinned = problem.lifetimes[node].pinned;
    first = std::min(first, pinned ? begin : problem.lifetimes[node].first);
    last = std::max(last, pinned ? end : problem.lifetimes[node].last);
  }
  for (std::uint32_t node = 0; node < count; ++node) {
    if (roots[node] != node) {
      ++aliases;
      continue;
    }
    if (!plan.has(node)) continue;
    ++shown;
    const Slot& slot = plan.slots[node];
    const auto add = [&](std::int64_t first, std::int64_t last) {
      if (first < last) panel.rectangles.push_back({node, slot.block, slot.offset, slot.bytes, first, last});
    };
    std::int64_t at = lives[node].first;
    if (!problem.lifetimes[node].pinned) {
      for (const LevelRange& gap : problem.lifetimes[node].gaps) {
        add(at, gap.first);
        at = gap.last;
      }
    }
    add(at, lives[node].second);
  }
  for (std::size_t i = 0; i < plan.blocks.size(); ++i) {
    const PlanBlock& block = plan.blocks[i];
    std::string name = "block " + std::to_string(i);
    if (block.bank < problem.banks.size()) name += ", " + problem.banks[block.bank].name;
    if (block.lane != 0) name += ", lane " + std::to_string(block.lane);
    panel.blocks.push_back({std::move(name), block.bytes});
  }
  panel.held = plan.size;
  panel.bound = plan.lower_bound;
  panel.title = "Plan";
  panel.facts = {{"size", format_bytes(plan.size)},
                 {"lower bound", format_bytes(plan.lower_bound)},
                 {"gap", plan.optimal ? "0, proven optimal" : fmt::format("{:.3g} %", plan.gap() * 100)},
                 {"buffers", with_thousands(shown)}};
  if (problem.capacity) panel.facts.push_back({"capacity", format_bytes(*problem.capacity)});
  if (!plan.strategy.empty()) panel.facts.push_back({"found by", plan.strategy});
  if (aliases == 1) panel.notes.push_back("1 alias lies inside the buffer it is a window of.");
  if (aliases > 1)
    panel.notes.push_back(
        fmt::format("{} aliases lie inside the buffers they are windows of.", with_thousands(aliases)));
  return panel;
}

std::string memory_map_html(const MemoryMap& map) {
  std::string out;
  const std::string data = map_data(map);
  out.reserve(data.size() + kMemoryMapHtml.size() + kMemoryMapCss.size() + kMemoryMapJs.size());
  std::size_t at = 0;
  const std::pair<std::string_view, std::string_view> parts[] = {
      {"/*STYLE*/", kMemoryMapCss}, {"/*DATA*/", data}, {"/*SCRIPT*/", kMemoryMapJs}};
  for (const auto& [mark, text] : parts) {
    const std::size_t place = kMemoryMapHtml.find(mark, at);
    out += kMemoryMapHtml.substr(at, place - at);
    out += text;
    at = place + mark.size();
  }
  out += kMemoryMapHtml.substr(at);
  return out;
}

Result<void> write_memory_map(const std::string& path, const MemoryMap& map) {
  return internal::write_whole_file(path, memory_map_html(map));
}

}  // namespace berth
