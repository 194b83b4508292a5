#include "berth/remote/sharding.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>

#include "base/round_up.h"
#include "base/try.h"
#include "base/utf8.h"
#include "berth/remote/exchange.h"
#include "remote/shard_parts.h"
#include "remote/shard_rules.h"

namespace berth {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 60;  // of a file, and of all tensors: sums do not overflow
constexpr std::uint32_t kMostFiles = 100'000;

using Tensor = ShardPlan::Tensor;

Error refused(Code code, std::string_view name, const std::string& why) {
  return Error::with_text(code, Layer::kFormat,
                          fmt::format("tensor {} cannot be sharded: {}", internal::quoted(name), why));
}

Result<void> check_options(const ShardOptions& options) {
  if (options.ranks == 0 || options.ranks > Exchange::kMostRanks || options.parts == 0 ||
      options.ranks % options.parts != 0)
    return Error(Code::kInvalidArgument, Layer::kFormat,
                 "a plan for {} ranks in {} parts cannot be made: there are 1 to {} ranks, a multiple of the parts",
                 options.ranks, options.parts, Exchange::kMostRanks);
  if (options.piece_bytes == 0 || options.piece_bytes % kPage != 0 || options.piece_bytes > kMostBytes)
    return Error(Code::kInvalidArgument, Layer::kFormat, "pieces of {} bytes: the size must be a multiple of {}",
                 options.piece_bytes, kPage);
  if (!std::has_single_bit(options.alignment) || options.alignment > kPage)
    return Error(Code::kInvalidArgument, Layer::kFormat, "an alignment of {}: it must be a power of two up to {}",
                 options.alignment, kPage);
  return {};
}

// What the header says about a tensor, checked.
Result<Tensor> described(const TensorInfo& info) {
  std::uint64_t elements = 1;
  for (const std::size_t extent : info.shape)
    if (__builtin_mul_overflow(elements, extent, &elements))
      return refused(Code::kInvalidData, info.name, "its shape overflows");
  const Result<std::size_t> bytes = byte_size(info.dtype, elements);
  if (!bytes || *bytes != info.bytes)
    return refused(Code::kInvalidData, info.name,
                   fmt::format("it has {} bytes, and its shape and dtype say otherwise", info.bytes));
  if (info.bytes > kMostBytes || info.offset > kMostBytes)
    return refused(Code::kInvalidData, info.name, "it is too large, or too far behind in its file");
  Tensor tensor;
  tensor.name = info.name;
  tensor.shape.assign(info.shape.begin(), info.shape.end());
  tensor.file_offset = info.offset;
  tensor.bytes = info.bytes;
  tensor.unit_bytes = info.bytes;
  tensor.file = info.file;
  tensor.dtype = info.dtype;
  return tensor;
}

// Splits an axis into units.
Result<void> split_axis(Tensor& tensor, const ShardRule& rule, std::uint32_t parts) {
  if (tensor.shape.empty()) return refused(Code::kInvalidArgument, tensor.name, "it is a scalar and has no axis");
  tensor.axis = rule.kind == ShardKind::kColumn ? tensor.shape.size() - 1 : 0;
  const std::size_t extent = tensor.shape[tensor.axis];
  if (rule.unit == 0 || extent % rule.unit != 0)
    return refused(Code::kInvalidArgument, tensor.name,
                   fmt::format("axis {} has {} elements, which are no multiple of the rule's unit {}", tensor.axis,
                               extent, rule.unit));
  tensor.split = true;
  tensor.unit = rule.unit;
  tensor.units = extent / rule.unit;
  tensor.unit_bytes = 0;
  if (tensor.bytes == 0) {
    tensor.outer = 0;
    return {};
  }
  // No extent is zero here, so the products are at most the number of elements.
  std::uint64_t inner = 1;
  for (std::size_t axis = tensor.axis + 1; axis < tensor.shape.size(); ++axis) inner *= tensor.shape[axis];
  for (std::size_t axis = 0; axis < tensor.axis; ++axis) tensor.outer *= tensor.shape[axis];
  const DTypeInfo& type = info(tensor.dtype);
  // Whole rows are whole blocks, or a row would begin inside one.
  const auto on_border = [&](std::uint64_t elements) { return elements % type.block_elements == 0; };
  const auto in_block = [&](std::uint64_t at) {
    return refused(
        Code::kInvalidArgument, tensor.name,
        fmt::format("a border at {} of axis {} cuts through a block of {} elements ({}); give the rule a unit "
                    "of whole blocks, or replicate the tensor",
                    at, tensor.axis, type.block_elements, berth::to_string(tensor.dtype)));
  };
  if (tensor.outer > 1 && !on_border(inner * extent)) return in_block(extent);
  if (on_border(inner * rule.unit)) {
    tensor.unit_bytes = inner * rule.unit / type.block_elements * type.block_bytes;
    return {};
  }
  // A unit is no whole number of blocks. The parts are if all have the same number of units and that is one.
  if (tensor.units % parts != 0 || !on_border(inner * rule.unit * (tensor.units / parts)))
    return in_block(internal::first_of_part(tensor.units, parts, 1) * rule.unit);
  tensor.unit *= tensor.units / parts;
  tensor.units = parts;
  tensor.unit_bytes = inner * tensor.unit / type.block_elements * type.block_bytes;
  return {};
}

}  // namespace

