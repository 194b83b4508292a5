#include "kv/return_model.h"

#include <algorithm>
#include <cmath>

namespace berth::internal::kv_cache {
namespace {

constexpr float kStep = 0.3f;  // of the gradient descent, before it is scaled by past gradients
constexpr float kClassesPerLogit = 2;
constexpr float kLowestLogit = -6;
constexpr float kPriorVisits = 20;           // how many observations the prior of a class counts as
constexpr float kPriorHistory = 40;          // classes are many and each sees little, so the prior must hold its own
constexpr float kMostObservations = 50'000;  // of one age; then all counts are halved

double age_edge(std::size_t bucket) noexcept {
  return bucket == 0 ? 0 : 0.5 * std::exp2(static_cast<double>(bucket - 1) * 0.5);
}

float chance(float logit) noexcept {
  return 1 / (1 + std::exp(-logit));
}

float chance_of_class(std::size_t which) noexcept {
  return chance((static_cast<float>(which) + 0.5f) / kClassesPerLogit + kLowestLogit);
}

}  // namespace

std::size_t age_bucket(std::uint32_t milliseconds) noexcept {
  if (milliseconds < 500) return 0;
  const auto bucket = static_cast<std::size_t>(1 + 2 * std::log2(static_cast<float>(milliseconds) / 500));
  return std::min(bucket, kAges - 1);
}

std::uint8_t half_octaves(double value) noexcept {
  if (!(value > 1)) return 0;
  return static_cast<std::uint8_t>(std::min(2 * std::log2(value), static_cast<double>(kFeatureValues - 1)));
}

ReturnModel::ReturnModel() {
  refresh();
}

float ReturnModel::logit(const Features& features) const noexcept {
  float sum = bias_;
  for (std::size_t f = 0; f < kFeatures; ++f) sum += weights_[f][features[f]];
  return sum;
}

std::uint8_t ReturnModel::classify(const Features& features) const noexcept {
  const float at = std::floor((logit(features) - kLowestLogit) * kClassesPerLogit);
  return static_cast<std::uint8_t>(std::clamp(at, 0.0f, static_cast<float>(kVisitClasses - 1)));
}

std::uint8_t ReturnModel::classify(std::uint32_t uses, double mean_seconds) noexcept {
  const std::size_t often = uses >= 12 ? 3 : uses >= 6 ? 2 : uses >= 3 ? 1 : 0;
  const std::size_t pace = std::min<std::size_t>(half_octaves(mean_seconds), kPaces - 1);
  return static_cast<std::uint8_t>(kVisitClasses + often * kPaces + pace);
}

void ReturnModel::learn(const Features& features, bool returned) noexcept {
  const float error = (returned ? 1.0f : 0.0f) - chance(logit(features));
  const auto update = [error](float& weight, float& squares) {
    squares += error * error;
    weight += error * kStep / std::sqrt(1 + squares);
  };
  update(bias_, bias_squares_);
  for (std::size_t f = 0; f < kFeatures; ++f) update(weights_[f][features[f]], squares_[f][features[f]]);
}

void ReturnModel::fade() noexcept {
  float most = 0;
  for (const auto& row : risk_)
    for (const float count : row) most = std::max(most, count);
  if (most < kMostObservations) return;
  for (Table* table : {&hits_, &risk_})
    for (auto& row : *table)
      for (float& count : row) count *= 0.5f;
}

void ReturnModel::refresh() noexcept {
  fade();
  // What is common to all sequences is the prior of each class of them, scaled by the chance of the class.
  std::array<float, kAges> common{};
  float mean = 0, all = 0;
  for (std::size_t c = 0; c < kVisitClasses; ++c) {
    mean += risk_[c][0] * chance_of_class(c);
    all += risk_[c][0];
  }
  mean = all > 0 ? mean / all : 0.1f;
  for (std::size_t b = 0; b < kAges; ++b) {
    float hits = 0.005f, risk = 0.5f;
    for (std::size_t c = 0; c < kVisitClasses; ++c) {
      hits += hits_[c][b];
      risk += risk_[c][b];
    }
    common[b] = hits / risk;
  }
  for (std::size_t c = 0; c < kClasses; ++c) {
    std::array<float, kAges> hazard{};  // the chance of a return within the bucket, for one that reached it
    for (std::size_t b = 0; b < kAges; ++b) {
      float hits = 0, risk = 0, prior = 0, weight = 0;
      if (c < kVisitClasses) {
        hits = hits_[c][b];
        risk = risk_[c][b];
        prior = std::min(0.9f, common[b] * chance_of_class(c) / std::max(1e-6f, mean));
        weight = kPriorVisits;
      } else {
        // Neighbours in pace, and the same pace with more or fewer uses, are similar.
        const std::size_t often = (c - kVisitClasses) / kPaces, pace = (c - kVisitClasses) % kPaces;
        const auto add = [&](std::size_t o, std::size_t p, float share) {
          hits += share * hits_[kVisitClasses + o * kPaces + p][b];
          risk += share * risk_[kVisitClasses + o * kPaces + p][b];
        };
        add(often, pace, 1);
        if (pace > 0) add(often, pace - 1, 0.3f);
        if (pace + 1 < kPaces) add(often, pace + 1, 0.3f);
        for (std::size_t o = 0; o < kUses; ++o) add(o, pace, 0.1f);
        const double width = age_edge(b + 1) - age_edge(b);
        const double usual = std::max(std::exp2(static_cast<double>(pace) * 0.5), age_edge(b + 1));
        prior = static_cast<float>(std::min(0.5, 0.5 * width / usual));
        weight = kPriorHistory;
      }
      hazard[b] = std::min(0.95f, (hits + weight * prior) / (risk + weight));
    }
    for (std::size_t b = 0; b < kAges; ++b) {
      double alive = 1, found = 0, held = 0, best = 0;
      for (std::size_t m = b; m < kAges; ++m) {
        const double h = static_cast<double>(hazard[m]);
        found += alive * h;
        held += alive * (age_edge(m + 1) - age_edge(m)) * (1 - h / 2);
        alive *= 1 - h;
        best = std::max(best, found / held);
      }
      worth_[c][b] = static_cast<float>(best);
    }
  }
}

}  // namespace berth::internal::kv_cache
