// The page, style and script of the memory map, from memory_map.html, .css and .js at build time. The page contains the
// marks /*STYLE*/, /*DATA*/ and /*SCRIPT*/.
#pragma once

#include <string_view>

namespace berth::internal {

extern const std::string_view kMemoryMapHtml;
extern const std::string_view kMemoryMapCss;
extern const std::string_view kMemoryMapJs;

}  // namespace berth::internal
