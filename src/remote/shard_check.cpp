// The check of a sharding plan. It works on coordinates of elements and on sorted ranges, not on the arithmetic by
// which the plan was made, so that one mistake does not hide another.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/try.h"
#include "base/utf8.h"
#include "berth/remote/sharding.h"

namespace berth {
namespace {

struct Range {
  std::uint64_t begin = 0, end = 0;
};

Error wrong(std::string text) {
  return Error::with_text(Code::kInvalidData, Layer::kFormat, "the sharding plan is wrong: " + std::move(text));
}

// Sorts ranges and merges those that touch. The begin of a range that overlaps another is stored in `overlap`.
std::vector<Range> merged(std::vector<Range> ranges, std::optional<std::uint64_t>& overlap) {
  std::ranges::sort(ranges, {}, &Range::begin);
  std::vector<Range> whole;
  for (const Range& range : ranges) {
    if (range.begin == range.end) continue;
    if (!whole.empty() && range.begin < whole.back().end) overlap = range.begin;
    if (!whole.empty() && range.begin <= whole.back().end)
      whole.back().end = std::max(whole.back().end, range.end);
    else
      whole.push_back(range);
  }
  return whole;
}

// Where byte `at` of a tensor belongs in a shard of it; none if it does not belong there. By coordinates.
std::optional<std::uint64_t> place_in_shard(const ShardPlan::Tensor& tensor, const Shard& shard, std::uint64_t at) {
  const DTypeInfo& type = info(tensor.dtype);
  if (at >= tensor.bytes) return std::nullopt;
  std::uint64_t element = at / type.block_bytes * type.block_elements;
  std::vector<std::uint64_t> coordinates(tensor.shape.size());
  for (std::size_t axis = tensor.shape.size(); axis-- > 0;) {
    coordinates[axis] = element % tensor.shape[axis];
    element /= tensor.shape[axis];
  }
  std::uint64_t local = 0;
  for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis) {
    std::uint64_t coordinate = coordinates[axis];
    if (axis == shard.slice.axis) {
      if (coordinate < shard.slice.begin || coordinate >= shard.slice.end) return std::nullopt;
      coordinate -= shard.slice.begin;
    }
    local = local * shard.shape[axis] + coordinate;
  }
  return local / type.block_elements * type.block_bytes + at % type.block_bytes;
}

Result<void> check_pieces(const ShardPlan& plan, const std::vector<ShardPiece>& pieces) {
  std::vector<std::uint32_t> readers(pieces.size(), ShardPlan::kAll);
  for (std::uint32_t rank = 0; rank < plan.ranks(); ++rank)
    for (auto [number, end] = plan.reads(rank); number < end; ++number) {
      if (number >= pieces.size() || readers[number] != ShardPlan::kAll || pieces[number].reader != rank)
        return wrong(fmt::format("piece {} is read by rank {} and by another", number, rank));
      readers[number] = rank;
    }
  if (std::ranges::find(readers, ShardPlan::kAll) != readers.end()) return wrong("a piece is read by no rank");
  std::uint32_t files = 0;
  for (const auto& tensor : plan.tensors()) files = std::max(files, tensor.file + 1);
  std::vector<std::vector<Range>> by_file(files);
  for (const ShardPiece& piece : pieces) {
    if (piece.bytes == 0 || piece.bytes > plan.options().piece_bytes) return wrong("a piece has the wrong size");
    if (piece.file >= files) return wrong(fmt::format("a piece is of file {}, which has no tensor", piece.file));
    by_file[piece.file].push_back({piece.offset, piece.offset + piece.bytes});
  }
  for (std::vector<Range>& ranges : by_file) {
    std::optional<std::uint64_t> overlap;
    ranges = merged(std::move(ranges), overlap);
    if (overlap) return wrong(fmt::format("two pieces of a file have byte {}", *overlap));
  }
  for (const auto& tensor : plan.tensors()) {
    if (tensor.bytes == 0) continue;
    const auto& ranges = by_file[tensor.file];
    const auto after = std::ranges::upper_bound(ranges, tensor.file_offset, {}, &Range::begin);
    if (after == ranges.begin() || std::prev(after)->end < tensor.file_offset + tensor.bytes)
      return wrong(fmt::format("tensor {} is not read whole", internal::quoted(tensor.name)));
  }
  return {};
}

// The slices of all parts cover the axis once.
Result<void> check_slices(const ShardPlan& plan, std::size_t index) {
  const ShardPlan::Tensor& tensor = plan.tensors()[index];
  if (tensor.shape.empty()) return {};
  std::vector<Range> slices;
  std::size_t axis = plan.shard(index, 0).slice.axis;
  for (std::uint32_t part = 0; part < plan.parts(); ++part) {
    const Shard shard = plan.shard(index, part);
    if (shard.slice.axis != axis || shard.slice.begin > shard.slice.end || shard.slice.end > tensor.shape[axis])
      return wrong(fmt::format("the slice of part {} is outside tensor {}", part, internal::quoted(tensor.name)));
    slices.push_back({shard.slice.begin, shard.slice.end});
  }
  std::optional<std::uint64_t> overlap;
  const std::vector<Range> whole = merged(std::move(slices), overlap);
  const bool all =
      tensor.shape[axis] == 0 || (whole.size() == 1 && whole[0].begin == 0 && whole[0].end == tensor.shape[axis]);
  if (!all || (tensor.split && overlap))
    return wrong(fmt::format("the parts of tensor {} are not the tensor", internal::quoted(tensor.name)));
  return {};
}

}  // namespace

