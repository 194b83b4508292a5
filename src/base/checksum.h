// A 64-bit checksum that finds damage in files: any change within one word of eight bytes is found for certain, any
// other with probability 1 - 2^-64. Not a defence against someone who chooses the bytes. For use by one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace berth::internal {

class Checksum {
 public:
  // Adds bytes. The value depends on their sequence alone, not on how they were cut into pieces.
  void add(std::span<const std::byte> bytes) noexcept;
  void add(std::string_view text) noexcept { add(std::as_bytes(std::span(text))); }
  // The checksum of everything added so far.
  std::uint64_t value() const noexcept;

 private:
  void add_stripe(const std::byte* bytes) noexcept;

  static constexpr std::size_t kLanes = 4, kStripe = kLanes * 8;
  std::array<std::uint64_t, kLanes> lanes_{1, 2, 3, 4};
  std::array<std::byte, kStripe> rest_{};  // what does not fill a stripe yet
  std::uint64_t size_ = 0;
};

}  // namespace berth::internal
