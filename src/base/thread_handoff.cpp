#include "base/thread_handoff.h"

#ifdef BERTH_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>

namespace berth {

void hand_over(const void* token) noexcept {
  __tsan_release(const_cast<void*>(token));
}
void take_over(const void* token) noexcept {
  __tsan_acquire(const_cast<void*>(token));
}

}  // namespace berth

// oneTBB's own task objects, whose code is in its headers and so is instrumented. Silenced are reports whose innermost
// frame is there, or that pass through one of its functions that never calls the work of a task; and what the library
// itself allocates and frees, whose hand-over between its threads is not seen.
// Then WebGPU's library, the software Vulkan below it and ONNX Runtime, which are not instrumented: their locks are not
// seen, or half seen. Not called_from_lib for the Vulkan driver: the loader unloads it, and that ends a process under
// the sanitizer.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race_top:oneapi/tbb/\n"
         "called_from_lib:libtbb.so\n"
         "race:tbb::detail::d1::task_group_context::\n"
         "race:tbb::detail::d1::tree_node::\n"
         "race:fold_tree\n"
         "race:check_being_stolen\n"
         "race:new_object<tbb::\n"
         "called_from_lib:libwgpu_native\n"
         "race:libwgpu_native\n"
         "race:libvulkan_lvp\n"
         "race:libLLVM\n"
         "thread:libvulkan_lvp\n"
         "mutex:libvulkan_lvp\n"
         "deadlock:libvulkan_lvp\n"
         "deadlock:berth::webgpu::\n"
         "race:libonnxruntime\n"
         "deadlock:libonnxruntime\n";
}
#endif
