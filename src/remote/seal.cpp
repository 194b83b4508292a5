#include "remote/seal.h"

#include <algorithm>
#include <bit>

namespace berth::internal::remote {
namespace {

using State = std::array<std::uint32_t, 8>;
constexpr std::size_t kBlock = 64;

// The fractions of the square roots of the first 8 primes, and of the cube roots of the first 64.
constexpr State kStart = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
constexpr std::array<std::uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void add_block(State& state, const std::byte* block) noexcept {
  std::array<std::uint32_t, 64> words{};
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 4; ++j) words[i] = words[i] << 8 | static_cast<std::uint32_t>(block[4 * i + j]);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = words[i - 15], b = words[i - 2];
    words[i] = words[i - 16] + words[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  State s = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t one = s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) +
                              ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRound[i] + words[i];
    const std::uint32_t two = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) +
                              ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    s = {one + two, s[0], s[1], s[2], s[3] + one, s[4], s[5], s[6]};
  }
  for (std::size_t i = 0; i < 8; ++i) state[i] += s[i];
}

// Adds the last bytes of a message that has `before` bytes in front of them.
Digest finish(State state, std::span<const std::byte> bytes, std::size_t before) noexcept {
  const std::uint64_t bits = (before + bytes.size()) * 8;
  for (; bytes.size() >= kBlock; bytes = bytes.subspan(kBlock)) add_block(state, bytes.data());
  std::array<std::byte, 2 * kBlock> tail{};
  std::copy(bytes.begin(), bytes.end(), tail.begin());
  tail[bytes.size()] = std::byte{0x80};
  const std::size_t end = bytes.size() + 9 <= kBlock ? kBlock : 2 * kBlock;
  for (std::size_t i = 0; i < 8; ++i) tail[end - 1 - i] = static_cast<std::byte>(bits >> 8 * i);
  for (std::size_t at = 0; at < end; at += kBlock) add_block(state, tail.data() + at);
  Digest digest;
  for (std::size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<std::byte>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

}  // namespace

Digest sha256(std::span<const std::byte> bytes) noexcept {
  return finish(kStart, bytes, 0);
}

Sealer::Sealer(std::string_view token) noexcept : inner_(kStart), outer_(kStart) {
  std::array<std::byte, kBlock> key{};
  const auto bytes = std::as_bytes(std::span(token));
  if (bytes.size() <= kBlock) {
    std::copy(bytes.begin(), bytes.end(), key.begin());
  } else {
    const Digest digest = sha256(bytes);
    std::copy(digest.begin(), digest.end(), key.begin());
  }
  std::array<std::byte, kBlock> block{};
  for (std::size_t i = 0; i < kBlock; ++i) block[i] = key[i] ^ std::byte{0x36};
  add_block(inner_, block.data());
  for (std::size_t i = 0; i < kBlock; ++i) block[i] = key[i] ^ std::byte{0x5c};
  add_block(outer_, block.data());
}

Seal Sealer::seal(std::span<const std::byte> bytes) const noexcept {
  const Digest inner = finish(inner_, bytes, kBlock);
  const Digest whole = finish(outer_, inner, kBlock);
  Seal result;
  std::copy_n(whole.begin(), kSealBytes, result.begin());
  return result;
}

bool Sealer::holds(std::span<const std::byte> seal, std::span<const std::byte> bytes) const noexcept {
  if (seal.size() != kSealBytes) return false;
  const Seal right = this->seal(bytes);
  std::byte difference{0};
  for (std::size_t i = 0; i < kSealBytes; ++i) difference |= seal[i] ^ right[i];
  return difference == std::byte{0};
}

}  // namespace berth::internal::remote
