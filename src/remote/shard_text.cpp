#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "berth/remote/sharding.h"

namespace berth {
namespace {

std::string split_text(const ShardPlan& plan, std::size_t index) {
  const ShardPlan::Tensor& tensor = plan.tensors()[index];
  if (tensor.owner != ShardPlan::kAll) return fmt::format("expert, whole to part {}", tensor.owner);
  if (!tensor.split) return "replicated";
  const Shard first = plan.shard(index, 0);
  return fmt::format("{}: axis {} in parts of {}{}", to_string(tensor.kind), tensor.axis, first.slice.end,
                     tensor.units % plan.parts() == 0 ? "" : fmt::format(" to {}", first.slice.end + tensor.unit));
}

}  // namespace

std::string to_string(const ShardPlan& plan, std::size_t lines) {
  std::string text = fmt::format("{} tensors for {} ranks in {} parts, {} pieces of {}\n", plan.tensors().size(),
                                 plan.ranks(), plan.parts(), plan.pieces(), format_bytes(plan.options().piece_bytes));
  for (std::size_t index = 0; index < std::min(lines, plan.tensors().size()); ++index) {
    const ShardPlan::Tensor& tensor = plan.tensors()[index];
    text += fmt::format("  {} {}[{}], {}: {}\n", internal::printable(tensor.name), to_string(tensor.dtype),
                        fmt::join(tensor.shape, ", "), format_bytes(tensor.bytes), split_text(plan, index));
  }
  if (plan.tensors().size() > lines) text += fmt::format("  and {} more\n", plan.tensors().size() - lines);
  return text;
}

std::string to_string(const ShardCost& cost) {
  const auto over_file = [&](std::uint64_t bytes) {
    return cost.file_bytes == 0 ? 0.0 : static_cast<double>(bytes) / static_cast<double>(cost.file_bytes);
  };
  return fmt::format(
      "storage {} ({:.2f} of the file), largest rank {}\nnetwork {} ({:.2f} of the file), largest rank sends {} and "
      "receives {}\nmemory of the largest rank {}\n",
      format_bytes(cost.storage_bytes), over_file(cost.storage_bytes), format_bytes(cost.largest_read),
      format_bytes(cost.network_bytes), over_file(cost.network_bytes), format_bytes(cost.largest_sent),
      format_bytes(cost.largest_received), format_bytes(cost.largest_memory));
}

}  // namespace berth
