// Writes the calls of a cache to a file. Used under the lock of the cache. A failed write ends the recording, and the
// cache continues to work.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "berth/base/result.h"
#include "berth/kv/recording.h"

namespace berth::internal::kv_cache {

class CallLog {
 public:
  using Kind = kv::RecordedCall::Kind;
  static Result<std::unique_ptr<CallLog>> make(const std::string& path);
  explicit CallLog(std::FILE* file) : file_(file) {}
  ~CallLog();
  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;

  // `id` is null if the call was refused.
  void open(std::uint32_t now, std::span<const kv::Token> tokens, const kv::OpenOptions& options,
            const kv::SequenceId* id) noexcept;
  void append(std::span<const kv::SequenceId> ids, std::span<const kv::Token> tokens) noexcept;
  void extend(kv::SequenceId id, std::span<const kv::Token> tokens) noexcept;
  void fork(kv::SequenceId id, kv::SequenceId forked) noexcept;
  void truncate(kv::SequenceId id, std::uint64_t tokens) noexcept;
  void close(std::uint32_t now, kv::SequenceId id) noexcept;
  void call(Kind kind, kv::SequenceId id) noexcept;  // commit, keep_state

  Result<void> flush() noexcept;

 private:
  template <class Write>
  void record(Write&& write) noexcept;
  void number(std::uint64_t value);
  void time(std::uint32_t now);
  void tokens(std::span<const kv::Token> tokens);
  void write_out() noexcept;

  std::FILE* const file_;
  std::string buffer_;
  std::unordered_map<std::uint64_t, std::uint64_t> numbers_;  // of open sequences
  std::uint64_t sequences_ = 0;
  std::uint32_t last_ = 0;
  bool timed_ = false;
  int error_ = 0;
};

}  // namespace berth::internal::kv_cache
