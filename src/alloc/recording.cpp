#include "berth/alloc/recording.h"

#include <fmt/format.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <unordered_map>

#include "base/input_file.h"
#include "base/try.h"
#include "berth/base/mutex.h"

namespace berth {
namespace {

constexpr std::string_view kMagic = "BRTHTRC1";
constexpr std::size_t kFlushBytes = std::size_t{64} << 10;
enum Record : std::uint8_t { kLabel = 1, kAllocation = 2, kFree = 3 };

class FileRecorder final : public Recorder {
 public:
  FileRecorder(AllocatorPtr inner, std::FILE* file) : Recorder(std::move(inner)), file_(file) { append(kMagic); }
  ~FileRecorder() override {
    static_cast<void>(flush());
    std::fclose(file_);
  }

  Result<Block> allocate(const BlockSpec& spec) override {
    auto block = inner()->allocate(spec);
    if (block && block->bytes > 0) note_allocation(spec, *block);
    return block;
  }

  void release(const Block& block, Timepoint last_use) noexcept override {
    // Recorded before the memory can be reused, so that a handle identifies one block at a time.
    if (block.bytes > 0) note_free(block);
    inner()->release(block, last_use);
  }

  Result<void> flush() override {
    const MutexLock lock(mutex_);
    write_out();
    if (error_ != 0)
      return Error::with_text(Code::kIo, Layer::kAllocator,
                              fmt::format("the recording could not be written: {}", std::strerror(error_)));
    return {};
  }

 private:
  void note_allocation(const BlockSpec& spec, const Block& block) noexcept {
    const MutexLock lock(mutex_);
    if (error_ != 0) return;
    try {
      const std::uint64_t label = label_number(spec.label);
      number(kAllocation);
      note_time_and_thread();
      number(spec.bytes);
      number(static_cast<std::uint64_t>(std::countr_zero(spec.alignment)));
      number(label);
      live_[block.handle] = blocks_++;
      if (buffer_.size() >= kFlushBytes) write_out();
    } catch (...) {
      error_ = ENOMEM;
    }
  }

  void note_free(const Block& block) noexcept {
    const MutexLock lock(mutex_);
    if (error_ != 0) return;
    const auto at = live_.find(block.handle);
    if (at == live_.end()) return;
    try {
      number(kFree);
      note_time_and_thread();
      number(blocks_ - at->second);
      live_.erase(at);
      if (buffer_.size() >= kFlushBytes) write_out();
    } catch (...) {
      error_ = ENOMEM;
    }
  }

  std::uint64_t label_number(Name label) BERTH_REQUIRES(mutex_) {
    if (!label) return 0;
    const auto [at, is_new] = labels_.try_emplace(label.id(), labels_.size() + 1);
    if (is_new) {
      // The format holds labels of up to 4095 bytes.
      const std::string_view text = label.text().substr(0, 4095);
      number(kLabel);
      number(at->second);
      number(text.size());
      append(text);
    }
    return at->second;
  }

  void note_time_and_thread() BERTH_REQUIRES(mutex_) {
    const auto now = Clock::now();
    number(static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now - last_).count()));
    last_ = now;
    number(threads_.try_emplace(std::this_thread::get_id(), threads_.size()).first->second);
  }

  void number(std::uint64_t value) BERTH_REQUIRES(mutex_) {
    for (; value >= 0x80; value >>= 7) buffer_.push_back(static_cast<char>(value | 0x80));
    buffer_.push_back(static_cast<char>(value));
  }
  void append(std::string_view text) BERTH_REQUIRES(mutex_) { buffer_.append(text); }

  void write_out() noexcept BERTH_REQUIRES(mutex_) {
    if (error_ == 0 &&
        (std::fwrite(buffer_.data(), 1, buffer_.size(), file_) != buffer_.size() || std::fflush(file_) != 0))
      error_ = errno != 0 ? errno : EIO;
    buffer_.clear();
  }

  using Clock = std::chrono::steady_clock;
  Mutex mutex_;
  std::FILE* file_ BERTH_GUARDED_BY(mutex_);
  std::string buffer_ BERTH_GUARDED_BY(mutex_);
  Clock::time_point last_ BERTH_GUARDED_BY(mutex_) = Clock::now();
  std::uint64_t blocks_ BERTH_GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> live_ BERTH_GUARDED_BY(mutex_);  // allocation number by handle
  std::unordered_map<std::uint16_t, std::uint64_t> labels_ BERTH_GUARDED_BY(mutex_);
  std::unordered_map<std::thread::id, std::uint64_t> threads_ BERTH_GUARDED_BY(mutex_);
  int error_ BERTH_GUARDED_BY(mutex_) = 0;
};

