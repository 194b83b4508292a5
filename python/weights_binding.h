// What the bindings of weight files share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "berth/weights/weights.h"
#include "bindings.h"

namespace berth::python {

// Names in files may have any bytes.
nb::object text_of(std::string_view text);

[[noreturn]] void no_tensor(const WeightFile& file, std::string_view name);

// The tensors that a caller named, or all for None. KeyError for one that the file does not have. The views are valid
// as long as the file and this object.
class TensorNames {
 public:
  TensorNames(const WeightFile& file, nb::handle names);
  TensorNames(const TensorNames&) = delete;
  TensorNames& operator=(const TensorNames&) = delete;
  const std::vector<std::string_view>& views() const noexcept { return views_; }

 private:
  std::vector<std::string> kept_;
  std::vector<std::string_view> views_;
};

void bind_async_load(nb::module_& module, nb::class_<WeightFile>& file);

}  // namespace berth::python
