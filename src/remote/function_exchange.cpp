#include <fmt/format.h>

#include <exception>
#include <utility>

#include "base/try.h"
#include "berth/base/mutex.h"
#include "berth/remote/exchange.h"
#include "remote/exchange_parts.h"

namespace berth {
namespace {

class FunctionExchange final : public Exchange {
 public:
  explicit FunctionExchange(ExchangeFunctions functions)
      : Exchange(functions.rank, functions.ranks, functions.token), functions_(std::move(functions)) {}

 private:
  // Calls a function of the caller; an exception becomes an error.
  template <class Call>
  auto guarded(const char* what, const std::string& key, Call call) -> decltype(call()) {
    const MutexLock lock(mutex_);
    try {
      return call();
    } catch (const std::exception& failure) {
      return Error::with_text(
          Code::kDriver, Layer::kDevice,
          fmt::format("the {} function of the exchange failed for {}: {}", what, key, failure.what()));
    } catch (...) {
      return Error::with_text(Code::kDriver, Layer::kDevice,
                              fmt::format("the {} function of the exchange failed for {}", what, key));
    }
  }

  Result<void> do_publish(const std::string& key, std::span<const std::byte> bytes) override {
    return guarded("publish", key, [&] { return functions_.publish(key, bytes); });
  }

  Result<std::vector<std::byte>> do_fetch(std::uint32_t from, const std::string& key, Deadline deadline) override {
    auto value = guarded("fetch", key, [&] { return functions_.fetch(from, key, deadline); });
    // The rank is named even if the function does not do so.
    if (!value && value.error().code() == Code::kDeviceUnavailable)
      return internal::rank_missing(from, ranks(), key, fmt::format("; {}", value.error().message()));
    if (value && value->size() > kMostBytes)
      return Error(Code::kInvalidData, Layer::kDevice, "rank {} published {b}, and the most of one value is {b}", from,
                   value->size(), kMostBytes);
    return value;
  }

  Mutex mutex_;  // the functions are called by one thread at a time
  const ExchangeFunctions functions_;
};

}  // namespace

Result<ExchangePtr> make_function_exchange(ExchangeFunctions functions) {
  BERTH_TRY(internal::check_rank(functions.rank, functions.ranks));
  if (!functions.publish || !functions.fetch)
    return Error(Code::kInvalidArgument, Layer::kDevice, "an exchange through functions needs publish and fetch");
  return ExchangePtr(std::make_shared<FunctionExchange>(std::move(functions)));
}

}  // namespace berth
