// Zeroed memory, memory that goes to the next user of a timeline, imports, eviction and blocking copies, combined at
// random while work is pending on several queues. A model on the host knows what every byte must be: it changes when an
// operation is recorded, and the device may lag as far behind as it likes.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "berth/alloc/caching_pool.h"
#include "berth/alloc/growable.h"
#include "berth/tensor/buffer.h"
#include "berth/tensor/evictable.h"
#include "doubles/lagging_device.h"

namespace berth {
namespace {

using Bytes = std::vector<std::byte>;

class InFlight {
 public:
  InFlight(std::uint32_t seed, bool host_pointers)
      : random_(seed), device_(doubles::LaggingDevice::make(host_pointers)), can_keep_on_host_(!host_pointers) {
    evictable_ = make_evictable(device_).value();
    growable_ = make_growable(device_, {.reserve_bytes = 1 << 20, .step_bytes = 4096}).value();
    allocators_ = {device_, make_caching_pool(device_), growable_, evictable_};
    for (int i = 0; i < 3; ++i) queues_.push_back(device_->lagging_queue());
  }

  void step() {
    switch (draw(19)) {
      case 0:
      case 1: allocate(); break;
      case 2: import(); break;
      case 3:
      case 4: fill(); break;
      case 5: write(); break;
      case 6: copy(); break;
      case 7: copy_in(); break;
      case 8: copy_out(); break;
      case 9: copy_from(); break;
      case 10: queue().submit().value(); break;
      case 11: reach(); break;
      case 12: drop(); break;
      case 13: evict(); break;
      case 14:
      case 15: drop(); break;
      case 16:
      case 17: defragment(); break;
      case 18: hold(); break;
    }
  }

  void check_all() {
    for (Held& held : buffers_) check(held);
    while (!buffers_.empty()) drop();
    // What a queue keeps is released when its work is done, and work that nobody submits would never run.
    for (auto& each : queues_) each->finish().value();
  }

 private:
  // An imported memory, which its owner looks at when it is released.
  struct Foreign {
    Bytes memory;
    const Bytes* expected = nullptr;
  };
  struct Held {
    Buffer buffer;
    std::unique_ptr<Bytes> model;
    int owner;      // the queue that used it last; -1: none
    bool must_use;  // `owner` must be the next to use it: the memory came with its timeline
    bool evictable = false;
    std::optional<Window> window{};  // keeps it where it is
  };

  std::size_t draw(std::size_t below) { return random_() % below; }
  doubles::LaggingQueue& queue() { return *queues_[draw(queues_.size())]; }

  Held* pick() { return buffers_.empty() ? nullptr : &buffers_[draw(buffers_.size())]; }

  // A queue that may use the buffer now: it waits for the one that used it last.
  int ordered_queue(std::initializer_list<Held*> uses) {
    int chosen = static_cast<int>(draw(queues_.size()));
    for (const Held* use : uses)
      if (use->must_use) chosen = use->owner;
    for (Held* use : uses) {
      // Memory that came with a timeline is touched there first.
      if (use->must_use && use->owner != chosen) touch(*use);
      if (use->owner >= 0 && use->owner != chosen) at(chosen).wait_for(at(use->owner).submit().value()).value();
      use->owner = chosen;
      use->must_use = false;
    }
    return chosen;
  }
  doubles::LaggingQueue& at(int index) { return *queues_[static_cast<std::size_t>(index)]; }

  void touch(Held& held) {
    at(held.owner).fill(held.buffer.window().value(), 0x3c).value();
    std::fill(held.model->begin(), held.model->end(), std::byte{0x3c});
    held.must_use = false;
  }

  Window window(const Held& held, std::size_t offset, std::size_t bytes) {
    Window window = held.buffer.window().value();
    window.offset += offset;
    window.bytes = bytes;
    return window;
  }

  void allocate() {
    if (buffers_.size() > 12) return drop();
    constexpr std::size_t kSizes[] = {60, 61, 700, 3000};  // few, so that memory is reused
    const std::size_t bytes = kSizes[draw(4)];
    const std::size_t which = draw(2) == 0 ? 1 + draw(2) : draw(allocators_.size());
    const int on = draw(2) == 0 ? static_cast<int>(draw(queues_.size())) : -1;
    const bool zero = draw(2) == 0;
    auto buffer = Buffer::allocate(
        allocators_[which], u8, {bytes},
        {.tag = which == 3 ? "evictable" : "", .zero = zero, .on = on < 0 ? TimelineId::kNone : at(on).timeline()});
    if (!buffer) return;  // the growable memory is full of what is pending
    Held held{*std::move(buffer), std::make_unique<Bytes>(bytes), on, on >= 0, which == 3};
    if (!zero && on >= 0) touch(held);
    if (!zero && on < 0) held.buffer.copyin(*held.model).value();
    buffers_.push_back(std::move(held));
  }

  void import() {
    auto* const foreign = new Foreign{Bytes(1 + draw(2000), std::byte{0x77}), nullptr};
    auto model = std::make_unique<Bytes>(foreign->memory);
    foreign->expected = model.get();
    const std::size_t bytes = foreign->memory.size();
    Buffer buffer = Buffer::import(device_,
                                   {.address = reinterpret_cast<std::uint64_t>(foreign->memory.data()),
                                    .bytes = bytes,
                                    .read_only = false,
                                    .release =
                                        [foreign] {
                                          EXPECT_TRUE(foreign->memory == *foreign->expected)
                                              << "released while work was pending";
                                          delete foreign;
                                        }},
                                   u8, {bytes})
                        .value();
    buffers_.push_back({std::move(buffer), std::move(model), -1, false});
  }

