#include "berth/memory/out_of_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "berth/memory/allocator.h"

namespace berth {
namespace {

// One clause that names the cause.
std::string blame(const OutOfMemory& report) {
  switch (report.cause) {
    case OutOfMemory::Cause::kCapacity:
      return "the device has no more memory" + (report.driver.empty() ? "" : " (" + report.driver + ")");
    case OutOfMemory::Cause::kBudget: return "it is the budget, not fragmentation";
    case OutOfMemory::Cause::kFragmentation:
      return fmt::format("it is fragmentation: the largest free piece is {}", format_bytes(report.largest_free));
    case OutOfMemory::Cause::kPendingFrees:
      return fmt::format("{} are released and wait for submitted work", format_bytes(report.pending_bytes));
    case OutOfMemory::Cause::kInjected: return "this failure was injected by a test";
  }
  return "";
}

// A sufficient size: rounded up to whole units, at most one percent too large.
std::string format_enough(std::size_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  std::size_t size = 1;
  while (unit < 4 && (bytes / size >= 100 * 1024 || (bytes > 0 && bytes % (size * 1024) == 0))) {
    size *= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes / size + (bytes % size != 0), kUnits[unit]);
}

std::string remedies(const OutOfMemory& report) {
  std::string text;
  const auto add = [&text](std::string remedy) { text += (text.empty() ? "" : ", or ") + std::move(remedy); };
  if (report.budget_needed > 0) add("budget " + format_enough(report.budget_needed));
  if (report.cause == OutOfMemory::Cause::kPendingFrees) add("waiting for the queue");
  if (!report.holder_to_free.empty()) add(fmt::format("freeing \"{}\"", report.holder_to_free));
  return text;
}

}  // namespace

std::string OutOfMemory::to_string() const {
  std::string text = "out of memory: asked for " + format_bytes(asked);
  if (label) text += fmt::format(" (label \"{}\")", label.text());
  if (budget > 0) text += ", budget " + format_bytes(budget);
  text += " on " + device;
  text += fmt::format("\n  live {} in {} {}, cached {}, peak {}; {}", format_bytes(live_bytes), live_count,
                      live_count == 1 ? "buffer" : "buffers", format_bytes(cached_bytes), format_bytes(peak_bytes),
                      blame(*this));
  if (foreign_count > 0)
    text += fmt::format("\n  beside them {} in {} foreign {}", format_bytes(foreign_bytes), foreign_count,
                        foreign_count == 1 ? "buffer" : "buffers");
  if (!holders.empty()) {
    text += "\n  largest:";
    for (std::size_t i = 0; i < holders.size() && i < 3; ++i) {
      text += fmt::format("{} \"{}\" {}", i == 0 ? "" : ",", holders[i].label, format_bytes(holders[i].bytes));
      if (holders[i].count > 1) text += fmt::format(" ({})", holders[i].count);
    }
  }
  if (const std::string help = remedies(*this); !help.empty()) text += "\n  would fit with: " + help;
  return text;
}

Error out_of_memory(OutOfMemory::Cause cause, const Allocator& refusing, const BlockSpec& spec, std::size_t budget,
                    std::size_t charged, std::string driver) {
  auto report = std::make_shared<OutOfMemory>();
  report->cause = cause;
  report->asked = spec.bytes;
  report->label = spec.label;
  report->budget = budget;
  report->driver = std::move(driver);
  refusing.explain(*report);
  std::size_t missing = std::max(charged, spec.bytes);
  if (budget > 0) {
    report->budget_needed = report->live_bytes + missing;
    missing = report->budget_needed > budget ? report->budget_needed - budget : 0;
  }
  // Holders are sorted largest first, so the last one that is large enough is the smallest sufficient one.
  for (const OutOfMemory::Holder& holder : report->holders)
    if (holder.bytes >= missing) report->holder_to_free = holder.label;
  std::string text = report->to_string();
  return Error::with_detail(Code::kOutOfMemory, Layer::kAllocator, {std::move(text), std::move(report)});
}

}  // namespace berth
