// Berth's own kernels for bytes that WebGPU's copies cannot reach: they work in whole 32-bit words, as all of
// WebGPU does, and change only the bytes they are told to.
#pragma once

#include <string_view>

namespace berth::internal::webgpu {

// Changes the bytes of one word that `mask` selects.
inline constexpr std::string_view kPatchShader = R"(
struct Patch { word: u32, mask: u32, value: u32 }
@group(0) @binding(0) var<storage, read_write> words: array<u32>;
@group(0) @binding(1) var<uniform> change: Patch;
@compute @workgroup_size(1) fn main() {
  words[change.word] = (words[change.word] & ~change.mask) | (change.value & change.mask);
}
)";

// Sets `count` words from `first`.
inline constexpr std::string_view kFillShader = R"(
struct Fill { first: u32, count: u32, value: u32 }
@group(0) @binding(0) var<storage, read_write> words: array<u32>;
@group(0) @binding(1) var<uniform> fill: Fill;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>,
                                     @builtin(num_workgroups) groups: vec3<u32>) {
  for (var i = id.x; i < fill.count; i += groups.x * 64u) {
    words[fill.first + i] = fill.value;
  }
}
)";

// Copies `bytes` bytes from byte `source` of one buffer to byte `goal` of another, each thread whole words of the
// latter. A word's bytes come from two neighbouring words; the first and last word keep what is not ours.
inline constexpr std::string_view kShiftShader = R"(
struct Shift { source: u32, goal: u32, bytes: u32 }
@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> goal: array<u32>;
@group(0) @binding(2) var<uniform> shift: Shift;

fn keep_from(first: u32) -> u32 {  // a mask of the bytes at and after `first`, 0 to 4
  if (first >= 4u) { return 0u; }
  return 0xffffffffu << (first * 8u);
}

@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>,
                                     @builtin(num_workgroups) groups: vec3<u32>) {
  let first_word = shift.goal / 4u;
  let end = shift.goal + shift.bytes;
  let words = (end + 3u) / 4u - first_word;
  for (var i = id.x; i < words; i += groups.x * 64u) {
    let word = first_word + i;
    // The byte of the source that lands on this word's first byte; 4 is added so that it cannot be negative.
    let at = word * 4u + shift.source + 4u - shift.goal;
    let low = at / 4u;
    let turn = (at % 4u) * 8u;
    var value = 0u;
    if (low >= 1u) { value = source[low - 1u] >> turn; }
    if (turn > 0u) { value |= source[low] << (32u - turn); }
    var mask = 0xffffffffu;
    if (word * 4u < shift.goal) { mask &= keep_from(shift.goal - word * 4u); }
    if (word * 4u + 4u > end) { mask &= ~keep_from(end - word * 4u); }
    goal[word] = (goal[word] & ~mask) | (value & mask);
  }
}
)";

}  // namespace berth::internal::webgpu
