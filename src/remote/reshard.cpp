#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "base/utf8.h"
#include "berth/remote/sharding.h"
#include "remote/shard_parts.h"

namespace berth {
namespace {

// A tensor as a matrix of bytes in which each shard is a rectangle: the last axis is a row if one plan splits it,
// otherwise everything but the first axis is.
struct Matrix {
  std::uint64_t rows = 1;
  std::uint64_t pitch = 0;        // bytes of a row
  std::uint64_t rows_of_one = 1;  // rows of one index of the first axis
  bool by_column = false;
};

struct Rectangle {
  std::uint64_t row = 0, row_end = 0;
  std::uint64_t column = 0, column_end = 0;  // in bytes

  std::uint64_t width() const { return column_end - column; }
  bool empty() const { return row >= row_end || column >= column_end; }
};

bool splits_columns(const ShardPlan::Tensor& tensor) {
  return tensor.split && tensor.axis + 1 == tensor.shape.size();
}

Matrix matrix_of(const ShardPlan::Tensor& from, const ShardPlan::Tensor& to) {
  if (from.shape.empty() || from.bytes == 0) return {.pitch = from.bytes};
  Matrix matrix{.by_column = splits_columns(from) || splits_columns(to)};
  const std::size_t row_axes = matrix.by_column ? from.shape.size() - 1 : 1;
  for (std::size_t axis = 0; axis < row_axes; ++axis) matrix.rows *= from.shape[axis];
  matrix.rows_of_one = row_axes == 0 ? 1 : matrix.rows / from.shape[0];
  matrix.pitch = from.bytes / matrix.rows;
  return matrix;
}

Rectangle rectangle_of(const ShardPlan& plan, std::size_t index, std::uint32_t rank, const Matrix& matrix) {
  const ShardPlan::Tensor& tensor = plan.tensors()[index];
  Rectangle whole{.row_end = matrix.rows, .column_end = matrix.pitch};
  if (!tensor.split) {
    if (tensor.owner != ShardPlan::kAll && tensor.owner != rank % plan.parts()) whole.row_end = 0;
    return whole;
  }
  const std::uint32_t part = rank % plan.parts();
  const std::uint64_t first = internal::first_of_part(tensor.units, plan.parts(), part);
  const std::uint64_t last = internal::first_of_part(tensor.units, plan.parts(), part + 1);
  if (splits_columns(tensor) && matrix.by_column) {
    whole.column = first * tensor.unit_bytes;
    whole.column_end = last * tensor.unit_bytes;
  } else {
    whole.row = first * tensor.unit * matrix.rows_of_one;
    whole.row_end = last * tensor.unit * matrix.rows_of_one;
  }
  return whole;
}

// Of the ranks of `plan` that have a part, the one that serves rank `to`.
std::uint32_t server(const ShardPlan& plan, std::uint32_t part, std::uint32_t to) {
  if (to < plan.ranks() && to % plan.parts() == part) return to;
  return part + plan.parts() * (to % (plan.ranks() / plan.parts()));
}

class Resharding {
 public:
  Resharding(const ShardPlan& from, const ShardPlan& to, const std::function<void(const ReshardMove&)>& move)
      : from_(from), to_(to), move_(move) {}

  void tensor(std::size_t index) {
    const ShardPlan::Tensor& source = from_.tensors()[index];
    const ShardPlan::Tensor& target = to_.tensors()[index];
    if (source.bytes == 0) return;
    const Matrix matrix = matrix_of(source, target);
    for (std::uint32_t rank = 0; rank < to_.ranks(); ++rank) {
      const Rectangle wanted = rectangle_of(to_, index, rank, matrix);
      if (wanted.empty()) continue;
      if (!source.split) {
        const std::uint32_t whole =
            source.owner != ShardPlan::kAll ? server(from_, source.owner, rank) : rank % from_.ranks();
        copy(index, matrix, whole, rank, wanted);
        continue;
      }
      std::uint32_t first = 0, last = from_.parts() - 1;
      const bool by_column = splits_columns(source) && matrix.by_column;
      // Along the axis of the source, only the parts between the ends of what is wanted.
      const std::uint64_t unit = by_column ? source.unit_bytes : source.unit * matrix.rows_of_one;
      const std::uint64_t begin = by_column ? wanted.column : wanted.row;
      const std::uint64_t end = by_column ? wanted.column_end : wanted.row_end;
      first = internal::part_of(source.units, from_.parts(), begin / unit);
      last = internal::part_of(source.units, from_.parts(), (end - 1) / unit);
      for (std::uint32_t part = first; part <= last; ++part)
        copy(index, matrix, server(from_, part, rank), rank, wanted);
    }
  }

 private:
  void copy(std::size_t index, const Matrix& matrix, std::uint32_t from, std::uint32_t to, const Rectangle& wanted) {
    const Rectangle there = rectangle_of(from_, index, from, matrix);
    const Rectangle both{.row = std::max(there.row, wanted.row),
                         .row_end = std::min(there.row_end, wanted.row_end),
                         .column = std::max(there.column, wanted.column),
                         .column_end = std::min(there.column_end, wanted.column_end)};
    if (both.empty()) return;
    const auto offset_in = [&](const Rectangle& shard, std::uint64_t base) {
      return base + (both.row - shard.row) * shard.width() + both.column - shard.column;
    };
    ReshardMove made{.tensor = static_cast<std::uint32_t>(index),
                     .from = from,
                     .to = to,
                     .rows = both.row_end - both.row,
                     .bytes = both.width(),
                     .from_offset = offset_in(there, from_.tensors()[index].target_offset),
                     .from_pitch = there.width(),
                     .to_offset = offset_in(wanted, to_.tensors()[index].target_offset),
                     .to_pitch = wanted.width()};
    if (made.from_pitch == made.bytes && made.to_pitch == made.bytes) {  // one run
      made.bytes *= made.rows;
      made.from_pitch = made.to_pitch = made.bytes;
      made.rows = 1;
    }
    move_(made);
  }

  const ShardPlan& from_;
  const ShardPlan& to_;
  const std::function<void(const ReshardMove&)>& move_;
};

}  // namespace

Result<void> reshard(const ShardPlan& from, const ShardPlan& to, const std::function<void(const ReshardMove&)>& move) {
  if (from.tensors().size() != to.tensors().size())
    return Error(Code::kInvalidArgument, Layer::kFormat,
                 "one plan has {} tensors and the other {}: they must be the same", from.tensors().size(),
                 to.tensors().size());
  for (std::size_t index = 0; index < from.tensors().size(); ++index) {
    const ShardPlan::Tensor &a = from.tensors()[index], &b = to.tensors()[index];
    if (a.name != b.name || a.shape != b.shape || a.dtype != b.dtype)
      return Error::with_text(
          Code::kInvalidArgument, Layer::kFormat,
          fmt::format("tensor {} of one plan is {} in the other: the plans must be of the same tensors",
                      internal::quoted(a.name), internal::quoted(b.name)));
  }
  Resharding resharding(from, to, move);
  for (std::size_t index = 0; index < from.tensors().size(); ++index) resharding.tensor(index);
  return {};
}

}  // namespace berth
