#include "conformance/device_conformance.h"

#include <gtest/gtest-spi.h>

#include <algorithm>
#include <cstdlib>

namespace berth::conformance {

void Bed::refuse(const Error& error, const char* file, int line) {
  if (!refusal_) refusal_ = error.code();
  ADD_FAILURE_AT(file, line) << device_->name() << " refused: " << to_string(error.code()) << ": " << error.message();
}

std::vector<Check> all_checks() {
  std::vector<Check> checks;
  for (const std::span<const Check> part :
       {memory_checks(), queue_checks(), sharing_checks(), pool_checks(), growable_checks(), kv_checks()})
    checks.insert(checks.end(), part.begin(), part.end());
  return checks;
}

std::vector<Param> params(const DeviceCase& device) {
  std::vector<Param> result;
  for (const Check& check : all_checks()) result.push_back({&device, check});
  return result;
}

void expect_known_entries(const DeviceCase& device) {
  const std::vector<Check> checks = all_checks();
  const auto known = [&](std::string_view name) {
    return std::any_of(checks.begin(), checks.end(), [&](const Check& check) { return check.name == name; });
  };
  for (const Never& entry : device.never) EXPECT_TRUE(known(entry.check)) << entry.check << " is no check of the suite";
  for (const ExpectedToFail& entry : device.expected_to_fail)
    EXPECT_TRUE(known(entry.check)) << entry.check << " is no check of the suite";
}

void expect_works_without_residency(const DeviceCase& device) {
  struct Off {
    Off() { setenv("BERTH_RESIDENCY", "0", 1); }
    ~Off() { unsetenv("BERTH_RESIDENCY"); }
  } const off;
  auto opened = device.open();
  if (!opened && opened.error().code() == Code::kDeviceUnavailable) GTEST_SKIP() << opened.error().message();
  ASSERT_TRUE(opened.has_value()) << opened.error().message();
  EXPECT_EQ((*opened)->residency(), nullptr);
  const auto refused = (*opened)->keep_resident();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kUnsupported);
  Bed bed(device, *std::move(opened));
  const auto buffer = patterned(bed, 3000);
  ASSERT_TRUE(buffer.has_value()) << buffer.error().message();
  auto queue = bed.device()->make_queue();
  ASSERT_TRUE(queue.has_value()) << queue.error().message();
  std::vector<std::byte> seen(3000);
  ASSERT_TRUE((*queue)->read(buffer->window().value(), seen).has_value());
  ASSERT_TRUE((*queue)->finish().has_value());
  EXPECT_EQ(seen, pattern_bytes(3000));
}

std::vector<std::byte> pattern_bytes(std::size_t bytes, std::size_t first) {
  std::vector<std::byte> result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = pattern(first + i);
  return result;
}

Result<Buffer> patterned(Bed& bed, std::size_t bytes, std::size_t first) {
  auto buffer = Buffer::allocate(bed.device(), u8, {bytes});
  if (!buffer || bed.described().read_only_pattern) return buffer;
  if (auto done = buffer->copyin(pattern_bytes(bytes, first)); !done) return done.error();
  return buffer;
}

Result<std::vector<std::byte>> contents(const Buffer& buffer) {
  std::vector<std::byte> bytes(buffer.size());
  if (auto done = buffer.copyout(bytes); !done) return done.error();
  return bytes;
}

namespace {

// Runs the check with its failures collected instead of reported.
std::string failures_of(const Check& check, Bed& bed) {
  testing::TestPartResultArray results;
  {
    const testing::ScopedFakeTestPartResultReporter collect(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &results);
    check.run(bed);
  }
  std::string text;
  for (int i = 0; i < results.size(); ++i)
    if (results.GetTestPartResult(i).failed()) text += std::string(results.GetTestPartResult(i).message()) + "\n";
  return text;
}

}  // namespace

TEST_P(DeviceConformance, Holds) {
  const DeviceCase& described = *GetParam().device;
  const Check& check = GetParam().check;
  auto opened = described.open();
  if (!opened && opened.error().code() == Code::kDeviceUnavailable) GTEST_SKIP() << opened.error().message();
  ASSERT_TRUE(opened.has_value()) << opened.error().message();
  Bed bed(described, *opened);

  const auto never = std::find_if(described.never.begin(), described.never.end(),
                                  [&](const Never& entry) { return entry.check == check.name; });
  if (never != described.never.end()) {
    const std::string failures = failures_of(check, bed);
    EXPECT_FALSE(failures.empty()) << "stale entry: the device does what it \"never\" does (" << never->reason << ")";
    ASSERT_TRUE(bed.refusal().has_value()) << "failed without a refusal:\n" << failures;
    EXPECT_EQ(to_string(*bed.refusal()), to_string(never->refusal)) << failures;
    return;
  }
  const auto excused = std::find_if(described.expected_to_fail.begin(), described.expected_to_fail.end(),
                                    [&](const ExpectedToFail& entry) { return entry.check == check.name; });
  if (excused != described.expected_to_fail.end()) {
    EXPECT_FALSE(failures_of(check, bed).empty())
        << "stale entry: this passes now, take it off the list (" << excused->reason << ")";
    return;
  }
  check.run(bed);
}

}  // namespace berth::conformance
