#include <fmt/format.h>

#include "base/try.h"
#include "berth/weights/save.h"
#include "weights/save.h"

namespace berth {

using namespace internal;

Result<void> convert_weights(const WeightFile& source, const std::string& path, const SaveOptions& options) {
  const bool to_gguf = path.ends_with(".gguf");
  if (!to_gguf && !path.ends_with(".safetensors"))
    return Error::with_text(Code::kInvalidArgument, Layer::kFormat,
                            fmt::format("cannot tell the format of {}: it must end with .safetensors or .gguf", path));
  Metadata metadata;
  for (const MetadataEntry& entry : source.metadata()) {
    if (entry.key.starts_with("split.")) continue;  // the target is one file
    if (to_gguf || entry.value.type() == MetadataType::kString) {
      BERTH_TRY(metadata.add(entry.key, entry.value));
    } else {
      BERTH_TRY(metadata.add(entry.key, formats::json_value(entry.value)));
    }
  }
  std::vector<NamedBuffer> tensors;
  tensors.reserve(source.tensors().size());
  for (const TensorInfo& info : source.tensors()) {
    BERTH_TRY_ASSIGN(Buffer buffer, source.tensor(info));
    tensors.push_back({info.name, std::move(buffer)});
  }
  return to_gguf ? save_gguf(path, tensors, metadata, options) : save_safetensors(path, tensors, metadata, options);
}

}  // namespace berth
