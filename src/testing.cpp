#include "berth/testing.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/try.h"
#include "berth/memory/address_space.h"
#include "berth/memory/out_of_memory.h"
#include "berth/memory/registry.h"
#include "tensor/live_storages.h"

namespace berth {

using namespace internal;

namespace {

Result<void> survive(FaultTrigger& plan) {
  if (!plan.next_fails()) return {};
  return Error(Code::kDriver, Layer::kDevice, "device call {} failed on purpose", plan.calls());
}

class FaultyQueue final : public Queue {
 public:
  FaultyQueue(Device& device, QueuePtr host, FaultTriggerPtr plan)
      : Queue(device), host_(std::move(host)), plan_(std::move(plan)) {}
  ~FaultyQueue() override { close(); }

 protected:
  bool executes_at_once() const noexcept override { return true; }
  Result<void> do_write(const Window& target, std::span<const std::byte> source) override {
    BERTH_TRY(survive(*plan_));
    return host_->write(bare(target), source);
  }
  Result<void> do_read(const Window& source, std::span<std::byte> target) override {
    BERTH_TRY(survive(*plan_));
    return host_->read(bare(source), target);
  }
  Result<void> do_copy(const Window& source, const Window& target) override {
    BERTH_TRY(survive(*plan_));
    return host_->copy(bare(source), bare(target));
  }
  Result<void> do_fill(const Window& target, std::uint8_t value) override {
    BERTH_TRY(survive(*plan_));
    return host_->fill(bare(target), value);
  }
  Result<void> do_launch(const Kernel& kernel, std::span<const KernelArgument> arguments, const Grid& grid,
                         std::span<const std::byte> constants) override {
    BERTH_TRY(survive(*plan_));
    std::vector<KernelArgument> on_host(arguments.begin(), arguments.end());
    for (KernelArgument& argument : on_host) argument.window = bare(argument.window);
    return host_->launch(kernel, on_host, grid, constants);
  }
  Result<void> do_submit(std::uint64_t value) override {
    BERTH_TRY(survive(*plan_));
    done_.store(value, std::memory_order_release);
    return {};
  }
  Result<void> do_wait(std::uint64_t) override { return {}; }
  std::uint64_t poll() noexcept override { return done_.load(std::memory_order_acquire); }

 private:
  // The host queue knows neither this device nor its owners.
  static Window bare(Window window) {
    window.owner = nullptr;
    window.device = nullptr;
    return window;
  }

  QueuePtr host_;
  FaultTriggerPtr plan_;
  std::atomic<std::uint64_t> done_{0};
};

class FaultyAddressSpace final : public AddressSpace {
 public:
  FaultyAddressSpace(std::unique_ptr<AddressSpace> host, FaultTriggerPtr plan)
      : host_(std::move(host)), plan_(std::move(plan)) {}
  std::size_t granularity() const noexcept override { return host_->granularity(); }
  bool is_host() const noexcept override { return host_->is_host(); }
  Result<std::uint64_t> reserve(std::size_t bytes) override {
    BERTH_TRY(survive(*plan_));
    return host_->reserve(bytes);
  }
  void unreserve(std::uint64_t address, std::size_t bytes) noexcept override { host_->unreserve(address, bytes); }
  Result<void> map(std::uint64_t address, std::size_t bytes) override {
    BERTH_TRY(survive(*plan_));
    return host_->map(address, bytes);
  }
  Result<void> unmap(std::uint64_t address, std::size_t bytes) override {
    BERTH_TRY(survive(*plan_));
    return host_->unmap(address, bytes);
  }
  Result<std::unique_ptr<Frames>> make_frames(std::size_t bytes, std::size_t count) override {
    BERTH_TRY(survive(*plan_));
    return host_->make_frames(bytes, count);
  }
  Result<void> map_frames(std::uint64_t address, const Frames& frames, std::size_t first, std::size_t count) override {
    BERTH_TRY(survive(*plan_));
    return host_->map_frames(address, frames, first, count);
  }
  Result<void> unmap_frames(std::uint64_t address, const Frames& frames, std::size_t count) override {
    BERTH_TRY(survive(*plan_));
    return host_->unmap_frames(address, frames, count);
  }

 private:
  std::unique_ptr<AddressSpace> host_;
  FaultTriggerPtr plan_;
};

class FaultyDevice final : public Device {
 public:
  FaultyDevice(DevicePtr host, FaultTriggerPtr plan)
      : Device("FAULTY", host->limits()), host_(std::move(host)), plan_(std::move(plan)) {}

  Result<Kernel> make_kernel(const KernelSource& source) override {
    BERTH_TRY(survive(*plan_));
    return host_->make_kernel(source);
  }
  BlockFlags expected_flags(const BlockSpec& spec) noexcept override { return host_->expected_flags(spec); }
  Result<Block> import_block(const ForeignMemory& memory) override {
    BERTH_TRY(survive(*plan_));
    return host_->import_block(memory);
  }
  Result<std::unique_ptr<AddressSpace>> make_address_space() override {
    BERTH_TRY(survive(*plan_));
    BERTH_TRY_ASSIGN(std::unique_ptr<AddressSpace> host, host_->make_address_space());
    return std::unique_ptr<AddressSpace>(std::make_unique<FaultyAddressSpace>(std::move(host), plan_));
  }

