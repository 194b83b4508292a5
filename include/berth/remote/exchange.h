// How the ranks of a job find each other: a small table in which each rank publishes bytes under a key, and from which
// the others fetch them. It carries addresses and sizes at the start of a job, never tensors. There are three kinds: a
// folder that all ranks see, functions of the caller, and PMIx, which mpirun, srun and prterun provide.
//
// A key is published once. All functions may be called from any thread; a fetch waits for its deadline at most.
//
//   auto exchange = berth::make_job_exchange().value();                   // under `berth launch` or mpirun
//   exchange->publish("address", bytes).value();
//   auto all = exchange->fetch_all("address", std::chrono::steady_clock::now() + 5s);   // names the ranks that miss
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "berth/base/result.h"

namespace berth {

using Deadline = std::chrono::steady_clock::time_point;

class Exchange {
 public:
  // The most bytes of one value.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  // The most ranks of one job.
  static constexpr std::uint32_t kMostRanks = 1U << 20;

  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // This process is rank() of ranks(), counted from 0.
  std::uint32_t rank() const noexcept { return rank_; }
  std::uint32_t ranks() const noexcept { return ranks_; }
  // A secret that all ranks of the job share. Empty if the exchange was made without one: see job_token().
  const std::string& token() const noexcept { return token_; }

  // 0, 1, 2, ... by each call on this rank. Functions that all ranks call in the same order use it to make keys that no
  // other call has.
  std::uint64_t next_number() noexcept { return numbers_.fetch_add(1, std::memory_order_relaxed); }

  // Lets the other ranks fetch `bytes` as the value of `key` of this rank. kInvalidArgument unless the key has 1 to 64
  // letters, digits, '.', '_' or '-', and the value at most kMostBytes. kAlreadyExists if this rank published the key
  // before; kIo or kDriver if the exchange fails.
  Result<void> publish(std::string_view key, std::span<const std::byte> bytes);

  // The value of `key` of a rank, this one included. Waits until it is published. kDeviceUnavailable, with the rank, if
  // it is not by the deadline; what is there already is found by a deadline in the past, too. kInvalidArgument for a
  // rank or key that cannot be; kInvalidData for what this library did not publish, and from a job with another number
  // of ranks; kIo or kDriver if the exchange fails.
  Result<std::vector<std::byte>> fetch(std::uint32_t rank, std::string_view key, Deadline deadline);

  // The values of all ranks, in order. Fails as fetch(); kDeviceUnavailable names up to eight ranks that are missing.
  // O(ranks) fetches.
  Result<std::vector<std::vector<std::byte>>> fetch_all(std::string_view key, Deadline deadline);

 protected:
  Exchange(std::uint32_t rank, std::uint32_t ranks, std::string token)
      : token_(std::move(token)), rank_(rank), ranks_(ranks) {}

  // Arguments are checked before these are called.
  virtual Result<void> do_publish(const std::string& key, std::span<const std::byte> bytes) = 0;
  virtual Result<std::vector<std::byte>> do_fetch(std::uint32_t rank, const std::string& key, Deadline deadline) = 0;

 private:
  std::string token_;
  std::atomic<std::uint64_t> numbers_{0};
  std::uint32_t rank_;
  std::uint32_t ranks_;
};
using ExchangePtr = std::shared_ptr<Exchange>;

// The token of the exchange. If it has none, rank 0 draws 128 random bits and publishes them as "berth.token", and the
// others fetch them. Call it once on every rank. Fails as publish() and fetch().
Result<std::string> job_token(Exchange& exchange, Deadline deadline);

struct FolderExchangeOptions {
  std::string folder{};  // must exist; on several machines, of a file system that they share
  std::uint32_t rank = 0;
  std::uint32_t ranks = 0;
  // Not empty, and another one for each job: files of an earlier job with another token are not read.
  std::string token{};
};

// Values are files in a folder, which appear complete or not at all, and stay there. Who can write to the folder can
// take part in the job. A fetch looks for its file at growing intervals of 1 to 50 ms. Meant for up to some hundred
// ranks: each fetch opens a file. kInvalidArgument for an empty token and for a rank that is not below ranks; kIo for a
// folder that cannot be written.
Result<ExchangePtr> make_folder_exchange(const FolderExchangeOptions& options);

// Functions of the caller, such as those of a key-value store. An exception of theirs is an error with code kDriver.
struct ExchangeFunctions {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 0;
  std::string token{};  // may be empty
  std::function<Result<void>(const std::string& key, std::span<const std::byte> bytes)> publish{};
  // Should wait for the deadline at most and fail with kDeviceUnavailable then. The functions are called by one thread
  // at a time.
  std::function<Result<std::vector<std::byte>>(std::uint32_t rank, const std::string& key, Deadline deadline)> fetch{};
};

// kInvalidArgument if a function is missing, or for a rank that is not below ranks.
Result<ExchangePtr> make_function_exchange(ExchangeFunctions functions);

// PMIx, for a process that mpirun, srun or prterun started. Opens libpmix.so.2, or the library that BERTH_PMIX names.
// kDeviceUnavailable if the process was not started so, or without the library; kDriver with the text of PMIx. The last
// handle tells PMIx that the process ends in order; without this, mpirun reports a failure.
Result<ExchangePtr> make_pmix_exchange();

// The exchange that the environment describes: a folder if BERTH_EXCHANGE is set, as by `berth launch`, with
// BERTH_RANK, BERTH_RANKS and BERTH_JOB_TOKEN; otherwise PMIx if PMIX_RANK and PMIX_NAMESPACE are set. Fails as these;
// kDeviceUnavailable if it describes neither, kInvalidArgument if a variable is missing or not a number.
Result<ExchangePtr> make_job_exchange();

}  // namespace berth
