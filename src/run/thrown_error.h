// The exception that a step threw, as an error.
#pragma once

#include "berth/base/result.h"

namespace berth::internal {

// Requires: called while an exception is handled.
Error thrown_error();

}  // namespace berth::internal
