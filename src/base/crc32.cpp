#include "base/crc32.h"

#include <array>
#include <cstring>

namespace berth::internal {
namespace {

using Table = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Table make_table() {
  Table table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0);
    table[0][i] = crc;
  }
  for (std::size_t slice = 1; slice < 8; ++slice)
    for (std::size_t i = 0; i < 256; ++i)
      table[slice][i] = (table[slice - 1][i] >> 8) ^ table[0][table[slice - 1][i] & 0xFF];
  return table;
}
constexpr Table kTable = make_table();

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
  crc = ~crc;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    word ^= crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= kTable[7 - i][word >> (8 * i) & 0xFF];
  }
  for (; left > 0; --left, ++at) crc = (crc >> 8) ^ kTable[0][(crc ^ static_cast<std::uint32_t>(*at)) & 0xFF];
  return ~crc;
}

}  // namespace berth::internal
