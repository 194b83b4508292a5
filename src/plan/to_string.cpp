#include <fmt/format.h>

#include "berth/plan/plan.h"

namespace berth {

std::string to_string(const MemoryPlan& plan) {
  const std::string blocks = plan.blocks.size() > 1 ? fmt::format(" in {} blocks", plan.blocks.size()) : "";
  const std::string quality =
      plan.optimal ? "optimal" : fmt::format("at most {:.2f} % above the optimum", plan.gap() * 100);
  return fmt::format("{} buffers in {}{}, {}", plan.slots.size(), format_bytes(plan.size), blocks, quality);
}

}  // namespace berth
