// The example of docs/cuda.md: a step is captured once and launched many times, with memory of its own.
#include <berth/berth.h>

#include <cstdio>
#include <vector>

int main() {
  auto opened = berth::device("CUDA:0");
  if (!opened) {
    std::printf("%s\n", opened.error().message().c_str());
    return 77;  // skipped
  }
  auto gpu = *opened;
  auto queue = gpu->make_queue().value();
  auto input = berth::Buffer::allocate(gpu, berth::u8, {1 << 20}).value();

  auto capture = berth::CudaCapture::begin(queue).value();
  auto output = berth::Buffer::allocate(capture.memory(), berth::u8, {1 << 20}).value();
  {
    auto hidden = berth::Buffer::allocate(capture.memory(), berth::u8, {1 << 20}).value();
    queue->copy(input.window().value(), hidden.window().value()).value();
    queue->fill(hidden.view(0, 1000).value().window().value(), 7).value();
    queue->copy(hidden.window().value(), output.window().value()).value();
  }                                                                   // the rest of the step may use this memory again
  auto refused = berth::Buffer::allocate(gpu, berth::u8, {1 << 20});  // the driver would invalidate the capture
  berth::CudaGraph graph = capture.end().value();

  bool right = !refused && refused.error().code() == berth::Code::kInvalidUsage;
  std::vector<std::byte> bytes(1 << 20), seen(1 << 20);
  for (int step = 1; step <= 3; ++step) {
    bytes.assign(bytes.size(), static_cast<std::byte>(step));
    input.copyin(bytes).value();
    graph.launch(*queue).value();  // one call of the driver for the whole step
    output.copyout(seen).value();  // waits for the launch
    right = right && seen[999] == std::byte{7} && seen[1000] == static_cast<std::byte>(step);
  }
  std::printf("3 launches of one graph, %zu bytes in its pool: %s\n", graph.pool()->counters().bytes,
              right ? "right" : "wrong");
  return right ? 0 : 1;
}
