#include "devices/cpu/cpu_queue.h"

#include <array>
#include <exception>
#include <string>

#include "base/try.h"
#include "memory/host_copy.h"

namespace berth::internal::cpu {

Result<void> CpuQueue::do_write(const Window& target, std::span<const std::byte> source) {
  copy_host(target.block.host + target.offset, source.data(), source.size());
  return {};
}

Result<void> CpuQueue::do_read(const Window& source, std::span<std::byte> target) {
  copy_host(target.data(), source.block.host + source.offset, target.size());
  return {};
}

Result<void> CpuQueue::do_copy(const Window& source, const Window& target) {
  copy_host(target.block.host + target.offset, source.block.host + source.offset, source.bytes);
  return {};
}

Result<void> CpuQueue::do_fill(const Window& target, std::uint8_t value) {
  fill_host(target.block.host + target.offset, value, target.bytes);
  return {};
}

Result<void> CpuQueue::do_launch(const Kernel& kernel, std::span<const KernelArgument> arguments, const Grid& grid,
                                 std::span<const std::byte> constants) {
  const auto* body = dynamic_cast<const HostKernelBody*>(kernel.get());
  if (body == nullptr) return Error(Code::kInvalidArgument, Layer::kQueue, "the kernel was made by another device");
  std::array<std::span<std::byte>, 16> windows;
  if (arguments.size() > windows.size())
    return Error(Code::kInvalidArgument, Layer::kQueue, "a launch with {} windows exceeds the limit of {}",
                 arguments.size(), windows.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Window& window = arguments[i].window;
    windows[i] = {window.block.host + window.offset, window.bytes};
  }
  try {
    (*body)({.windows = std::span(windows).first(arguments.size()), .grid = grid, .constants = constants});
  } catch (const std::exception& thrown) {
    return Error::with_text(Code::kDriver, Layer::kQueue, std::string("a kernel threw: ") + thrown.what());
  }
  return {};
}

Result<void> CpuQueue::do_submit(std::uint64_t) {
  return {};
}

Result<void> CpuQueue::do_wait(std::uint64_t) {
  return {};
}

}  // namespace berth::internal::cpu