 protected:
  Result<Block> allocate_block(const BlockSpec& spec) override {
    if (plan_->next_fails()) return out_of_memory(OutOfMemory::Cause::kInjected, *this, spec);
    return host_->allocate(spec);
  }
  void free_block(const Block& block, Timepoint) noexcept override { host_->release(block); }
  Result<std::unique_ptr<Queue>> create_queue() override {
    BERTH_TRY(survive(*plan_));
    BERTH_TRY_ASSIGN(QueuePtr host, host_->make_queue());
    return std::unique_ptr<Queue>(new FaultyQueue(*this, std::move(host), plan_));
  }

 private:
  DevicePtr host_;
  FaultTriggerPtr plan_;
};

// The problem that the round left behind, or empty.
std::string leaks_of(Device& device) {
  const DeviceCounters counters = device.counters();
  if (counters.live_count == 0) return "";
  OutOfMemory holders;
  device.explain(holders);
  std::string text = fmt::format("leaked {} in {} blocks:", format_bytes(counters.live_bytes), counters.live_count);
  for (const OutOfMemory::Holder& holder : holders.holders)
    text += fmt::format(" \"{}\" {}", holder.label, format_bytes(holder.bytes));
  return text;
}

}  // namespace

namespace {

// The label without its number: labels that differ only in their last number are one holder, and its name changes with
// the numbers that are in use.
std::string_view stem_of(const std::string& label) {
  return std::string_view(label).substr(0, label.find_last_not_of("0123456789.") + 1);
}

std::vector<OutOfMemory::Holder> blocks_of(const Device& device) {
  OutOfMemory report;
  device.explain(report);
  return report.holders;
}

}  // namespace

LeakCheck::LeakCheck(DevicePtr device) : device_(std::move(device)), tracked_before_(tracks_buffers()) {
  track_buffers(true);
  newest_before_ = newest_live_serial();
  if (device_ != nullptr) blocks_before_ = blocks_of(*device_);
}

LeakCheck::~LeakCheck() {
  track_buffers(tracked_before_);
}

LeakReport LeakCheck::report() const {
  LeakReport report;
  if (device_ != nullptr) static_cast<void>(device_->synchronize());
  report.buffers = live_buffers_since(newest_before_, device_.get());
  if (device_ == nullptr) return report;
  for (OutOfMemory::Holder holder : blocks_of(*device_)) {
    const auto before = std::find_if(blocks_before_.begin(), blocks_before_.end(),
                                     [&](const auto& each) { return stem_of(each.label) == stem_of(holder.label); });
    if (before != blocks_before_.end()) {
      if (holder.count <= before->count && holder.bytes <= before->bytes) continue;
      holder.bytes -= std::min(holder.bytes, before->bytes);
      holder.count -= std::min(holder.count, before->count);
    }
    report.blocks.push_back(std::move(holder));
  }
  return report;
}

std::string LeakReport::to_string() const {
  if (ok()) return "nothing leaked\n";
  std::string text;
  if (buffers.count > 0)
    text += fmt::format("leaked {} in {} buffer{}:\n{}", format_bytes(buffers.bytes), buffers.count,
                        buffers.count == 1 ? "" : "s", buffers.to_string());
  if (!blocks.empty()) text += "the device has more blocks than before:\n";
  for (const OutOfMemory::Holder& holder : blocks)
    text += fmt::format("  {} in {} block{}, label \"{}\"\n", format_bytes(holder.bytes), holder.count,
                        holder.count == 1 ? "" : "s", holder.label);
  return text;
}

DevicePtr faulty_device(FaultTriggerPtr plan) {
  return share_device(std::make_unique<FaultyDevice>(device("CPU").value(), std::move(plan)));
}

std::string SweepReport::to_string() const {
  std::string text = fmt::format("{} rounds, {} problems", rounds, problems.size());
  for (const std::string& problem : problems) text += "\n  " + problem;
  return text;
}

SweepReport fail_each(const std::function<Result<void>(const DevicePtr&)>& scenario, const SweepOptions& options) {
  SweepReport report;
  for (std::uint64_t nth = 1; nth <= options.max_rounds; ++nth) {
    report.rounds = nth;
    const auto problem = [&](const std::string& text) {
      report.problems.push_back(fmt::format("failing call {}: {}", nth, text));
    };
    const auto plan = std::make_shared<FaultTrigger>();
    const DevicePtr device = faulty_device(plan);
    plan->fail_at(nth);
    const Result<void> result = scenario(device);
    const bool fired = plan->faults() > 0;
    plan->fail_none();
    if (!fired && !result) problem("no call failed, and yet: " + result.error().message());
    if (auto waited = device->synchronize(); !waited) problem("the device does not become idle");
    if (const std::string leaks = leaks_of(*device); !leaks.empty()) problem(leaks);
    if (device.use_count() > 1) problem("something still holds the device");
    if (options.after) {
      if (const auto works = options.after(device); !works) problem("afterwards: " + works.error().message());
      if (const std::string leaks = leaks_of(*device); !leaks.empty()) problem("afterwards: " + leaks);
    }
    if (!fired) return report;
  }
  report.problems.push_back(fmt::format("a call still failed after {} rounds", options.max_rounds));
  return report;
}

}  // namespace berth
