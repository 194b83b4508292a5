#include "base/checksum.h"

#include <algorithm>
#include <cstring>

namespace berth::internal {
namespace {

// One step is a bijection of the state for a given word, and of the word for a given state. The multiplication carries
// a difference to higher bits, and the shift copies the high bits down, so that a change of the highest bit alone is
// two changes for the next step: one flipped bit of the next word cannot undo it.
constexpr std::uint64_t mix(std::uint64_t state, std::uint64_t word) noexcept {
  constexpr std::uint64_t kOdd = 0xd6e8'feb8'6659'fd93;
  const std::uint64_t product = (state ^ word) * kOdd;
  return product ^ product >> 32;
}

}  // namespace

void Checksum::add_stripe(const std::byte* bytes) noexcept {
  // Independent lanes: one after another, each step would wait for the multiplication before it.
  std::array<std::uint64_t, kLanes> words;
  std::memcpy(words.data(), bytes, kStripe);
  for (std::size_t i = 0; i < kLanes; ++i) lanes_[i] = mix(lanes_[i], words[i]);
}

void Checksum::add(std::span<const std::byte> bytes) noexcept {
  if (bytes.empty()) return;  // its address may be null
  std::size_t held = size_ % kStripe;
  size_ += bytes.size();
  if (held > 0) {
    const std::size_t taken = std::min(bytes.size(), kStripe - held);
    std::memcpy(rest_.data() + held, bytes.data(), taken);
    bytes = bytes.subspan(taken);
    if (held + taken < kStripe) return;
    add_stripe(rest_.data());
  }
  for (; bytes.size() >= kStripe; bytes = bytes.subspan(kStripe)) add_stripe(bytes.data());
  if (!bytes.empty()) std::memcpy(rest_.data(), bytes.data(), bytes.size());
}

std::uint64_t Checksum::value() const noexcept {
  Checksum last = *this;
  if (const std::size_t held = size_ % kStripe; held > 0) {
    std::fill(last.rest_.begin() + static_cast<std::ptrdiff_t>(held), last.rest_.end(), std::byte{0});
    last.add_stripe(last.rest_.data());
  }
  std::uint64_t value = mix(0, size_);  // files that differ in zeros at their end differ here
  for (const std::uint64_t lane : last.lanes_) value = mix(value, lane);
  return mix(value, value >> 32);
}

}  // namespace berth::internal
