// What the sanitizers should not look at when the tests run on WEBGPU: the driver and the software Vulkan below it are
// not built for them, and their own locks and lasting caches look like races and leaks.
extern "C" {

// The names are the sanitizers'.
const char* __tsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
const char* __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)

const char* __tsan_default_suppressions() {
  // Not called_from_lib for the Vulkan driver: the loader unloads it, and that ends a process under the sanitizer.
  return "called_from_lib:libwgpu_native\n"
         "race:libwgpu_native\n"
         "race:libvulkan_lvp\n"
         "race:libLLVM\n"
         "thread:libvulkan_lvp\n"
         "mutex:libvulkan_lvp\n"
         "deadlock:libvulkan_lvp\n";
}

const char* __lsan_default_suppressions() {
  return "leak:libwgpu_native\n"
         "leak:libvulkan\n"
         "leak:libLLVM\n"
         "leak:libdrm\n"
         "leak:_dl_init\n";
}
}
