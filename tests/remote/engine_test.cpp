// The transport below clusters, two of them in one process: what is refused of what others send, and what a rank hears
// that was given up on.
#include "remote/engine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "remote/rank_process.h"

namespace berth::internal::remote {
namespace {

using namespace std::chrono_literals;

TEST(RemoteEngineTransports, AreKnownToUseTcp) {
  for (const char* with : {"tcp", "tcp,cma", "rc,cma,tcp", "all", "^rc", "^cma,sm"})
    EXPECT_TRUE(may_use_tcp(with)) << with;
  for (const char* without : {"", "rc,cma", "^tcp", "^rc,tcp", "tcpx"}) EXPECT_FALSE(may_use_tcp(without)) << without;
}

// Rank 0, which takes 1000 bytes of rank 1 at `room`.
class RemoteEngine : public testing::Test {
 protected:
  struct Side {
    std::uint32_t rank = 1;
    std::uint32_t ranks = 2;
    std::string token = "token";
    Clock::duration give_up_after = 60s;
  };
  void SetUp() override {
    if (auto found = ucx::Driver::open(); !found) GTEST_SKIP() << found.error().message();
    own_ = make({.rank = 0});
  }
  void TearDown() override {
    for (const auto& engine : {other_, own_})
      if (engine != nullptr) engine->stop();
  }
  static std::shared_ptr<Engine> make(const Side& side) {
    Engine::Options options{.rank = side.rank,
                            .ranks = side.ranks,
                            .interfaces = "lo",
                            .transports = "tcp",
                            .give_up_after = side.give_up_after};
    return Engine::make(std::move(options), Sealer(side.token)).value();
  }
  // Starts both. The other one believes that rank 0 is `place_of_own`.
  void start(const Side& side, std::uint32_t place_of_own = 0) {
    other_ = make(side);
    std::vector<Card> cards(side.ranks), own_cards(2);
    for (std::uint32_t i = 0; i < side.ranks; ++i) cards[i].address = own_->address();
    own_cards[0].address = own_->address();
    own_cards[1].address = other_->address();
    own_->start(
        std::move(own_cards), [this](const Message&) { ++handled_; },
        [this](std::uint32_t from, std::uint64_t address, std::size_t bytes) -> std::byte* {
          const std::uint64_t first = reinterpret_cast<std::uint64_t>(room_.data());
          return from == 1 && address == first && bytes <= room_.size() ? room_.data() : nullptr;
        });
    other_->start(
        std::move(cards), [](const Message&) {},
        [](std::uint32_t, std::uint64_t, std::size_t) -> std::byte* { return nullptr; });
    for (const auto& engine : {own_, other_}) engine->connected();  // here they connect when they send
    target_ = place_of_own;
  }
  void send(Message message) {
    const MutexLock lock(other_->mutex);
    other_->send(target_, std::move(message));
  }
  void put(std::uint64_t address, const Bytes& bytes) {
    const MutexLock lock(other_->mutex);
    const auto ticket = std::make_shared<Ticket>();
    other_->put(target_, nullptr, address, bytes, ticket);
    other_->wait([&] { return ticket->in_flight == 0; });
  }
  // Waits, generously.
  static bool comes(const std::function<bool()>& condition) {
    const auto until = std::chrono::steady_clock::now() + test::kPatience;
    while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(2ms);
    return condition();
  }
  bool refuses(std::uint64_t count) {
    return comes([&] { return own_->refused_messages() >= count; }) && own_->refused_messages() == count;
  }
  // A message and data: neither is heard of, and the memory stays as it was.
  void expect_both_refused() {
    send({.kind = Kind::kBarrier});
    put(room_address(), Bytes(1000, std::byte{2}));
    EXPECT_TRUE(refuses(2));
    EXPECT_EQ(handled_, 0);
    EXPECT_EQ(room_, Bytes(1000, std::byte{1}));
  }
  std::uint64_t room_address() const { return reinterpret_cast<std::uint64_t>(room_.data()); }

