#include "run/shape_model.h"

#include <gtest/gtest.h>

#include <array>

namespace berth::internal::replay {
namespace {

ReplayTrace one_request(std::uint64_t bytes) {
  return {.requests = {{.bytes = bytes, .alignment = 64, .released_at = 1}}, .releases = {0}};
}

std::uint64_t predicted(ShapeModel& model, std::int64_t dimension) {
  const auto prediction = model.predict(std::array{dimension});
  return prediction ? prediction->trace.requests[0].bytes : 0;
}

TEST(ShapeModel, PredictsNothingFromOneRecording) {
  ShapeModel model(8, 64);
  model.add(std::array{std::int64_t{4}}, one_request(4096));
  EXPECT_EQ(predicted(model, 8), 0u);
}

TEST(ShapeModel, LearnsAProportionFromTwoRecordings) {
  ShapeModel model(8, 64);
  model.add(std::array{std::int64_t{4}}, one_request(4096));
  model.add(std::array{std::int64_t{6}}, one_request(6144));
  EXPECT_EQ(predicted(model, 10), 10'240u);
}

TEST(ShapeModel, TakesTheBytesOfARunThatWasAsLargeWhereThereIsNoFunction) {
  ShapeModel model(16, 64);
  const std::array<std::uint64_t, 9> bytes = {64, 704, 1024, 3648, 4096, 9152, 10'240, 20'032, 31'744};
  for (std::size_t i = 0; i < bytes.size(); ++i)
    model.add(std::array{static_cast<std::int64_t>(10 * (i + 1))}, one_request(bytes[i]));
  for (std::size_t i = 0; i < ShapeModel::kSureAfter; ++i)
    EXPECT_EQ(predicted(model, 51), 0u) << "it would rather record at first";
  EXPECT_EQ(predicted(model, 50), 4096u) << "as large as a run that is known";
  EXPECT_EQ(predicted(model, 51), 9152u);
}

}  // namespace
}  // namespace berth::internal::replay
