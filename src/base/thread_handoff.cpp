#include "base/thread_handoff.h"

#if BERTH_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>

namespace berth::internal {

void hand_over(const void* token) noexcept {
  __tsan_release(const_cast<void*>(token));
}
void take_over(const void* token) noexcept {
  __tsan_acquire(const_cast<void*>(token));
}

}  // namespace berth::internal

// Suppressions. The code of oneTBB's task objects is in its headers and therefore instrumented: reports whose innermost
// frame is there, or that pass through one of its functions that never calls the work of a task, are silenced, as are
// allocations of the library itself, whose passing between threads is not visible. The WebGPU library, the software
// Vulkan driver below it and ONNX Runtime are not instrumented: their locks are not visible, or only in part.
// called_from_lib is not used for the Vulkan driver, because the loader unloads it and the sanitizer then ends the
// process. For the same reason lock orders below the WEBGPU device are named by its own functions: a mutex of a driver
// that was unloaded counts as held for ever, and the frames of the driver have no names.
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
         "deadlock:berth::internal::webgpu::\n"
         "race:libonnxruntime\n"
         "deadlock:libonnxruntime\n";
}
#endif
