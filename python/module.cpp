#include "bindings.h"
#include "sharding_binding.h"

NB_MODULE(_berth, module) {
  module.doc() = "Berth's core: devices, buffers, weight files, DLPack and memory plans. Import `berth`, not this.";
  module.attr("__version__") = BERTH_VERSION;
  using namespace berth::python;
  bind_errors(module);
  bind_allocators(module);
  bind_device(module);
  bind_sharing(module);
  bind_buffer(module);
  bind_weights(module);
  bind_plan(module);
  bind_arena(module);
  bind_schedule(module);
  bind_step_buffers(module);
  bind_kv(module);
  bind_recording(module);
  bind_onnxruntime(module);
  bind_ncnn(module);
  bind_sharding(module);
}
