// Memory of all traits, registered with a transport: what make_memory() calls registrable can be opened to other ranks.
#include <gtest/gtest.h>

#include "berth/berth.h"
#include "devices/remote/ucx_driver.h"
#include "remote/rank_process.h"
#include "support/support.h"

namespace berth {
namespace {

using test::counting_bytes;
using test::fails_with;

class Registration : public testing::Test {
 protected:
  void SetUp() override {
    if (auto found = internal::ucx::Driver::open(); !found) GTEST_SKIP() << found.error().message();
    ClusterOptions options;
    options.exchange = folder_.exchange(0, 1);
    cluster_ = Cluster::join(options).value();
  }
  test::JobFolder folder_;
  ClusterPtr cluster_;
};

TEST_F(Registration, WorksForMemoryThatIsRegistrable) {
  const DevicePtr cpu = device("CPU").value();
  unsigned opened = 0;
  for (unsigned number = 0; number < 8; ++number) {
    const MemoryTraits traits{.growable = (number & 1) != 0,
                              .evictable = (number & 2) != 0,
                              .shareable = (number & 4) != 0,
                              .registrable = true};
    const auto memory = make_memory(cpu, traits);
    if (!memory) {
      EXPECT_TRUE(fails_with(memory, Code::kUnsupported));
      continue;
    }
    const Buffer buffer = Buffer::allocate(*memory, u8, {5000}).value();
    ASSERT_TRUE(buffer.copyin(counting_bytes(5000)));
    const RemoteWindow window = cluster_->open(buffer).value();
    ++opened;
    if (const auto growable = std::dynamic_pointer_cast<GrowableMemory>(*memory)) {
      EXPECT_EQ(growable->defragment().moved_count, 0u) << "an opened buffer stays where it is";
      growable->trim();
    }
    std::vector<std::byte> seen(5000);
    ASSERT_TRUE(buffer.copyout(seen));
    EXPECT_EQ(seen, counting_bytes(5000));
    EXPECT_TRUE(cluster_->close(window));
  }
  EXPECT_EQ(opened, 3u) << "plain, growable and shareable memory";
}

TEST_F(Registration, IsRefusedForMemoryThatCanBeEvicted) {
  const auto memory = make_evictable(device("CPU").value()).value();
  const Buffer buffer = Buffer::allocate(memory, u8, {5000}).value();
  const auto window = cluster_->open(buffer);
  ASSERT_TRUE(fails_with(window, Code::kUnsupported));
  EXPECT_NE(window.error().message().find("evict"), std::string::npos);
  EXPECT_EQ(cluster_->counters().windows, 0u);
}

}  // namespace
}  // namespace berth
