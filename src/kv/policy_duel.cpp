#include "kv/policy_duel.h"

#include <bit>

namespace berth::internal::kv_cache {
namespace {

constexpr std::uint32_t kSample = 2048;  // blocks in each shadow cache
constexpr double kFade = 0.998;          // of what is remembered, for each sequence on which the two differ
constexpr double kSurprise = 1;          // the leader changes at this many variances

}  // namespace

void ShadowCache::reserve(std::uint32_t entries) {
  least_ = entries - entries / 8;
  most_ = entries + entries / 8 + 1;
  entries_.reserve(most_);
  index_.assign(std::bit_ceil(2 * most_), kNone);
}

std::size_t ShadowCache::find(std::uint32_t hash) const noexcept {
  std::size_t place = hash * 0x9e37'79b1u & (index_.size() - 1);
  while (index_[place] != kNone && entries_[index_[place]].hash != hash) place = (place + 1) & (index_.size() - 1);
  return place;
}

void ShadowCache::drop_least() noexcept {
  std::nth_element(
      entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(least_), entries_.end(),
      [](const Entry& a, const Entry& b) { return a.worth != b.worth ? a.worth > b.worth : a.order > b.order; });
  entries_.resize(least_);
  std::fill(index_.begin(), index_.end(), kNone);
  for (std::uint32_t i = 0; i < entries_.size(); ++i) index_[find(entries_[i].hash)] = i;
}

void PolicyDuel::reserve(std::uint32_t nodes) {
  every_ = std::max<std::uint32_t>(1, (nodes + kSample - 1) / kSample);
  model_.reserve(nodes / every_);
  plain_.reserve(nodes / every_);
}

// Blocks of one sequence are found or missed together, so what counts as one observation is a sequence.
void PolicyDuel::count(int ahead) noexcept {
  ahead_ = ahead_ * kFade + ahead;
  squares_ = squares_ * kFade * kFade + static_cast<double>(ahead) * ahead;
  if (ahead_ * ahead_ > kSurprise * squares_) model_leads_ = ahead_ > 0;
}

}  // namespace berth::internal::kv_cache
