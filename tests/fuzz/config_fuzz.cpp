// The config.json of a model, and what is computed from it: any sizes may be in it.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "berth/kv/fit.h"
#include "table_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using berth::internal::formats::require;
  const berth::WeightFile nothing;
  const auto model = berth::kv::read_model(nothing, std::string_view(reinterpret_cast<const char*>(data), size));
  if (!model) {
    require(!model.error().message().empty(), "an error has no message");
    return 0;
  }
  // A graph of thousands of layers takes long, and is no different.
  if (model->layers.size() > 64) return 0;
  const auto one = berth::kv::fit(*model, {.context = 1000, .sequences = 1});
  const auto more = berth::kv::fit(*model, {.context = 4000, .sequences = 3});
  require(one.has_value() || !more.has_value(), "a larger request is computed where a smaller one is refused");
  if (!one) return 0;
  require(one->total() >= one->cache && one->total() >= one->activations, "the sum overflowed");
  require(one->complete == model->missing.empty(), "keys are missing, and nothing is missing");
  if (more) require(more->cache >= one->cache, "a larger request has a smaller cache");
  return 0;
}
