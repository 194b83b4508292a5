// For tests that run against the Metal double: starts it afresh, and checks after each test that it saw no mistake and
// that nothing was left behind.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "support/metal_double.h"

namespace berth::metal_test {

inline const MetalDoubleControl& metal_double() {
  return metal_double_control;
}

// The violations of a kind, such as "over-release", or all.
inline std::vector<std::string> metal_violations(std::string_view kind = "") {
  std::vector<std::string> found;
  for (std::size_t i = 0; i < metal_double().violation_count(); ++i) {
    std::string text = metal_double().violation(i);
    if (text.starts_with(kind)) found.push_back(std::move(text));
  }
  return found;
}

// The violations so far, which a test expects; the double forgets them.
inline std::vector<std::string> take_metal_violations() {
  std::vector<std::string> found = metal_violations();
  metal_double().clear_violations();
  return found;
}

class MetalDoubleTest : public ::testing::Test {
 protected:
  explicit MetalDoubleTest(const MetalDoubleOptions& options = {}) { restart(options); }

  void TearDown() override {
    metal_double().drain();
    for (const std::string& text : metal_violations()) ADD_FAILURE() << text;
    EXPECT_STREQ(metal_double().live_report(), "") << "objects outlived the test";
  }

  static void restart(const MetalDoubleOptions& options) {
    EXPECT_EQ(metal_double().reset(&options), 1) << "left behind: " << metal_double().live_report();
  }
};

}  // namespace berth::metal_test
