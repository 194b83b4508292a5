// What the leak sanitizer should not look at when the tests run on WEBGPU: the caches that the driver and the software
// Vulkan below it keep until the process ends. What the thread sanitizer should not is in src/core/thread_handoff.cpp.
extern "C" {

// The name is the sanitizer's.
const char* __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)

const char* __lsan_default_suppressions() {
  return "leak:libwgpu_native\n"
         "leak:libvulkan\n"
         "leak:libLLVM\n"
         "leak:libdrm\n"
         "leak:_dl_init\n";
}
}
