#include "bindings.h"

NB_MODULE(_berth, module) {
  module.doc() = "Berth's core: devices, buffers, weight files, DLPack and memory plans. Import `berth`, not this.";
  module.attr("__version__") = BERTH_VERSION;
  using namespace berth::python;
  bind_errors(module);
  bind_device(module);
  bind_buffer(module);
  bind_weights(module);
}
