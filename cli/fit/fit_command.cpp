// `berth fit MODEL --context N --sequences N`: whether a language model fits into memory, part by part.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/input_file.h"
#include "base/try.h"
#include "berth/interop/cuda.h"
#include "berth/interop/metal.h"
#include "berth/kv/fit.h"
#include "berth/memory/free_memory.h"
#include "berth/memory/registry.h"
#include "command_line.h"
#include "commands.h"
#include "fit/sizes.h"
#include "streams.h"
#include "terminal.h"

namespace berth::cli {

using namespace internal;

namespace {

constexpr int kFits = 0, kDoesNotFit = 3, kNotKnown = 4;

struct Arguments {
  std::string model, ram, device = "CPU", device_memory, context, sequences = "1", batch = "512", cache_type = "f16",
                          value_type;
  bool json = false, no_flash_attention = false, full_window = false;
};

// The parts of a fit that one device holds, and what it has.
struct Share {
  std::string device{};
  std::uint64_t weights = 0, cache = 0, activations = 0, outputs = 0;
  std::uint64_t budget = 0;
  std::string budget_from{};

  std::uint64_t total() const { return weights + cache + activations + outputs; }
  bool fits() const { return total() <= budget; }
};

struct Answer {
  kv::Model model{};
  kv::FitRequest request{};
  kv::Fit fit{};
  std::vector<Share> shares{};  // of the host, and of the device that computes if it is another
  std::optional<FreeMemory> memory{};
  std::optional<std::uint64_t> largest_context{}, largest_sequences{};

