#include "berth/memory/registry.h"
#include "devices/metal/metal_support.h"
#include "support/weight_loads.h"

namespace berth::metal_test {
namespace {

using MetalWeights = MetalTest;

TEST_F(MetalWeights, ArriveInSharedMemory) {
  test::expect_weights_to_arrive(device("METAL").value());
}

TEST_F(MetalWeights, ArriveInPrivateMemoryThroughStaging) {
  LoadOptions options{.threads = 2};
  options.buffer.host = HostAccess::kNone;
  test::expect_weights_to_arrive(device("METAL").value(), options);
}

}  // namespace
}  // namespace berth::metal_test
