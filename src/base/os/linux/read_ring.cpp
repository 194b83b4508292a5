// io_uring by its system calls: no library is needed, and a kernel without it answers ENOSYS.
#include "base/os/read_ring.h"

#include <fmt/format.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace berth::internal {
namespace {

Error refused(const char* call) {
  return Error::with_text(Code::kUnsupported, Layer::kFormat,
                          fmt::format("io_uring is not available: {}: {}", call, std::strerror(errno)));
}

class Mapped {
 public:
  Mapped(int descriptor, std::size_t bytes, std::uint64_t what)
      : bytes_(bytes),
        memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor,
                     static_cast<off_t>(what))) {}
  ~Mapped() {
    if (valid()) munmap(memory_, bytes_);
  }
  Mapped(Mapped&& other) noexcept : bytes_(other.bytes_), memory_(std::exchange(other.memory_, MAP_FAILED)) {}
  Mapped& operator=(Mapped&&) = delete;
  bool valid() const noexcept { return memory_ != MAP_FAILED; }
  template <class T>
  T* at(std::size_t offset = 0) const noexcept {
    return reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + offset);
  }

 private:
  std::size_t bytes_;
  void* memory_;
};

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&&) = delete;
  int get() const noexcept { return descriptor_; }

 private:
  int descriptor_;
};

class LinuxRing final : public ReadRing {
 public:
  LinuxRing(File file, const io_uring_params& params, Mapped submissions, Mapped completions, Mapped entries)
      : file_(std::move(file)),
        params_(params),
        submissions_(std::move(submissions)),
        completions_(std::move(completions)),
        entries_(std::move(entries)) {}

  ~LinuxRing() override {
    // A read that is in progress writes to memory of the caller. One that was not started never will be.
    for (Done done{}; running_ > 0;) {
      if (take(done)) continue;
      if (syscall(SYS_io_uring_enter, file_.get(), 0u, 1u, IORING_ENTER_GETEVENTS, nullptr, 0) < 0) usleep(100);
    }
  }

  void read(int descriptor, const iovec* parts, std::size_t count, std::uint64_t offset,
            std::uint64_t tag) noexcept override {
    const std::atomic_ref<unsigned> tail(*submissions_.at<unsigned>(params_.sq_off.tail));
    const unsigned at = tail.load(std::memory_order_relaxed);
    const unsigned slot = at & *submissions_.at<unsigned>(params_.sq_off.ring_mask);
    io_uring_sqe& entry = entries_.at<io_uring_sqe>()[slot];
    std::memset(&entry, 0, sizeof entry);
    entry.opcode = IORING_OP_READV;
    // A read from the page cache would otherwise be executed by this thread, one after the other.
    entry.flags = IOSQE_ASYNC;
    entry.fd = descriptor;
    entry.addr = reinterpret_cast<std::uint64_t>(parts);
    entry.len = static_cast<unsigned>(count);
    entry.off = offset;
    entry.user_data = tag;
    submissions_.at<unsigned>(params_.sq_off.array)[slot] = slot;
    tail.store(at + 1, std::memory_order_release);
    ++added_;
  }

  Result<Done> wait() override {
    for (Done done{};;) {
      const bool there = take(done);
      if (there && added_ == 0) return done;
      const long started =
          syscall(SYS_io_uring_enter, file_.get(), added_, there ? 0u : 1u, IORING_ENTER_GETEVENTS, nullptr, 0);
      if (started >= 0) {
        running_ += static_cast<unsigned>(started);
        added_ -= static_cast<unsigned>(started);
      } else if (errno != EINTR && errno != EAGAIN && errno != EBUSY) {
        return Error::with_text(Code::kIo, Layer::kFormat,
                                fmt::format("io_uring_enter failed: {}", std::strerror(errno)));
      }
      if (there) return done;
    }
  }

 private:
  // A read that has ended, if there is one.
  bool take(Done& done) noexcept {
    const std::atomic_ref<unsigned> head(*completions_.at<unsigned>(params_.cq_off.head));
    const std::atomic_ref<unsigned> tail(*completions_.at<unsigned>(params_.cq_off.tail));
    const unsigned at = head.load(std::memory_order_relaxed);
    if (at == tail.load(std::memory_order_acquire)) return false;
    const unsigned slot = at & *completions_.at<unsigned>(params_.cq_off.ring_mask);
    const io_uring_cqe& entry = completions_.at<io_uring_cqe>(params_.cq_off.cqes)[slot];
    done = {entry.user_data, entry.res};
    head.store(at + 1, std::memory_order_release);
    --running_;
    return true;
  }

  const File file_;
  const io_uring_params params_;
  const Mapped submissions_, completions_, entries_;
  unsigned added_ = 0;    // not yet seen by the kernel
  unsigned running_ = 0;  // started and not returned
};

}  // namespace

Result<std::unique_ptr<ReadRing>> ReadRing::make(unsigned depth) {
  io_uring_params params{};
  const long descriptor = syscall(SYS_io_uring_setup, depth, &params);
  if (descriptor < 0) return refused("io_uring_setup");
  File file(static_cast<int>(descriptor));
  Mapped submissions(file.get(), params.sq_off.array + params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
  Mapped completions(file.get(), params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING);
  Mapped entries(file.get(), params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
  if (!submissions.valid() || !completions.valid() || !entries.valid()) return refused("mmap");
  return std::unique_ptr<ReadRing>(
      new LinuxRing(std::move(file), params, std::move(submissions), std::move(completions), std::move(entries)));
}

}  // namespace berth::internal
