// Proof that bytes come from a process that knows the token of the job: HMAC-SHA256 (RFC 2104, FIPS 180-4). It tells
// ranks of one job from strangers and from ranks of another job; it does not hide anything. Plain values; any thread
// may call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace berth::internal::remote {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::span<const std::byte> bytes) noexcept;

// The first bytes of the digest that stand in front of a message.
inline constexpr std::size_t kSealBytes = 16;
using Seal = std::array<std::byte, kSealBytes>;

class Sealer {
 public:
  explicit Sealer(std::string_view token) noexcept;

  Seal seal(std::span<const std::byte> bytes) const noexcept;
  // Takes the same time wherever the first difference is.
  bool holds(std::span<const std::byte> seal, std::span<const std::byte> bytes) const noexcept;

 private:
  std::array<std::uint32_t, 8> inner_{}, outer_{};  // after the block of the key
};

}  // namespace berth::internal::remote
