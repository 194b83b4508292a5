// How many processors this process may use. Any thread may call.
#pragma once

namespace berth::internal {

// At least 1. A process that is bound to some processors may use only those.
unsigned usable_processors() noexcept;

}  // namespace berth::internal
