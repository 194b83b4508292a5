#include "weights/load.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <system_error>
#include <thread>

#include "base/crc32.h"
#include "base/os/system_pages.h"
#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/memory/registry.h"
#include "weights/load_plan.h"
#include "weights/read_job.h"

namespace berth::internal::formats {
namespace {

constexpr std::uint64_t kDirectAlignment = 4096;

// The state that all threads of one load share: the plan, cancellation and progress.
class Loading {
 public:
  Loading(std::span<const FileSource> sources, const LoadPlan& plan, const LoadOptions& options)
      : sources_(sources), plan_(plan), options_(options) {
    if (!options.direct) return;
    // A second descriptor per file. Ordinary reads are used if the file system has no direct reads, and if the path
    // leads to another file by now.
    for (const FileSource& source : sources) {
      direct_.push_back(open_past_cache(source.path().c_str()));
      if (direct_.back() < 0 || source.is_same_file(direct_.back())) continue;
      ::close(direct_.back());
      direct_.back() = -1;
    }
  }
  ~Loading() {
    for (const int descriptor : direct_)
      if (descriptor >= 0) ::close(descriptor);
  }
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

  const LoadPlan& plan() const noexcept { return plan_; }
  const LoadOptions& options() const noexcept { return options_; }

  bool stopped() const noexcept { return stopped_.load(std::memory_order_relaxed); }

  void fail(Error error) {
    const MutexLock lock(mutex_);
    if (!error_) error_ = std::move(error);
    stopped_.store(true, std::memory_order_relaxed);
  }

  // Counts bytes as loaded and asks the caller whether to continue.
  void advance(std::uint64_t bytes) {
    if (options_.cancel.stop_requested()) return fail(cancelled());
    if (!options_.progress) return;
    bool go_on = true;
    {
      const MutexLock lock(progress_mutex_);
      done_ += bytes;
      go_on = options_.progress({.bytes_done = done_, .bytes_total = plan_.bytes});
    }
    if (!go_on) fail(cancelled());
  }

  Result<void> result() {
    const MutexLock lock(mutex_);
    if (error_) return *error_;
    return {};
  }

  unsigned threads(std::size_t jobs) const noexcept {
    unsigned wanted = options_.threads != 0 ? options_.threads : std::min(8u, std::thread::hardware_concurrency());
    return static_cast<unsigned>(std::clamp<std::size_t>(wanted, 1, std::max<std::size_t>(jobs, 1)));
  }

  std::span<const LoadPiece> pieces(const LoadJob& job) const noexcept {
    return std::span(plan_.pieces).subspan(job.first, job.last - job.first);
  }

  // Reads the whole range of the job, including gaps, into `into`, which must hold it.
  Result<void> read_stretch(const LoadJob& job, std::span<std::byte> into) const {
    const auto all = pieces(job);
    const std::uint64_t begin = all.front().offset;
    const std::uint64_t end = all.back().offset + all.back().bytes;
    return sources_[all.front().file].read(begin, into.first(end - begin));
  }

  // Reads each piece to its address in host memory.
  Result<void> read_scattered(const LoadJob& job, std::span<std::byte* const> targets) const {
    const auto all = pieces(job);
    return formats::read_scattered(sources_[all.front().file], all, targets);
  }

