// `berth inspect FILE`: the contents of a weight file, as a table or as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "berth/weights/weights.h"
#include "command_line.h"
#include "commands.h"
#include "streams.h"

namespace berth::cli {
namespace {

struct InspectOptions {
  std::string path;
  bool json = false;
  bool metadata = false;
};

std::string shape_text(std::span<const std::size_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

nlohmann::ordered_json value_json(const MetadataValue& value) {
  switch (value.type()) {
    case MetadataType::kString: {
      const auto text = value.as_string();
      if (text) return std::string(*text);
      return value.to_string();  // not UTF-8: as it is shown to people
    }
    case MetadataType::kBool: return *value.as_bool();
    case MetadataType::kF32:
    case MetadataType::kF64: return *value.as_double();
    case MetadataType::kU64: return *value.as_uint();
    case MetadataType::kArray: {
      auto list = nlohmann::ordered_json::array();
      for (const MetadataValue& element : value.elements()) list.push_back(value_json(element));
      return list;
    }
    default: return *value.as_int();
  }
}

nlohmann::ordered_json to_json(const WeightFile& file, bool metadata) {
  nlohmann::ordered_json all = {{"format", to_string(file.format())},
                                {"files", file.files()},
                                {"tensor_count", file.tensors().size()},
                                {"total_bytes", file.total_bytes()}};
  if (metadata) {
    auto& entries = all["metadata"] = nlohmann::ordered_json::object();
    for (const MetadataEntry& entry : file.metadata()) entries[std::string(entry.key)] = value_json(entry.value);
  }
  auto& rows = all["tensors"] = nlohmann::ordered_json::array();
  for (const TensorInfo& tensor : file.tensors())
    rows.push_back({{"name", tensor.name},
                    {"dtype", to_string(tensor.dtype)},
                    {"shape", std::vector<std::size_t>(tensor.shape.begin(), tensor.shape.end())},
                    {"offset", tensor.offset},
                    {"bytes", tensor.bytes},
                    {"file", tensor.file}});
  return all;
}

void print_table(const WeightFile& file, bool metadata) {
  fmt::print("{}, {} tensors, {}{}\n", to_string(file.format()), file.tensors().size(),
             format_bytes(file.total_bytes()),
             file.files().size() > 1 ? fmt::format(" in {} files", file.files().size()) : "");
  if (metadata) {
    for (const MetadataEntry& entry : file.metadata())
      fmt::print("  {} ({}) = {}\n", in_one_line(entry.key), to_string(entry.value.type()),
                 shown(entry.value.to_string()));
    if (file.metadata().empty()) fmt::print("  no metadata\n");
  }
  std::size_t widest = 4;
  for (const TensorInfo& tensor : file.tensors())
    widest = std::max(widest, std::min<std::size_t>(in_one_line(tensor.name).size(), 60));
  fmt::print("\n{:<{}}  {:<8} {:<22} {:>10} {:>14}\n", "name", widest, "dtype", "shape", "bytes", "at byte");
  for (const TensorInfo& tensor : file.tensors())
    fmt::print("{:<{}}  {:<8} {:<22} {:>10} {:>14}\n", in_one_line(tensor.name), widest, to_string(tensor.dtype),
               shape_text(tensor.shape), format_bytes(tensor.bytes), tensor.offset);
}

}  // namespace

void add_inspect_command(CLI::App& app, int& exit_code) {
  Command command(app, "inspect", "List the tensors of a safetensors, GGUF, .npy or .npz file");
  auto options = std::make_shared<InspectOptions>();
  command.option("file", options->path, "The file, an index of shards, or a folder with a model").required();
  command.flag("--json", options->json, "Print JSON instead of a table");
  command.flag("--metadata", options->metadata, "Show the metadata too");
  command.action([options, &exit_code] {
    const auto file = open_weights(options->path);
    if (!file) {
      exit_code = complain("inspect", file.error().message(), 2);
      return;
    }
    if (options->json)
      fmt::print("{}", json_text(to_json(*file, options->metadata)));
    else
      print_table(*file, options->metadata);
  });
}

}  // namespace berth::cli
