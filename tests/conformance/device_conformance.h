// One suite that every device passes. A device joins with one small file:
//
//   namespace berth::conformance {
//   BERTH_DEVICE_CONFORMANCE(Cpu, DeviceCase{.open = [] { return device("CPU"); }, ...});
//   }
//
// What a device will never do stands in `never`, with the code it refuses with and the reason; what it should do
// and does not yet stands in `expected_to_fail`, with the reason. Both are run all the same: an entry that no
// longer holds, or that names no check, fails the suite. A device that is not on this machine is skipped with its
// own words.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "berth/berth.h"

namespace berth::conformance {

struct Never {
  std::string_view check;
  Code refusal;  // what the refused call answers
  std::string_view reason;
};

struct ExpectedToFail {
  std::string_view check;
  std::string_view reason;
};

struct DeviceCase {
  // Called once a check; the same device each time is fine.
  std::function<Result<DevicePtr>()> open;

  std::vector<Never> never{};
  std::vector<ExpectedToFail> expected_to_fail{};

  // True for a device whose fresh memory already holds pattern(0), pattern(1), ... and cannot be written: a file.
  // It must have kPatternBytes of them.
  bool read_only_pattern = false;

  // A kernel over u32: for each i, window 1 [i] = window 0 [i] + the u32 constant. It is launched on 256 elements
  // with groups {4, 1, 1} and threads {64, 1, 1}. Empty: the kernel checks refuse with kUnsupported.
  std::function<Result<Kernel>(Device&)> add_kernel{};

  // Foreign memory of the device with these contents, whose `release` frees it. Empty: the import checks refuse
  // with kUnsupported.
  std::function<Result<ForeignMemory>(Device&, std::span<const std::byte> contents)> foreign{};
};

constexpr std::size_t kPatternBytes = std::size_t{1} << 20;
constexpr std::byte pattern(std::size_t at) noexcept {
  return static_cast<std::byte>((at * 131 + at / 256 * 7 + 11) & 0xff);
}

// What a check works with, and where it says that the device refused.
class Bed {
 public:
  Bed(const DeviceCase& described, DevicePtr device) : described_(described), device_(std::move(device)) {}

  const DeviceCase& described() const noexcept { return described_; }
  const DevicePtr& device() const noexcept { return device_; }

  // Fails the check, and remembers the first code for the `never` list.
  void refuse(const Error& error, const char* file, int line);
  std::optional<Code> refusal() const noexcept { return refusal_; }

 private:
  const DeviceCase& described_;
  DevicePtr device_;
  std::optional<Code> refusal_;
};

struct Check {
  std::string_view name;
  void (*run)(Bed&);
};

// All checks, from every file of the suite.
std::vector<Check> all_checks();
std::span<const Check> memory_checks();
std::span<const Check> queue_checks();
std::span<const Check> sharing_checks();
std::span<const Check> pool_checks();
std::span<const Check> growable_checks();
std::span<const Check> kv_checks();

struct Param {
  const DeviceCase* device;
  Check check;
};
std::vector<Param> params(const DeviceCase& device);
// For the lists of tests: otherwise its bytes are printed, addresses and all.
inline void PrintTo(const Param& param, std::ostream* out) {
  *out << param.check.name;
}

class DeviceConformance : public testing::TestWithParam<Param> {};

// In a check: the value, or a refusal that ends the check.
#define BED_TRY(bed, ...)                                    \
  do {                                                       \
    if (auto bed_result_ = (__VA_ARGS__); !bed_result_) {    \
      (bed).refuse(bed_result_.error(), __FILE__, __LINE__); \
      return;                                                \
    }                                                        \
  } while (false)
#define BED_JOIN_(a, b) a##b
#define BED_JOIN(a, b) BED_JOIN_(a, b)
#define BED_TRY_ASSIGN(declaration, bed, ...)                                  \
  auto BED_JOIN(bed_result_, __LINE__) = (__VA_ARGS__);                        \
  if (!BED_JOIN(bed_result_, __LINE__)) {                                      \
    (bed).refuse(BED_JOIN(bed_result_, __LINE__).error(), __FILE__, __LINE__); \
    return;                                                                    \
  }                                                                            \
  declaration = *std::move(BED_JOIN(bed_result_, __LINE__))

#define BERTH_DEVICE_CONFORMANCE(suite, ...)                                                            \
  static const ::berth::conformance::DeviceCase& suite##_conformance_case() {                           \
    static const ::berth::conformance::DeviceCase described = __VA_ARGS__;                              \
    return described;                                                                                   \
  }                                                                                                     \
  TEST(DeviceConformanceLists, suite##NamesOnlyChecksThatExist) {                                       \
    ::berth::conformance::expect_known_entries(suite##_conformance_case());                             \
  }                                                                                                     \
  TEST(DeviceConformanceResidency, suite##WorksWithItTurnedOff) {                                       \
    ::berth::conformance::expect_works_without_residency(suite##_conformance_case());                   \
  }                                                                                                     \
  INSTANTIATE_TEST_SUITE_P(suite, DeviceConformance,                                                    \
                           testing::ValuesIn(::berth::conformance::params(suite##_conformance_case())), \
                           [](const auto& each) { return std::string(each.param.check.name); })

void expect_known_entries(const DeviceCase& device);
// Opened with BERTH_RESIDENCY=0 the device keeps no set, and does its work.
void expect_works_without_residency(const DeviceCase& device);

// --- For checks ---
// A buffer of u8 that holds pattern(first), pattern(first + 1), ...; first must be 0 on a read-only device.
Result<Buffer> patterned(Bed& bed, std::size_t bytes, std::size_t first = 0);
std::vector<std::byte> pattern_bytes(std::size_t bytes, std::size_t first = 0);
Result<std::vector<std::byte>> contents(const Buffer& buffer);

}  // namespace berth::conformance