  // Bypasses the page cache: aligned reads into `bounce`, then copies. The disk is slower than the copies.
  Result<void> read_direct(const LoadJob& job, std::span<std::byte* const> targets, std::span<std::byte> bounce) const {
    const auto all = pieces(job);
    const std::uint64_t begin = all.front().offset / kDirectAlignment * kDirectAlignment;
    const std::uint64_t end = all.back().offset + all.back().bytes;
    const int descriptor = direct_[all.front().file];
    if (descriptor < 0) return read_scattered(job, targets);
    const FileSource& source = sources_[all.front().file];
    for (std::uint64_t at = begin; at < end;) {
      const std::uint64_t want = (end - at + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
      const ssize_t got = ::pread(descriptor, bounce.data() + (at - begin), want, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EINVAL) return read_scattered(job, targets);
      if (got <= 0) return read_failed(source, at, got);
      at += static_cast<std::uint64_t>(got);
    }
    for (const LoadPiece& piece : all)
      std::memcpy(targets[piece.request] + piece.target, bounce.data() + (piece.offset - begin), piece.bytes);
    return {};
  }

 private:
  static Error cancelled() {
    return Error(Code::kCancelled, Layer::kFormat, "loading was cancelled; nothing was kept");
  }

  std::span<const FileSource> sources_;
  const LoadPlan& plan_;
  const LoadOptions& options_;
  std::vector<int> direct_;
  std::atomic<bool> stopped_{false};
  Mutex mutex_;
  std::optional<Error> error_ BERTH_GUARDED_BY(mutex_);
  Mutex progress_mutex_;
  std::uint64_t done_ BERTH_GUARDED_BY(progress_mutex_) = 0;
};

// Runs `work` on `count` threads, including this one. If the system refuses a thread, the others do its work.
template <class Work>
void on_threads(unsigned count, const Work& work) {
  std::vector<std::jthread> others;
  for (unsigned i = 1; i < count; ++i) {
    try {
      others.emplace_back(work);
    } catch (const std::system_error&) {
      break;
    }
  }
  work();
}

Result<void> load_to_host(Loading& loading, std::span<std::byte* const> targets) {
  const LoadPlan& plan = loading.plan();
  std::atomic<std::size_t> next{0};
  on_threads(loading.threads(plan.jobs.size()), [&] {
    const bool direct = loading.options().direct;
    struct Free {
      void operator()(std::byte* memory) const noexcept { std::free(memory); }
    };
    const std::size_t bounce_bytes = direct ? kJobBytes + 2 * kDirectAlignment : 0;
    const std::unique_ptr<std::byte, Free> bounce(
        direct ? static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, bounce_bytes)) : nullptr);
    while (!loading.stopped()) {
      const std::size_t number = next.fetch_add(1, std::memory_order_relaxed);
      if (number >= plan.jobs.size()) return;
      const LoadJob& job = plan.jobs[number];
      auto done = bounce ? loading.read_direct(job, targets, {bounce.get(), bounce_bytes})
                         : loading.read_scattered(job, targets);
      if (!done) return loading.fail(std::move(done).error());
      std::uint64_t bytes = 0;
      for (const LoadPiece& piece : loading.pieces(job)) bytes += piece.bytes;
      loading.advance(bytes);
    }
  });
  return loading.result();
}

// Readers fill staging buffers in file order; this thread passes them to the device's queue as they arrive.
class StagedLoad {
 public:
  StagedLoad(Loading& loading, std::vector<std::uint32_t>& checksums) : loading_(loading), checksums_(checksums) {}

  Result<void> run(Device& device) {
    const unsigned readers = loading_.threads(loading_.plan().jobs.size());
    BERTH_TRY_ASSIGN(const DevicePtr host, berth::device("CPU"));
    for (unsigned i = 0; i < readers + 2; ++i) {
      BERTH_TRY_ASSIGN(Buffer staging, Buffer::allocate(host, DType::kU8, {kJobBytes}, {.label = "weights staging"}));
      staging_.push_back(std::move(staging));
    }
    {
      const MutexLock lock(mutex_);
      for (unsigned i = 0; i < readers + 2; ++i) free_.push_back(i);
      ready_.assign(loading_.plan().jobs.size(), kNotReady);
    }
    BERTH_TRY_ASSIGN(Queue* const queue, device.default_queue());
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < readers; ++i) {
      try {
        threads.emplace_back([this] { read_jobs(); });
      } catch (const std::system_error& refused) {
        if (threads.empty()) return Error::with_text(Code::kIo, Layer::kFormat, refused.what());
        break;
      }
    }
    auto uploaded = upload(*queue);
    if (!uploaded) loading_.fail(uploaded.error());
    {
      const MutexLock lock(mutex_);
      changed_.notify_all();
    }
    threads.clear();
    BERTH_TRY(loading_.result());
    return queue->finish();
  }

 private:
  static constexpr unsigned kNotReady = ~0u;

  void read_jobs() {
    for (;;) {
      unsigned slot;
      std::size_t number;
      {
        // A reader takes a staging buffer before it takes a job, so the lowest unfinished job always has a buffer.
        const MutexLock lock(mutex_);
        while (free_.empty() && !loading_.stopped() && next_ < ready_.size()) changed_.wait(mutex_);
        if (loading_.stopped() || next_ >= ready_.size()) return;
        slot = free_.front();
        free_.pop_front();
        number = next_++;
      }
      auto done = loading_.read_stretch(loading_.plan().jobs[number], *staging_[slot].as_host_bytes_mut());
      if (!done) loading_.fail(std::move(done).error());
      const MutexLock lock(mutex_);
      ready_[number] = slot;
      changed_.notify_all();
      if (loading_.stopped()) return;
    }
  }

