// What the kinds of Exchange share.
#pragma once

#include <cstdint>
#include <string>

#include "berth/base/result.h"

namespace berth::internal {

// kInvalidArgument unless rank < ranks <= Exchange::kMostRanks.
Result<void> check_rank(std::uint32_t rank, std::uint32_t ranks);

// The error of a fetch whose deadline passed. `more` ends the sentence.
Error rank_missing(std::uint32_t rank, std::uint32_t ranks, const std::string& key, const std::string& more = "");

}  // namespace berth::internal
