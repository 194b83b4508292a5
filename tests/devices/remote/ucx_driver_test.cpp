// Machines without UCX, and libraries that are not UCX.
#include "devices/remote/ucx_driver.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "berth/memory/registry.h"

namespace berth::internal::ucx {
namespace {

TEST(UcxDriver, SaysHowToInstallWhatIsMissing) {
  const auto missing = Driver::open("/nonexistent/libucp.so.0");
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code(), Code::kDeviceUnavailable);
  for (const char* part : {"/nonexistent/libucp.so.0", "apt install libucx0", "BERTH_UCX"})
    EXPECT_NE(missing.error().message().find(part), std::string::npos) << missing.error().message();
}

TEST(UcxDriver, RefusesALibraryThatIsNotUcx) {
  const auto other = Driver::open("libm.so.6");
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code(), Code::kDeviceUnavailable);
  EXPECT_NE(other.error().message().find("ucp_get_version"), std::string::npos) << other.error().message();
}

TEST(UcxDriver, TellsARequestFromAStatus) {
  const auto from = [](std::intptr_t number) { return reinterpret_cast<StatusOrRequest>(number); };
  int request = 0;
  EXPECT_TRUE(is_request(&request));
  EXPECT_TRUE(is_request(from(kLastStatus - 1)));
  for (const std::intptr_t status : {std::intptr_t{kOk}, std::intptr_t{kNoMemory}, std::intptr_t{kLastStatus}})
    EXPECT_FALSE(is_request(from(status))) << status;
}

TEST(UcxDriver, IsTheOneThatTheEnvironmentNames) {
  const char* const before = std::getenv("BERTH_UCX");
  const std::string kept = before == nullptr ? "" : before;
  setenv("BERTH_UCX", "/nonexistent/other.so", 1);
  const auto named = Driver::open();
  if (before == nullptr)
    unsetenv("BERTH_UCX");
  else
    setenv("BERTH_UCX", kept.c_str(), 1);
  ASSERT_FALSE(named.has_value());
  EXPECT_NE(named.error().message().find("/nonexistent/other.so"), std::string::npos);
}

TEST(UcxDriver, LeavesTheHandlersOfCrashesAlone) {
  struct sigaction before {
  }, after{};
  sigaction(SIGSEGV, nullptr, &before);
  const auto driver = Driver::open();
  if (!driver) GTEST_SKIP() << driver.error().message();
  sigaction(SIGSEGV, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
  EXPECT_EQ((*driver)->major, 1u);
  EXPECT_GE((*driver)->minor, 13u);
  EXPECT_FALSE((*driver)->words(kConnectionReset).empty());
  EXPECT_EQ((*driver)->error(kNoMemory, "mem_map").code(), Code::kOutOfMemory);
}

TEST(UcxDriver, KeepsWhatUcxSaysForTheError) {
  const auto driver = Driver::open();
  if (!driver) GTEST_SKIP() << driver.error().message();
  if (std::getenv("UCX_LOG_LEVEL") != nullptr) GTEST_SKIP() << "UCX_LOG_LEVEL is set, so that UCX prints";
  static_cast<void>(take_last_words());
  testing::internal::CaptureStdout();
  Config config = nullptr;
  ASSERT_EQ((*driver)->config_read(nullptr, nullptr, &config), kOk);
  EXPECT_NE((*driver)->config_modify(config, "RNDV_THRESH", "no number"), kOk);
  (*driver)->config_release(config);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_NE(take_last_words(), "");
  EXPECT_EQ(take_last_words(), "") << "taken once";
}

}  // namespace
}  // namespace berth::internal::ucx