// Reads numbers and text, and tracks its position.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> file) : file_(file) {}
  bool at_end() const noexcept { return at_ == file_.size(); }

  Error broken(const char* what) const {
    return Error::with_text(Code::kInvalidData, Layer::kFormat, fmt::format("trace, byte {}: {}", at_, what));
  }

  Result<std::uint64_t> number(std::uint64_t most, const char* what) {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_end()) return broken("cut off in a number");
      const auto byte = static_cast<std::uint64_t>(file_[at_++]);
      if (shift == 63 && byte > 1) return broken(what);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) {
        if (value > most) return broken(what);
        return value;
      }
    }
    return broken(what);
  }

  Result<std::string_view> text(std::size_t bytes) {
    if (bytes > file_.size() - at_) return broken("cut off in a text");
    const std::string_view result(reinterpret_cast<const char*>(file_.data()) + at_, bytes);
    at_ += bytes;
    return result;
  }

 private:
  std::span<const std::byte> file_;
  std::size_t at_ = 0;
};

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;
constexpr std::uint64_t kMostFile = std::uint64_t{1} << 34;  // a recording of some billion events
constexpr std::uint64_t kMostTime = std::uint64_t{1} << 62;

}  // namespace

Result<std::shared_ptr<Recorder>> make_recorder(AllocatorPtr inner, const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr)
    return Error::with_text(Code::kIo, Layer::kAllocator,
                            fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  return std::shared_ptr<Recorder>(std::make_shared<FileRecorder>(std::move(inner), file));
}

Result<Recording> parse_recording(std::span<const std::byte> file) {
  Reader reader(file);
  BERTH_TRY_ASSIGN(const std::string_view magic, reader.text(std::min(file.size(), kMagic.size())));
  if (magic != kMagic) return reader.broken("not a recording: it does not begin with BRTHTRC1");
  Recording recording;
  std::vector<bool> live;
  std::uint64_t time = 0;
  while (!reader.at_end()) {
    BERTH_TRY_ASSIGN(const std::uint64_t kind, reader.number(kFree, "an unknown record"));
    if (kind == kLabel) {
      BERTH_TRY_ASSIGN(const std::uint64_t id, reader.number(65'535, "a label out of range"));
      if (id != recording.labels.size()) return reader.broken("labels do not count up");
      BERTH_TRY_ASSIGN(const std::uint64_t bytes, reader.number(4095, "a label that is too long"));
      BERTH_TRY_ASSIGN(const std::string_view text, reader.text(bytes));
      recording.labels.emplace_back(text);
      continue;
    }
    if (kind == 0) return reader.broken("an unknown record");
    RecordedEvent event;
    event.is_free = kind == kFree;
    BERTH_TRY_ASSIGN(const std::uint64_t passed, reader.number(kMostTime - time, "a time out of range"));
    time += passed;
    event.time_ns = time;
    BERTH_TRY_ASSIGN(const std::uint64_t thread, reader.number(0xffff'ffff, "a thread out of range"));
    event.thread = static_cast<std::uint32_t>(thread);
    if (event.is_free) {
      BERTH_TRY_ASSIGN(const std::uint64_t back,
                       reader.number(live.size(), "a free of a block that was never allocated"));
      if (back == 0) return reader.broken("a free of a block that was never allocated");
      event.block = live.size() - back;
      if (!live[event.block]) return reader.broken("a block freed twice");
      live[event.block] = false;
    } else {
      BERTH_TRY_ASSIGN(event.bytes, reader.number(kMostBytes, "a size out of range"));
      BERTH_TRY_ASSIGN(const std::uint64_t log2, reader.number(40, "an alignment out of range"));
      event.alignment = std::size_t{1} << log2;
      BERTH_TRY_ASSIGN(const std::uint64_t label,
                       reader.number(recording.labels.size() - 1, "a label that was not defined"));
      event.label = static_cast<std::uint32_t>(label);
      event.block = live.size();
      live.push_back(true);
    }
    recording.events.push_back(event);
  }
  recording.blocks = live.size();
  return recording;
}

Result<Recording> read_recording(const std::string& path) {
  const Result<std::string> bytes = internal::read_whole_file(path, kMostFile);
  if (!bytes) return Error::with_text(Code::kIo, Layer::kFormat, bytes.error().message());
  return parse_recording(std::as_bytes(std::span(*bytes)));
}

}  // namespace berth
