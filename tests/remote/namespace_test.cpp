// Ranks that share nothing but a network: each in a network namespace of its own, over TCP, on a link that is limited,
// slow or cut. The namespaces separate networks, not machines, so that the transport has to be set: cross-memory attach
// would still find the other process.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "berth/berth.h"
#include "devices/remote/ucx_driver.h"
#include "remote/rank_process.h"
#include "support/network_namespaces.h"
#include "support/seed.h"

namespace berth {
namespace {

using test::JobFolder;
using test::NetworkNamespaces;
using test::RankOptions;
using test::RankProcess;
using test::word_of;
using namespace std::chrono_literals;

class RemoteNetwork : public testing::Test {
 protected:
  void SetUp() override {
    if (auto found = internal::ucx::Driver::open(); !found) GTEST_SKIP() << found.error().message();
    if (!NetworkNamespaces("1gbit").made()) GTEST_SKIP() << NetworkNamespaces::why_not();
  }
  static RankOptions on(const NetworkNamespaces& net, int machine, std::chrono::milliseconds give_up_after = 60s) {
    return {.lends = 64 << 20,
            .give_up_after = give_up_after,
            .interface = NetworkNamespaces::interface(),
            .transports = "tcp",
            .before = net.on(machine),
            .environment = {"BERTH_TEST_MEET=1"}};
  }
};

TEST_F(RemoteNetwork, MovesBytesBetweenMachines) {
  const NetworkNamespaces net("1gbit");
  const JobFolder folder;
  RankProcess a(folder, 0, 2, on(net, 0)), b(folder, 1, 2, on(net, 1));
  ASSERT_EQ(a.joined(), "ok joined");
  ASSERT_EQ(b.joined(), "ok joined");
  const RemoteWindow window = b.open("w", (9 << 20) + 1, Access::kReadWrite, 3);
  EXPECT_EQ(a.ask("get " + word_of(window) + " 3"), "ok");
  EXPECT_EQ(a.ask("put " + word_of(window) + " 5"), "ok");
  EXPECT_EQ(b.ask("arrived w 1"), "ok");
  EXPECT_EQ(b.ask("holds w 5"), "ok");
  EXPECT_EQ(a.ask("evict 1 9000000"), "ok");
  EXPECT_EQ(b.ask("evict 0 9000000"), "ok");
  EXPECT_EQ(a.quit(), 0);
}

TEST_F(RemoteNetwork, RefusesToUseLoopbackBetweenMachines) {
  const NetworkNamespaces net("1gbit");
  const JobFolder folder;
  RankOptions local = on(net, 0);
  local.interface = "lo";
  RankProcess a(folder, 0, 2, local), b(folder, 1, 2, on(net, 1));
  const std::string answer = a.joined();
  EXPECT_EQ(answer.substr(0, 24), "error InvalidData rank 1") << answer;
  EXPECT_NE(answer.find("loopback"), std::string::npos) << answer;
  const std::string other = b.joined();
  EXPECT_NE(other.find("loopback"), std::string::npos) << other;
}

// It takes longer than give_up_after as a whole, but never without a sign of life.
TEST_F(RemoteNetwork, HasPatienceWithASlowLink) {
  const NetworkNamespaces net("100mbit");
  const JobFolder folder;
  RankProcess a(folder, 0, 2, on(net, 0, 5s)), b(folder, 1, 2, on(net, 1, 5s));
  ASSERT_EQ(a.joined(), "ok joined");
  ASSERT_EQ(b.joined(), "ok joined");
  const RemoteWindow window = b.open("w", 72 << 20, Access::kReadWrite, 3);
  EXPECT_EQ(a.ask("put " + word_of(window) + " 5"), "ok");
  EXPECT_EQ(b.ask("holds w 5"), "ok");
}

// The link is cut at a random moment of a put, a get or an eviction. Both ranks find the other lost.
TEST_F(RemoteNetwork, LosesARankBehindACutLink) {
  for (const std::uint32_t seed : test::seeds(3)) {
    std::mt19937 random(seed);
    NetworkNamespaces net("1gbit");
    const JobFolder folder;
    RankProcess a(folder, 0, 2, on(net, 0, 2s)), b(folder, 1, 2, on(net, 1, 2s));
    ASSERT_EQ(a.joined(), "ok joined");
    ASSERT_EQ(b.joined(), "ok joined");
    const RemoteWindow window = b.open("w", 48 << 20, Access::kReadWrite, 3);
    const int what = static_cast<int>(random() % 3);
    const std::string command = what == 0   ? "put " + word_of(window) + " 5"
                                : what == 1 ? "get " + word_of(window) + " 3"
                                            : "evict 1 48000000";
    a.send(command);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 400));
    ASSERT_TRUE(net.cut());
    const std::string answer = a.answer();
    // It may have been done before the cut.
    if (answer != "ok") {
      EXPECT_NE(answer.find("error DeviceLost rank 1 is lost"), std::string::npos)
          << "seed " << seed << ", " << command.substr(0, 5) << ": " << answer;
    }
    const std::string later = a.ask("evict 1 1000000");
    EXPECT_NE(later.find("rank 1 is lost"), std::string::npos) << "seed " << seed << ": " << later;
    EXPECT_EQ(a.ask("lost"), "ok 1");
  }
}

}  // namespace
}  // namespace berth
