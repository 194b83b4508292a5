// Writes the pages that memory_map_test.py opens: ten, a thousand and a hundred thousand buffers, and two panels side
// by side. Rectangles are laid on shelves, so that they never overlap and the test knows where they are.
#include <cstdio>

#include "berth/plan/memory_map.h"

namespace {

berth::MapPanel shelves(std::uint32_t count, std::uint32_t on_a_shelf) {
  berth::MapPanel panel;
  std::uint64_t state = 1, offset = 0;
  const auto random = [&state] { return (state = state * 6364136223846793005ull + 1442695040888963407ull) >> 40; };
  std::int64_t time = 0;
  std::uint64_t height = 65536;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (i > 0 && i % on_a_shelf == 0) {
      offset += height;
      height = 4096 << (random() % 6);
      time = 0;
    }
    const auto length = static_cast<std::int64_t>(4 + random() % 16);
    const std::uint64_t bytes = i % on_a_shelf == 0 ? height : height - random() % (height / 2);
    panel.rectangles.push_back({i, 0, offset, bytes, time, time + length});
    panel.names.push_back("layer." + std::to_string(i / 10) + ".op" + std::to_string(i % 10));
    time += length + static_cast<std::int64_t>(random() % 3);
  }
  panel.title = "Shelves";
  panel.facts = {{"buffers", std::to_string(count)}, {"size", berth::format_bytes(offset + height)}};
  panel.notes = {"Made for a test."};
  return panel;
}

bool write(const std::string& folder, const char* name, const berth::MemoryMap& map) {
  const auto done = berth::write_memory_map(folder + "/" + name, map);
  if (!done) std::fprintf(stderr, "%s\n", done.error().message().c_str());
  return done.has_value();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  berth::MemoryMap ten{.title = "Ten", .panels = {shelves(10, 5)}};
  // A name that tries to leave the script element, and one that is not UTF-8.
  ten.panels[0].names[3] = "</script><script>document.title='broken'</script>";
  ten.panels[0].names[4] = "bad \xff byte \"quoted\" \\ caf\xc3\xa9";
  ten.panels[0].bound = 65536;
  berth::MemoryMap two{.title = "Two", .subtitle = "side by side", .panels = {shelves(300, 30), shelves(200, 50)}};
  two.panels[0].title = "Stock arena";
  two.panels[0].held = 4 << 20;
  two.panels[1].title = "With Berth";
  two.panels[1].blocks = {{"first", 1 << 18}, {"second", 1 << 18}};
  for (auto& rectangle : two.panels[1].rectangles) {
    rectangle.block = rectangle.node % 2;
    rectangle.node /= 2;  // two rectangles a buffer, as if it had a gap
  }
  const bool done = write(folder, "ten.html", ten) &&
                    write(folder, "thousand.html", {.title = "Thousand", .panels = {shelves(1000, 50)}}) &&
                    write(folder, "many.html", {.title = "Many", .panels = {shelves(100000, 500)}}) &&
                    write(folder, "two.html", two) && write(folder, "empty.html", {.panels = {berth::MapPanel{}}});
  return done ? 0 : 1;
}
