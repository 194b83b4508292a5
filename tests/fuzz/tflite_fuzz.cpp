// TensorFlow Lite models from anywhere: planning one must neither crash nor write a model that it cannot read again.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "berth/engines/tflite.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  berth::engines::TfliteOptions options{.reorder = size % 2 == 0};
  options.plan.work_limit = 1000;
  options.plan.threads = 1;
  const auto planned = berth::engines::plan_tflite(std::as_bytes(std::span(data, size)), options);
  if (!planned) return 0;
  if (berth::validate(planned->problem, planned->plan)) std::abort();
  options.reorder = false;
  const auto again = berth::engines::plan_tflite(planned->file, options);
  if (!again || !again->had_plan || again->problem.lifetimes.size() != planned->problem.lifetimes.size()) std::abort();
  return 0;
}
