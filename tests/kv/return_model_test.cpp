#include "kv/return_model.h"

#include <gtest/gtest.h>

namespace berth::internal::kv_cache {
namespace {

Features all(std::uint8_t value) {
  Features features{};
  features.fill(value);
  return features;
}

TEST(ReturnModel, ExpectsMoreOfSequencesLikeThoseThatReturned) {
  ReturnModel model;
  for (int i = 0; i < 100; ++i) {
    model.learn(all(1), true);
    model.learn(all(2), false);
  }
  EXPECT_GT(model.classify(all(1)), model.classify(all(3)));
  EXPECT_LT(model.classify(all(2)), model.classify(all(3)));
}

TEST(ReturnModel, ExpectsMoreOfAllSequencesWhereMostReturn) {
  ReturnModel model;
  const std::uint8_t before = model.classify(all(3));
  // Of many kinds, none of which has anything in common with the one that is asked for.
  for (int i = 0; i < 1000; ++i) model.learn(all(static_cast<std::uint8_t>(4 + i % 20)), true);
  EXPECT_GT(model.classify(all(3)), before);
}

}  // namespace
}  // namespace berth::internal::kv_cache
