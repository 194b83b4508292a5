// The memory map's page, style and script, as memory_map.html, .css and .js had them when this was built. The page has
// a place for each of the others: /*STYLE*/, /*DATA*/ and /*SCRIPT*/.
#pragma once

#include <string_view>

namespace berth {

extern const std::string_view kMemoryMapHtml;
extern const std::string_view kMemoryMapCss;
extern const std::string_view kMemoryMapJs;

}  // namespace berth
