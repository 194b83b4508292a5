// The check that every allocator makes of the alignment it is asked for.
#pragma once

#include <bit>
#include <cstdint>

#include "berth/base/result.h"

namespace berth::internal {

// kInvalidArgument, as an error of `layer`, if `alignment` is not a power of two.
inline Result<void> check_alignment(std::uint64_t alignment, Layer layer) {
  if (std::has_single_bit(alignment)) [[likely]]
    return {};
  return Error(Code::kInvalidArgument, layer, "an alignment of {} is not a power of two", alignment);
}

}  // namespace berth::internal
