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

inline constexpr std::size_t kBarCells = 20;  // of the bars in a report

// A bar for a part of 1 that is `cells` characters long for all of it.
std::string bar(double part, bool unicode, std::size_t cells);
// Pads to a width counted in characters, not bytes.
std::string padded(std::string text, std::size_t width);

nlohmann::ordered_json report_json(const RunReport& report);

}  // namespace berth::cli
