// A key-value cache whose sequences have contiguous addresses: attention reads the keys of a sequence as one array,
// although their pages are scattered and shared. Here the kernel is a loop of the host.
#include <berth/berth.h>

#include <cstdio>
#include <vector>

namespace {

constexpr std::size_t kWidth = 64;  // values of one token

// An ordinary kernel: it knows nothing of pages.
float sum_of(const float* keys, std::size_t tokens) {
  float sum = 0;
  for (std::size_t i = 0; i < tokens * kWidth; ++i) sum += keys[i];
  return sum;
}

}  // namespace

int main() {
  using namespace berth::kv;
  CacheOptions options;
  options.groups = {{.name = berth::Name("keys"), .bytes_per_token = kWidth * sizeof(float)}};
  options.block_tokens = 16;  // 16 tokens of 256 bytes fill a page of 4 KiB
  options.budget = std::size_t{1} << 20;
  options.contiguous_tokens = 1024;  // the longest sequence
  const auto cache = Cache::make(berth::device("CPU").value(), std::move(options)).value();

  const auto keys = [&](SequenceId id) {
    std::uint64_t address = 0;
    cache->write_addresses(0, {&id, 1}, {&address, 1}).value();
    return reinterpret_cast<float*>(address);
  };
  const std::vector<Token> prompt(40, 7);
  const Opened first = cache->open(prompt).value();
  for (std::size_t i = 0; i < 40 * kWidth; ++i) keys(first.id)[i] = 1;
  cache->commit(first.id).value();

  // The second one finds two blocks, which are mapped at its own addresses too, and computes the rest.
  const Opened second = cache->open(prompt).value();
  float* const own = keys(second.id);
  for (std::size_t i = second.cached_tokens * kWidth; i < 40 * kWidth; ++i) own[i] = 2;
  for (Token token = 0; token < 100; ++token) {
    std::int64_t slot = 0;  // for kernels that write by slots
    cache->append({&second.id, 1}, {&token, 1}, {&slot, 1}).value();
    float* const key = keys(second.id) + (40 + static_cast<std::size_t>(token)) * kWidth;
    for (std::size_t i = 0; i < kWidth; ++i) key[i] = 3;
  }
  const bool right = sum_of(keys(first.id), 40) == 40.f * kWidth &&
                     sum_of(own, 140) == (32 * 1.f + 8 * 2.f + 100 * 3.f) * kWidth && keys(second.id) == own;
  std::printf("140 tokens behind one address, %llu of them shared: %s\n",
              static_cast<unsigned long long>(second.cached_tokens), right ? "right" : "wrong");
  return right && cache->check() ? 0 : 1;
}