  // Nothing: the model lacks keys, and what is known fits.
  std::optional<bool> fits() const {
    if (!std::all_of(shares.begin(), shares.end(), [](const Share& share) { return share.fits(); })) return false;
    return fit.complete ? std::optional(true) : std::nullopt;
  }
};

Result<DType> cache_dtype(const std::string& name) {
  const auto dtype = parse_dtype(name);
  constexpr std::array kPossible{DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0,  DType::kQ4_0,
                                 DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kIQ4_NL};
  if (dtype && std::find(kPossible.begin(), kPossible.end(), *dtype) != kPossible.end()) return *dtype;
  return Error::with_text(Code::kInvalidArgument, Layer::kProgram,
                          fmt::format("a cache type of '{}' was requested, and f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, "
                                      "q5_1 and iq4_nl are possible",
                                      name));
}

Result<kv::FitRequest> parse_request(const Arguments& arguments) {
  kv::FitRequest request;
  if (!arguments.context.empty()) {
    BERTH_TRY_ASSIGN(request.context, parse_count(arguments.context));
  }
  BERTH_TRY_ASSIGN(request.sequences, parse_count(arguments.sequences));
  BERTH_TRY_ASSIGN(request.batch, parse_count(arguments.batch));
  BERTH_TRY_ASSIGN(request.keys, cache_dtype(arguments.cache_type));
  BERTH_TRY_ASSIGN(request.values,
                   cache_dtype(arguments.value_type.empty() ? arguments.cache_type : arguments.value_type));
  request.flash_attention = !arguments.no_flash_attention;
  request.full_window = arguments.full_window;
  return request;
}

// A folder, or a file of safetensors, has its config.json beside the weights.
Result<kv::Model> read_model(const std::string& path) {
  BERTH_TRY_ASSIGN(const WeightFile file, open_weights(path));
  if (file.format() != WeightFormat::kSafetensors) return kv::read_model(file);
  const std::filesystem::path given(path);
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::is_directory(given, ignored) ? given : given.parent_path();
  BERTH_TRY_ASSIGN(const std::string config, read_whole_file((folder / "config.json").string()));
  return kv::read_model(file, config);
}

// What the driver of a device says that it can still give.
Result<std::uint64_t> free_device_memory(const std::string& name) {
  BERTH_TRY_ASSIGN(const DevicePtr opened, device(name));
  if (opened->kind() == "CUDA") return cuda_free_bytes(*opened);
  if (opened->kind() == "METAL") {
    BERTH_TRY_ASSIGN(const MetalInfo metal, metal_info(*opened));
    return metal.working_set_bytes - std::min(metal.working_set_bytes, metal.allocated_bytes);
  }
  return Error::with_text(Code::kUnsupported, Layer::kProgram,
                          fmt::format("{} does not say how much memory is free; give --device-memory", name));
}

// Another device computes: it holds all but the table of tokens and the logits for the caller. A table that also
// computes logits is on both.
Result<void> divide(const Arguments& arguments, Answer& result) {
  const kv::Fit& fit = result.fit;
  Share host{.device = "CPU", .outputs = fit.outputs};
  Share other{.device = arguments.device, .cache = fit.cache, .activations = fit.activations};
  const bool alone = arguments.device == "CPU";
  if (alone) {
    host.weights = fit.weights;
    host.cache = fit.cache;
    host.activations = fit.activations;
  } else {
    host.weights = result.model.embedding_bytes;
    other.weights = fit.weights - (result.model.tied ? 0 : result.model.embedding_bytes);
  }
  if (!arguments.ram.empty()) {
    BERTH_TRY_ASSIGN(host.budget, parse_size(arguments.ram));
    host.budget_from = "--ram";
  } else {
    BERTH_TRY_ASSIGN(result.memory, free_host_memory());
    host.budget = result.memory->bytes;
    host.budget_from = result.memory->limited_by;
  }
  result.shares.push_back(std::move(host));
  if (alone) return {};
  other.budget_from = "--device-memory";
  if (!arguments.device_memory.empty()) {
    BERTH_TRY_ASSIGN(other.budget, parse_size(arguments.device_memory));
  } else {
    BERTH_TRY_ASSIGN(other.budget, free_device_memory(arguments.device));
    other.budget_from = "the driver";
  }
  result.shares.push_back(std::move(other));
  return {};
}

// The largest value with which every device has room. Each device is asked with its own part of the model.
template <class Largest>
Result<std::optional<std::uint64_t>> on_every_device(const Answer& answer, const Largest& largest) {
  if (answer.shares.size() == 1) return largest(answer.model, answer.request, answer.shares[0].budget);
  const Share &host = answer.shares[0], &other = answer.shares[1];
  if (host.weights > host.budget) return std::optional<std::uint64_t>{};
  kv::Model computed = answer.model;
  computed.weight_bytes = other.weights;
  // The logits for the caller are counted here too, though they are on the host: a few rows of them.
  return largest(computed, answer.request, other.budget);
}

Result<Answer> answer(const Arguments& arguments) {
  Answer result;
  BERTH_TRY_ASSIGN(result.request, parse_request(arguments));
  if (arguments.device == "CPU" && !arguments.device_memory.empty())
    return Error(Code::kInvalidArgument, Layer::kProgram, "--device-memory needs a --device other than CPU");
  BERTH_TRY_ASSIGN(result.model, read_model(arguments.model));
  // Without keys for the cache a context has no meaning, and none need be given.
  if (!result.model.missing.empty() && result.request.context == 0 && result.model.trained_context == 0)
    result.request.context = 1;
  BERTH_TRY_ASSIGN(result.fit, kv::fit(result.model, result.request));
  result.request.context = result.fit.context;
  BERTH_TRY(divide(arguments, result));
  if (!result.fit.complete) return result;
  BERTH_TRY_ASSIGN(result.largest_context, on_every_device(result, kv::largest_context));
  BERTH_TRY_ASSIGN(result.largest_sequences, on_every_device(result, kv::largest_sequences));
  // Where two devices share the parts, the search counts the logits on both: what was requested may fit beyond it.
  if (result.fits().value_or(false)) {
    result.largest_context = std::max(result.largest_context.value_or(0), result.fit.context);
    result.largest_sequences = std::max(result.largest_sequences.value_or(0), result.fit.sequences);
  }
  return result;
}

nlohmann::ordered_json as_json(const Answer& answer) {
  const kv::Fit& fit = answer.fit;
  const auto known = answer.fits();
  auto groups = nlohmann::ordered_json::array();
  for (const kv::FitGroup& group : fit.groups)
    groups.push_back({{"name", group.name},
                      {"layers", group.layers},
                      {"tokens_per_sequence", group.tokens},
                      {"bytes", group.bytes}});
  auto optional = [](const std::optional<std::uint64_t>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (const Share& share : answer.shares)
    devices.push_back({{"device", share.device},
                       {"weights", share.weights},
                       {"cache", share.cache},
                       {"activations", share.activations},
                       {"outputs", share.outputs},
                       {"total", share.total()},
                       {"budget", share.budget},
                       {"budget_from", share.budget_from},
                       {"fits", share.fits()}});
  nlohmann::ordered_json all = {{"fits", known ? nlohmann::ordered_json(*known) : nlohmann::ordered_json()},
                                {"architecture", answer.model.architecture},
                                {"layers", answer.model.layers.size()},
                                {"context", fit.context},
                                {"sequences", fit.sequences},
                                {"batch", answer.request.batch},
                                {"cache_type", {to_string(answer.request.keys), to_string(answer.request.values)}},
                                {"trained_context", answer.model.trained_context},
                                {"weights", fit.weights},
                                {"cache", fit.cache},
                                {"cache_groups", std::move(groups)},
                                {"activations", fit.activations},
                                {"activations_at_least", fit.activations_at_least},
                                {"outputs", fit.outputs},
                                {"total", fit.total()},
                                {"budget", answer.shares.back().budget},
                                {"budget_from", answer.shares.back().budget_from},
                                {"largest_context", optional(answer.largest_context)},
                                {"largest_sequences", optional(answer.largest_sequences)},
                                {"missing", answer.model.missing},
                                {"notes", answer.model.notes},
                                {"devices", std::move(devices)}};
  if (answer.memory) {
    auto& limits = all["memory_limits"] = nlohmann::ordered_json::array();
    for (const MemoryLimit& limit : answer.memory->limits)
      limits.push_back({{"name", limit.name}, {"free_bytes", limit.free_bytes}});
    all["huge_page_bytes"] = answer.memory->huge_page_bytes;
  }
  return all;
}

void row(std::string_view name, std::uint64_t bytes, std::string_view about) {
  fmt::print("{:<24} {:>10} {:>20}{}{}\n", name, format_bytes(bytes), with_thousands(bytes), about.empty() ? "" : "   ",
             about);
}

// "1 layer", "2 layers".
std::string counted(std::uint64_t number, std::string_view what) {
  return fmt::format("{} {}{}", with_thousands(number), what, number == 1 ? "" : "s");
}

std::string verdict(const Answer& answer) {
  const auto known = answer.fits();
  if (!known) return "Not known: the keys above are missing, and what is known fits.\n";
  std::string text = *known ? "It fits:" : "It does not fit:";
  const char* separator = " ";
  for (const Share& share : answer.shares) {
    if (share.fits() != *known) continue;
    const std::uint64_t bytes = *known ? share.budget - share.total() : share.total() - share.budget;
    text += fmt::format("{}{} {} on {}", separator, format_bytes(bytes), *known ? "are left" : "are missing",
                        in_one_line(share.device));
    separator = ", ";
  }
  return text + ".\n";
}

std::string largest_text(const Answer& answer) {
  if (!answer.fit.complete) return "";
  std::string text;
  if (answer.largest_context)
    text +=
        fmt::format("Largest context: {} tokens{}{}.\n", with_thousands(*answer.largest_context),
                    answer.fit.sequences == 1 ? "" : fmt::format(" for each of {} sequences", answer.fit.sequences),
                    answer.model.trained_context > 0 && *answer.largest_context > answer.model.trained_context
                        ? fmt::format(" (the model was trained for {})", with_thousands(answer.model.trained_context))
                        : "");
  else
    text += "No context fits.\n";
  if (!answer.fits().value_or(true) && answer.largest_context.value_or(0) >= answer.fit.context)
    text += "A longer context fits where this one does not, because its tensors leave fewer holes.\n";
  if (answer.largest_sequences)
    text += fmt::format("Largest number of sequences: {} of {} tokens.\n", with_thousands(*answer.largest_sequences),
                        with_thousands(answer.fit.context));
  else
    text += fmt::format("No sequence of {} tokens fits.\n", with_thousands(answer.fit.context));
  return text;
}

void print_share(const Answer& answer, const Share& share) {
  const kv::Fit& fit = answer.fit;
  fmt::print("{:<24} {:>10} {:>20}\n", in_one_line(share.device), "", "bytes");
  row("weights", share.weights, "");
  if (share.cache > 0)
    for (const kv::FitGroup& group : fit.groups)
      row("cache, " + group.name, group.bytes,
          group.kind == kv::GroupKind::kState
              ? fmt::format("{}, {}", counted(group.layers, "layer"), counted(fit.sequences, "sequence"))
              : fmt::format("{}, {} of {} tokens", counted(group.layers, "layer"), counted(fit.sequences, "sequence"),
                            with_thousands(group.tokens)));
  if (share.activations > 0)
    row("activations", share.activations,
        fmt::format("batch of {} tokens; no placement needs less than {}", with_thousands(answer.request.batch),
                    format_bytes(fit.activations_at_least)));
  if (share.outputs > 0) row("outputs", share.outputs, "logits of the last token of each sequence");
  row("sum", share.total(), "");
  row("memory", share.budget, in_one_line(share.budget_from));
  fmt::print("\n");
}

void print(const std::string& path, const Answer& answer) {
  const std::string architecture =
      answer.model.architecture.empty() ? "unknown architecture" : answer.model.architecture;
  fmt::print("{}: {}, {}\n\n", in_one_line(path), in_one_line(architecture),
             counted(answer.model.layers.size(), "layer"));
  for (const Share& share : answer.shares) print_share(answer, share);
  if (answer.memory && answer.memory->huge_page_bytes > 0)
    fmt::print("{} of huge pages are not counted: only programs that ask for them get them\n",
               format_bytes(answer.memory->huge_page_bytes));
  for (const std::string& key : answer.model.missing) fmt::print("missing: {}\n", in_one_line(key));
  for (const std::string& note : answer.model.notes) fmt::print("note: {}\n", in_one_line(note));
  fmt::print("{}{}", verdict(answer), largest_text(answer));
}

}  // namespace

void add_fit_command(CLI::App& app, int& exit_code) {
  Command command(app, "fit", "Say whether a language model fits into memory: weights, cache, activations");
  auto arguments = std::make_shared<Arguments>();
  command.option("model", arguments->model, "A GGUF file, or a folder with safetensors and config.json").required();
  command.option("--ram", arguments->ram, "Memory, such as 16GiB or 16GB; default: what this process may take now");
  command.option("--device", arguments->device, "Where the model is computed, such as CUDA:0").show_default();
  command.option("--device-memory", arguments->device_memory, "Its memory; default: what its driver says is free");
  command.option("--context", arguments->context, "Tokens of each sequence, such as 32k; default: as the model says");
  command.option("--sequences", arguments->sequences, "Sequences at the same time").show_default();
  command.option("--batch", arguments->batch, "Tokens that are computed at once").show_default();
  command.option("--cache-type", arguments->cache_type, "Type of keys, and of values unless given: f16, q8_0, q4_0 ...")
      .show_default();
  command.option("--cache-type-v", arguments->value_type, "Type of values");
  command.flag("--no-flash-attention", arguments->no_flash_attention, "Attention scores are kept whole");
  command.flag("--full-window", arguments->full_window, "Layers with a window keep all tokens");
  command.flag("--json", arguments->json, "Print JSON instead of a table");
  command.footer(
      "Sizes are those that llama.cpp reserves with n_ctx = context x sequences and n_seq_max = sequences.\n"
      "Exit codes: 0 it fits; 3 it does not; 4 keys are missing that decide it; 2 bad input.");
  command.action([=, &exit_code] {
    const auto result = answer(*arguments);
    if (!result) {
      exit_code = complain("fit", result.error().message(), 2);
      return;
    }
    const auto known = result->fits();
    exit_code = !known ? kNotKnown : *known ? kFits : kDoesNotFit;
    if (arguments->json)
      fmt::print("{}", json_text(as_json(*result)));
    else
      print(arguments->model, *result);
  });
}

}  // namespace berth::cli
