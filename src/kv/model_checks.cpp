#include "kv/model_checks.h"

#include <fmt/format.h>

namespace berth::internal::fit {

Result<void> check_layer_count(std::uint64_t layers, std::uint64_t with_tensors, std::string_view source) {
  if (layers == 0 || layers > kMostLayers)
    return Error::with_text(Code::kInvalidData, Layer::kFormat,
                            fmt::format("{} is {}, and models have 1 to {} layers", source, layers, kMostLayers));
  if (with_tensors > 0 && with_tensors != layers)
    return Error::with_text(
        Code::kInvalidData, Layer::kFormat,
        fmt::format("{} is {}, and the file has tensors of {} layers", source, layers, with_tensors));
  return {};
}

Result<void> check_heads(const kv::ModelLayer& layer, std::size_t index) {
  const auto wrong = [&](std::string_view what) {
    return Error::with_text(
        Code::kInvalidData, Layer::kFormat,
        fmt::format("layer {} has {} heads, {} with keys and values of {} and {} elements: {}", index, layer.heads,
                    layer.heads_kv, layer.key_length, layer.value_length, what));
  };
  if (layer.heads == 0) return wrong("a layer with keys needs heads");
  if (layer.heads_kv > layer.heads) return wrong("more heads have keys than there are");
  if (layer.heads % layer.heads_kv != 0) return wrong("heads share keys evenly");
  if (layer.key_length == 0) return wrong("a key needs elements");
  return {};
}

}  // namespace berth::internal::fit