std::uint64_t ShardPlan::border(const Tensor& tensor, std::uint32_t part) const noexcept {
  return internal::first_of_part(tensor.units, options_.parts, part) * tensor.unit_bytes;
}

std::uint64_t ShardPlan::shard_bytes(const Tensor& tensor, std::uint32_t part) const noexcept {
  if (tensor.split) return tensor.outer * (border(tensor, part + 1) - border(tensor, part));
  return tensor.owner == kAll || tensor.owner == part ? tensor.bytes : 0;
}

// How many of the first `at` bytes of a tensor belong to a part.
std::uint64_t ShardPlan::before(const Tensor& tensor, std::uint32_t part, std::uint64_t at) const noexcept {
  if (!tensor.split) return tensor.owner == kAll || tensor.owner == part ? at : 0;
  const std::uint64_t pitch = tensor.units * tensor.unit_bytes;
  const std::uint64_t low = border(tensor, part), width = border(tensor, part + 1) - low;
  const std::uint64_t column = at % pitch;
  return at / pitch * width + (column <= low ? 0 : std::min(column - low, width));
}

Shard ShardPlan::shard(std::size_t index, std::uint32_t rank) const {
  const Tensor& tensor = tensors_[index];
  const std::uint32_t part = rank % options_.parts;
  Shard shard{.slice = {.axis = tensor.axis, .begin = 0, .end = tensor.shape.empty() ? 1 : tensor.shape[tensor.axis]},
              .shape = tensor.shape,
              .offset = tensor.target_offset,
              .bytes = shard_bytes(tensor, part)};
  if (tensor.split) {
    shard.slice.begin = internal::first_of_part(tensor.units, options_.parts, part) * tensor.unit;
    shard.slice.end = internal::first_of_part(tensor.units, options_.parts, part + 1) * tensor.unit;
    shard.shape[tensor.axis] = shard.slice.end - shard.slice.begin;
  } else if (tensor.owner != kAll && tensor.owner != part) {
    shard.slice.end = 0;
    if (!shard.shape.empty()) shard.shape[0] = 0;
  }
  if (shard.bytes == 0) shard.offset = 0;
  return shard;
}

std::uint64_t ShardPlan::memory_bytes(std::uint32_t rank) const {
  return shared_bytes_ + (owned_bytes_.empty() ? 0 : owned_bytes_[rank % options_.parts]);
}

