#include "berth/memory/registry.h"
#include "conformance/host_case.h"

namespace berth::conformance {
namespace {

BERTH_DEVICE_CONFORMANCE(Cpu, DeviceCase{.open = [] { return device("CPU"); },
                                         .never = {{"HandsOutItsNativeEncoder", Code::kUnsupported,
                                                    "work on the host has no encoder"},
                                                   {"CommitsResidencyOnceASubmit", Code::kUnsupported,
                                                    "the shared CPU device keeps a residency set only when asked"}},
                                         .add_kernel = host_add_kernel,
                                         .foreign = host_foreign});

}  // namespace
}  // namespace berth::conformance
