#include <berth/berth.h>

#include <cstdio>
#include <numeric>

int main() {
  const auto cpu = berth::device("CPU").value();
  const auto buffer = berth::Buffer::allocate(cpu, berth::i32, {4}).value();
  const auto numbers = buffer.as_slice_mut<std::int32_t>().value();
  std::iota(numbers.begin(), numbers.end(), 0);
  std::printf("%d %d %d %d\n", numbers[0], numbers[1], numbers[2], numbers[3]);
}
