#include "weights/load_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/try.h"
#include "base/utf8.h"

namespace berth::internal::formats {
namespace {

// A storage that several tensors share, being filled.
struct Slab {
  std::vector<std::pair<std::uint32_t, std::size_t>> members;  // request, offset
  std::size_t bytes = 0;
};

Result<void> make_slab(Slab& slab, std::span<const LoadRequest> requests, const AllocatorPtr& allocator,
                       const BufferOptions& options, std::vector<Buffer>& buffers) {
  if (slab.members.empty()) return {};
  BERTH_TRY_ASSIGN(const Buffer whole, Buffer::allocate(allocator, DType::kU8, {slab.bytes}, options));
  for (const auto& [request, offset] : slab.members) {
    BERTH_TRY_ASSIGN(buffers[request], whole.view(offset, requests[request].dtype, requests[request].shape));
  }
  slab = {};
  return {};
}

Result<void> make_buffers(std::span<const LoadRequest> requests, const AllocatorPtr& allocator,
                          const LoadOptions& options, std::vector<Buffer>& buffers) {
  buffers.resize(requests.size());
  const DeviceLimits& limits = allocator->device().limits();
  const std::size_t alignment = std::max(options.buffer.alignment, limits.binding_alignment);
  std::size_t slab_limit = kSlabBytes;
  if (limits.max_block_bytes != 0) slab_limit = std::min(slab_limit, limits.max_block_bytes);
  Slab slab;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::size_t bytes = requests[i].bytes();
    if (bytes >= options.share_below || requests.size() == 1 || bytes > slab_limit) {
      BERTH_TRY_ASSIGN(buffers[i], Buffer::allocate(allocator, requests[i].dtype, requests[i].shape, options.buffer));
      continue;
    }
    const std::size_t offset = (slab.bytes + alignment - 1) / alignment * alignment;
    if (offset + bytes > slab_limit) {
      BERTH_TRY(make_slab(slab, requests, allocator, options.buffer, buffers));
      slab.members.emplace_back(static_cast<std::uint32_t>(i), 0);
      slab.bytes = bytes;
      continue;
    }
    slab.members.emplace_back(static_cast<std::uint32_t>(i), offset);
    slab.bytes = offset + bytes;
  }
  return make_slab(slab, requests, allocator, options.buffer, buffers);
}

void cut_into_pieces(std::span<const LoadRequest> requests, std::vector<LoadPiece>& pieces) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const LoadRequest& request = requests[i];
    for (std::uint64_t row = 0; row < request.rows; ++row) {
      for (std::uint64_t at = 0; at < request.row_bytes; at += kJobBytes) {
        pieces.push_back({.offset = request.offset + row * request.row_pitch + at,
                          .bytes = std::min(kJobBytes, request.row_bytes - at),
                          .target = row * request.row_bytes + at,
                          .request = static_cast<std::uint32_t>(i),
                          .file = request.file});
      }
    }
  }
  const auto before = [](const LoadPiece& a, const LoadPiece& b) {
    return a.file != b.file ? a.file < b.file : a.offset < b.offset;
  };
  if (!std::is_sorted(pieces.begin(), pieces.end(), before)) std::stable_sort(pieces.begin(), pieces.end(), before);
}

std::vector<LoadJob> group_into_jobs(std::span<const LoadPiece> pieces) {
  std::vector<LoadJob> jobs;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const LoadPiece& piece = pieces[i];
    if (!jobs.empty()) {
      LoadJob& job = jobs.back();
      const LoadPiece& first = pieces[job.first];
      const LoadPiece& last = pieces[job.last - 1];
      const std::uint64_t end = last.offset + last.bytes;
      if (first.file == piece.file && piece.offset >= end && piece.offset - end <= kGapBytes &&
          piece.offset + piece.bytes - first.offset <= kJobBytes && job.last - job.first < kJobPieces) {
        ++job.last;
        continue;
      }
    }
    jobs.push_back({i, i + 1});
  }
  return jobs;
}

}  // namespace

Result<LoadRequest> whole_tensor(const TensorInfo& info) {
  BERTH_TRY_ASSIGN(const Shape shape, Shape::make(info.shape));
  return LoadRequest{.file = info.file,
                     .offset = info.offset,
                     .row_bytes = info.bytes,
                     .row_pitch = info.bytes,
                     .rows = 1,
                     .dtype = info.dtype,
                     .shape = shape};
}

Result<LoadRequest> sliced_tensor(const TensorInfo& info, const AxisSlice& slice) {
  BERTH_TRY_ASSIGN(const Shape whole, Shape::make(info.shape));
  // A scalar has one element and no axis: this is how its shard in a plan is written.
  if (whole.rank() == 0 && slice.axis == 0 && slice.begin == 0 && slice.end == 1) return whole_tensor(info);
  if (slice.axis >= whole.rank() || slice.begin > slice.end || slice.end > whole[slice.axis])
    return Error::with_text(Code::kInvalidArgument, Layer::kFormat,
                            fmt::format("slice [{}, {}) of axis {} is outside tensor {} of shape {}", slice.begin,
                                        slice.end, slice.axis, quoted(info.name), whole.to_string()));
  const DTypeInfo& type = berth::info(info.dtype);
  const auto product = [](std::span<const std::size_t> extents) {
    return std::accumulate(extents.begin(), extents.end(), std::uint64_t{1}, std::multiplies<>());
  };
  const std::uint64_t inner = product(info.shape.subspan(slice.axis + 1));
  const std::uint64_t row = inner * whole[slice.axis];
  if (inner * slice.begin % type.block_elements != 0 || inner * slice.end % type.block_elements != 0 ||
      row % type.block_elements != 0)
    return Error::with_text(
        Code::kInvalidArgument, Layer::kFormat,
        fmt::format("slice [{}, {}) of axis {} cuts through blocks of {} elements of tensor {} ({})", slice.begin,
                    slice.end, slice.axis, type.block_elements, quoted(info.name), berth::to_string(info.dtype)));
  std::vector<std::size_t> shape(info.shape.begin(), info.shape.end());
  shape[slice.axis] = slice.end - slice.begin;
  const auto bytes_of = [&](std::uint64_t elements) { return elements / type.block_elements * type.block_bytes; };
  LoadRequest request{.file = info.file,
                      .offset = info.offset + bytes_of(inner * slice.begin),
                      .row_bytes = bytes_of(inner * (slice.end - slice.begin)),
                      .row_pitch = bytes_of(row),
                      .rows = product(info.shape.first(slice.axis)),
                      .dtype = info.dtype,
                      .shape = Shape(std::span<const std::size_t>(shape))};
  if (request.row_bytes == request.row_pitch) {  // all of the axis: one run
    request.row_bytes *= request.rows;
    request.rows = 1;
  }
  return request;
}

Result<LoadPlan> plan_load(std::span<const LoadRequest> requests, const AllocatorPtr& allocator,
                           const LoadOptions& options) {
  LoadPlan plan;
  BERTH_TRY(make_buffers(requests, allocator, options, plan.buffers));
  cut_into_pieces(requests, plan.pieces);
  plan.jobs = group_into_jobs(plan.pieces);
  for (const LoadPiece& piece : plan.pieces) plan.bytes += piece.bytes;
  return plan;
}

}  // namespace berth::internal::formats
