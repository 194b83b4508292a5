// Writes a small weight file, lists it, and takes tensors from it: mapped, loaded, sliced, and loaded in
// the background.
#include "berth/weights/weights.h"

#include <cstdio>
#include <filesystem>
#include <vector>

#include "berth/memory/queue.h"
#include "berth/memory/registry.h"
#include "berth/weights/async_load.h"
#include "berth/weights/save.h"

int main() {
  const auto cpu = berth::device("CPU").value();
  const auto table = berth::Buffer::allocate(cpu, berth::f32, {4, 8}).value();
  const auto values = table.as_slice_mut<float>().value();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::string path = (std::filesystem::temp_directory_path() / "berth-example.safetensors").string();
  berth::save_safetensors(path, std::vector<berth::NamedBuffer>{{"embeddings.weight", table}}).value();

  const auto file = berth::open_weights(path).value();
  for (const berth::TensorInfo& tensor : file.tensors())
    std::printf("%.*s %s %llu bytes\n", static_cast<int>(tensor.name.size()), tensor.name.data(),
                std::string(berth::to_string(tensor.dtype)).c_str(), static_cast<unsigned long long>(tensor.bytes));

  const auto mapped = file.tensor("embeddings.weight").value();  // nothing is read until it is touched
  const auto loaded = file.load("embeddings.weight", cpu).value();
  const auto shard = file.load_slice("embeddings.weight", {.axis = 0, .begin = 2, .end = 4}, cpu).value();
  const auto background = berth::load_all_async(file, cpu).value();  // read while this thread does something else
  berth::wait(background.arrivals()[0]).value();                     // the first tensor is there
  const bool arrived = background.buffers()[0].as_slice<float>().value()[31] == 31.0f;
  std::filesystem::remove(path);
  const bool right = arrived && mapped.as_slice<float>().value()[31] == 31.0f &&
                     loaded.as_slice<float>().value()[31] == 31.0f && shard.as_slice<float>().value()[0] == 16.0f;
  std::puts(right ? "mapped, loaded, sliced and loaded in the background" : "wrong values");
  return right ? 0 : 1;
}
