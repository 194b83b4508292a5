#include "berth/memory/registry.h"
#include "devices/metal/metal_support.h"
#include "support/queue_graphs.h"

namespace berth::metal_test {
namespace {

using MetalSchedule = MetalTest;

TEST_F(MetalSchedule, LeavesWhatASequentialRunLeaves) {
  test::check_random_graphs(device("METAL").value(), 20);
}

}  // namespace
}  // namespace berth::metal_test
