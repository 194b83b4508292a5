#include "remote/arrival.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"

namespace berth::internal::remote {
namespace {

// Counts higher than this are mistakes: a timeline advances one step at a time.
constexpr std::uint64_t kMostAhead = std::uint64_t{1} << 20;

class ArrivalDevice final : public Device {
 public:
  explicit ArrivalDevice(std::uint32_t rank) : Device(fmt::format("REMOTE:{}", rank), {}) {}
  BlockFlags expected_flags(const BlockSpec&) noexcept override { return BlockFlags::kNone; }

 protected:
  Result<Block> allocate_block(const BlockSpec&) override { return no_memory(); }
  void free_block(const Block&, Timepoint) noexcept override {}
  Result<std::unique_ptr<Queue>> create_queue() override { return no_memory(); }

 private:
  static Error no_memory() {
    return Error(Code::kUnsupported, Layer::kDevice, "this rank's own memory is the device CPU");
  }
};

// While one exists, arrivals are told. Under the engine's mutex.
class Listening {
 public:
  Listening(Served& served, std::uint64_t id, std::uint64_t generation)
      : served_(served), id_(id), generation_(generation) {
    served_.listen(id_, generation_);
  }
  ~Listening() { served_.stop_listening(id_, generation_); }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

 private:
  Served& served_;
  const std::uint64_t id_, generation_;
};

}  // namespace

DevicePtr make_arrival_device(std::uint32_t rank) {
  return share_device(std::make_unique<ArrivalDevice>(rank));
}

ArrivalQueue::ArrivalQueue(Device& device, Engine& engine, Served& served, std::uint64_t id, std::uint64_t generation)
    : Queue(device), engine_(engine), served_(served), id_(id), generation_(generation), start_(next().value() - 1) {}

ArrivalQueue::~ArrivalQueue() {
  {
    const MutexLock lock(engine_.mutex);
    ending_ = true;
    engine_.changed();
  }
  close();
}

Result<Timepoint> ArrivalQueue::at(std::uint64_t count) {
  const MutexLock lock(growing_);
  const std::uint64_t wanted = start_ + count;
  if (wanted > next().value() + kMostAhead)
    return Error(Code::kInvalidArgument, Layer::kQueue, "arrival {} is too far ahead of the {} asked for before", count,
                 next().value() - 1 - start_);
  while (next().value() <= wanted) {
    BERTH_TRY(record_native({}, [](void*) -> Result<void> { return {}; }));
    BERTH_TRY(submit());
  }
  return Timepoint::at(timeline(), wanted);
}

Result<void> ArrivalQueue::do_wait(std::uint64_t value) {
  const Clock::time_point asked = Clock::now();
  const MutexLock lock(engine_.mutex);
  const Listening listening(served_, id_, generation_);
  while (true) {
    const auto seen = served_.arrivals(id_, generation_);
    if (!seen) return seen.error();
    if (start_ + seen->count >= value || ending_) return {};
    if (seen->lost) return engine_.check(*seen->lost);
    const Clock::time_point until = std::max(asked, seen->last) + engine_.options().give_up_after;
    if (Clock::now() >= until)
      return Error(Code::kDeviceUnavailable, Layer::kQueue,
                   "{} of {} arrivals came to window {}, and no other within ClusterOptions::give_up_after",
                   seen->count, value - start_, id_);
    engine_.wait_until(
        [&] {
          engine_.mutex.assert_held();
          const auto now = served_.arrivals(id_, generation_);
          return ending_ || !now || now->count != seen->count || now->lost;
        },
        until);
  }
}

std::uint64_t ArrivalQueue::poll() noexcept {
  const MutexLock lock(engine_.mutex);
  const auto seen = served_.arrivals(id_, generation_);
  // Nothing arrives in a window that is closed, and nobody needs to wait for it.
  return seen ? start_ + seen->count : next().value();
}

}  // namespace berth::internal::remote