std::pair<std::uint64_t, std::uint64_t> ShardPlan::reads(std::uint32_t rank) const noexcept {
  return {internal::first_of_part(pieces(), options_.ranks, rank),
          internal::first_of_part(pieces(), options_.ranks, rank + 1)};
}

ShardPiece ShardPlan::piece(std::uint64_t number) const {
  const auto next = std::ranges::upper_bound(first_piece_, number);
  const auto file = static_cast<std::uint32_t>(next - first_piece_.begin() - 1);
  const Extent& extent = extents_[file];
  // Pieces begin at multiples of their size in the file, which suits direct reads.
  const std::uint64_t slot = extent.begin / options_.piece_bytes + (number - first_piece_[file]);
  const std::uint64_t begin = std::max(extent.begin, slot * options_.piece_bytes);
  const std::uint64_t end = std::min(extent.end, (slot + 1) * options_.piece_bytes);
  return {.file = file,
          .reader = internal::part_of(pieces(), options_.ranks, number),
          .offset = begin,
          .bytes = end - begin};
}

// Calls visit(tensor, index, begin, end) for bytes [begin, end) of each tensor that lie in the piece.
template <class Visit>
void ShardPlan::for_each_overlap(const ShardPiece& piece, Visit&& visit) const {
  const auto ends_before = [&](std::uint32_t index, const ShardPiece& at) {
    const Tensor& tensor = tensors_[index];
    return tensor.file != at.file ? tensor.file < at.file : tensor.file_offset + tensor.bytes <= at.offset;
  };
  const std::uint64_t piece_end = piece.offset + piece.bytes;
  for (auto at = std::lower_bound(by_offset_.begin(), by_offset_.end(), piece, ends_before); at != by_offset_.end();
       ++at) {
    const Tensor& tensor = tensors_[*at];
    if (tensor.file != piece.file || tensor.file_offset >= piece_end) break;
    const std::uint64_t begin = std::max(piece.offset, tensor.file_offset) - tensor.file_offset;
    const std::uint64_t end = std::min(piece_end, tensor.file_offset + tensor.bytes) - tensor.file_offset;
    visit(tensor, *at, begin, end);
  }
}

void ShardPlan::put_part(const Tensor& tensor, std::uint32_t index, std::uint32_t part, std::uint64_t begin,
                         std::uint64_t end, const std::function<void(const ShardPut&)>& put) const {
  const std::uint64_t from = before(tensor, part, begin), to = before(tensor, part, end);
  if (from == to) return;
  ShardPut made{.tensor = index, .offset = tensor.target_offset + from, .bytes = to - from};
  if (tensor.split) {
    const std::uint64_t pitch = tensor.units * tensor.unit_bytes;
    const std::uint64_t low = border(tensor, part), width = border(tensor, part + 1) - low;
    const std::uint64_t row = tensor.file_offset + from / width * pitch + low;
    made.first = row + from % width;
    made.first_bytes = width == pitch ? made.bytes : std::min(made.bytes, width - from % width);
    made.second = row + pitch;
    made.run_bytes = width;
    made.pitch = pitch;
  } else {
    made.first = tensor.file_offset + begin;
    made.first_bytes = made.bytes;
  }
  for (std::uint32_t target = part; target < options_.ranks; target += options_.parts) {
    made.target = target;
    put(made);
  }
}

void ShardPlan::for_each_put(std::uint64_t number, const std::function<void(const ShardPut&)>& put) const {
  for_each_overlap(piece(number),
                   [&](const Tensor& tensor, std::uint32_t index, std::uint64_t begin, std::uint64_t end) {
                     std::uint32_t first = 0, last = options_.parts - 1;
                     if (tensor.split) {
                       const std::uint64_t pitch = tensor.units * tensor.unit_bytes;
                       if (begin / pitch == (end - 1) / pitch) {  // within one row: only the parts between its ends
                         first = internal::part_of(tensor.units, options_.parts, begin % pitch / tensor.unit_bytes);
                         last = internal::part_of(tensor.units, options_.parts, (end - 1) % pitch / tensor.unit_bytes);
                       }
                     } else if (tensor.owner != kAll) {
                       first = last = tensor.owner;
                     }
                     for (std::uint32_t part = first; part <= last; ++part)
                       put_part(tensor, index, part, begin, end, put);
                   });
}

