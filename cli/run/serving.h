// `berth run --shapes --concurrency`: one model that serves a mix of shapes from several threads, stock and with Berth,
// each in a process of its own; and the presentation of what that took.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "berth/base/result.h"
#include "run/measure.h"
#include "run/report.h"

namespace berth::cli {

struct MixSettings {
  std::vector<std::vector<std::int64_t>> shapes;  // see set_shape(); empty: one, by the defaults
  unsigned concurrency = 1;
};

// "320x320,640x480" as numbers. kInvalidArgument for anything else, or a size that is zero or above 2^31.
Result<std::vector<std::vector<std::int64_t>>> parse_shapes(std::string_view text);

struct MixSide {
  std::uint64_t held = 0, in_use = 0, process_peak = 0;
  double runs_per_second = 0, cpu_ms = 0;  // cpu_ms: of one run
};

struct MixShape {
  ModelPlan plan;  // `inputs` describes the shape
  double stock_ms = 0, berth_ms = 0;
  bool identical = false;
};

struct MixReport {
  std::string title;
  std::string engine;  // version
  std::uint64_t runs = 0;
  unsigned concurrency = 1;
  MixSide stock, berth;
  std::vector<MixShape> shapes;
  std::uint64_t requests = 0, planned = 0;  // of all runs, the recorded ones included
  std::uint64_t recorded_runs = 0, arenas = 0;

  bool identical() const;
};

// `settings` as for measure_run(), with one model. Fails like measure_run().
Result<MixReport> measure_mix(const RunSettings& settings, const MixSettings& mix, const Progress& progress,
                              std::stop_token stop = {});

std::string mix_text(const MixReport& report, const ReportStyle& style, const std::string& map_file);
nlohmann::ordered_json mix_json(const MixReport& report);
// The map of each shape's plan.
std::string mix_map_page(const MixReport& report);

}  // namespace berth::cli
