// Arrivals in a window as a timeline: the timepoint `count` is reached when as many submits of other ranks have
// arrived. The queue records nothing of its own; it belongs to a device without memory, so that no other device waits
// for it when it synchronizes.
#pragma once

#include <cstdint>
#include <memory>

#include "berth/memory/device.h"
#include "remote/served.h"

namespace berth::internal::remote {

// The device of this rank itself: "REMOTE:rank". It has no memory.
DevicePtr make_arrival_device(std::uint32_t rank);

class ArrivalQueue final : public Queue {
 public:
  // Requires: served and engine outlive it.
  ArrivalQueue(Device& device, Engine& engine, Served& served, std::uint64_t id, std::uint64_t generation);
  ~ArrivalQueue() override;

  // The timepoint of the arrival with this number, from 1.
  Result<Timepoint> at(std::uint64_t count);

 protected:
  Result<void> do_write(const Window&, std::span<const std::byte>) override { return refuse(); }
  Result<void> do_read(const Window&, std::span<std::byte>) override { return refuse(); }
  Result<void> do_copy(const Window&, const Window&) override { return refuse(); }
  Result<void> do_fill(const Window&, std::uint8_t) override { return refuse(); }
  Result<void> do_record_native(std::span<const Window>, const std::function<Result<void>(void*)>&) override {
    return {};
  }
  Result<void> do_submit(std::uint64_t) override { return {}; }
  Result<void> do_wait(std::uint64_t value) override;
  std::uint64_t poll() noexcept override;

 private:
  static Result<void> refuse() {
    return Error(Code::kUnsupported, Layer::kQueue, "a queue of arrivals records nothing");
  }

  Engine& engine_;
  Served& served_;
  const std::uint64_t id_, generation_;
  std::uint64_t start_ = 0;  // of the timeline, which a queue before may have used
  Mutex growing_;            // one thread at a time extends the timeline
  bool ending_ = false;      // guarded by the engine's mutex: nobody waits any more
};

}  // namespace berth::internal::remote
