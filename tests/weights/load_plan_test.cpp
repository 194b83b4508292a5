#include "weights/load_plan.h"

#include <gtest/gtest.h>

#include "berth/memory/registry.h"
#include "doubles/opaque_device.h"

namespace berth::internal::formats {
namespace {

LoadRequest bytes_at(std::uint64_t offset, std::size_t bytes) {
  return {.file = 0,
          .offset = offset,
          .row_bytes = bytes,
          .row_pitch = bytes,
          .rows = 1,
          .dtype = DType::kU8,
          .shape = Shape{bytes}};
}

// How many pieces each job has.
std::vector<std::size_t> jobs_of(const std::vector<LoadRequest>& requests) {
  const LoadPlan plan = plan_load(requests, device("CPU").value(), {}).value();
  std::vector<std::size_t> sizes;
  for (const LoadJob& job : plan.jobs) sizes.push_back(job.last - job.first);
  return sizes;
}

using Sizes = std::vector<std::size_t>;

TEST(LoadPlan, ReadsNeighboursInOneJobOverSmallGaps) {
  EXPECT_EQ(jobs_of({bytes_at(0, 100), bytes_at(100, 50), bytes_at(150 + kGapBytes, 10)}), (Sizes{3}));
  EXPECT_EQ(jobs_of({bytes_at(0, 100), bytes_at(100, 50), bytes_at(151 + kGapBytes, 10)}), (Sizes{2, 1}));
}

TEST(LoadPlan, ReadsAtMostSoManyBytesInOneJob) {
  EXPECT_EQ(jobs_of({bytes_at(0, kJobBytes - 10), bytes_at(kJobBytes - 10, 10)}), (Sizes{2}));
  EXPECT_EQ(jobs_of({bytes_at(0, kJobBytes - 10), bytes_at(kJobBytes - 10, 11)}), (Sizes{1, 1}));
}

TEST(LoadPlan, ReadsAtMostSoManyPiecesInOneJob) {
  std::vector<LoadRequest> requests;
  for (std::size_t i = 0; i < kJobPieces + 1; ++i) requests.push_back(bytes_at(i, 1));
  EXPECT_EQ(jobs_of(requests), (Sizes{kJobPieces, 1}));
}

TEST(LoadPlan, BeginsAnotherStorageWhereOneIsFull) {
  constexpr std::size_t kEach = 1000;  // of which four fit, each at a multiple of the alignment
  const DevicePtr device = opaque_device({.max_block_bytes = 4096});
  std::vector<LoadRequest> requests;
  for (std::size_t i = 0; i < 8; ++i) requests.push_back(bytes_at(i * kEach, kEach));
  LoadOptions options;
  options.share_below = kEach + 1;
  options.buffer.alignment = 1024;
  const LoadPlan plan = plan_load(requests, device, options).value();
  ASSERT_EQ(plan.buffers.size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(plan.buffers[i].size(), kEach);
    EXPECT_EQ(plan.buffers[i].storage_id() == plan.buffers[0].storage_id(), i < 4) << i;
    EXPECT_EQ(plan.buffers[i].storage_id() == plan.buffers[4].storage_id(), i >= 4) << i;
    EXPECT_EQ(plan.buffers[i].byte_offset(), i % 4 * 1024) << i;
  }
}

}  // namespace
}  // namespace berth::internal::formats
