// The example of the README: a buffer, a view of it, and a file mapped as a buffer.
#include <berth/berth.h>

#include <cstdio>
#include <fstream>

int main() {
  auto cpu = berth::device("CPU").value();
  auto logits = berth::Buffer::allocate(cpu, berth::f32, {32, 50257}, {.label = "logits"}).value();
  auto row = logits.view(0, 50257 * 4).value();  // no copy; its own id, the same storage
  for (float& x : row.as_slice_mut<float>().value()) x = 0.5f;

  std::ofstream("numbers.bin", std::ios::binary) << "0123456789";
  auto digits = berth::map_file("numbers.bin", 3, 4).value();  // mapped; nothing is read yet
  auto copy = berth::Buffer::lazy(cpu, berth::u8, {4}).value();
  copy.copy_from(digits).value();

  auto refused = logits.view(0, logits.size() + 1);
  std::printf("%g %c %s\n", logits.as_array<float>().value()(0, 50256), copy.as_slice<std::uint8_t>().value()[0],
              refused.error().message().c_str());
}