Result<void> ShardPlan::check() const {
  std::vector<ShardPiece> all_pieces;
  for (std::uint64_t number = 0; number < pieces(); ++number) all_pieces.push_back(piece(number));
  BERTH_TRY(check_pieces(*this, all_pieces));
  for (std::size_t index = 0; index < tensors_.size(); ++index) BERTH_TRY(check_slices(*this, index));

  std::vector<std::vector<Range>> written(ranks());
  for (std::uint64_t number = 0; number < pieces(); ++number) {
    const ShardPiece& from = all_pieces[number];
    std::optional<Error> problem;
    for_each_put(number, [&](const ShardPut& put) {
      if (problem) return;
      if (put.target >= ranks() || put.tensor >= tensors_.size() || put.bytes == 0 || put.first_bytes > put.bytes) {
        problem = wrong(fmt::format("piece {} has a put without sense", number));
        return;
      }
      const Tensor& tensor = tensors_[put.tensor];
      const Shard target = shard(put.tensor, put.target);
      std::uint64_t at = put.offset;
      put.for_each_run([&](std::uint64_t offset, std::uint64_t bytes) {
        // Places rise with the bytes of a tensor, so a run whose ends are in place has no gap in it.
        const bool in_piece = offset >= from.offset && offset + bytes <= from.offset + from.bytes &&
                              tensor.file == from.file && offset >= tensor.file_offset;
        const auto first = in_piece ? place_in_shard(tensor, target, offset - tensor.file_offset) : std::nullopt;
        const auto last =
            in_piece ? place_in_shard(tensor, target, offset + bytes - 1 - tensor.file_offset) : std::nullopt;
        if (!problem && (!first || !last || target.offset + *first != at || target.offset + *last != at + bytes - 1))
          problem = wrong(fmt::format("piece {} puts bytes of tensor {} at the wrong place of rank {}", number,
                                      internal::quoted(tensor.name), put.target));
        at += bytes;
      });
      if (!problem && at != put.offset + put.bytes)
        problem = wrong(fmt::format("piece {} has a put of another size", number));
      written[put.target].push_back({put.offset, put.offset + put.bytes});
    });
    if (problem) return *problem;
  }

  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    std::vector<Range> shards;
    for (std::size_t index = 0; index < tensors_.size(); ++index) {
      const Shard one = shard(index, rank);
      std::size_t elements = 1;
      for (const std::size_t extent : one.shape) elements *= extent;
      const Result<std::size_t> bytes = byte_size(tensors_[index].dtype, elements);
      if (!bytes || (one.slice.begin < one.slice.end && *bytes != one.bytes))
        return wrong(fmt::format("the shard of tensor {} on rank {} has the wrong size",
                                 internal::quoted(tensors_[index].name), rank));
      if (one.offset + one.bytes > memory_bytes(rank))
        return wrong(
            fmt::format("tensor {} is outside the memory of rank {}", internal::quoted(tensors_[index].name), rank));
      shards.push_back({one.offset, one.offset + one.bytes});
    }
    std::optional<std::uint64_t> overlap;
    const std::vector<Range> wanted = merged(std::move(shards), overlap);
    if (overlap) return wrong(fmt::format("two shards of rank {} have byte {}", rank, *overlap));
    const std::vector<Range> got = merged(std::move(written[rank]), overlap);
    if (overlap) return wrong(fmt::format("byte {} of rank {} is written twice", *overlap, rank));
    const auto alike = [](const Range& a, const Range& b) { return a.begin == b.begin && a.end == b.end; };
    if (!std::ranges::equal(wanted, got, alike))
      return wrong(fmt::format("bytes of rank {} are not written, or too many", rank));
  }
  return {};
}

}  // namespace berth
