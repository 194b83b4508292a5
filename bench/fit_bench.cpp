// `./run bench fit`: what berth/kv/fit.h computes from the metadata of a model, against what llama.cpp reserves when it
// loads it. Small models of several architectures with random weights, each with several requests. Prints the goals and
// whether they are met: weights and cache equal to the byte, everything together within 3 %.
// Arguments: --seed N (sizes of the models; default 1), --models FOLDER (GGUF files of your own), --all (a row for each
// request, not only for each model). llama.cpp is the one in the package xllamacpp; BERTH_LLAMA_LIBRARY names another.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "berth/kv/fit.h"

namespace {

namespace fs = std::filesystem;
namespace kv = berth::kv;
using Json = nlohmann::json;

constexpr double kGoal = 0.03;

struct Case {
  std::string model;
  kv::FitRequest request;
};

// Quotes a path for the shell.
std::string for_shell(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

int shell(const std::string& command) {
  return std::system(command.c_str());
}

std::vector<std::string> models_in(const fs::path& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".gguf") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<Case> cases_of(const std::string& model) {
  using berth::DType;
  std::vector<Case> cases;
  const auto add = [&](const kv::FitRequest& request) { cases.push_back({model, request}); };
  add({.context = 512});
  add({.context = 4096});
  add({.context = 300, .sequences = 3});
  add({.context = 2048, .sequences = 4});
  add({.context = 8192, .batch = 128});
  add({.context = 4096, .keys = DType::kQ8_0, .values = DType::kQ8_0});
  add({.context = 1024, .keys = DType::kQ4_0, .values = DType::kF16});
  add({.context = 2048, .sequences = 2, .flash_attention = false});
  add({.context = 4096, .full_window = true});
  return cases;
}

Json to_json(const Case& one) {
  const kv::FitRequest& request = one.request;
  return {{"model", one.model},
          {"context", request.context},
          {"sequences", request.sequences},
          {"batch", request.batch},
          {"keys", berth::to_string(request.keys)},
          {"values", berth::to_string(request.values)},
          {"flash_attention", request.flash_attention},
          {"full_window", request.full_window}};
}

// The answers of llama.cpp, one for each case.
std::vector<Json> ask_llama(const std::string& python, const std::vector<Case>& cases, const fs::path& folder) {
  const std::string requests = (folder / "requests").string(), answers = (folder / "answers").string();
  {
    std::ofstream out(requests);
    for (const Case& one : cases) out << to_json(one).dump() << "\n";
  }
  if (shell(fmt::format("{} bench/fit_llama.py < {} > {}", for_shell(python), for_shell(requests),
                        for_shell(answers))) != 0)
    fmt::print("llama.cpp ended early\n");
  std::vector<Json> result;
  std::ifstream in(answers);
  for (std::string line; std::getline(in, line);) result.push_back(Json::parse(line));
  return result;
}

struct Score {
  int cases = 0, refused = 0, exact_weights = 0, exact_cache = 0, close = 0;
  double worst = 0, worst_activations = 0;
};

// Compares one case and prints it if asked to.
void judge(const Case& one, const Json& theirs, bool print, Score& score) {
  const auto file = berth::open_weights(one.model);
  const auto model = file ? kv::read_model(*file) : berth::Result<kv::Model>(file.error());
  const auto ours = model ? kv::fit(*model, one.request) : berth::Result<kv::Fit>(model.error());
  if (theirs.contains("error") || !ours) {
    if (theirs.contains("error") && !ours) return;  // both refuse it
    ++score.refused;
    fmt::print("{}: refused by {}: {}\n", fs::path(one.model).filename().string(), ours ? "llama.cpp" : "Berth",
               ours ? theirs["error"].get<std::string>() : ours.error().message());
    return;
  }
  const double their_total = theirs["weights"].get<double>() + theirs["cache"].get<double>() +
                             theirs["compute"].get<double>() + theirs["outputs"].get<double>();
  const double off = static_cast<double>(ours->total()) / their_total - 1;
  const double activations = static_cast<double>(ours->activations) / theirs["compute"].get<double>() - 1;
  ++score.cases;
  score.exact_weights += ours->weights == theirs["weights"].get<std::uint64_t>();
  score.exact_cache += ours->cache == theirs["cache"].get<std::uint64_t>();
  score.close += std::abs(off) <= kGoal;
  score.worst = std::max(score.worst, std::abs(off));
  score.worst_activations = std::max(score.worst_activations, std::abs(activations));
  if (print)
    fmt::print(
        "{:<18} {:>6} x {} b{:<4} {:>5}/{:<5}{:<3}{:<3} weights {:+d}  cache {:+d}  activations {} / {} {:+.2f} %  all "
        "{:+.2f} %\n",
        fs::path(one.model).stem().string(), one.request.context, one.request.sequences, one.request.batch,
        berth::to_string(one.request.keys), berth::to_string(one.request.values),
        one.request.flash_attention ? "" : "nf", one.request.full_window ? "fw" : "",
        static_cast<std::int64_t>(ours->weights) - theirs["weights"].get<std::int64_t>(),
        static_cast<std::int64_t>(ours->cache) - theirs["cache"].get<std::int64_t>(), ours->activations,
        theirs["compute"].get<std::uint64_t>(), activations * 100, off * 100);
}

int compare(const std::vector<std::string>& models, const std::string& python, const fs::path& folder, bool all) {
  std::vector<Case> cases;
  for (const std::string& model : models)
    for (Case& one : cases_of(model)) cases.push_back(std::move(one));
  const std::vector<Json> answers = ask_llama(python, cases, folder);
  Score sum;
  fmt::print("{:<20} {:>9} {:>15} {:>13} {:>11} {:>13} {:>18}\n", "model", "requests", "weights equal", "cache equal",
             "within 3 %", "farthest", "of activations");
  for (const std::string& model : models) {
    Score score;
    for (std::size_t i = 0; i < cases.size() && i < answers.size(); ++i)
      if (cases[i].model == model) judge(cases[i], answers[i], all, score);
    fmt::print("{:<20} {:>9} {:>15} {:>13} {:>11} {:>11.2f} % {:>16.2f} %\n", fs::path(model).stem().string(),
               score.cases, score.exact_weights, score.exact_cache, score.close, score.worst * 100,
               score.worst_activations * 100);
    sum.cases += score.cases;
    sum.refused += score.refused;
    sum.exact_weights += score.exact_weights;
    sum.exact_cache += score.exact_cache;
    sum.close += score.close;
  }
  const bool met = answers.size() == cases.size() && sum.refused == 0 && sum.cases > 0 &&
                   sum.exact_weights == sum.cases && sum.exact_cache == sum.cases && sum.close == sum.cases;
  fmt::print("\nof {} requests: weights equal to the byte in {}, cache in {}, all within 3 % in {}: {}\n", sum.cases,
             sum.exact_weights, sum.exact_cache, sum.close, met ? "the goals are met" : "the goals are NOT met");
  return met ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string seed = "1", models;
  bool all = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name(argv[i]);
    if (name == "--all")
      all = true;
    else if (name == "--seed" && i + 1 < argc)
      seed = argv[++i];
    else if (name == "--models" && i + 1 < argc)
      models = argv[++i];
    else {
      fmt::print("usage: ./run bench fit [--seed N] [--models FOLDER] [--all]\n");
      return 2;
    }
  }
  const std::string python = "build/venv/bin/python";
  if (shell(python + " -c 'import sys; sys.path.insert(0, \"bench\"); import llama_library; llama_library.path()'") !=
      0)
    return 2;
  std::string pattern = (fs::temp_directory_path() / "berth-fit-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) return 1;
  const fs::path folder(pattern);
  if (models.empty()) {
    models = (folder / "models").string();
    if (shell(fmt::format("build/venv/bin/python bench/fit_models.py {} --seed {} > /dev/null", for_shell(models),
                          for_shell(seed))) != 0)
      return 1;
  }
  const int result = compare(models_in(models), python, folder, all);
  fs::remove_all(folder);
  return result;
}
