// The default model of `berth run`: PP-OCR v4 text detection, from the Apache-2.0 licensed package rapidocr-onnxruntime
// in the project's Python environment.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "berth/base/result.h"

namespace berth::cli {

struct DefaultModel {
  std::string path;
  std::string title;
  std::map<std::string, std::int64_t> dims;
};

// kNotFound with the command that installs it.
Result<DefaultModel> default_model();

}  // namespace berth::cli
