// Runs a fuzz target over the files of its corpus, for builds without libFuzzer. Each file is also cut short and
// has bytes flipped, by a fixed pattern, so that the replay reaches the error paths too.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  std::size_t files = 0;
  std::size_t runs = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream stream(entry.path(), std::ios::binary);
      std::vector<std::uint8_t> bytes((std::istreambuf_iterator<char>(stream)), {});
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
      ++files;
      const std::size_t step = bytes.size() / 200 + 1;
      for (std::size_t at = 0; at < bytes.size(); at += step) {
        LLVMFuzzerTestOneInput(bytes.data(), at);
        for (const std::uint8_t mask : {0x01, 0x80, 0xFF}) {
          bytes[at] ^= mask;
          LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
          bytes[at] ^= mask;
          ++runs;
        }
        ++runs;
      }
    }
  }
  std::printf("%zu files of the corpus and %zu variations\n", files, runs);
  return files == 0 ? 1 : 0;  // an empty corpus tests nothing
}
