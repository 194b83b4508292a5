#include "berth/kv/recording.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "base/input_file.h"
#include "base/try.h"

namespace berth::kv {
namespace {

constexpr std::string_view kMagic = "BRTHKVC1";
using Kind = RecordedCall::Kind;

class Reader {
 public:
  explicit Reader(std::span<const std::byte> file) : file_(file) {}
  bool at_end() const noexcept { return at_ == file_.size(); }
  bool skip(std::string_view text) noexcept {
    if (file_.size() - at_ < text.size()) return false;
    for (const char c : text)
      if (static_cast<char>(file_[at_++]) != c) return false;
    return true;
  }
  Error broken(const char* what) const {
    return Error::with_text(Code::kInvalidData, Layer::kFormat,
                            fmt::format("recording of a cache, byte {}: {}", at_, what));
  }
  Result<std::uint64_t> number(std::uint64_t most = ~std::uint64_t{0}) {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_end()) return broken("the last record is not complete");
      const auto byte = static_cast<std::uint64_t>(file_[at_++]);
      if (shift == 63 && byte > 1) break;
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) {
        if (value > most) return broken("a number is out of range");
        return value;
      }
    }
    return broken("a number has more than 64 bits");
  }
  // A count of things of which each takes a byte or more.
  Result<std::size_t> count() {
    BERTH_TRY_ASSIGN(const std::uint64_t n, number());
    if (n > file_.size() - at_) return broken("there are fewer tokens than the record says");
    return static_cast<std::size_t>(n);
  }
  Result<Token> token() {
    BERTH_TRY_ASSIGN(const std::uint64_t value, number(0xffff'ffff));
    return static_cast<Token>(static_cast<std::uint32_t>(value));
  }

 private:
  std::span<const std::byte> file_;
  std::size_t at_ = 0;
};

class Parser {
 public:
  explicit Parser(std::span<const std::byte> file) : reader_(file) {}

  Result<CacheRecording> parse() {
    if (!reader_.skip(kMagic)) return reader_.broken("this is not a recording of a cache");
    while (!reader_.at_end()) {
      RecordedCall call;
      BERTH_TRY_ASSIGN(const std::uint64_t kind, reader_.number(8));
      if (kind == 0) return reader_.broken("there is no such call");
      call.kind = static_cast<Kind>(kind);
      BERTH_TRY(read(call));
      recording_.calls.push_back(std::move(call));
    }
    recording_.sequences = open_.size();
    return std::move(recording_);
  }

 private:
  Result<void> read(RecordedCall& call) {
    if (call.kind == Kind::kOpen || call.kind == Kind::kClose) {
      BERTH_TRY_ASSIGN(const std::uint64_t passed, reader_.number(0xffff'ffff));
      call.now = now_ += passed;
    }
    if (call.kind == Kind::kOpen) {
      BERTH_TRY_ASSIGN(call.options.salt, reader_.number());
      BERTH_TRY_ASSIGN(call.options.max_new_tokens, reader_.number());
      BERTH_TRY_ASSIGN(const std::uint64_t compute_last, reader_.number(1));
      call.options.compute_last = compute_last != 0;
      open_.push_back(true);
      return read_tokens(call);
    }
    if (call.kind == Kind::kAppend) {
      BERTH_TRY_ASSIGN(const std::size_t n, reader_.count());
      for (std::size_t i = 0; i < n; ++i) {
        BERTH_TRY(read_sequence(call));
        BERTH_TRY_ASSIGN(const Token token, reader_.token());
        call.tokens.push_back(token);
      }
      return {};
    }
    BERTH_TRY(read_sequence(call));
    if (call.kind == Kind::kExtend) return read_tokens(call);
    if (call.kind == Kind::kTruncate) {
      BERTH_TRY_ASSIGN(call.length, reader_.number());
    }
    if (call.kind == Kind::kFork) open_.push_back(true);
    if (call.kind == Kind::kClose) open_[static_cast<std::size_t>(call.sequences[0])] = false;
    return {};
  }

  Result<void> read_sequence(RecordedCall& call) {
    BERTH_TRY_ASSIGN(const std::uint64_t sequence, reader_.number());
    if (sequence >= open_.size() || !open_[static_cast<std::size_t>(sequence)])
      return reader_.broken("a call on a sequence that is not open");
    call.sequences.push_back(sequence);
    return {};
  }

  Result<void> read_tokens(RecordedCall& call) {
    BERTH_TRY_ASSIGN(const std::size_t n, reader_.count());
    call.tokens.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
      BERTH_TRY_ASSIGN(const Token token, reader_.token());
      call.tokens.push_back(token);
    }
    return {};
  }

  Reader reader_;
  CacheRecording recording_;
  std::vector<bool> open_;
  std::uint64_t now_ = 0;
};

// Runs the calls and keeps the ids that this cache gave.
class Runner {
 public:
  Runner(Cache& cache, std::uint64_t sequences) : cache_(cache), ids_(static_cast<std::size_t>(sequences)) {
    groups_ = cache.counters().groups.size();
  }

  void run(const RecordedCall& call) {
    if (call.kind == Kind::kOpen) return open(call);
    sequences_.clear();
    tokens_.clear();
    for (std::size_t i = 0; i < call.sequences.size(); ++i) {
      const auto& id = ids_[static_cast<std::size_t>(call.sequences[i])];
      if (!id) continue;
      sequences_.push_back(*id);
      if (call.kind == Kind::kAppend) tokens_.push_back(call.tokens[i]);
    }
    if (call.kind == Kind::kFork) next_ += 1;
    if (sequences_.empty()) return;
    if (!make(call)) ++report.other_refused;
  }

  void close_all() {
    for (const auto& id : ids_)
      if (id) static_cast<void>(cache_.close(*id, last_));
  }

  CacheReplay report{};

 private:
  void open(const RecordedCall& call) {
    OpenOptions options = call.options;
    options.now = last_ = call.now;
    const auto opened = cache_.open(call.tokens, options);
    ++(opened ? report.opened : report.refused);
    if (opened) ids_[next_] = opened->id;
    ++next_;
  }

  bool make(const RecordedCall& call) {
    const SequenceId id = sequences_[0];
    switch (call.kind) {
      case Kind::kOpen: break;
      case Kind::kAppend:
        slots_.resize(sequences_.size() * groups_);
        return cache_.append(sequences_, tokens_, slots_).has_value();
      case Kind::kExtend:
        slots_.resize(call.tokens.size() * groups_);
        return cache_.extend(id, call.tokens, slots_).has_value();
      case Kind::kCommit: return cache_.commit(id).has_value();
      case Kind::kFork: {
        const auto forked = cache_.fork(id);
        if (forked) ids_[next_ - 1] = *forked;
        return forked.has_value();
      }
      case Kind::kTruncate: return cache_.truncate(id, call.length).has_value();
      case Kind::kKeepState: return cache_.keep_state(id).has_value();
      case Kind::kClose:
        ids_[static_cast<std::size_t>(call.sequences[0])].reset();
        last_ = call.now;
        return cache_.close(id, call.now).has_value();
    }
    return true;
  }

  Cache& cache_;
  std::vector<std::optional<SequenceId>> ids_;  // by number; nothing if refused or closed
  std::size_t next_ = 0;                        // the number of the next sequence
  std::size_t groups_ = 0;
  std::uint64_t last_ = 0;
  std::vector<SequenceId> sequences_;
  std::vector<Token> tokens_;
  std::vector<std::int64_t> slots_;
};

}  // namespace

Result<CacheRecording> parse_cache_recording(std::span<const std::byte> file) {
  return Parser(file).parse();
}

Result<CacheRecording> read_cache_recording(const std::string& path) {
  BERTH_TRY_ASSIGN(const std::string text, internal::read_whole_file(path));
  return parse_cache_recording(std::as_bytes(std::span(text)));
}

CacheReplay run_cache_recording(const CacheRecording& recording, Cache& cache) {
  Runner runner(cache, recording.sequences);
  const CacheCounters before = cache.counters();
  const auto start = std::chrono::steady_clock::now();
  for (const RecordedCall& call : recording.calls) runner.run(call);
  runner.close_all();
  runner.report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const CacheCounters after = cache.counters();
  runner.report.prompt_tokens = after.prompt_tokens - before.prompt_tokens;
  runner.report.cached_tokens = after.cached_tokens - before.cached_tokens;
  runner.report.tier_tokens = after.tier_tokens - before.tier_tokens;
  return runner.report;
}

}  // namespace berth::kv