  std::shared_ptr<Engine> own_, other_;
  std::uint32_t target_ = 0;
  std::atomic<int> handled_{0};
  Bytes room_ = Bytes(1000, std::byte{1});
};

TEST_F(RemoteEngine, TakesMessagesAndDataOfItsRanks) {
  start({});
  send({.kind = Kind::kBarrier});
  EXPECT_TRUE(comes([&] { return handled_ == 1; }));
  put(room_address(), Bytes(1000, std::byte{2}));
  send({.kind = Kind::kBarrier});
  EXPECT_TRUE(comes([&] { return handled_ == 2; }));
  EXPECT_EQ(room_, Bytes(1000, std::byte{2}));
  EXPECT_EQ(own_->refused_messages(), 0u);
}

TEST_F(RemoteEngine, RefusesAnotherToken) {
  start({.token = "another"});
  send({.kind = Kind::kBarrier});
  EXPECT_TRUE(refuses(1));
  put(room_address(), Bytes(1000, std::byte{2}));
  EXPECT_TRUE(refuses(2));
  EXPECT_EQ(handled_, 0);
  EXPECT_EQ(room_, Bytes(1000, std::byte{1}));
}

TEST_F(RemoteEngine, RefusesWhatIsForAnotherRank) {
  start({.rank = 1, .ranks = 3}, 2);
  expect_both_refused();
}

TEST_F(RemoteEngine, RefusesWhoClaimsToBeItself) {
  start({.rank = 0});
  send({.kind = Kind::kBarrier});
  EXPECT_TRUE(refuses(1));
  EXPECT_EQ(handled_, 0);
}

TEST_F(RemoteEngine, RefusesARankThatTheJobHasNot) {
  start({.rank = 2, .ranks = 3});
  expect_both_refused();
}

TEST_F(RemoteEngine, RefusesMessagesThatAreTooLong) {
  start({});
  send({.kind = Kind::kBarrier, .payload = Bytes(70'000)});
  EXPECT_TRUE(refuses(1));
  send({.kind = Kind::kBarrier, .payload = Bytes(60'000)});
  EXPECT_TRUE(comes([&] { return handled_ == 1; }));
  EXPECT_EQ(own_->refused_messages(), 1u);
}

TEST_F(RemoteEngine, RefusesDataThatHasNoPlace) {
  start({});
  put(room_address() + 1, Bytes(1000, std::byte{2}));
  EXPECT_TRUE(refuses(1));
  put(room_address(), Bytes(1001, std::byte{2}));
  EXPECT_TRUE(refuses(2));
  EXPECT_EQ(room_, Bytes(1000, std::byte{1}));
}

TEST_F(RemoteEngine, TakesDataForAReadUntilItEnds) {
  start({});
  Bytes target(500, std::byte{1});
  const auto first = reinterpret_cast<std::uint64_t>(target.data());
  {
    const MutexLock lock(own_->mutex);
    own_->expect_target(1, target);
  }
  put(first + 100, Bytes(400, std::byte{2}));
  put(first + 101, Bytes(400, std::byte{3}));  // one byte too far
  EXPECT_TRUE(refuses(1));
  EXPECT_EQ(target[99], std::byte{1});
  EXPECT_EQ(target[100], std::byte{2});
  EXPECT_EQ(target[499], std::byte{2});
  {
    const MutexLock lock(own_->mutex);
    own_->forget_target(1, target);
  }
  put(first, Bytes(500, std::byte{4}));
  EXPECT_TRUE(refuses(2));
  EXPECT_EQ(target[100], std::byte{2});
}

// The connection of a rank that was given up on may still carry what it sends.
TEST_F(RemoteEngine, RefusesDataOfALostRank) {
  start({});
  put(room_address(), Bytes(1000, std::byte{2}));
  send({.kind = Kind::kBarrier});
  EXPECT_TRUE(comes([&] { return handled_ == 1; }));
  const Bytes late(1000, std::byte{3});
  {
    // Neither side makes progress between the loss and the put.
    const MutexLock lock(own_->mutex);
    own_->lose(1, lost_error(1, "this test says so"));
    const MutexLock other_lock(other_->mutex);
    other_->put(0, nullptr, room_address(), late, nullptr);
  }
  const Bytes two(1000, std::byte{2});
  EXPECT_TRUE(comes([&] { return own_->refused_messages() > 0 || !other_->lost().empty(); }));
  const MutexLock lock(own_->mutex);
  EXPECT_EQ(room_, two);
}

// Who is silent and alive is told that it was given up on, so that it need not wait for a time of its own.
TEST_F(RemoteEngine, TellsARankThatItGaveUpOnIt) {
  own_ = make({.rank = 0, .give_up_after = 300ms});
  start({});
  send({.kind = Kind::kBarrier});
  EXPECT_TRUE(comes([&] { return handled_ == 1; }));
  {
    const MutexLock lock(own_->mutex);
    // Nobody answers a barrier.
    own_->ask(1, {.kind = Kind::kBarrier}, [](const Result<Message>&) {});
  }
  EXPECT_TRUE(comes([&] { return !other_->lost().empty(); }));
  EXPECT_EQ(own_->lost(), std::vector<std::uint32_t>{1});
  const MutexLock lock(other_->mutex);
  const auto why = other_->check(0);
  ASSERT_FALSE(why.has_value());
  EXPECT_EQ(why.error().code(), Code::kDeviceLost);
  EXPECT_NE(why.error().message().find("rank 0 is lost: it gave up on this process"), std::string::npos)
      << why.error().message();
}

}  // namespace
}  // namespace berth::internal::remote
