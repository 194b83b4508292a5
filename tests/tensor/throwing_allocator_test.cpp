// Allocators and callbacks that throw: the exception passes through, and nothing is left half done.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "berth/alloc/adaptor.h"
#include "berth/alloc/caching_pool.h"
#include "berth/alloc/limit.h"
#include "berth/memory/registry.h"
#include "berth/tensor/buffer.h"
#include "berth/tensor/evictable.h"
#include "devices/cpu/cpu_device.h"
#include "doubles/lagging_device.h"

namespace berth {
namespace {

// Throws where a test says so.
class Throwing final : public AllocatorAdaptor {
 public:
  explicit Throwing(AllocatorPtr inner) : AllocatorAdaptor(std::move(inner)) {}
  Result<Block> allocate(const BlockSpec& spec) override {
    if (throws) throw std::runtime_error("an allocator threw");
    return inner()->allocate(spec);
  }
  void release(const Block& block, Timepoint last_use) noexcept override { inner()->release(block, last_use); }
  std::string_view name() const noexcept override { return "throwing"; }

  bool throws = true;
};

TEST(ThrowingAllocator, LeavesALazyBufferLazyAndUsable) {
  const auto allocator = std::make_shared<Throwing>(device("CPU").value());
  const Buffer buffer = Buffer::lazy(allocator, u8, {100}).value();
  EXPECT_THROW(static_cast<void>(buffer.ensure_allocated()), std::runtime_error);
  EXPECT_FALSE(buffer.is_allocated());
  EXPECT_THROW(static_cast<void>(buffer.copyin(std::vector<std::byte>(100))), std::runtime_error);
  allocator->throws = false;
  EXPECT_TRUE(buffer.ensure_allocated().has_value());
  EXPECT_TRUE(buffer.is_allocated());
}

TEST(ThrowingAllocator, LeavesTheCountersOfTheLayersAboveAsTheyWere) {
  const auto allocator = std::make_shared<Throwing>(device("CPU").value());
  const auto limit = make_limit(allocator, 1000);
  EXPECT_THROW(static_cast<void>(limit->allocate({.bytes = 900})), std::runtime_error);
  const auto pool = make_caching_pool(allocator, {.budget = 1024});
  EXPECT_THROW(static_cast<void>(pool->allocate({.bytes = 900})), std::runtime_error);
  allocator->throws = false;
  const auto limited = limit->allocate({.bytes = 900});
  ASSERT_TRUE(limited.has_value()) << limited.error().message();
  limit->release(*limited);
  const auto pooled = pool->allocate({.bytes = 900});
  ASSERT_TRUE(pooled.has_value()) << pooled.error().message();
  pool->release(*pooled);
  EXPECT_TRUE(pool->check().has_value());
}

TEST(ThrowingAllocator, MayBeAPressureCallback) {
  const DevicePtr cpu = internal::cpu::open().value();
  cpu->set_budget(1 << 20);
  cpu->on_pressure([](const BlockSpec&) -> bool { throw std::runtime_error("a callback threw"); });
  const auto evictable = make_evictable(cpu).value();
  const Buffer plain = Buffer::lazy(cpu, u8, {2 << 20}).value();
  const Buffer paged = Buffer::lazy(evictable, u8, {2 << 20}).value();
  for (const Buffer* buffer : {&plain, &paged})
    EXPECT_THROW(static_cast<void>(buffer->ensure_allocated()), std::runtime_error);
  EXPECT_EQ(cpu->counters().live_bytes, 0u);
  EXPECT_EQ(evictable->counters().resident_bytes, 0u);
  cpu->set_budget(0);
  for (const Buffer* buffer : {&plain, &paged}) EXPECT_TRUE(buffer->ensure_allocated().has_value());
}

TEST(ThrowingAllocator, MayBeARecordFunction) {
  class Native final : public Queue {  // what it needs to have an encoder
   public:
    explicit Native(Device& device) : Queue(device) {}
    ~Native() override { close(); }
    bool failed_midway = false;

   protected:
    Result<void> do_write(const Window&, std::span<const std::byte>) override { return {}; }
    Result<void> do_read(const Window&, std::span<std::byte>) override { return {}; }
    Result<void> do_copy(const Window&, const Window&) override { return {}; }
    Result<void> do_fill(const Window&, std::uint8_t) override { return {}; }
    Result<void> do_record_native(std::span<const Window>,
                                  const std::function<Result<void>(void* native)>& record) override {
      auto recorded = record(this);
      failed_midway = !recorded;
      return recorded;
    }
    Result<void> do_submit(std::uint64_t) override { return {}; }
    Result<void> do_wait(std::uint64_t) override { return {}; }
    std::uint64_t poll() noexcept override { return 0; }
  };
  const auto lagging = doubles::LaggingDevice::make();
  Native queue(*lagging);
  EXPECT_THROW(
      static_cast<void>(queue.record_native({}, [](void*) -> Result<void> { throw std::runtime_error("a record"); })),
      std::runtime_error);
  EXPECT_TRUE(queue.failed_midway) << "the device was told, as of any failure in the middle";
  EXPECT_TRUE(queue.fill({}, 1).has_value()) << "no lock is left behind";
}

}  // namespace
}  // namespace berth
