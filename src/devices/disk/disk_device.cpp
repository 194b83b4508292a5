#include "devices/disk/disk_device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/try.h"
#include "devices/cpu/cpu_queue.h"
#include "memory/host_copy.h"

namespace berth::internal::disk {
namespace {

Error io_error(const std::string& path, std::string_view what) {
  return Error::with_text(Code::kIo, Layer::kDevice, fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { ::close(descriptor_); }
  int descriptor() const noexcept { return descriptor_; }

 private:
  int descriptor_;
};

class DiskDevice final : public Device {
 public:
  DiskDevice(std::string path, int descriptor, std::size_t bytes)
      : Device("DISK:" + path, {.max_block_bytes = 0, .total_bytes = bytes, .unified_memory = true}),
        path_(std::move(path)),
        file_(descriptor) {}

  std::string description() const override {
    return fmt::format("file {}, {}", path_, format_bytes(limits().total_bytes));
  }

  BlockFlags expected_flags(const BlockSpec&) noexcept override { return kMappedFile; }

  Result<void> check_host_access(const Block&, std::size_t offset, std::size_t bytes) const override {
    BERTH_TRY_ASSIGN(const std::size_t size, current_size());
    if (offset + bytes > size) return shrank(offset, bytes, size);
    return {};
  }

  bool is_current() const noexcept {
    struct stat opened {
    }, named{};
    return fstat(file_.descriptor(), &opened) == 0 && stat(path_.c_str(), &named) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino &&
           static_cast<std::size_t>(named.st_size) == limits().total_bytes;
  }

  // Reads all of [offset, offset + target.size()) or returns an error. Large reads use all threads, because copying
  // from the page cache into new memory is limited by page faults.
  Result<void> read(std::size_t offset, std::span<std::byte> target) const {
    return for_each_piece(target.size(), [&](std::size_t at, std::size_t count) -> Result<void> {
      while (count > 0) {
        const ssize_t got = pread(file_.descriptor(), target.data() + at, count, static_cast<off_t>(offset + at));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return io_error(path_, "read failed");
        if (got == 0) {
          BERTH_TRY_ASSIGN(const std::size_t size, current_size());
          return shrank(offset, target.size(), size);
        }
        at += static_cast<std::size_t>(got);
        count -= static_cast<std::size_t>(got);
      }
      return {};
    });
  }

 protected:
  Result<Block> allocate_block(const BlockSpec& spec) override {
    if (spec.zero)
      return Error::with_text(Code::kReadOnly, Layer::kDevice,
                              fmt::format("{} is a file and cannot provide zeroed memory", path_));
    BERTH_TRY_ASSIGN(const std::size_t size, current_size());
    if (spec.bytes > size)
      return Error::with_text(Code::kInvalidArgument, Layer::kDevice,
                              fmt::format("{} has {} bytes and {} were requested", path_, size, spec.bytes));
    void* memory = mmap(nullptr, spec.bytes, PROT_READ, MAP_SHARED, file_.descriptor(), 0);
    if (memory == MAP_FAILED) return io_error(path_, "map failed");
    return Block{.handle = reinterpret_cast<std::uint64_t>(memory),
                 .host = static_cast<std::byte*>(memory),
                 .bytes = spec.bytes,
                 .flags = kMappedFile};
  }

  void free_block(const Block& block, Timepoint) noexcept override { munmap(block.host, block.bytes); }

  Result<std::unique_ptr<Queue>> create_queue() override;

 private:
  static constexpr BlockFlags kMappedFile = BlockFlags::kHostPointer | BlockFlags::kReadOnly;

  // Uses lseek instead of fstat, which returns more and takes half as long again: a model has thousands of tensors,
  // each checked in turn. Nothing depends on the file position.
  Result<std::size_t> current_size() const {
    const off_t end = lseek(file_.descriptor(), 0, SEEK_END);
    if (end < 0) return io_error(path_, "cannot tell its size");
    return static_cast<std::size_t>(end);
  }

  Error shrank(std::size_t offset, std::size_t bytes, std::size_t size) const {
    return Error::with_text(
        Code::kIo, Layer::kDevice,
        fmt::format("{}: bytes [{}, {}) are past its end at {}: the file shrank after it was opened; open it again",
                    path_, offset, offset + bytes, size));
  }

  const std::string path_;
  const File file_;
};

// Reads through the file. Operations that write were refused before.
class DiskQueue final : public cpu::CpuQueue {
 public:
  explicit DiskQueue(DiskDevice& device) : CpuQueue(device), disk_(device) {}
  ~DiskQueue() override { close(); }

 protected:
  Result<void> do_read(const Window& source, std::span<std::byte> target) override {
    return disk_.read(source.offset, target);
  }

 private:
  DiskDevice& disk_;
};

Result<std::unique_ptr<Queue>> DiskDevice::create_queue() {
  return std::unique_ptr<Queue>(new DiskQueue(*this));
}

}  // namespace

Result<DevicePtr> open(std::string path) {
  // O_NONBLOCK: opening a pipe would wait for a writer. Regular files are not affected.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return io_error(path, "cannot open");
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    return Error::with_text(Code::kIo, Layer::kDevice, path + ": not a regular file");
  }
  return share_device(
      std::make_unique<DiskDevice>(std::move(path), descriptor, static_cast<std::size_t>(status.st_size)));
}

bool is_current(const Device& device) {
  return static_cast<const DiskDevice&>(device).is_current();
}

}  // namespace berth::internal::disk
