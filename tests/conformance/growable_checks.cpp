// Live defragmentation on every device that has growable memory: buffers move together, and handles stay valid.
#include "berth/alloc/growable.h"
#include "berth/interop/dlpack.h"
#include "conformance/device_conformance.h"

namespace berth::conformance {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kStep = std::size_t{2} << 20;
constexpr std::size_t kPart = kStep / 8;

Result<std::shared_ptr<GrowableMemory>> growable(Bed& bed) {
  return make_growable(bed.device(), {.reserve_bytes = 16 * kStep, .step_bytes = kStep});
}

// One buffer in each of three steps, with its own contents, and nothing else in them.
Result<std::vector<Buffer>> one_in_each(const AllocatorPtr& memory) {
  std::vector<Buffer> all;
  for (std::size_t i = 0; i < 24; ++i) {
    auto buffer = Buffer::allocate(memory, u8, {kPart - i});
    if (!buffer) return buffer.error();
    if (auto copied = buffer->copyin(pattern_bytes(kPart - i, i)); !copied) return copied.error();
    all.push_back(*std::move(buffer));
  }
  return std::vector<Buffer>{all[0], all[8], all[16]};
}

void expect_contents(Bed& bed, const std::vector<Buffer>& kept) {
  for (std::size_t i = 0; i < kept.size(); ++i) {
    BED_TRY_ASSIGN(const Bytes seen, bed, contents(kept[i]));
    EXPECT_EQ(seen == pattern_bytes(kPart - 8 * i, 8 * i), true) << "buffer " << i;
  }
}

void moves_buffers_together(Bed& bed) {
  BED_TRY_ASSIGN(const auto memory, bed, growable(bed));
  const std::size_t before = bed.device()->counters().live_bytes;
  BED_TRY_ASSIGN(const std::vector<Buffer> kept, bed, one_in_each(memory));
  BED_TRY_ASSIGN(const Buffer view, bed, kept[2].view(1001, 500));
  EXPECT_EQ(memory->counters().mapped_bytes, 3 * kStep);
  std::size_t moved = 0;
  for (int pass = 0; pass < 10; ++pass) {
    const DefragmentResult result = memory->defragment({.max_bytes = kPart});
    EXPECT_LE(result.moved_bytes, kPart);
    EXPECT_FALSE(result.error.has_value()) << to_string(result);
    moved += result.moved_count;
    if (result.finished) break;
  }
  EXPECT_EQ(moved, 2u);
  EXPECT_EQ(memory->counters().mapped_bytes, kStep);
  EXPECT_EQ(bed.device()->counters().live_bytes, before + kStep);
  expect_contents(bed, kept);
  BED_TRY_ASSIGN(const Bytes seen, bed, contents(view));
  EXPECT_EQ(seen, pattern_bytes(500, 16 + 1001));
  BED_TRY(bed, view.copyin(Bytes(500, std::byte{3})));
  BED_TRY_ASSIGN(const Bytes whole, bed, contents(kept[2]));
  EXPECT_EQ(whole[1000], pattern(16 + 1000));
  EXPECT_EQ(whole[1001], std::byte{3});
  EXPECT_EQ(whole[1501], pattern(16 + 1501));
}

void leaves_what_is_held_or_in_use(Bed& bed) {
  BED_TRY_ASSIGN(const auto memory, bed, growable(bed));
  BED_TRY_ASSIGN(const std::vector<Buffer> kept, bed, one_in_each(memory));
  {
    BED_TRY_ASSIGN(const Window held, bed, kept[1].window());
    BED_TRY_ASSIGN(auto* const tensor, bed, dlpack::export_buffer(kept[2]));
    const DefragmentResult result = memory->defragment();
    EXPECT_EQ(result.held.count, 2u) << to_string(result);
    EXPECT_EQ(result.moved_count, 0u);
    tensor->deleter(tensor);
  }
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  Bytes seen(kept[1].size());
  {
    BED_TRY_ASSIGN(const Window window, bed, kept[1].window());
    BED_TRY(bed, queue->read(window, seen));
  }
  const DefragmentResult result = memory->defragment();
  EXPECT_EQ(result.held.count, 0u) << "nobody has an address any more";
  EXPECT_EQ(result.moved_count + result.in_use.count, 2u) << "one of them may be in use: " << to_string(result);
  BED_TRY(bed, queue->finish());
  EXPECT_EQ(seen == pattern_bytes(kPart - 8, 8), true);
  memory->defragment();
  EXPECT_EQ(memory->counters().mapped_bytes, kStep);
  expect_contents(bed, kept);
}

void runs_kernels_on_buffers_that_have_moved(Bed& bed) {
  if (!bed.described().add_kernel) {
    bed.refuse(Error(Code::kUnsupported, Layer::kDevice, "no kernel"), __FILE__, __LINE__);
    return;
  }
  BED_TRY_ASSIGN(const auto memory, bed, growable(bed));
  BED_TRY_ASSIGN(const Kernel kernel, bed, bed.described().add_kernel(*bed.device()));
  BED_TRY_ASSIGN(const std::vector<Buffer> kept, bed, one_in_each(memory));
  const std::uint32_t constant = 5;
  const auto check = [&] {
    BED_TRY_ASSIGN(const Buffer from, bed, kept[1].view(0, 1024));
    BED_TRY_ASSIGN(const Buffer to, bed, kept[2].view(512, 1024));
    BED_TRY(bed, from.copyin(pattern_bytes(1024)));
    BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
    {
      BED_TRY_ASSIGN(const Window source, bed, from.window());
      BED_TRY_ASSIGN(const Window target, bed, to.window());
      const KernelArgument arguments[] = {{source, Access::kRead}, {target, Access::kWrite}};
      BED_TRY(bed, queue->launch(kernel, arguments, {.groups = {4, 1, 1}, .threads = {64, 1, 1}},
                                 std::as_bytes(std::span(&constant, 1))));
    }
    BED_TRY(bed, queue->finish());
    std::vector<std::uint32_t> numbers(256), sums(256);
    BED_TRY(bed, from.copyout(std::as_writable_bytes(std::span(numbers))));
    BED_TRY(bed, to.copyout(std::as_writable_bytes(std::span(sums))));
    for (std::size_t i = 0; i < 256; ++i) ASSERT_EQ(sums[i], numbers[i] + constant) << i;
  };
  check();
  EXPECT_EQ(memory->defragment().moved_count, 2u);
  check();
}

constexpr Check kChecks[] = {
    {"GrowableMovesBuffersTogether", moves_buffers_together},
    {"GrowableLeavesWhatIsHeldOrInUse", leaves_what_is_held_or_in_use},
    {"GrowableRunsKernelsOnBuffersThatHaveMoved", runs_kernels_on_buffers_that_have_moved},
};

}  // namespace

std::span<const Check> growable_checks() {
  return kChecks;
}

}  // namespace berth::conformance
