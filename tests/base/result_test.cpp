#include "berth/base/result.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

TEST(Result, BuildsItsSentenceFromNumbersOnDemand) {
  const Error error(Code::kInvalidView, Layer::kBuffer, "view [{}, {}) is outside the buffer's {b}", 4096, 8192, 6144);
  EXPECT_EQ(error.message(), "view [4096, 8192) is outside the buffer's 6.0 KiB");
  EXPECT_EQ(to_string(error.code()), "InvalidView");
}

TEST(Result, ThrowsItsSentenceWhenValueIsAskedOfAnError) {
  const Result<int> failed = Error(Code::kIo, Layer::kDevice, "no");
  EXPECT_THROW(failed.value(), BadResult);
  const Result<void> failed_void = Error(Code::kIo, Layer::kDevice, "no");
  EXPECT_THROW(failed_void.value(), BadResult);
}

TEST(Result, GivesATemporarysValueByValueSoThatALoopOverItIsSafe) {
  auto make = [] { return Result<std::string>("abc"); };
  std::string seen;
  for (char c : make().value()) seen += c;
  EXPECT_EQ(seen, "abc");
  static_assert(std::is_same_v<decltype(make().value()), std::string>);
  static_assert(std::is_same_v<decltype(*make()), std::string>);
}

}  // namespace
}  // namespace berth
