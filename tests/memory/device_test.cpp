#include "berth/memory/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "berth/interop/metal.h"
#include "berth/memory/out_of_memory.h"
#include "berth/memory/registry.h"
#include "berth/tensor/buffer.h"
#include "doubles/opaque_device.h"
#include "support/kernel_pages.h"
#include "support/support.h"

namespace berth {
namespace {

using test::fails_with;

TEST(DeviceNames, IgnoreTheCaseOfTheKind) {
  EXPECT_EQ(device("CPU").value(), device("cpu:0").value());
  EXPECT_EQ(device("Cpu").value()->name(), "CPU");
  EXPECT_EQ(device("CPU").value()->kind(), "CPU");
}

TEST(DeviceNames, KeepTheCaseOfAPath) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("MiXed.bin", test::counting_bytes(3));
  EXPECT_EQ(device("disk:" + path).value()->name(), "DISK:" + path);
}

TEST(DeviceNames, SayWhatIsKnownWhenTheKindIsNot) {
  const auto refused = device("TPU");
  EXPECT_TRUE(fails_with(refused, Code::kInvalidArgument));
  EXPECT_NE(refused.error().message().find("CPU, DISK, CUDA, METAL, WEBGPU"), std::string::npos);
}

TEST(DeviceNames, RefuseOrdinalsThatAreNoNumbersOrNoDevices) {
  EXPECT_TRUE(fails_with(device("CPU:x"), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(device("CPU:"), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(device("CPU:1"), Code::kDeviceUnavailable));
  EXPECT_TRUE(fails_with(device("CPU:1x"), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(device("CPU:000000"), Code::kInvalidArgument)) << "six digits are one too many";
  EXPECT_EQ(device("CPU:00000").value()->name(), "CPU");
  EXPECT_TRUE(fails_with(device("CUDA:99999999"), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(device(""), Code::kInvalidArgument));
}

TEST(DeviceNames, SayWhatWouldMakeAnAbsentDeviceAvailable) {
  for (const DeviceStatus& row : list_devices()) {
    EXPECT_FALSE(row.description.empty());
    if (row.available || row.name == "DISK:PATH") continue;
    EXPECT_TRUE(fails_with(device(row.name), Code::kDeviceUnavailable));
  }
}

TEST(Devices, ListEveryKnownKindOnce) {
  const auto rows = list_devices();
  for (const char* kind : {"CPU", "DISK:PATH", "CUDA", "METAL", "WEBGPU", "REMOTE"})
    EXPECT_EQ(std::count_if(rows.begin(), rows.end(), [&](const auto& row) { return row.name.starts_with(kind); }), 1)
        << kind;
}

TEST(Devices, OfARegisteredBackendAreOpenedByName) {
  const auto open = [](const std::string& ordinal) -> Result<DevicePtr> {
    if (ordinal != "0") return Error(Code::kDeviceUnavailable, Layer::kDevice, "there is one");
    return opaque_device();
  };
  ASSERT_TRUE(register_backend({.kind = "OPAQUE_OF_A_TEST", .open = open}));
  const DevicePtr first = device("opaque_of_a_test").value();
  EXPECT_EQ(device("OPAQUE_OF_A_TEST:0").value(), first) << "open already";
  EXPECT_TRUE(fails_with(device("OPAQUE_OF_A_TEST:1"), Code::kDeviceUnavailable));
  EXPECT_TRUE(fails_with(register_backend({.kind = "OPAQUE_OF_A_TEST", .open = open}), Code::kAlreadyExists));
  EXPECT_TRUE(fails_with(register_backend({.kind = "CPU", .open = open}), Code::kAlreadyExists));
  for (const char* kind : {"", "a", "z", "MIXEd", "A:B", ":"})
    EXPECT_TRUE(fails_with(register_backend({.kind = kind, .open = open}), Code::kInvalidArgument)) << kind;
  EXPECT_TRUE(fails_with(register_backend({.kind = "NOT_OPENED"}), Code::kInvalidArgument));
}

TEST(Devices, CountLiveBytesAndTheirPeak) {
  const DevicePtr cpu = device("CPU").value();
  const DeviceCounters before = cpu->counters();
  {
    const Buffer a = Buffer::allocate(cpu, u8, {1000}).value();
    const Buffer b = Buffer::allocate(cpu, u8, {500}).value();
    EXPECT_EQ(cpu->counters().live_bytes - before.live_bytes, 1500u);
    EXPECT_EQ(cpu->counters().live_count - before.live_count, 2u);
  }
  EXPECT_EQ(cpu->counters().live_bytes, before.live_bytes);
  EXPECT_EQ(cpu->counters().releases - before.releases, 2u);
  EXPECT_GE(cpu->counters().peak_bytes, before.live_bytes + 1500);
}

TEST(Devices, RefuseWhatWouldPassTheBudgetAndSayHowToMakeItFit) {
  const DevicePtr cpu = device("CPU").value();
  const std::size_t live = cpu->counters().live_bytes;
  cpu->set_budget(live + 4096);
  const Buffer held = Buffer::allocate(cpu, u8, {3000}, {.label = "weights"}).value();
  const auto refused = Buffer::allocate(cpu, u8, {2000}, {.label = "scratch"});
  cpu->set_budget(0);
  ASSERT_TRUE(fails_with(refused, Code::kOutOfMemory));
  const OutOfMemory* report = refused.error().out_of_memory();
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->cause, OutOfMemory::Cause::kBudget);
  EXPECT_EQ(report->asked, 2000u);
  EXPECT_EQ(report->label.text(), "scratch");
  EXPECT_EQ(report->budget_needed, live + 5000);
  EXPECT_EQ(report->holder_to_free, "weights");
  EXPECT_TRUE(Buffer::allocate(cpu, u8, {2000}));
}

TEST(Devices, AskThePressureCallbackBeforeTheyFail) {
  const DevicePtr cpu = device("CPU").value();
  Buffer cache = Buffer::allocate(cpu, u8, {4096}).value();
  cpu->set_budget(cpu->counters().live_bytes);
  int calls = 0;
  cpu->on_pressure([&](const BlockSpec& spec) {
    ++calls;
    EXPECT_EQ(spec.bytes, 100u);
    const bool held = cache.is_allocated();
    cache = Buffer();
    return held;
  });
  const auto got = Buffer::allocate(cpu, u8, {100});
  cpu->on_pressure({});
  cpu->set_budget(0);
  EXPECT_TRUE(got);
  EXPECT_EQ(calls, 1);
}

TEST(Devices, FailWithACapacityReportWhenTheSystemHasNoMore) {
  const auto refused = Buffer::allocate(device("CPU").value(), u8, {std::size_t{1} << 62});
  ASSERT_TRUE(fails_with(refused, Code::kOutOfMemory));
  EXPECT_EQ(refused.error().out_of_memory()->cause, OutOfMemory::Cause::kCapacity);
}

TEST(CpuMemory, IsBackedByHugePagesWhenLarge) {
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string text;
  std::getline(setting, text);
  if (text.find("[madvise]") == std::string::npos && text.find("[always]") == std::string::npos)
    GTEST_SKIP() << "this kernel gives no transparent huge pages: " << text;
  const Buffer buffer = Buffer::allocate(device("CPU").value(), u8, {std::size_t{32} << 20}).value();
  std::memset(buffer.as_raw_ptr(), 1, buffer.size());
  EXPECT_GE(test::kernel_kib(buffer.as_raw_ptr(), "AnonHugePages"), std::size_t{16} << 10);
}

TEST(CpuMemory, IsNotTouchedWhenTheKernelHasZeroedIt) {
  const auto resident_pages = [] {
    std::ifstream statm("/proc/self/statm");
    std::size_t total = 0, resident = 0;
    statm >> total >> resident;
    return resident;
  };
  const std::size_t before = resident_pages();
  const Buffer buffer = Buffer::allocate(device("CPU").value(), u8, {std::size_t{512} << 20}, {.zero = true}).value();
  EXPECT_LT(resident_pages(), before + (std::size_t{64} << 20) / 4096);
}

TEST(Device, SaysWhatWouldBringMetal) {
  const auto metal = device("METAL");
  const DevicePtr cpu = device("CPU").value();
  EXPECT_TRUE(fails_with(metal_info(*cpu), Code::kInvalidArgument));
  EXPECT_TRUE(fails_with(metal_wrap(cpu, Buffer::allocate(cpu, u8, {64}).value()), Code::kInvalidArgument));
  if (metal) GTEST_SKIP() << "this build has METAL: " << (*metal)->description();
  ASSERT_TRUE(fails_with(metal, Code::kDeviceUnavailable));
  EXPECT_NE(metal.error().message().find("metal-cpp"), std::string::npos) << metal.error().message();
}

}  // namespace
}  // namespace berth
