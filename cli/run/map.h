// The memory map of a run as an HTML page: Berth's arena, with the engine's own beside it.
#pragma once

#include <string>

#include "berth/base/result.h"
#include "run/measure.h"

namespace berth::cli {

Result<std::string> memory_map_page(const RunReport& report);

}  // namespace berth::cli
