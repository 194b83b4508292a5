#include "devices/cpu/cpu_address_space.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/os/shared_file.h"
#include "base/os/system_pages.h"
#include "base/round_up.h"

namespace berth::internal::cpu {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

Error io_error(const char* what) {
  return Error::with_text(Code::kIo, Layer::kDevice, std::string(what) + ": " + std::strerror(errno));
}

// A file in memory. Its pages are mapped as often as they are needed, and live until it is closed and nothing maps
// them.
class CpuFrames final : public Frames {
 public:
  CpuFrames(Descriptor memory, std::size_t frame_bytes) : file(std::move(memory)), bytes(frame_bytes) {}
  const Descriptor file;
  const std::size_t bytes;  // of one frame
};

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
    if (!discard_pages(range, bytes)) return io_error("the system failed to unmap memory");
    return {};
  }

  Result<std::unique_ptr<Frames>> make_frames(std::size_t bytes, std::size_t count) override {
    if (count > kMost / bytes) return no_memory(kMost);
    auto file = shared_file(bytes * count);
    if (!file) return file.error();
    return std::unique_ptr<Frames>(std::make_unique<CpuFrames>(std::move(*file), bytes));
  }

  Result<void> map_frames(std::uint64_t address, const Frames& frames, std::size_t first, std::size_t count) override {
    const auto& from = static_cast<const CpuFrames&>(frames);
    const std::size_t bytes = from.bytes * count;
    if (mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, from.file.get(),
             static_cast<off_t>(from.bytes * first)) == MAP_FAILED)
      return Error(Code::kOutOfMemory, Layer::kDevice,
                   "the system cannot map {b} of pages: a process may have as many mappings as vm.max_map_count says",
                   bytes);
    return {};
  }

  Result<void> unmap_frames(std::uint64_t address, const Frames& frames, std::size_t count) override {
    void* range = reinterpret_cast<void*>(address);
    const std::size_t bytes = static_cast<const CpuFrames&>(frames).bytes * count;
    if (mmap(range, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
      return io_error("the system failed to unmap pages");
    return {};
  }

  Result<SharedMapping> map_shareable(std::size_t bytes) override {
    auto made = shared_file(bytes);
    if (!made) return made.error();
    Descriptor file = std::move(*made);
    void* const range = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (range == MAP_FAILED) return no_memory(bytes);
    if (bytes >= kHugePage) want_huge_pages(range, bytes);
    return SharedMapping{
        .address = reinterpret_cast<std::uint64_t>(range), .bytes = bytes, .descriptor = std::move(file)};
  }

  Result<Descriptor> copy_descriptor(const Descriptor& descriptor, SharedAccess access) override {
    Descriptor copy(access == SharedAccess::kReadWrite ? fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0)
                                                       : reopen_for_reading(descriptor.get()));
    if (copy.get() < 0) return io_error("the system failed to copy the descriptor of shared memory");
    return copy;
  }

  Result<SharedMapping> map_shared(int descriptor, std::size_t bytes, SharedAccess access) override {
    // Sealed first, measured then: the size cannot change in between.
    if (!cannot_shrink(descriptor)) {
      if (errno == EBADF)
        return Error(Code::kInvalidArgument, Layer::kDevice, "{} is not an open descriptor", descriptor);
      return Error(Code::kInvalidData, Layer::kDevice,
                   "the descriptor {} is not memory with a sealed size: whoever shrinks it would end this process; "
                   "share it with Buffer::share, or add F_SEAL_SHRINK",
                   descriptor);
    }
    struct stat status {};
    if (fstat(descriptor, &status) != 0) return io_error("the system cannot tell the size of shared memory");
    const auto size = static_cast<std::size_t>(status.st_size);
    if (size == 0 || size < bytes)
      return Error(Code::kSizeMismatch, Layer::kDevice,
                   "shared memory of {} bytes to import, and the descriptor has {}", bytes, size);
    const bool writes = access == SharedAccess::kReadWrite;
    void* const range = mmap(nullptr, size, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, descriptor, 0);
    if (range != MAP_FAILED)
      return SharedMapping{.address = reinterpret_cast<std::uint64_t>(range), .bytes = size, .descriptor = {}};
    if (errno == EACCES || errno == EPERM)
      return Error(Code::kReadOnly, Layer::kDevice,
                   "{} bytes were shared for reading and cannot be imported for writing: share them with "
                   "SharedAccess::kReadWrite",
                   size);
    return no_memory(size);
  }

  void unmap_shared(std::uint64_t address, std::size_t bytes) noexcept override {
    munmap(reinterpret_cast<void*>(address), bytes);
  }

 private:
  static constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 4;

  static Result<Descriptor> shared_file(std::size_t bytes) {
    Descriptor file(make_shared_file(bytes));
    if (file.get() >= 0) return file;
    if (errno == ENOTSUP)
      return Error(Code::kUnsupported, Layer::kDevice,
                   "this system has no memory with a sealed size, which sharing {} bytes needs", bytes);
    if (errno == ENOMEM || errno == EFBIG || errno == EINVAL) return no_memory(bytes);
    return io_error("the system failed to make memory that processes can share");
  }
  static Error no_memory(std::size_t bytes) {
    return Error(Code::kOutOfMemory, Layer::kDevice, "the system cannot map {b} of shared memory", bytes);
  }
};

}  // namespace

Result<std::unique_ptr<AddressSpace>> make_address_space() {
  return std::unique_ptr<AddressSpace>(std::make_unique<CpuAddressSpace>());
}

}  // namespace berth::internal::cpu
