// Random sequences of buffer and view operations, compared with a model that a child could check: a storage is a
// vector of bytes, and a handle is a storage with an offset and a length.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "berth/alloc/caching_pool.h"
#include "berth/berth.h"

namespace berth {
namespace {

struct ModelStorage {
  std::vector<std::byte> bytes;
  bool allocated = false;
};

struct Pair {
  Buffer buffer;
  std::shared_ptr<ModelStorage> storage;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

std::vector<std::byte> model_bytes(const Pair& pair) {
  const auto begin = pair.storage->bytes.begin() + static_cast<std::ptrdiff_t>(pair.offset);
  return {begin, begin + static_cast<std::ptrdiff_t>(pair.bytes)};
}

void expect_equal(const Pair& pair) {
  RC_ASSERT(pair.buffer.size() == pair.bytes);
  RC_ASSERT(pair.buffer.byte_offset() == pair.offset);
  RC_ASSERT(pair.buffer.total_size() == pair.storage->bytes.size());
  RC_ASSERT(pair.buffer.is_allocated() == pair.storage->allocated);
  std::vector<std::byte> seen(pair.bytes);
  const auto copied = pair.buffer.copyout(seen);
  RC_ASSERT(copied.has_value() == pair.storage->allocated);
  if (copied) RC_ASSERT(seen == model_bytes(pair));
}

// Small numbers, and now and then one that tries to overflow.
std::size_t any_offset(std::size_t around) {
  if (*rc::gen::inRange(0, 20) == 0) return ~std::size_t{0} - *rc::gen::inRange<std::size_t>(0, 4);
  return *rc::gen::inRange<std::size_t>(0, around + 3);
}

void run_model(const AllocatorPtr& allocator) {
  std::vector<Pair> pairs;
  const int steps = *rc::gen::inRange(1, 40);
  for (int step = 0; step < steps; ++step) {
    const int what = pairs.empty() ? 0 : *rc::gen::inRange(0, 8);
    if (what == 0) {
      const auto bytes = *rc::gen::inRange<std::size_t>(0, 200);
      const bool lazy = *rc::gen::arbitrary<bool>();
      auto storage = std::make_shared<ModelStorage>();
      storage->bytes.resize(bytes);
      storage->allocated = !lazy;
      // Zeroed, so that fresh bytes are defined in the model too.
      auto buffer = lazy ? Buffer::lazy(allocator, u8, {bytes}, {.zero = true})
                         : Buffer::allocate(allocator, u8, {bytes}, {.zero = true});
      RC_ASSERT(buffer.has_value());
      pairs.push_back({*buffer, std::move(storage), 0, bytes});
      continue;
    }
    const auto at = *rc::gen::inRange<std::size_t>(0, pairs.size());
    const Pair pair = pairs[at];
    switch (what) {
      case 1: {  // a view, perhaps outside
        const std::size_t offset = any_offset(pair.bytes), bytes = any_offset(pair.bytes);
        const bool inside = offset <= pair.bytes && bytes <= pair.bytes && offset + bytes <= pair.bytes;
        auto view = pair.buffer.view(offset, bytes);
        RC_ASSERT(view.has_value() == inside);
        if (!view) {
          RC_ASSERT(view.error().code() == Code::kInvalidView);
          break;
        }
        RC_ASSERT(view->storage_id() == pair.buffer.storage_id());
        RC_ASSERT(view->id() != pair.buffer.id());
        pairs.push_back({*view, pair.storage, pair.offset + offset, bytes});
        break;
      }
      case 2: {  // copyin, perhaps of the wrong size
        const bool right = *rc::gen::inRange(0, 4) != 0;
        const std::vector<std::byte> source(pair.bytes + (right ? 0 : 1), static_cast<std::byte>(step + 1));
        const auto copied = pair.buffer.copyin(source);
        RC_ASSERT(copied.has_value() == right);
        if (!right) break;
        pair.storage->allocated = true;
        std::copy(source.begin(), source.end(), pair.storage->bytes.begin() + static_cast<std::ptrdiff_t>(pair.offset));
        break;
      }
      case 3: {  // copy_from another handle, perhaps of the same storage and overlapping
        const Pair source = pairs[*rc::gen::inRange<std::size_t>(0, pairs.size())];
        const auto copied = pair.buffer.copy_from(source.buffer);
        const bool fits = source.bytes == pair.bytes && source.storage->allocated;
        RC_ASSERT(copied.has_value() == fits);
        if (!fits) break;
        pair.storage->allocated = true;
        const std::vector<std::byte> bytes = model_bytes(source);
        std::copy(bytes.begin(), bytes.end(), pair.storage->bytes.begin() + static_cast<std::ptrdiff_t>(pair.offset));
        break;
      }
      case 4:  // allocate now
        RC_ASSERT(pair.buffer.ensure_allocated().has_value());
        pair.storage->allocated = true;
        break;
      case 5: {  // write one byte through the host pointer
        const auto bytes = pair.buffer.as_host_bytes_mut();
        RC_ASSERT(bytes.has_value());
        pair.storage->allocated = true;
        if (bytes->empty()) break;
        bytes->back() = std::byte{0x3c};
        pair.storage->bytes[pair.offset + pair.bytes - 1] = std::byte{0x3c};
        break;
      }
      case 6:  // a copy of the handle
        pairs.push_back(pair);
        RC_ASSERT(pairs.back().buffer.id() == pair.buffer.id());
        RC_ASSERT(!pair.buffer.is_unique());
        break;
      default:  // a drop
        pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(at));
        break;
    }
    for (const Pair& each : pairs) expect_equal(each);
  }
}

TEST(BufferModel, HoldsOnTheDevice) {
  const DevicePtr cpu = device("CPU").value();
  const std::size_t before = cpu->counters().live_bytes;
  EXPECT_TRUE(rc::check([&] { run_model(cpu); }));
  EXPECT_EQ(cpu->counters().live_bytes, before);
}

TEST(BufferModel, HoldsOnAPoolThatReusesMemory) {
  const auto cache = make_caching_pool(device("CPU").value(), {.max_cached_bytes = 2000});
  EXPECT_TRUE(rc::check([&] { run_model(cache); }));
  EXPECT_EQ(cache->counters().live_count, 0u);
  EXPECT_TRUE(cache->check().has_value());
}

}  // namespace
}  // namespace berth