std::uint64_t ShardPlan::puts_to(std::uint32_t rank) const {
  const std::uint32_t part = rank % options_.parts;
  std::uint64_t puts = 0;
  for (std::uint64_t number = 0; number < pieces(); ++number)
    for_each_overlap(piece(number), [&](const Tensor& tensor, std::uint32_t, std::uint64_t begin, std::uint64_t end) {
      puts += before(tensor, part, end) > before(tensor, part, begin);
    });
  return puts;
}

ShardCost ShardPlan::cost() const {
  ShardCost cost;
  const std::uint64_t replicas = options_.ranks / options_.parts;
  // By part: tensors with the same number of units are split alike.
  std::vector<std::uint64_t> shards(options_.parts, 0);
  std::map<std::uint64_t, std::uint64_t> unit_bytes;
  std::uint64_t everywhere = 0;
  for (const Tensor& tensor : tensors_) {
    cost.file_bytes += tensor.bytes;
    if (tensor.split)
      unit_bytes[tensor.units] += tensor.outer * tensor.unit_bytes;
    else if (tensor.owner == kAll)
      everywhere += tensor.bytes;
    else
      shards[tensor.owner] += tensor.bytes;
  }
  for (std::uint32_t part = 0; part < options_.parts; ++part) {
    shards[part] += everywhere;
    for (const auto& [units, bytes] : unit_bytes)
      shards[part] += bytes * (internal::first_of_part(units, options_.parts, part + 1) -
                               internal::first_of_part(units, options_.parts, part));
  }
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    const std::uint32_t own_part = rank % options_.parts;
    std::uint64_t read = 0, put = 0, kept = 0;
    for (auto [number, end_number] = reads(rank); number < end_number; ++number) {
      const ShardPiece part_of_file = piece(number);
      read += part_of_file.bytes;
      for_each_overlap(part_of_file, [&](const Tensor& tensor, std::uint32_t, std::uint64_t begin, std::uint64_t end) {
        put += (end - begin) * (tensor.split || tensor.owner != kAll ? replicas : options_.ranks);
        kept += before(tensor, own_part, end) - before(tensor, own_part, begin);
      });
    }
    cost.storage_bytes += read;
    cost.network_bytes += put - kept;
    cost.largest_read = std::max(cost.largest_read, read);
    cost.largest_sent = std::max(cost.largest_sent, put - kept);
    cost.largest_received = std::max(cost.largest_received, shards[own_part] - kept);
    cost.largest_memory = std::max(cost.largest_memory, memory_bytes(rank));
  }
  return cost;
}