  void fill() {
    Held* const held = pick();
    if (held == nullptr) return;
    const std::size_t offset = draw(held->model->size());
    const std::size_t bytes = draw(held->model->size() - offset + 1);
    const auto value = static_cast<std::uint8_t>(random_());
    at(ordered_queue({held})).fill(window(*held, offset, bytes), value).value();
    std::fill_n(held->model->begin() + static_cast<std::ptrdiff_t>(offset), bytes, static_cast<std::byte>(value));
  }

  void write() {
    Held* const held = pick();
    if (held == nullptr) return;
    Bytes source(held->model->size());
    for (std::byte& each : source) each = static_cast<std::byte>(random_());
    at(ordered_queue({held})).write(held->buffer.window().value(), source).value();
    *held->model = source;
    std::fill(source.begin(), source.end(), std::byte{0xee});  // may be reused at once
  }

  void copy() {
    Held* const from = pick();
    Held* const to = pick();
    if (from == nullptr) return;
    const std::size_t bytes = std::min(from->model->size(), to->model->size());
    if (from == to || bytes == 0) return;
    doubles::LaggingQueue& queue = at(ordered_queue({from, to}));
    queue.copy(window(*from, 0, bytes), window(*to, 0, bytes)).value();
    std::copy_n(from->model->begin(), bytes, to->model->begin());
  }

  // Blocking copies come after recorded work, whatever queue it is on.
  void settle(Held& held) {
    if (held.must_use) touch(held);
  }
  void copy_in() {
    Held* const held = pick();
    if (held == nullptr) return;
    settle(*held);
    for (std::byte& each : *held->model) each = static_cast<std::byte>(random_());
    held->buffer.copyin(*held->model).value();
  }
  void copy_out() {
    if (Held* const held = pick()) check(*held);
  }
  void copy_from() {
    Held* const from = pick();
    Held* const to = pick();
    if (from == nullptr || from->model->size() != to->model->size() || from == to) return;
    settle(*from);
    settle(*to);
    to->buffer.copy_from(from->buffer).value();
    *to->model = *from->model;
  }

  void check(Held& held) {
    if (held.must_use) {  // zeroed memory that only its timeline may use
      Bytes seen(held.model->size(), std::byte{1});
      at(held.owner).read(held.buffer.window().value(), seen).value();
      at(held.owner).finish().value();
      held.must_use = false;
      EXPECT_TRUE(seen == *held.model) << "read on the timeline that the memory came with";
      return;
    }
    Bytes seen(held.model->size(), std::byte{1});
    held.buffer.copyout(seen).value();
    EXPECT_TRUE(seen == *held.model);
  }

  void reach() {
    doubles::LaggingQueue& one = queue();
    if (draw(2) == 0)
      one.reach_all();
    else
      one.reach(Timepoint::at(one.timeline(), one.next().value() - 1));
  }

  void drop() {
    if (buffers_.empty()) return;
    const std::size_t index = draw(buffers_.size());
    std::swap(buffers_[index], buffers_.back());
    // A queue may keep an import for longer, and the model must outlive its release.
    models_.push_back(std::move(buffers_.back().model));
    buffers_.pop_back();
  }

  // Buffers of the growable memory move while work is pending on others.
  void defragment() {
    const std::size_t most = draw(2) == 0 ? 5000 : 1 << 20;
    const DefragmentResult result = growable_->defragment({.max_bytes = most, .pack_addresses = draw(2) == 0});
    EXPECT_FALSE(result.error.has_value());
    for (const Held& held : buffers_) {
      if (!held.window) continue;
      EXPECT_EQ(held.buffer.window()->block.handle, held.window->block.handle);
    }
  }

  void hold() {
    Held* const held = pick();
    if (held == nullptr || held->evictable) return;
    if (held->window)
      held->window.reset();
    else
      held->window = held->buffer.window().value();
  }

  void evict() {
    for (auto& each : queues_) each->submit().value();  // as evict() requires
    constexpr Contents kAll[] = {Contents::kToFile, Contents::kDrop, Contents::kToHost};
    const Contents contents = kAll[draw(can_keep_on_host_ ? 3 : 2)];
    evictable_->evict("evictable", contents).value();
    evictable_->wake("evictable").value();
    if (contents != Contents::kDrop) return;
    for (Held& held : buffers_)
      if (held.evictable) {
        held.must_use = false;
        held.buffer.copyin(*held.model).value();
      }
  }

  std::vector<std::unique_ptr<Bytes>> models_;  // of buffers that are gone; destroyed last
  std::mt19937 random_;
  std::shared_ptr<doubles::LaggingDevice> device_;
  const bool can_keep_on_host_;
  std::shared_ptr<EvictableMemory> evictable_;
  std::shared_ptr<GrowableMemory> growable_;
  std::vector<AllocatorPtr> allocators_;
  std::vector<std::shared_ptr<doubles::LaggingQueue>> queues_;
  std::vector<Held> buffers_;
};

void run(std::uint32_t seed, bool host_pointers) {
  InFlight system(seed, host_pointers);
  for (int i = 0; i < 300 && !testing::Test::HasFailure(); ++i) system.step();
  system.check_all();
  RC_ASSERT(!testing::Test::HasFailure());
}

RC_GTEST_PROP(InFlightProperty, KeepsEveryByteOfUnifiedMemory, (std::uint32_t seed)) {
  run(seed, true);
}

RC_GTEST_PROP(InFlightProperty, KeepsEveryByteThatOnlyQueuesReach, (std::uint32_t seed)) {
  run(seed, false);
}

}  // namespace
}  // namespace berth