  Result<void> upload(Queue& queue) {
    std::deque<Timepoint> in_flight;
    for (std::size_t number = 0; number < loading_.plan().jobs.size(); ++number) {
      unsigned slot;
      {
        const MutexLock lock(mutex_);
        while (ready_[number] == kNotReady && !loading_.stopped()) changed_.wait(mutex_);
        if (loading_.stopped()) return loading_.result();
        slot = ready_[number];
      }
      const auto pieces = loading_.pieces(loading_.plan().jobs[number]);
      const std::span<const std::byte> staged = *staging_[slot].as_host_bytes();
      std::uint64_t bytes = 0;
      for (const LoadPiece& piece : pieces) {
        const auto source = staged.subspan(piece.offset - pieces.front().offset, piece.bytes);
        BERTH_TRY_ASSIGN(Window window, loading_.plan().buffers[piece.request].window());
        window.offset += piece.target;
        window.bytes = piece.bytes;
        BERTH_TRY(queue.write(window, source));
        if (!checksums_.empty()) checksums_[piece.request] = crc32(source, checksums_[piece.request]);
        bytes += piece.bytes;
      }
      {
        const MutexLock lock(mutex_);
        free_.push_back(slot);
        changed_.notify_all();
      }
      BERTH_TRY_ASSIGN(const Timepoint sent, queue.submit());
      in_flight.push_back(sent);
      if (in_flight.size() > 4) {  // keeps the driver's own staging small
        BERTH_TRY(queue.wait(in_flight.front()));
        in_flight.pop_front();
      }
      loading_.advance(bytes);
    }
    return loading_.result();
  }

  Loading& loading_;
  std::vector<std::uint32_t>& checksums_;
  std::vector<Buffer> staging_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<unsigned> free_ BERTH_GUARDED_BY(mutex_);
  std::vector<unsigned> ready_ BERTH_GUARDED_BY(mutex_);  // the staging buffer of each job that has been read
  std::size_t next_ BERTH_GUARDED_BY(mutex_) = 0;
};

}  // namespace

Result<LoadedTensors> load_tensors(std::span<const FileSource> sources, std::span<const LoadRequest> requests,
                                   const AllocatorPtr& allocator, const LoadOptions& options) {
  if (allocator == nullptr) return Error(Code::kInvalidArgument, Layer::kFormat, "load needs a device or an allocator");
  if (options.cancel.stop_requested())
    return Error(Code::kCancelled, Layer::kFormat, "loading was cancelled before it began");
  BERTH_TRY_ASSIGN(LoadPlan plan, plan_load(requests, allocator, options));
  Loading loading(sources, plan, options);
  std::vector<std::uint32_t> checksums(options.checksums ? requests.size() : 0, 0);

  std::vector<std::byte*> targets(plan.buffers.size(), nullptr);
  std::vector<Window> held;  // the memory does not move while it is loaded
  held.reserve(plan.buffers.size());
  bool on_host = true;
  for (std::size_t i = 0; i < plan.buffers.size() && on_host; ++i) {
    BERTH_TRY_ASSIGN(const Window window, plan.buffers[i].window());
    on_host = window.bytes == 0 || window.block.has(BlockFlags::kHostTransfer);
    if (on_host && window.bytes != 0) targets[i] = window.host_bytes().data();
    held.push_back(window);
  }
  if (on_host) {
    BERTH_TRY(load_to_host(loading, targets));
    if (options.checksums) {
      std::atomic<std::size_t> next{0};
      on_threads(loading.threads(requests.size()), [&] {
        for (std::size_t i; (i = next.fetch_add(1)) < requests.size();)
          checksums[i] = crc32({targets[i], requests[i].bytes()});
      });
    }
  } else {
    BERTH_TRY(StagedLoad(loading, checksums).run(allocator->device()));
  }
  return LoadedTensors{.buffers = std::move(plan.buffers), .checksums = std::move(checksums)};
}

}  // namespace berth::internal::formats
