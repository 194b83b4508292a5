// Writes the tests' small ONNX model. Usage: write_tiny_model FILE [HIDDEN]
#include <cstdlib>

#include "support/tiny_onnx.h"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  berth::testing::write_tiny_onnx(argv[1], argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 192);
  return 0;
}
