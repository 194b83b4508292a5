// How many driver calls and bytes each CUDA operation costs, counted by the driver double. It measures no time: the
// double runs on the host, so its speed says nothing about a GPU's.
//   cuda_bench                                   the double of this build
//   BERTH_CUDA_LIBRARY=/path/to/double cuda_bench
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "berth/alloc/caching_pool.h"
#include "berth/berth.h"
#include "support/cuda_double.h"

namespace {

const CudaDoubleControl* find_double() {
  const char* chosen = std::getenv("BERTH_CUDA_LIBRARY");
  std::string path = chosen != nullptr ? chosen : "";
  if (path.empty()) {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    path = (program.parent_path().parent_path() / "tests/doubles/cuda/libberth_cuda_double.so").string();
    setenv("BERTH_CUDA_LIBRARY", path.c_str(), 1);
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : static_cast<const CudaDoubleControl*>(dlsym(library, "cuda_double_control"));
}

class Table {
 public:
  explicit Table(const CudaDoubleControl& control) : control_(control) {
    fmt::print("{:<58} {:>8} {:>8} {:>12} {:>12}\n", "work", "times", "calls", "calls each", "bytes moved");
  }

  // Runs `work` a few times to warm up, then `times` times, and prints what the driver was asked for.
  void row(const std::string& name, int times, const std::function<void()>& work, int warm_up = 1) {
    for (int i = 0; i < warm_up; ++i) work();
    control_.clear_calls();
    for (int i = 0; i < times; ++i) work();
    const std::uint64_t calls = control_.calls(nullptr);
    const CudaDoubleTraffic moved = control_.traffic();
    fmt::print("{:<58} {:>8} {:>8} {:>12.3f} {:>12}\n", name, times, calls, static_cast<double>(calls) / times,
               moved.host_to_device + moved.device_to_host + moved.device_to_device + moved.filled);
  }

 private:
  const CudaDoubleControl& control_;
};

}  // namespace

int main() {
  using namespace berth;  // NOLINT: a small program
  const CudaDoubleControl* const control = find_double();
  if (control == nullptr) {
    fmt::print(stderr,
               "the CUDA driver double was not found: build berth_cuda_double, or set BERTH_CUDA_LIBRARY to it\n");
    return 1;
  }
  const DevicePtr gpu = device("CUDA:0").value();
  const std::vector<float> host(1024, 1.0f);
  std::vector<float> back(1024);
  const auto cached = make_caching_pool(gpu);
  const QueuePtr queue = gpu->make_queue().value();
  const QueuePtr other = gpu->make_queue().value();
  const Buffer buffer = Buffer::allocate(gpu, f32, {1024}).value();
  const Buffer large = Buffer::allocate(gpu, u8, {16 << 20}).value();
  const std::vector<std::byte> large_host(large.size());

  fmt::print("driver calls and bytes, counted by the driver double; nothing here is a speed\n\n");
  Table table(*control);
  table.row("pooled allocate + release, 4 KiB", 1000,
            [&] { static_cast<void>(Buffer::allocate(cached, f32, {1024}).value()); });
  table.row("view + drop", 1000, [&] { static_cast<void>(buffer.view(0, 64).value()); });
  table.row("allocate + release straight from the device", 1000,
            [&] { static_cast<void>(Buffer::allocate(gpu, f32, {1024}).value()); });
  // The staging memory of a queue is 2 MiB: by the 600th it is all pinned and comes round.
  std::vector<GpuBuffer<float>> made;
  table.row(
      "alloc_from, 4 KiB", 1000, [&] { made.push_back(GpuBuffer<float>::alloc_from(gpu, host).value()); }, 600);
  table.row("alloc_from + drop, 4 KiB, pooled", 1000,
            [&] { static_cast<void>(GpuBuffer<float>::alloc_from(cached, host).value()); });
  {
    const DevicePtr second = device("CUDA:1").value();
    std::vector<GpuBuffer<float>> there;
    const auto make = [&] { there.push_back(GpuBuffer<float>::alloc_from(second, host).value()); };
    table.row("alloc_from, 4 KiB, on a second GPU", 1000, make, 600);
    const CudaScope scope = CudaScope::enter(second).value();
    table.row("alloc_from, 4 KiB, on a second GPU in a CudaScope", 1000, make);
  }
  table.row("to_host, 4 KiB", 100, [&] { static_cast<void>(made[0].to_host(*gpu).value()); });
  table.row("record, submit and wait for one fill", 100, [&] {
    queue->fill(buffer.window().value(), 0).value();
    queue->finish().value();
  });
  table.row("hand a buffer from one queue to another, no host wait", 100, [&] {
    queue->fill(buffer.window().value(), 0).value();
    other->wait_for(queue->submit().value()).value();
    other->copy(buffer.view(0, 64).value().window().value(), buffer.view(64, 64).value().window().value()).value();
    queue->wait_for(other->submit().value()).value();
  });
  queue->finish().value();
  other->finish().value();
  table.row("upload of 16 MiB", 1, [&] { large.copyin(large_host).value(); });
  return 0;
}
