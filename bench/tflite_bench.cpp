// The arena of published TensorFlow Lite models: with the rule of TensorFlow Lite Micro, planned, and planned with the
// order of operators chosen too. The sizes are deterministic, so nothing is timed. `tflite_bench [FOLDER...]` looks for
// models in these folders, by default in those of the packages that `./run bench tflite` installs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "berth/engines/tflite.h"

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> find_models(const std::vector<fs::path>& folders) {
  std::vector<fs::path> models;
  for (const fs::path& folder : folders)
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.path().extension() == ".tflite") models.push_back(entry.path());
  std::sort(models.begin(), models.end(), [](const auto& a, const auto& b) { return a.filename() < b.filename(); });
  return models;
}

std::vector<fs::path> package_folders() {
  std::vector<fs::path> folders;
  for (const char* package : {"mediapipe", "openwakeword", "pymicro_wakeword", "basic_pitch"})
    for (const auto& python : fs::directory_iterator("build/venv/lib")) {
      const fs::path folder = python.path() / "site-packages" / package;
      if (fs::is_directory(folder)) folders.push_back(folder);
    }
  return folders;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> folders(argv + 1, argv + argc);
  if (folders.empty() && fs::is_directory("build/venv/lib")) folders = package_folders();
  const std::vector<fs::path> models = find_models(folders);
  if (models.empty()) {
    fmt::print(stderr, "tflite_bench: no .tflite model was found; run ./run bench tflite, or name a folder\n");
    return 2;
  }
  fmt::print("{:<44}{:>10}{:>12}{:>12}{:>8}{:>12}{:>12}\n", "model", "operators", "stock", "planned", "ratio",
             "reordered", "any order");
  int planned_count = 0, at_bound = 0, larger = 0, smaller_by_order = 0, given_is_best = 0, best_found = 0;
  double logs = 0, logs_reordered = 0;
  for (const fs::path& path : models) {
    std::ifstream in(path, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    const auto bytes = std::as_bytes(std::span(text));
    const auto planned = berth::engines::plan_tflite(bytes);
    const auto reordered = berth::engines::plan_tflite(bytes, {.reorder = true});
    if (!planned || !reordered) {
      fmt::print("{:<44}{}\n", path.filename().string(), (planned ? reordered : planned).error().message());
      continue;
    }
    const auto stock = static_cast<double>(planned->stock_bytes);
    fmt::print("{:<44}{:>10}{:>12}{:>12}{:>8.3f}{:>12}{:>12}\n", path.filename().string(), planned->operators,
               planned->stock_bytes, planned->plan.size, stock / static_cast<double>(planned->plan.size),
               reordered->plan.size, reordered->order_bound);
    ++planned_count;
    at_bound += planned->plan.optimal;
    larger += planned->plan.size > planned->stock_bytes;
    smaller_by_order += reordered->plan.size < planned->plan.size;
    given_is_best += planned->plan.size == reordered->order_bound;
    best_found += reordered->plan.size == reordered->order_bound;
    logs += std::log(stock / static_cast<double>(planned->plan.size));
    logs_reordered += std::log(stock / static_cast<double>(reordered->plan.size));
  }
  const double count = std::max(planned_count, 1);
  fmt::print("\ngeometric mean of stock over planned {:.3f}, over reordered {:.3f}\n", std::exp(logs / count),
             std::exp(logs_reordered / count));
  const auto goal = [](const char* text, bool met, int found, int of) {
    fmt::print("{:<52}{:>4} of {:<4}{}\n", text, found, of, met ? "met" : "missed");
  };
  goal("larger than the runtime's own rule (goal: none)", larger == 0, larger, planned_count);
  goal("at the bound (goal: all)", at_bound == planned_count, at_bound, planned_count);
  goal("smaller by another order (goal: one in four)", 4 * smaller_by_order >= planned_count, smaller_by_order,
       planned_count);
  // "any order" is a lower bound over all orders of the operators. Where the given order meets it, none is smaller.
  fmt::print("{:<52}{:>4} of {}\n", "the given order is proven to be the best", given_is_best, planned_count);
  fmt::print("{:<52}{:>4} of {}\n", "the order found is proven to be the best", best_found, planned_count);
}
