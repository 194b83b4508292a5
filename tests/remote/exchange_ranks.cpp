// One rank of a job: exchanges a value with all others, twice, and a token. Ends with 1 and a message if one is wrong.
#include <chrono>
#include <cstdio>
#include <string>

#include "berth/remote/exchange.h"

namespace {

using namespace std::chrono_literals;

std::string value_of(std::uint32_t rank, const std::string& key) {
  return key + " of rank " + std::to_string(rank);
}

int fail(const std::string& text) {
  std::printf("%s\n", text.c_str());
  return 1;
}

}  // namespace

int main() {
  const auto made = berth::make_job_exchange();
  if (!made) return fail(made.error().message());
  berth::Exchange& exchange = **made;
  if (exchange.ranks() < 2) return fail("the job has one rank only");
  const berth::Deadline deadline = std::chrono::steady_clock::now() + 30s;
  for (const std::string key : {"first", "second"}) {
    const std::string own = value_of(exchange.rank(), key);
    if (const auto published = exchange.publish(key, std::as_bytes(std::span(own))); !published)
      return fail(published.error().message());
    const auto all = exchange.fetch_all(key, deadline);
    if (!all) return fail(all.error().message());
    for (std::uint32_t rank = 0; rank < exchange.ranks(); ++rank) {
      const auto& bytes = (*all)[rank];
      if (std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) != value_of(rank, key))
        return fail("rank " + std::to_string(rank) + " has a wrong value");
    }
  }
  const auto token = berth::job_token(exchange, deadline);
  if (!token) return fail(token.error().message());
  // All have the same token: each publishes a checksum of it.
  const std::string sum = std::to_string(std::hash<std::string>()(*token));
  if (const auto published = exchange.publish("sum", std::as_bytes(std::span(sum))); !published)
    return fail(published.error().message());
  const auto sums = exchange.fetch_all("sum", deadline);
  if (!sums) return fail(sums.error().message());
  for (const auto& each : *sums)
    if (each != sums->front()) return fail("two ranks have different tokens");
  std::printf("rank %u of %u found the others\n", exchange.rank(), exchange.ranks());
  return 0;
}
