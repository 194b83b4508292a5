#include "plan/placement/time_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "support/seed.h"

namespace berth::internal::planner {
namespace {

// Against the definition, for few and for many sections: the index has more levels the longer the time is.
TEST(TimeIndex, FindsEachItemThatIsAliveOnce) {
  std::mt19937_64 random(test::seed());
  for (const std::int32_t sections : {1, 2, 7, 8, 31, 32, 33, 1000}) {
    Model model;
    model.sections = sections;
    for (int i = 0; i < 60; ++i) {
      const auto first = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(sections));
      const auto longest = static_cast<std::uint64_t>(i % 2 == 0 ? sections - first : std::min(4, sections - first));
      Item item;
      item.first = first;
      item.last = first + 1 + static_cast<std::int32_t>(random() % longest);
      model.items.push_back(item);
    }
    const TimeIndex index(model);
    for (int ask = 0; ask < 200; ++ask) {
      const auto first = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(sections));
      const auto last = first + 1 + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(sections - first));
      std::vector<std::uint32_t> found, expected;
      index.alive(first, last, [&](std::uint32_t item) { found.push_back(item); });
      for (std::uint32_t i = 0; i < model.items.size(); ++i)
        if (model.items[i].first < last && model.items[i].last > first) expected.push_back(i);
      std::sort(found.begin(), found.end());
      ASSERT_EQ(found, expected) << "[" << first << ", " << last << ") of " << sections;
    }
  }
}

}  // namespace
}  // namespace berth::internal::planner
