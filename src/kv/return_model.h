// Learns when the blocks of sequences are used again. A run of blocks is described by a few features; the model
// predicts how likely it is to be used soon, sorts runs into classes by that, and counts for each class how many are
// used at which age. From the counts follows what a page of the class earns: the largest rate of hits for the time
// held, over all ages at which one could give up. Everything is learned from the cache's own sequences; old counts
// fade. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace berth::internal::kv_cache {

constexpr std::size_t kAges = 36;  // half octaves from half a second on
constexpr std::size_t kFeatures = 8;
constexpr std::size_t kFeatureValues = 24;
constexpr std::size_t kVisitClasses = 16;  // by predicted chance of a return
constexpr std::size_t kPaces = 24;         // half octaves of the mean time between uses
constexpr std::size_t kUses = 4;           // classes of the number of uses: 2, 3 to 5, 6 to 11, more
constexpr std::size_t kHistoryClasses = kUses * kPaces;
constexpr std::size_t kClasses = kVisitClasses + kHistoryClasses;

using Features = std::array<std::uint8_t, kFeatures>;

// The bucket of an age in milliseconds.
std::size_t age_bucket(std::uint32_t milliseconds) noexcept;
// Half octaves of a value: 0 for 1 and less.
std::uint8_t half_octaves(double value) noexcept;

class ReturnModel {
 public:
  ReturnModel();

  // The class of a sequence with these features.
  std::uint8_t classify(const Features& features) const noexcept;
  // The class of a block with its own history of uses. Requires: uses >= 2.
  static std::uint8_t classify(std::uint32_t uses, double mean_seconds) noexcept;

  // Whether a sequence with these features was continued within the horizon.
  void learn(const Features& features, bool returned) noexcept;
  // One of a class reached the age of a bucket without being continued before.
  void at_risk(std::uint8_t which, std::size_t bucket) noexcept { risk_[which][bucket] += 1; }
  void returned(std::uint8_t which, std::size_t bucket) noexcept { hits_[which][bucket] += 1; }

  // What a page earns: hits for each second that it is kept. As of the last refresh().
  float worth(std::uint8_t which, std::size_t bucket) const noexcept { return worth_[which][bucket]; }
  // O(classes * ages^2).
  void refresh() noexcept;

 private:
  using Table = std::array<std::array<float, kAges>, kClasses>;
  float logit(const Features& features) const noexcept;
  void fade() noexcept;

  std::array<std::array<float, kFeatureValues>, kFeatures> weights_{}, squares_{};
  float bias_ = -2, bias_squares_ = 0;
  Table hits_{}, risk_{}, worth_{};
};

}  // namespace berth::internal::kv_cache
