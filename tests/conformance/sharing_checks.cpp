// What a device must do with others: copies between devices, imports, kernels, native encoders, residency.
#include <array>
#include <atomic>
#include <cstring>

#include "berth/memory/registry.h"
#include "conformance/device_conformance.h"

namespace berth::conformance {
namespace {

using Bytes = std::vector<std::byte>;

Result<Buffer> on_cpu(const Bytes& bytes) {
  auto cpu = device("CPU");
  if (!cpu) return cpu.error();
  auto buffer = Buffer::allocate(*cpu, u8, {bytes.size()});
  if (!buffer) return buffer;
  if (auto done = buffer->copyin(bytes); !done) return done.error();
  return buffer;
}

void copies_to_the_host_device(Bed& bed) {
  BED_TRY_ASSIGN(const Buffer source, bed, patterned(bed, 300'001));
  BED_TRY_ASSIGN(const Buffer target, bed, on_cpu(Bytes(300'001)));
  BED_TRY(bed, target.copy_from(source));
  BED_TRY_ASSIGN(const Bytes seen, bed, contents(target));
  EXPECT_TRUE(seen == pattern_bytes(300'001));
}

void copies_from_the_host_device(Bed& bed) {
  BED_TRY_ASSIGN(const Buffer source, bed, on_cpu(pattern_bytes(300'001, 5)));
  BED_TRY_ASSIGN(const Buffer target, bed, Buffer::lazy(bed.device(), u8, {300'001}));
  BED_TRY(bed, target.copy_from(source));
  BED_TRY_ASSIGN(const Bytes seen, bed, contents(target));
  EXPECT_TRUE(seen == pattern_bytes(300'001, 5));
}

void copies_through_views(Bed& bed) {
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 4096));
  BED_TRY_ASSIGN(const Buffer outer, bed, buffer.view(101, 1000));
  BED_TRY_ASSIGN(const Buffer inner, bed, outer.view(7, 33));
  EXPECT_EQ(inner.byte_offset(), 108u);
  BED_TRY_ASSIGN(const Bytes seen, bed, contents(inner));
  EXPECT_EQ(seen, pattern_bytes(33, 108));
}

void writes_through_views_and_nothing_else(Bed& bed) {
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 4096));
  BED_TRY_ASSIGN(const Buffer view, bed, buffer.view(301, 5));
  BED_TRY(bed, view.copyin(Bytes(5, std::byte{9})));
  BED_TRY_ASSIGN(const Bytes seen, bed, contents(buffer));
  Bytes expected = pattern_bytes(4096);
  std::fill_n(expected.begin() + 301, 5, std::byte{9});
  EXPECT_EQ(seen, expected);
}

void imports_and_releases_once(Bed& bed) {
  if (!bed.described().foreign) {
    BED_TRY(bed, bed.device()->import_block({.address = 64, .bytes = 64}));
    return;
  }
  const Bytes bytes = pattern_bytes(4096, 77);
  BED_TRY_ASSIGN(ForeignMemory memory, bed, bed.described().foreign(*bed.device(), bytes));
  int released = 0;
  memory.release = [inner = memory.release, &released] {
    ++released;
    if (inner) inner();
  };
  const DeviceCounters before = bed.device()->counters();
  {
    BED_TRY_ASSIGN(const Buffer buffer, bed, Buffer::import(bed.device(), memory, u8, {4096}));
    EXPECT_TRUE(buffer.is_foreign());
    BED_TRY_ASSIGN(const Buffer view, bed, buffer.view(5, 100));
    BED_TRY_ASSIGN(const Bytes seen, bed, contents(view));
    EXPECT_EQ(seen, pattern_bytes(100, 82));
    EXPECT_EQ(released, 0);
    EXPECT_EQ(bed.device()->counters().foreign_bytes, before.foreign_bytes + 4096);
    EXPECT_EQ(bed.device()->counters().foreign_count, before.foreign_count + 1);
  }
  EXPECT_EQ(released, 1);
  EXPECT_EQ(bed.device()->counters().live_bytes, before.live_bytes) << "foreign memory is not the device's to count";
  EXPECT_EQ(bed.device()->counters().foreign_bytes, before.foreign_bytes);
  EXPECT_EQ(bed.device()->counters().foreign_count, before.foreign_count);
}

// The owner may free or reuse its memory as soon as it is told, so recorded work must be done by then, submitted or
// not. A second import of the same memory looks at it.
void releases_an_import_after_recorded_work(Bed& bed) {
  if (!bed.described().foreign) {
    BED_TRY(bed, bed.device()->import_block({.address = 64, .bytes = 64}));
    return;
  }
  BED_TRY_ASSIGN(ForeignMemory memory, bed, bed.described().foreign(*bed.device(), pattern_bytes(4096)));
  BED_TRY_ASSIGN(const Buffer watcher, bed, Buffer::import(bed.device(), memory, u8, {4096}));
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  for (const bool submits : {false, true}) {
    std::vector<Bytes> seen;
    {
      memory.release = [&] {
        auto bytes = contents(watcher);
        seen.push_back(bytes ? *bytes : Bytes());
      };
      BED_TRY_ASSIGN(const Buffer buffer, bed, Buffer::import(bed.device(), memory, u8, {4096}));
      BED_TRY_ASSIGN(const Window window, bed, buffer.window());
      BED_TRY(bed, queue->fill(window, submits ? 0x66 : 0x77));
      if (submits) BED_TRY(bed, queue->submit());
    }
    ASSERT_EQ(seen.size(), 1u) << "released when the last handle is destroyed";
    EXPECT_TRUE(seen[0] == Bytes(4096, submits ? std::byte{0x66} : std::byte{0x77}));
    BED_TRY(bed, queue->finish());
  }
}

void imports_one_memory_twice(Bed& bed) {
  if (!bed.described().foreign) {
    BED_TRY(bed, bed.device()->import_block({.address = 64, .bytes = 64}));
    return;
  }
  BED_TRY_ASSIGN(ForeignMemory memory, bed, bed.described().foreign(*bed.device(), pattern_bytes(4096, 1)));
  BED_TRY_ASSIGN(const Buffer first, bed, Buffer::import(bed.device(), memory, u8, {4096}));
  memory.release = {};
  {
    BED_TRY_ASSIGN(const Buffer second, bed, Buffer::import(bed.device(), memory, u8, {4096}));
    BED_TRY_ASSIGN(const Bytes seen, bed, contents(second));
    EXPECT_TRUE(seen == pattern_bytes(4096, 1));
  }
  BED_TRY_ASSIGN(const Bytes seen, bed, contents(first));
  EXPECT_TRUE(seen == pattern_bytes(4096, 1));
  BED_TRY(bed, first.copyin(pattern_bytes(4096, 2)));
}

// What native_handle() gives can be imported again, and neither buffer ends the other.
void imports_memory_of_its_own(Bed& bed) {
  BED_TRY_ASSIGN(Buffer original, bed, patterned(bed, 4096));
  const ForeignMemory memory{.address = original.native_handle(), .bytes = 4096, .read_only = false, .release = {}};
  {
    BED_TRY_ASSIGN(const Buffer import, bed, Buffer::import(bed.device(), memory, u8, {4096}));
    BED_TRY(bed, import.copyin(pattern_bytes(4096, 5)));
  }
  BED_TRY_ASSIGN(const Bytes seen, bed, contents(original));
  EXPECT_TRUE(seen == pattern_bytes(4096, 5));
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Window window, bed, original.window());
  BED_TRY(bed, queue->fill(window, 1));
  BED_TRY(bed, queue->finish());
  int released = 0;
  {
    // The usual way to pass memory on: the release keeps the original alive.
    const auto keep = std::make_shared<Buffer>(std::move(original));
    ForeignMemory passed = memory;
    passed.release = [keep, &released] { ++released; };
    BED_TRY_ASSIGN(const Buffer import, bed, Buffer::import(bed.device(), passed, u8, {4096}));
    BED_TRY_ASSIGN(const Bytes filled, bed, contents(import));
    EXPECT_TRUE(filled == Bytes(4096, std::byte{1}));
  }
  EXPECT_EQ(released, 1);
}

// A release function may destroy a queue, also the one whose work held the memory.
void lets_a_release_destroy_a_queue(Bed& bed) {
  if (!bed.described().foreign) {
    BED_TRY(bed, bed.device()->import_block({.address = 64, .bytes = 64}));
    return;
  }
  BED_TRY_ASSIGN(ForeignMemory memory, bed, bed.described().foreign(*bed.device(), pattern_bytes(4096)));
  BED_TRY_ASSIGN(const QueuePtr first, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(QueuePtr second, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(QueuePtr third, bed, bed.device()->make_queue());
  int released = 0;
  Bytes one(4096), two(4096);
  memory.release = [&, inner = memory.release] {
    second.reset();
    third.reset();
    ++released;
    inner();
  };
  {
    BED_TRY_ASSIGN(const Buffer buffer, bed, Buffer::import(bed.device(), memory, u8, {4096}));
    BED_TRY_ASSIGN(const Window window, bed, buffer.window());
    BED_TRY(bed, first->read(window, one));
    BED_TRY(bed, first->submit());
    BED_TRY(bed, second->read(window, two));  // keeps a reference
    BED_TRY(bed, second->submit());
  }
  BED_TRY(bed, bed.device()->synchronize());
  EXPECT_EQ(released, 1);
}

void releases_an_import_that_fails(Bed& bed) {
  int released = 0;
  const auto buffer = Buffer::import(
      bed.device(), {.address = 64, .bytes = 16, .read_only = false, .release = [&] { ++released; }}, f32, {100});
  ASSERT_FALSE(buffer.has_value());
  EXPECT_EQ(released, 1);
}

void runs_a_kernel(Bed& bed) {
  if (!bed.described().add_kernel) {
    BED_TRY(bed, bed.device()->make_kernel({}));
    return;
  }
  BED_TRY_ASSIGN(const Kernel kernel, bed, bed.described().add_kernel(*bed.device()));
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  std::array<std::uint32_t, 256> input{}, output{};
  for (std::uint32_t i = 0; i < 256; ++i) input[i] = i * i;
  // Two windows of one buffer, each where the device can bind.
  const std::size_t gap = std::max<std::size_t>(1024, bed.device()->limits().binding_alignment);
  BED_TRY_ASSIGN(const Buffer buffer, bed, Buffer::allocate(bed.device(), u8, {gap + 1024}));
  BED_TRY_ASSIGN(const Buffer first, bed, buffer.view(0, 1024));
  BED_TRY_ASSIGN(const Buffer second, bed, buffer.view(gap, 1024));
  BED_TRY_ASSIGN(const Window from, bed, first.window());
  BED_TRY_ASSIGN(const Window to, bed, second.window());
  const std::uint32_t constant = 1000;
  const std::array<KernelArgument, 2> arguments = {KernelArgument{from, Access::kRead},
                                                   KernelArgument{to, Access::kWrite}};
  const Grid grid{.groups = {4, 1, 1}, .threads = {64, 1, 1}};
  BED_TRY(bed, queue->write(from, std::as_bytes(std::span(input))));
  BED_TRY(bed, queue->launch(kernel, arguments, grid, std::as_bytes(std::span(&constant, 1))));
  BED_TRY(bed, queue->read(to, std::as_writable_bytes(std::span(output))));
  BED_TRY(bed, queue->finish());
  for (std::uint32_t i = 0; i < 256; ++i) ASSERT_EQ(output[i], input[i] + 1000) << i;

  // The refusals come before the driver.
  const std::array<KernelArgument, 2> overlapping = {KernelArgument{from, Access::kRead},
                                                     KernelArgument{from, Access::kWrite}};
  const auto overlap = queue->launch(kernel, overlapping, grid, std::as_bytes(std::span(&constant, 1)));
  ASSERT_FALSE(overlap.has_value());
  EXPECT_EQ(overlap.error().code(), Code::kInvalidArgument);
  BED_TRY_ASSIGN(const Buffer no_kernels, bed,
                 Buffer::allocate(bed.device(), u8, {1024}, {.usage = Usage::kCopySource | Usage::kCopyTarget}));
  BED_TRY_ASSIGN(const Window forbidden, bed, no_kernels.window());
  const std::array<KernelArgument, 2> misused = {KernelArgument{from, Access::kRead},
                                                 KernelArgument{forbidden, Access::kWrite}};
  const auto usage = queue->launch(kernel, misused, grid, std::as_bytes(std::span(&constant, 1)));
  ASSERT_FALSE(usage.has_value());
  EXPECT_EQ(usage.error().code(), Code::kInvalidUsage);
}

void hands_out_its_native_encoder(Bed& bed) {
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY_ASSIGN(const Buffer buffer, bed, patterned(bed, 64));
  BED_TRY_ASSIGN(const Window window, bed, buffer.window());
  bool called = false;
  BED_TRY(bed, queue->record_native(std::span(&window, 1), [&](void* native) -> Result<void> {
    called = true;
    EXPECT_NE(native, nullptr);
    return {};
  }));
  EXPECT_TRUE(called);
  BED_TRY(bed, queue->finish());
  const auto failed = queue->record_native(
      std::span(&window, 1), [](void*) -> Result<void> { return Error(Code::kCancelled, Layer::kProgram, "no"); });
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code(), Code::kCancelled);
  BED_TRY(bed, queue->finish());
}

void commits_residency_once_a_submit(Bed& bed) {
  Residency* const set = bed.device()->residency();
  if (set == nullptr) {
    bed.refuse(Error(Code::kUnsupported, Layer::kDevice, "the device keeps no residency set"), __FILE__, __LINE__);
    return;
  }
  BED_TRY_ASSIGN(const QueuePtr queue, bed, bed.device()->make_queue());
  BED_TRY(bed, queue->submit());
  const ResidencyCounters before = set->counters();
  {
    std::vector<Buffer> held;
    for (int i = 0; i < 100; ++i) {
      BED_TRY_ASSIGN(Buffer buffer, bed, Buffer::allocate(bed.device(), u8, {256}));
      BED_TRY_ASSIGN(const Buffer view, bed, buffer.view(0, 16));
      held.push_back(std::move(buffer));
    }
  }
  BED_TRY(bed, queue->submit());
  const ResidencyCounters after = set->counters();
  EXPECT_EQ(after.added, before.added + 100) << "views and copies never add again";
  EXPECT_EQ(after.removed, before.removed + 100);
  EXPECT_EQ(after.commits, before.commits + 1);
  BED_TRY(bed, queue->submit());
  EXPECT_EQ(set->counters().commits, after.commits) << "an idle submit commits nothing";
}

constexpr Check kChecks[] = {
    {"CopiesToTheHostDevice", copies_to_the_host_device},
    {"CopiesFromTheHostDevice", copies_from_the_host_device},
    {"CopiesThroughViews", copies_through_views},
    {"WritesThroughViewsAndNothingElse", writes_through_views_and_nothing_else},
    {"ImportsAndReleasesOnce", imports_and_releases_once},
    {"ReleasesAnImportThatFails", releases_an_import_that_fails},
    {"ReleasesAnImportAfterRecordedWork", releases_an_import_after_recorded_work},
    {"ImportsOneMemoryTwice", imports_one_memory_twice},
    {"ImportsMemoryOfItsOwn", imports_memory_of_its_own},
    {"LetsAReleaseDestroyAQueue", lets_a_release_destroy_a_queue},
    {"RunsAKernel", runs_a_kernel},
    {"HandsOutItsNativeEncoder", hands_out_its_native_encoder},
    {"CommitsResidencyOnceASubmit", commits_residency_once_a_submit},
};

}  // namespace

std::span<const Check> sharing_checks() {
  return kChecks;
}

}  // namespace berth::conformance
