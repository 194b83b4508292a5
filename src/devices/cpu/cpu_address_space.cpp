#include "devices/cpu/cpu_address_space.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/os/system_pages.h"

namespace berth::internal::cpu {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

class CpuAddressSpace final : public AddressSpace {
 public:
  std::size_t granularity() const noexcept override { return page_bytes(); }
  bool is_host() const noexcept override { return true; }

  Result<std::uint64_t> reserve(std::size_t bytes) override {
    void* range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED)
      return Error(Code::kOutOfMemory, Layer::kDevice, "the system cannot reserve {b} of contiguous addresses", bytes);
    return reinterpret_cast<std::uint64_t>(range);
  }

  void unreserve(std::uint64_t address, std::size_t bytes) noexcept override {
    munmap(reinterpret_cast<void*>(address), bytes);
  }

  Result<void> map(std::uint64_t address, std::size_t bytes) override {
    void* range = reinterpret_cast<void*>(address);
    if (mprotect(range, bytes, PROT_READ | PROT_WRITE) != 0)
      return Error(Code::kOutOfMemory, Layer::kDevice, "the system cannot map memory for {b} of reserved addresses",
                   bytes);
    // Advice only: if the kernel has no huge pages, small ones are used.
    if (bytes >= kHugePage) want_huge_pages(range, bytes);
    return {};
  }

  Result<void> unmap(std::uint64_t address, std::size_t bytes) override {
    void* range = reinterpret_cast<void*>(address);
    if (!discard_pages(range, bytes))
      return Error::with_text(Code::kIo, Layer::kDevice,
                              std::string("the system failed to unmap memory: ") + std::strerror(errno));
    return {};
  }
};

}  // namespace

Result<std::unique_ptr<AddressSpace>> make_address_space() {
  return std::unique_ptr<AddressSpace>(std::make_unique<CpuAddressSpace>());
}

}  // namespace berth::internal::cpu