Result<ShardPlan> make_shard_plan(std::span<const TensorInfo> tensors, std::span<const ShardRule> rules,
                                  const ShardOptions& options) {
  ShardPlan plan;
  plan.options_ = options;
  if (options.parts == 0) plan.options_.parts = options.ranks;
  BERTH_TRY(check_options(plan.options_));
  if (tensors.size() >= UINT32_MAX)
    return Error(Code::kInvalidArgument, Layer::kFormat, "{} tensors are too many for a plan", tensors.size());

  std::vector<std::optional<std::uint64_t>> expert(tensors.size());  // for tensors of one expert: its number
  std::vector<std::uint64_t> experts(rules.size(), 0);               // of all tensors of a rule
  std::vector<std::size_t> rule_of(tensors.size(), 0);
  std::uint64_t total = 0;
  std::uint32_t files = 0;
  plan.tensors_.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    BERTH_TRY_ASSIGN(Tensor tensor, described(tensors[i]));
    total += tensor.bytes;
    if (total > kMostBytes) return refused(Code::kInvalidData, tensor.name, "all tensors together are too large");
    if (tensor.bytes > 0) files = std::max(files, tensor.file + 1);
    for (std::size_t r = 0; r < rules.size(); ++r) {
      std::optional<std::uint64_t> number;
      if (!internal::fits(rules[r].pattern, tensor.name, number)) continue;
      rule_of[i] = r;
      tensor.kind = rules[r].kind;
      if (tensor.kind == ShardKind::kExpert && number) {
        if (*number >= tensors.size())
          return refused(Code::kInvalidArgument, tensor.name,
                         fmt::format("it would be expert {}, and there are only {} tensors", *number, tensors.size()));
        expert[i] = number;
        experts[r] = std::max(experts[r], *number + 1);
      } else if (tensor.kind != ShardKind::kReplicated) {
        BERTH_TRY(split_axis(tensor, rules[r], plan.options_.parts));
      }
      break;
    }
    plan.tensors_.push_back(std::move(tensor));
  }

  // Memory that is alike on all ranks comes first: each shard has the room of the largest part, so that one offset
  // serves all. What one part alone has comes after it.
  plan.owned_bytes_.assign(plan.options_.parts, 0);
  for (std::size_t i = 0; i < plan.tensors_.size(); ++i) {
    Tensor& tensor = plan.tensors_[i];
    if (expert[i]) {
      tensor.owner = internal::part_of(experts[rule_of[i]], plan.options_.parts, *expert[i]);
      continue;
    }
    tensor.target_offset = plan.shared_bytes_;
    const std::uint64_t largest =
        tensor.split
            ? tensor.outer * ((tensor.units + plan.options_.parts - 1) / plan.options_.parts) * tensor.unit_bytes
            : tensor.bytes;
    plan.shared_bytes_ += internal::round_up(largest, std::uint64_t{plan.options_.alignment});
  }
  for (std::size_t i = 0; i < plan.tensors_.size(); ++i) {
    Tensor& tensor = plan.tensors_[i];
    if (!expert[i]) continue;
    std::uint64_t& owned = plan.owned_bytes_[tensor.owner];
    tensor.target_offset = plan.shared_bytes_ + owned;
    owned += internal::round_up(tensor.bytes, std::uint64_t{plan.options_.alignment});
  }

  // The pieces.
  for (std::uint32_t i = 0; i < plan.tensors_.size(); ++i)
    if (plan.tensors_[i].bytes > 0) plan.by_offset_.push_back(i);
  std::ranges::sort(plan.by_offset_, {},
                    [&](std::uint32_t i) { return std::pair(plan.tensors_[i].file, plan.tensors_[i].file_offset); });
  if (files > kMostFiles)
    return Error(Code::kInvalidData, Layer::kFormat, "a tensor is in file {}: a plan has at most {} files", files - 1,
                 kMostFiles);
  plan.extents_.resize(files);
  const Tensor* previous = nullptr;
  for (const std::uint32_t index : plan.by_offset_) {
    const Tensor& tensor = plan.tensors_[index];
    ShardPlan::Extent& extent = plan.extents_[tensor.file];
    const bool first = previous == nullptr || previous->file != tensor.file;
    if (!first && tensor.file_offset < extent.end)
      return refused(Code::kInvalidData, tensor.name,
                     fmt::format("it overlaps {} in the file", internal::quoted(previous->name)));
    if (first) extent.begin = tensor.file_offset;
    extent.end = tensor.file_offset + tensor.bytes;
    previous = &tensor;
  }
  plan.first_piece_.push_back(0);
  for (const ShardPlan::Extent& extent : plan.extents_) {
    const std::uint64_t piece = plan.options_.piece_bytes;
    const std::uint64_t count = extent.end == 0 ? 0 : (extent.end + piece - 1) / piece - extent.begin / piece;
    plan.first_piece_.push_back(plan.first_piece_.back() + count);
  }
  return plan;
}

}  // namespace berth
