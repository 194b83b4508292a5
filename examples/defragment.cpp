// The example of docs/defragmentation.md: memory in pieces refuses a large buffer, and serves it after a pass.
#include <berth/alloc/growable.h>
#include <berth/berth.h>

#include <cstdio>
#include <vector>

int main() {
  auto cpu = berth::device("CPU").value();
  auto memory = berth::make_growable(cpu, {.step_bytes = std::size_t{1} << 20}).value();
  cpu->set_budget(cpu->counters().live_bytes + (std::size_t{16} << 20));  // 16 MiB, and no more

  std::vector<berth::Buffer> tensors;
  for (int i = 0; i < 64; ++i)
    tensors.push_back(berth::Buffer::allocate(memory, berth::f32, {256, 256}, {.zero = true}).value());
  for (std::size_t i = 0; i < tensors.size(); i += 4) tensors[i] = {};  // a hole of 256 KiB in every MiB

  auto refused = berth::Buffer::allocate(memory, berth::f32, {1024, 1024});
  auto pinned = tensors[2].as_slice_mut<float>().value();  // somebody holds this address
  pinned[0] = 0.5f;

  std::size_t held = 0;
  berth::DefragmentResult result;
  do {
    result = memory->defragment({.max_bytes = std::size_t{4} << 20});  // at most 4 MiB at a time
    held += result.held.count;
  } while (!result.finished);

  auto large = berth::Buffer::allocate(memory, berth::f32, {768, 1024});
  std::printf("%s, then %s; %zu buffer stayed because its address is held\n", refused ? "served" : "refused",
              large ? "served" : "refused", held);
  const bool stayed = tensors[2].as_slice<float>().value().data() == pinned.data() && pinned[0] == 0.5f;
  return !refused && large && stayed && held == 1 ? 0 : 1;
}
