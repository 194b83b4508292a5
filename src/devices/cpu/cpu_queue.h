// A queue that executes operations as they are recorded. submit() only advances the timeline.
#pragma once

#include "berth/memory/queue.h"

namespace berth::internal::cpu {

class HostKernelBody final : public KernelBody {
 public:
  explicit HostKernelBody(HostKernel function) : function_(std::move(function)) {}
  void operator()(const HostCall& call) const { function_(call); }

 private:
  HostKernel function_;
};

class CpuQueue : public Queue {
 public:
  explicit CpuQueue(Device& device) : Queue(device) {}
  ~CpuQueue() override { close(); }

 protected:
  bool executes_at_once() const noexcept override { return true; }
  Result<void> do_write(const Window& target, std::span<const std::byte> source) override;
  Result<void> do_read(const Window& source, std::span<std::byte> target) override;
  Result<void> do_copy(const Window& source, const Window& target) override;
  Result<void> do_fill(const Window& target, std::uint8_t value) override;
  Result<void> do_launch(const Kernel& kernel, std::span<const KernelArgument> arguments, const Grid& grid,
                         std::span<const std::byte> constants) override;
  Result<void> do_submit(std::uint64_t value) override;
  Result<void> do_wait(std::uint64_t value) override;
  // A submit() is known to be reached when it returns; there is nothing more to ask for.
  std::uint64_t poll() noexcept override { return 0; }
};

}  // namespace berth::internal::cpu
