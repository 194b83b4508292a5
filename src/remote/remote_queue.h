// A queue of a RemoteDevice. Writes start when they are recorded and submit() is a flush, so that many of them are in
// flight together; reads, fills and copies inside the other rank are complete when they are recorded. After the loss of
// the rank every call fails, and memory that its work used is freed when the queue is destroyed.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "berth/memory/queue.h"
#include "remote/remote_device.h"

namespace berth::internal::remote {

class RemoteQueue final : public Queue {
 public:
  explicit RemoteQueue(RemoteDevice& device);
  ~RemoteQueue() override { close(); }

 protected:
  Result<void> do_write(const Window& target, std::span<const std::byte> source) override;
  Result<void> do_read(const Window& source, std::span<std::byte> target) override;
  Result<void> do_copy(const Window& source, const Window& target) override;
  Result<void> do_fill(const Window& target, std::uint8_t value) override;
  Result<void> do_submit(std::uint64_t value) override;
  Result<void> do_wait(std::uint64_t value) override;
  std::uint64_t poll() noexcept override;

 private:
  // Outlives the queue if callbacks of the engine still refer to it. Guarded by the engine's mutex.
  struct State {
    std::uint64_t done = 0;  // the highest value whose flush is complete
  };

  Result<void> write(const Window& target, std::span<const std::byte> source, bool reuse);

  RemoteDevice& device_;
  Engine& engine_;
  const TicketPtr ticket_ = std::make_shared<Ticket>();
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::map<std::uint64_t, RegionPtr> written_;  // windows written since the last submit; under the queue's lock
};

}  // namespace berth::internal::remote
