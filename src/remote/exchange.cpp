#include "berth/remote/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <random>
#include <utility>

#include "base/try.h"
#include "base/utf8.h"
#include "remote/exchange_parts.h"

namespace berth {
namespace {

constexpr std::size_t kLongestKey = 64;
constexpr std::size_t kMostNamed = 8;
constexpr const char* kTokenKey = "berth.token";

Error invalid(std::string text) {
  return Error::with_text(Code::kInvalidArgument, Layer::kDevice, std::move(text));
}

Result<std::string> checked_key(std::string_view key) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  if (key.empty() || key.size() > kLongestKey || !std::ranges::all_of(key, allowed))
    return invalid(fmt::format("the key {} cannot be exchanged: a key has 1 to {} letters, digits, '.', '_' or '-'",
                               internal::quoted(key.substr(0, kLongestKey + 1)), kLongestKey));
  return std::string(key);
}

Result<std::uint32_t> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0')
    return invalid(fmt::format(
        "BERTH_EXCHANGE is set and {} is not; `berth launch` sets BERTH_EXCHANGE, BERTH_RANK, BERTH_RANKS and "
        "BERTH_JOB_TOKEN together",
        variable));
  std::uint32_t number = 0;
  const std::string_view whole(text);
  const auto [end, failure] = std::from_chars(whole.data(), whole.data() + whole.size(), number);
  if (failure != std::errc() || end != whole.data() + whole.size())
    return invalid(fmt::format("{} is {}; it must be a number", variable, internal::quoted(whole)));
  return number;
}

bool is_set(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr && *text != '\0';
}

}  // namespace

Result<void> Exchange::publish(std::string_view key, std::span<const std::byte> bytes) {
  BERTH_TRY_ASSIGN(const std::string name, checked_key(key));
  if (bytes.size() > kMostBytes)
    return Error(Code::kInvalidArgument, Layer::kDevice,
                 "a value of {b} cannot be exchanged: the most is {b}; send it through a window instead", bytes.size(),
                 kMostBytes);
  return do_publish(name, bytes);
}

Result<std::vector<std::byte>> Exchange::fetch(std::uint32_t rank, std::string_view key, Deadline deadline) {
  BERTH_TRY_ASSIGN(const std::string name, checked_key(key));
  if (rank >= ranks_)
    return Error(Code::kInvalidArgument, Layer::kDevice, "there is no rank {}: the job has ranks 0 to {}", rank,
                 ranks_ - 1);
  return do_fetch(rank, name, deadline);
}

Result<std::vector<std::vector<std::byte>>> Exchange::fetch_all(std::string_view key, Deadline deadline) {
  std::vector<std::vector<std::byte>> values;
  std::vector<std::uint32_t> missing;
  values.reserve(ranks_);
  Error first(Code::kDeviceUnavailable, Layer::kDevice, "");
  for (std::uint32_t rank = 0; rank < ranks_ && missing.size() < kMostNamed; ++rank) {
    Result<std::vector<std::byte>> value = fetch(rank, key, deadline);
    if (value) {
      values.push_back(*std::move(value));
      continue;
    }
    if (value.error().code() != Code::kDeviceUnavailable) return value.error();
    if (missing.empty()) first = value.error();
    missing.push_back(rank);
  }
  if (missing.empty()) return values;
  if (missing.size() == 1) return first;
  return Error::with_text(
      Code::kDeviceUnavailable, Layer::kDevice,
      fmt::format("ranks {}{} of {} did not publish {} in time; of the first of them: {}", fmt::join(missing, ", "),
                  missing.size() == kMostNamed ? " and perhaps more" : "", ranks_, key, first.message()));
}

Result<std::string> job_token(Exchange& exchange, Deadline deadline) {
  if (!exchange.token().empty()) return exchange.token();
  if (exchange.rank() == 0) {
    std::random_device random;
    const std::string token = fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
    BERTH_TRY(exchange.publish(kTokenKey, std::as_bytes(std::span(token))));
    return token;
  }
  BERTH_TRY_ASSIGN(const std::vector<std::byte> bytes, exchange.fetch(0, kTokenKey, deadline));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<ExchangePtr> make_job_exchange() {
  if (is_set("BERTH_EXCHANGE")) {
    FolderExchangeOptions options{.folder = std::getenv("BERTH_EXCHANGE")};
    BERTH_TRY_ASSIGN(options.rank, number_in("BERTH_RANK"));
    BERTH_TRY_ASSIGN(options.ranks, number_in("BERTH_RANKS"));
    if (is_set("BERTH_JOB_TOKEN")) options.token = std::getenv("BERTH_JOB_TOKEN");
    return make_folder_exchange(options);
  }
  if (is_set("PMIX_RANK") && is_set("PMIX_NAMESPACE")) return make_pmix_exchange();
  return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice,
                          "this process is not part of a job: start it with `berth launch -n 4 -- program`, mpirun, "
                          "srun or prterun, or give Berth a folder or functions for the exchange of addresses");
}

namespace internal {

Result<void> check_rank(std::uint32_t rank, std::uint32_t ranks) {
  if (ranks == 0 || ranks > Exchange::kMostRanks)
    return Error(Code::kInvalidArgument, Layer::kDevice, "a job of {} ranks cannot be: it has 1 to {}", ranks,
                 Exchange::kMostRanks);
  if (rank >= ranks)
    return Error(Code::kInvalidArgument, Layer::kDevice, "there is no rank {}: a job of {} ranks has ranks 0 to {}",
                 rank, ranks, ranks - 1);
  return {};
}

Error rank_missing(std::uint32_t rank, std::uint32_t ranks, const std::string& key, const std::string& more) {
  return Error::with_text(Code::kDeviceUnavailable, Layer::kDevice,
                          fmt::format("rank {} of {} did not publish {} in time: it was not started, it ended, or it "
                                      "is slower than the deadline{}",
                                      rank, ranks, key, more));
}

}  // namespace internal
}  // namespace berth
