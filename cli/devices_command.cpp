// `berth devices`: every device that this build supports, with its limits or the reason why it is not available.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "berth/memory/device.h"
#include "berth/memory/registry.h"
#include "command_line.h"
#include "commands.h"
#include "streams.h"

namespace berth::cli {
namespace {

nlohmann::ordered_json to_json(const DeviceStatus& device) {
  nlohmann::ordered_json row = {
      {"name", device.name}, {"available", device.available}, {"description", device.description}};
  if (device.available)
    row["limits"] = {{"total_bytes", device.limits.total_bytes},
                     {"max_block_bytes", device.limits.max_block_bytes},
                     {"max_binding_bytes", device.limits.max_binding_bytes},
                     {"binding_alignment", device.limits.binding_alignment},
                     {"transfer_alignment", device.limits.transfer_alignment},
                     {"unified_memory", device.limits.unified_memory},
                     {"f16_kernels", device.limits.f16_kernels}};
  return row;
}

std::string limits_text(const DeviceLimits& limits) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (limits.total_bytes > 0) add(format_bytes(limits.total_bytes));
  if (limits.max_block_bytes > 0) add("block " + format_bytes(limits.max_block_bytes));
  if (limits.max_binding_bytes > 0) add("binding " + format_bytes(limits.max_binding_bytes));
  if (limits.unified_memory) add("unified");
  if (limits.f16_kernels) add("f16");
  return text.empty() ? "-" : text;
}

void print_table(const std::vector<DeviceStatus>& devices) {
  fmt::print("{:<10} {:<10} {:<34} {}\n", "device", "available", "limits", "what it is");
  for (const DeviceStatus& device : devices)
    fmt::print("{:<10} {:<10} {:<34} {}\n", device.name, device.available ? "yes" : "no",
               device.available ? limits_text(device.limits) : "-", shown(device.description));
}

}  // namespace

void add_devices_command(CLI::App& app, int&) {
  Command command(app, "devices", "List every known device: available or why not, with limits");
  auto json = std::make_shared<bool>(false);
  command.flag("--json", *json, "Print JSON instead of a table");
  command.action([json] {
    const std::vector<DeviceStatus> devices = list_devices();
    if (!*json) return print_table(devices);
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const DeviceStatus& device : devices) rows.push_back(to_json(device));
    fmt::print("{}", json_text(rows));
  });
}

}  // namespace berth::cli
