// How much of a file load_slice() reads, counted by the kernel.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "berth/memory/registry.h"
#include "berth/weights/save.h"
#include "berth/weights/weights.h"
#include "support/support.h"

namespace berth {
namespace {

struct Reads {
  std::uint64_t bytes = 0, calls = 0;
};

// What this process has read so far, from /proc/self/io.
Reads reads_so_far() {
  Reads reads;
  std::ifstream file("/proc/self/io");
  for (std::string name; file >> name;) {
    std::uint64_t number = 0;
    file >> number;
    if (name == "rchar:") reads.bytes = number;
    if (name == "syscr:") reads.calls = number;
  }
  return reads;
}

// Reads the second quarter of the columns of `rows` rows of `columns` f32, and counts.
Reads reads_of_a_quarter(std::size_t rows, std::size_t columns) {
  const test::TemporaryFolder folder;
  const DevicePtr cpu = device("CPU").value();
  const Buffer whole = Buffer::allocate(cpu, f32, {rows, columns}).value();
  std::span<float> values = whole.as_slice_mut<float>().value();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::string path = (folder.path() / "model.safetensors").string();
  const NamedBuffer tensor{"w", whole};
  save_safetensors(path, std::span(&tensor, 1)).value();
  const WeightFile file = open_weights(path).value();
  const Reads before = reads_so_far(), again = reads_so_far();  // the second tells what asking costs
  const Buffer part =
      file.load_slice("w", {.axis = 1, .begin = columns / 4, .end = columns / 2}, cpu, {.threads = 1}).value();
  const Reads after = reads_so_far();
  const std::span<const float> got = part.as_slice<float>().value();
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t column = 0; column < columns / 4; ++column)
      EXPECT_EQ(got[row * (columns / 4) + column], static_cast<float>(row * columns + columns / 4 + column));
  return {after.bytes - again.bytes - (again.bytes - before.bytes),
          after.calls - again.calls - (again.calls - before.calls)};
}

TEST(LoadSlice, ByColumnReadsOnlyItsBytesWhereRowsAreLong) {
  const Reads reads = reads_of_a_quarter(64, 16'384);  // gaps of 48 KiB: a read each is cheaper than the gap
  if (reads.calls == 0) GTEST_SKIP() << "this system does not count reads in /proc/self/io";
  const std::uint64_t own = 64 * 4096 * 4;
  EXPECT_GE(reads.bytes, own);
  EXPECT_LE(reads.bytes, own + own / 100 + 4096);
}

TEST(LoadSlice, ByColumnReadsThroughGapsThatCostLessThanACall) {
  const Reads reads = reads_of_a_quarter(1000, 512);  // gaps of 1.5 KiB
  if (reads.calls == 0) GTEST_SKIP() << "this system does not count reads in /proc/self/io";
  EXPECT_LE(reads.calls, 10U) << "one call for many rows";
  EXPECT_LE(reads.bytes, 1000 * 512 * 4 + 4096U) << "never more than the rows";
}

}  // namespace
}  // namespace berth
