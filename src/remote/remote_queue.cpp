#include "remote/remote_queue.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/try.h"

namespace berth::internal::remote {

RemoteQueue::RemoteQueue(RemoteDevice& device) : Queue(device), device_(device), engine_(device.engine()) {
  // A timeline starts where the queue before it ended.
  state_->done = next().value() - 1;
}

Result<void> RemoteQueue::write(const Window& target, std::span<const std::byte> source, bool reuse) {
  BERTH_TRY_ASSIGN(const RemoteDevice::Place place, device_.find(target));
  BERTH_TRY(remote::write(engine_, *place.region, place.offset, source, ticket_, reuse));
  if (place.region->is_window) written_.emplace(place.region->id, place.region);
  return {};
}

Result<void> RemoteQueue::do_write(const Window& target, std::span<const std::byte> source) {
  return write(target, source, true);
}

Result<void> RemoteQueue::do_read(const Window& source, std::span<std::byte> target) {
  BERTH_TRY_ASSIGN(const RemoteDevice::Place place, device_.find(source));
  return remote::read(engine_, *place.region, place.offset, target);
}

Result<void> RemoteQueue::do_copy(const Window& source, const Window& target) {
  const bool from_host = source.device != nullptr && source.device != &device_;
  const bool to_host = target.device != nullptr && target.device != &device_;
  if (from_host) return write(target, source.host_bytes(), false);
  if (to_host) return do_read(source, target.host_bytes());
  BERTH_TRY_ASSIGN(const RemoteDevice::Place from, device_.find(source));
  BERTH_TRY_ASSIGN(const RemoteDevice::Place to, device_.find(target));
  BERTH_TRY(remote::copy(engine_, *from.region, from.offset, *to.region, to.offset, source.bytes));
  if (to.region->is_window) written_.emplace(to.region->id, to.region);
  return {};
}

Result<void> RemoteQueue::do_fill(const Window& target, std::uint8_t value) {
  BERTH_TRY_ASSIGN(const RemoteDevice::Place place, device_.find(target));
  BERTH_TRY(remote::fill(engine_, *place.region, place.offset, target.bytes, value));
  if (place.region->is_window) written_.emplace(place.region->id, place.region);
  return {};
}

Result<void> RemoteQueue::do_submit(std::uint64_t value) {
  auto written = std::exchange(written_, {});
  const MutexLock lock(engine_.mutex);
  BERTH_TRY(engine_.check(device_.rank()));
  engine_.flush(device_.rank(),
                [&engine = engine_, state = state_, value, written = std::move(written)](bool succeeded) {
                  engine.mutex.assert_held();
                  if (!succeeded) return;
                  // Only now: the owner may use the bytes as soon as it hears of them.
                  for (const auto& [id, region] : written) arrive(engine, *region);
                  state->done = std::max(state->done, value);
                });
  return {};
}

Result<void> RemoteQueue::do_wait(std::uint64_t value) {
  const MutexLock lock(engine_.mutex);
  engine_.wait([&] {
    engine_.mutex.assert_held();
    // Later puts may go on. Those that a lost rank ends may still read their source until they have ended.
    return state_->done >= value || (engine_.is_lost(device_.rank()) && ticket_->in_flight == 0);
  });
  if (state_->done >= value) return {};
  return engine_.check(device_.rank());
}

std::uint64_t RemoteQueue::poll() noexcept {
  const MutexLock lock(engine_.mutex);
  // What a lost rank has not confirmed is not done: wait() reports it. Destroying the queue frees what it used.
  return state_->done;
}

}  // namespace berth::internal::remote
