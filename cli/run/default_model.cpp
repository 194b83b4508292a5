#include "run/default_model.h"

#include <filesystem>

#include "engines/onnxruntime_library.h"

namespace berth::cli {

using namespace internal;

namespace fs = std::filesystem;

Result<DefaultModel> default_model() {
  constexpr const char* kModel = "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx";
  DefaultModel model{.path = {},
                     .title = "PP-OCR v4 text detection, 736 x 736, batch 1",
                     .dims = {{"x.0", 1}, {"x.2", 736}, {"x.3", 736}}};
  for (const fs::path& environment : ort::python_environments()) {
    std::error_code ignored;
    for (const fs::directory_entry& python : fs::directory_iterator(environment / "lib", ignored)) {
      const fs::path file = python.path() / "site-packages" / kModel;
      if (fs::exists(file, ignored)) {
        model.path = file.string();
        return model;
      }
    }
  }
  return Error::with_text(Code::kNotFound, Layer::kProgram,
                          "no model was named, and the default one is not installed; install it with: "
                          "build/venv/bin/pip install --no-deps rapidocr-onnxruntime==1.4.4\n"
                          "or name an .onnx file: berth run model.onnx");
}

}  // namespace berth::cli
