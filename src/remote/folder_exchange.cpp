// The exchange through a folder. The file of a value is "berth-JOB-RANK-KEY": JOB is a checksum of the token, so files
// of other jobs have other names. Its contents are four lines (magic, ranks, bytes, checksum) and the bytes. The
// checksum covers the token, too.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "base/atomic_file.h"
#include "base/checksum.h"
#include "base/input_file.h"
#include "base/try.h"
#include "base/utf8.h"
#include "berth/remote/exchange.h"
#include "remote/exchange_parts.h"

namespace berth {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using internal::Checksum;

constexpr std::string_view kMagic = "berth exchange 1";
constexpr std::uint64_t kMostHeader = 128;
constexpr auto kShortestSleep = 1ms, kLongestSleep = 50ms;

struct Header {
  std::uint32_t ranks = 0;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;
};

template <class Number>
std::optional<Number> number_of(std::string_view text, int base) {
  Number number{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Takes the header off `text`; none if it is not one.
std::optional<Header> take_header(std::string_view& text) {
  const auto line = [&]() -> std::string_view {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view taken = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return taken;
  };
  if (line() != kMagic) return std::nullopt;
  const auto ranks = number_of<std::uint32_t>(line(), 10);
  const auto bytes = number_of<std::uint64_t>(line(), 10);
  const auto checksum = number_of<std::uint64_t>(line(), 16);
  if (!ranks || !bytes || !checksum) return std::nullopt;
  return Header{*ranks, *bytes, *checksum};
}

class FolderExchange final : public Exchange {
 public:
  explicit FolderExchange(const FolderExchangeOptions& options)
      : Exchange(options.rank, options.ranks, options.token), folder_(options.folder) {
    Checksum job;
    job.add(options.token);
    job_ = fmt::format("{:016x}", job.value());
  }

 private:
  fs::path path_of(std::uint32_t rank, const std::string& key) const {
    return folder_ / fmt::format("berth-{}-{}-{}", job_, rank, key);
  }

  std::uint64_t checksum_of(std::uint32_t rank, std::uint32_t job_ranks, const std::string& key,
                            std::string_view value) const {
    Checksum sum;
    sum.add(fmt::format("{}\n{}\n{}\n{}\n", token(), rank, job_ranks, key));
    sum.add(value);
    return sum.value();
  }

  Result<void> do_publish(const std::string& key, std::span<const std::byte> bytes) override {
    const fs::path target = path_of(rank(), key);
    const std::string_view value(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    // The value is complete under a name of its own before it gets its real one. link() refuses a name that is taken,
    // where a rename would replace the value of another process that claims this rank.
    const std::string complete = fmt::format("{}.{}", target.string(), ::getpid());
    BERTH_TRY_ASSIGN(auto file, internal::AtomicFile::create(complete));
    BERTH_TRY(file.write(
        fmt::format("{}\n{}\n{}\n{:016x}\n", kMagic, ranks(), value.size(), checksum_of(rank(), ranks(), key, value))));
    BERTH_TRY(file.write(value));
    BERTH_TRY(file.commit(false));
    int failure = ::link(complete.c_str(), target.c_str()) == 0 ? 0 : errno;
    // File systems without links: the last one wins there.
    if (failure == EPERM || failure == ENOTSUP || failure == ENOSYS) {
      std::error_code unknown;
      failure = fs::exists(target, unknown) ? EEXIST : std::rename(complete.c_str(), target.c_str()) == 0 ? 0 : errno;
    }
    ::unlink(complete.c_str());
    if (failure == EEXIST)
      return Error::with_text(
          Code::kAlreadyExists, Layer::kDevice,
          fmt::format("rank {} has published {} before: two processes have this rank, or the job has the token of an "
                      "earlier one; {} is there already",
                      rank(), key, target.string()));
    if (failure != 0)
      return Error::with_text(Code::kIo, Layer::kDevice,
                              fmt::format("cannot publish {}: {}", target.string(), std::strerror(failure)));
    return {};
  }

  Result<std::vector<std::byte>> do_fetch(std::uint32_t from, const std::string& key, Deadline deadline) override {
    const std::string path = path_of(from, key).string();
    const auto begun = std::chrono::steady_clock::now();
    for (;;) {
      // The time is read first, so that what was published before the deadline is found.
      const auto now = std::chrono::steady_clock::now();
      bool torn = false;
      Result<std::string> text = internal::read_whole_file(path, kMostBytes + kMostHeader);
      if (text) {
        BERTH_TRY_ASSIGN(auto value, value_in(*text, from, key, path));
        if (value) return *std::move(value);
        torn = true;  // a file system that shows a name before the bytes
      } else if (text.error().code() != Code::kNotFound) {
        return text.error();
      }
      if (now >= deadline) {
        if (torn) return damaged(path, from, "it ends too early");
        return internal::rank_missing(from, ranks(), key, others(from, key));
      }
      // What comes is noticed an eighth later than it came, at most: longer pauses cost a load more than they save.
      const auto pause =
          std::clamp<std::chrono::steady_clock::duration>((now - begun) / 8, kShortestSleep, kLongestSleep);
      std::this_thread::sleep_for(std::min<std::chrono::steady_clock::duration>(pause, deadline - now));
    }
  }

  static Error damaged(const std::string& path, std::uint32_t from, std::string_view what) {
    return Error::with_text(Code::kInvalidData, Layer::kDevice,
                            fmt::format("{}, the value of rank {}, is damaged: {}; remove it and start the job again "
                                        "with another token",
                                        path, from, what));
  }

  // The value in the text of a file; none if a part of it is missing.
  Result<std::optional<std::vector<std::byte>>> value_in(std::string_view text, std::uint32_t from,
                                                         const std::string& key, const std::string& path) const {
    if (text.size() < kMagic.size() && kMagic.starts_with(text)) return std::optional<std::vector<std::byte>>();
    const std::string_view whole = text;
    const std::optional<Header> header = take_header(text);
    if (!header) {
      // Of a torn header no line is wrong; there are too few.
      if (whole.starts_with(kMagic) && std::ranges::count(whole, '\n') < 4)
        return std::optional<std::vector<std::byte>>();
      return damaged(path, from, "it is not a file of an exchange");
    }
    if (header->ranks != ranks())
      return Error::with_text(
          Code::kInvalidData, Layer::kDevice,
          fmt::format("rank {} was started as one of {} ranks, and this rank {} as one of {}: start "
                      "all of them with the same number",
                      from, header->ranks, rank(), ranks()));
    if (text.size() < header->bytes) return std::optional<std::vector<std::byte>>();
    if (text.size() > header->bytes) return damaged(path, from, "it has more bytes than it says");
    if (checksum_of(from, header->ranks, key, text) != header->checksum)
      return damaged(path, from, "its checksum is wrong, or it was written with another token");
    const auto bytes = std::as_bytes(std::span(text));
    return std::optional(std::vector<std::byte>(bytes.begin(), bytes.end()));
  }

  // What ends the sentence about a missing rank, if the folder has that value of another job.
  std::string others(std::uint32_t from, const std::string& key) const {
    const std::string ending = fmt::format("-{}-{}", from, key);
    std::error_code unreadable;
    for (fs::directory_iterator entry(folder_, unreadable), end; !unreadable && entry != end;
         entry.increment(unreadable)) {
      const std::string name = entry->path().filename().string();
      if (name.starts_with("berth-") && name.ends_with(ending) && name != path_of(from, key).filename().string())
        return fmt::format("; {} has this value of a job with another token", folder_.string());
    }
    return "";
  }

  fs::path folder_;
  std::string job_;
};

}  // namespace

Result<ExchangePtr> make_folder_exchange(const FolderExchangeOptions& options) {
  BERTH_TRY(internal::check_rank(options.rank, options.ranks));
  if (options.token.empty())
    return Error(Code::kInvalidArgument, Layer::kDevice,
                 "an exchange through a folder needs a job token, or files of an earlier job would be believed; `berth "
                 "launch` draws one, and sets BERTH_JOB_TOKEN");
  std::error_code failure;
  if (!fs::is_directory(options.folder, failure))
    return Error::with_text(
        Code::kIo, Layer::kDevice,
        fmt::format("{} is not a folder; create it on all machines of the job", internal::quoted(options.folder)));
  if (::access(options.folder.c_str(), R_OK | W_OK | X_OK) != 0)
    return Error::with_text(
        Code::kIo, Layer::kDevice,
        fmt::format("the folder {} cannot be used: {}", internal::quoted(options.folder), std::strerror(errno)));
  return ExchangePtr(std::make_shared<FolderExchange>(options));
}

}  // namespace berth
