// CRC-32 as in zip, gzip and PNG (polynomial 0xEDB88320), eight bytes per step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace berth::internal {

// Continues from `crc`, which is 0 at the start: crc32(b, crc32(a)) is the checksum of a followed by b.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t crc = 0) noexcept;

}  // namespace berth::internal
