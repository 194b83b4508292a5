// Every combination of memory that is growable, evictable, shareable and registrable: it works, or the error says why
// not. The table in docs/sharing.md is what this test finds.
#include "berth/tensor/memory_traits.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "berth/berth.h"
#include "doubles/cuda/cuda_testing.h"
#include "support/support.h"

namespace berth {
namespace {

using test::counting_bytes;
using test::fails_with;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kBytes = 100'000;

MemoryTraits combination(unsigned number) {
  return {.growable = (number & 1) != 0,
          .evictable = (number & 2) != 0,
          .shareable = (number & 4) != 0,
          .registrable = (number & 8) != 0};
}

Bytes contents(const Buffer& buffer) {
  Bytes bytes(buffer.size());
  EXPECT_TRUE(buffer.copyout(bytes));
  return bytes;
}

// Uses each trait that the memory was asked to have, on a buffer with contents.
void use(const DevicePtr& device, const AllocatorPtr& memory, const MemoryTraits& traits) {
  const Buffer buffer = Buffer::allocate(memory, u8, {kBytes}, {.tag = "traits"}).value();
  ASSERT_TRUE(buffer.copyin(counting_bytes(kBytes)));
  if (traits.growable) {
    const auto growable = std::dynamic_pointer_cast<GrowableMemory>(memory);
    ASSERT_NE(growable, nullptr);
    const std::size_t mapped = growable->counters().mapped_bytes;
    const Buffer more = Buffer::allocate(memory, u8, {mapped + 1}).value();
    EXPECT_GT(growable->counters().mapped_bytes, mapped);
  }
  if (traits.evictable) {
    const auto evictable = std::dynamic_pointer_cast<EvictableMemory>(memory);
    ASSERT_NE(evictable, nullptr);
    EXPECT_GE(evictable->evict("traits", Contents::kToFile).value(), kBytes);
    EXPECT_GE(evictable->wake("traits").value(), kBytes);
  }
  if (traits.shareable) {
    const SharedMemory shared = buffer.share().value();
    EXPECT_EQ(contents(Buffer::import_shared(device, shared, u8, {kBytes}).value()), counting_bytes(kBytes));
  } else {
    EXPECT_TRUE(fails_with(buffer.share(), Code::kUnsupported));
  }
  if (traits.registrable) {
    // A transport keeps the address and writes to the pages whenever it likes.
    EXPECT_FALSE(buffer.window().value().block.has(BlockFlags::kEvictable));
    const std::uint64_t address = buffer.native_handle();
    if (const auto growable = std::dynamic_pointer_cast<GrowableMemory>(memory)) {
      EXPECT_EQ(growable->defragment().moved_count, 0u);
      growable->trim();
    }
    EXPECT_EQ(buffer.native_handle(), address);
  }
  EXPECT_EQ(contents(buffer), counting_bytes(kBytes));
}

std::string row(const MemoryTraits& traits, const std::string& outcome) {
  const auto cell = [](bool has) { return has ? "yes | " : "| "; };
  return std::string("| ") + cell(traits.growable) + cell(traits.evictable) + cell(traits.shareable) +
         cell(traits.registrable) + outcome + " |\n";
}

std::string table_of(const DevicePtr& device) {
  std::string table = "| growable | evictable | shareable | registrable | |\n|---|---|---|---|---|\n";
  for (unsigned number = 0; number < 16; ++number) {
    const MemoryTraits traits = combination(number);
    const auto memory = make_memory(device, traits);
    if (memory) {
      use(device, *memory, traits);
      table += row(traits, "works: `" + std::string((*memory)->name()) + "`");
    } else {
      EXPECT_TRUE(fails_with(memory, Code::kUnsupported));
      table += row(traits, memory.error().message());
    }
  }
  return table;
}

TEST(MemoryTraits, WorkTogetherOrSayWhyNotAsTheDocumentShows) {
  const std::string table = table_of(device("CPU").value());
  std::ifstream file(BERTH_SHARING_PAGE);
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_NE(page.find(table), std::string::npos) << "docs/sharing.md must have this table:\n" << table;
}

TEST(MemoryTraits, AreTheSameOnCuda) {
  const cuda_test::CudaChoice choice;
  std::string on_cuda = table_of(device("CUDA").value());
  std::string on_cpu = table_of(device("CPU").value());
  const std::string cuda_name(device("CUDA").value()->name());
  for (auto at = on_cuda.find(cuda_name); at != std::string::npos; at = on_cuda.find(cuda_name, at))
    on_cuda.replace(at, cuda_name.size(), "CPU");
  EXPECT_EQ(on_cuda, on_cpu);
}

TEST(MemoryTraits, NeedADeviceThatHasThem) {
  EXPECT_TRUE(fails_with(make_memory(nullptr, {}), Code::kInvalidArgument));
  const DevicePtr disk = device("DISK:" BERTH_SHARING_PAGE).value();
  EXPECT_TRUE(make_memory(disk, {}));
  for (const unsigned number : {1u, 2u, 4u})
    EXPECT_TRUE(fails_with(make_memory(disk, combination(number)), Code::kUnsupported));
}

}  // namespace
}  // namespace berth
