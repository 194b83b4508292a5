// What the leak sanitizer should ignore when the tests run on WEBGPU and REMOTE: the caches that the driver and the
// software Vulkan below it keep until the process ends, and what UCX keeps of its settings. What the thread sanitizer
// should ignore is in src/base/thread_handoff.cpp.
#include "base/sanitizers.h"

extern "C" {

// The name is the sanitizer's.
const char* __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)

const char* __lsan_default_suppressions() {
  return "leak:libwgpu_native\n"
         "leak:libvulkan\n"
         "leak:libLLVM\n"
         "leak:libdrm\n"
         "leak:libucs\n"
         "leak:_dl_init\n";
}

#if BERTH_ADDRESS_SANITIZER
// The Vulkan loader closes its drivers before the leak check, which then cannot tell whose allocations these are. So
// libraries stay open in this program.
int dlclose(void*) {
  return 0;
}
#endif
}
