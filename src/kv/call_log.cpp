#include "kv/call_log.h"

#include <cerrno>
#include <cstring>

namespace berth::internal::kv_cache {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{64} << 10;

Error cannot_write(const std::string& what, int error) {
  return Error::with_text(Code::kIo, Layer::kAllocator, what + ": " + std::strerror(error));
}

}  // namespace

Result<std::unique_ptr<CallLog>> CallLog::make(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return cannot_write("the recording " + path + " cannot be created", errno);
  auto log = std::make_unique<CallLog>(file);
  log->buffer_ = "BRTHKVC1";
  return log;
}

CallLog::~CallLog() {
  write_out();
  std::fclose(file_);
}

template <class Write>
void CallLog::record(Write&& write) noexcept {
  if (error_ != 0) return;
  try {
    write();
    if (buffer_.size() >= kFlushBytes) write_out();
  } catch (...) {
    error_ = ENOMEM;
  }
}

void CallLog::number(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) buffer_.push_back(static_cast<char>(value | 0x80));
  buffer_.push_back(static_cast<char>(value));
}

void CallLog::time(std::uint32_t now) {
  number(timed_ ? now - last_ : 0);
  timed_ = true;
  last_ = now;
}

void CallLog::tokens(std::span<const kv::Token> all) {
  number(all.size());
  for (const kv::Token token : all) number(static_cast<std::uint32_t>(token));
}

void CallLog::open(std::uint32_t now, std::span<const kv::Token> all, const kv::OpenOptions& options,
                   const kv::SequenceId* id) noexcept {
  record([&] {
    number(static_cast<std::uint8_t>(Kind::kOpen));
    time(now);
    number(options.salt);
    number(options.max_new_tokens);
    number(options.compute_last ? 1 : 0);
    tokens(all);
    if (id != nullptr) numbers_[id->bits] = sequences_;
    ++sequences_;
  });
}

void CallLog::append(std::span<const kv::SequenceId> ids, std::span<const kv::Token> all) noexcept {
  record([&] {
    number(static_cast<std::uint8_t>(Kind::kAppend));
    number(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      number(numbers_[ids[i].bits]);
      number(static_cast<std::uint32_t>(all[i]));
    }
  });
}

void CallLog::extend(kv::SequenceId id, std::span<const kv::Token> all) noexcept {
  record([&] {
    number(static_cast<std::uint8_t>(Kind::kExtend));
    number(numbers_[id.bits]);
    tokens(all);
  });
}

void CallLog::fork(kv::SequenceId id, kv::SequenceId forked) noexcept {
  record([&] {
    number(static_cast<std::uint8_t>(Kind::kFork));
    number(numbers_[id.bits]);
    numbers_[forked.bits] = sequences_++;
  });
}

void CallLog::truncate(kv::SequenceId id, std::uint64_t length) noexcept {
  record([&] {
    number(static_cast<std::uint8_t>(Kind::kTruncate));
    number(numbers_[id.bits]);
    number(length);
  });
}

void CallLog::close(std::uint32_t now, kv::SequenceId id) noexcept {
  record([&] {
    number(static_cast<std::uint8_t>(Kind::kClose));
    time(now);
    number(numbers_[id.bits]);
    numbers_.erase(id.bits);
  });
}

void CallLog::call(Kind kind, kv::SequenceId id) noexcept {
  record([&] {
    number(static_cast<std::uint8_t>(kind));
    number(numbers_[id.bits]);
  });
}

void CallLog::write_out() noexcept {
  if (error_ == 0 &&
      (std::fwrite(buffer_.data(), 1, buffer_.size(), file_) != buffer_.size() || std::fflush(file_) != 0))
    error_ = errno != 0 ? errno : EIO;
  buffer_.clear();
}

Result<void> CallLog::flush() noexcept {
  write_out();
  if (error_ != 0) return cannot_write("the recording of the cache could not be written", error_);
  return {};
}

}  // namespace berth::internal::kv_cache
