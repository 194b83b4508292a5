// The presentation of a RunReport: the table on the terminal, and JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "run/measure.h"

namespace berth::cli {

struct ReportStyle {
  bool color = false;   // escape sequences: only on a terminal
  bool unicode = true;  // block characters for the bars
};

// The whole text. `map_file` is where the memory map is, or empty; `closing` is the last line, or empty.
std::string report_text(const RunReport& report, const ReportStyle& style, const std::string& map_file,
                        const std::string& closing);

nlohmann::ordered_json report_json(const RunReport& report);

}  // namespace berth::cli
