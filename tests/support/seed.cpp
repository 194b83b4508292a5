#include "support/seed.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

namespace berth::test {
namespace {

std::uint32_t choose() {
  const char* const given = std::getenv("BERTH_TEST_SEED");
  if (given != nullptr && *given != '\0') return static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10));
  return std::random_device{}();
}

// Prints the seed before the tests, and gives it to rapidcheck unless RC_PARAMS says otherwise.
class SeedForAll : public ::testing::Environment {
 public:
  void SetUp() override {
    std::printf("seed %u; BERTH_TEST_SEED=%u repeats it\n", seed(), seed());
    setenv("RC_PARAMS", ("seed=" + std::to_string(seed())).c_str(), 0);
  }
};
[[maybe_unused]] const auto* const kSeedForAll = ::testing::AddGlobalTestEnvironment(new SeedForAll);

}  // namespace

std::uint32_t seed() {
  static const std::uint32_t chosen = choose();
  return chosen;
}

std::vector<std::uint32_t> seeds(std::size_t count) {
  std::vector<std::uint32_t> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = seed() + static_cast<std::uint32_t>(i);
  return all;
}

}  // namespace berth::test
