// Seals, cards, messages and windows as bytes.
#include "remote/wire.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "berth/remote/window.h"
#include "remote/seal.h"

namespace berth::internal::remote {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

template <class Range>
std::string hex(const Range& bytes) {
  std::string text;
  for (const std::byte each : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(each));
    text += digits;
  }
  return text;
}

// From FIPS 180-4 and RFC 4231.
TEST(RemoteSeal, AgreesWithThePublishedVectors) {
  EXPECT_EQ(hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256(bytes_of("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(bytes_of(std::string(1'000'000, 'a')))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(hex(Sealer(std::string(20, '\x0b')).seal(bytes_of("Hi There"))), "b0344c61d8db38535ca8afceaf0bf12b");
  EXPECT_EQ(hex(Sealer("Jefe").seal(bytes_of("what do ya want for nothing?"))), "5bdcc146bf60754e6a042426089575c7");
  EXPECT_EQ(
      hex(Sealer(std::string(131, '\xaa')).seal(bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"))),
      "60e431591ee0b67f0d8a26aacbf5b77f");
}

TEST(RemoteSeal, HoldsForItsBytesAndTokenOnly) {
  const Sealer sealer("token"), other("other");
  const Seal seal = sealer.seal(bytes_of("message"));
  EXPECT_TRUE(sealer.holds(seal, bytes_of("message")));
  EXPECT_FALSE(sealer.holds(seal, bytes_of("massage")));
  EXPECT_FALSE(other.holds(seal, bytes_of("message")));
  EXPECT_FALSE(sealer.holds(std::span(seal).first(15), bytes_of("message")));
}

Card some_card() {
  return {.rank = 3,
          .ranks = 9,
          .ucx_major = 1,
          .ucx_minor = 13,
          .lends = std::uint64_t{5} << 33,
          .process = 4711,
          .loopback = 1,
          .host = "machine/boot",
          .network = "net:[1]",
          .address = Bytes(77, std::byte{5})};
}

TEST(RemoteWire, BringsACardBack) {
  const Sealer sealer("token");
  const Card card = some_card();
  const auto back = decode_card(encode(card, sealer), 3, sealer);
  ASSERT_TRUE(back.has_value()) << back.error().message();
  EXPECT_EQ(back->ranks, 9u);
  EXPECT_EQ(back->ucx_minor, 13u);
  EXPECT_EQ(back->lends, card.lends);
  EXPECT_EQ(back->process, 4711u);
  EXPECT_EQ(back->loopback, 1);
  EXPECT_EQ(back->host, card.host);
  EXPECT_EQ(back->network, card.network);
  EXPECT_EQ(back->address, card.address);
}

TEST(RemoteWire, RefusesACardOfAnotherTokenBeforeItsVersion) {
  const Sealer sealer("token");
  Bytes bytes = encode(some_card(), sealer);
  const auto stranger = decode_card(bytes, 3, Sealer("tokem"));
  ASSERT_FALSE(stranger.has_value());
  EXPECT_EQ(stranger.error().code(), Code::kInvalidData);
  EXPECT_NE(stranger.error().message().find("rank 3"), std::string::npos);
  EXPECT_NE(stranger.error().message().find("token"), std::string::npos);
  EXPECT_FALSE(decode_card(bytes, 2, sealer).has_value()) << "published by another rank";
  EXPECT_FALSE(decode_card({}, 3, sealer).has_value());

  // Another version, sealed with the right token.
  Bytes body(bytes.begin() + kSealBytes, bytes.end());
  body[4] = std::byte{77};
  const Seal seal = sealer.seal(body);
  body.insert(body.begin(), seal.begin(), seal.end());
  const auto newer = decode_card(body, 3, sealer);
  ASSERT_FALSE(newer.has_value());
  EXPECT_NE(newer.error().message().find("version 77"), std::string::npos) << newer.error().message();
  const auto unsealed = decode_card(body, 3, Sealer("tokem"));
  EXPECT_EQ(unsealed.error().message().find("version"), std::string::npos) << "the token comes first";
}

TEST(RemoteWire, BringsAMessageBack) {
  const Sealer sealer("token");
  Message message{.kind = Kind::kCopy, .from = 1, .to = 2, .request = 99, .payload = Bytes(5, std::byte{8})};
  for (std::size_t i = 0; i < message.numbers.size(); ++i) message.numbers[i] = ~std::uint64_t{0} / (i + 1);
  const auto back = decode_message(encode(message, sealer), sealer);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->kind, Kind::kCopy);
  EXPECT_EQ(back->from, 1u);
  EXPECT_EQ(back->to, 2u);
  EXPECT_EQ(back->request, 99u);
  EXPECT_EQ(back->numbers, message.numbers);
  EXPECT_EQ(back->payload, message.payload);
}

// Every change of a byte, and every cut, is refused: by the seal, or with the right seal by the decoder.
RC_GTEST_PROP(RemoteWire, RefusesDamagedMessages, ()) {
  const Sealer sealer("token");
  Message message{.kind = static_cast<Kind>(*rc::gen::inRange(0, 14)),
                  .request = *rc::gen::arbitrary<std::uint64_t>(),
                  .payload = Bytes(*rc::gen::inRange<std::size_t>(0, 50))};
  const Bytes good = encode(message, sealer);
  Bytes changed = good;
  const auto at = *rc::gen::inRange<std::size_t>(0, good.size());
  changed[at] ^= static_cast<std::byte>(*rc::gen::inRange(1, 256));
  RC_ASSERT(!decode_message(changed, sealer).has_value());

  Bytes body(good.begin() + kSealBytes, good.end());
  body.resize(*rc::gen::inRange<std::size_t>(0, body.size()));
  const Seal seal = sealer.seal(body);
  body.insert(body.begin(), seal.begin(), seal.end());
  RC_ASSERT(!decode_message(body, sealer).has_value());
}

TEST(RemoteWire, RefusesAKindItDoesNotKnow) {
  const Sealer sealer("token");
  EXPECT_FALSE(decode_message(encode(Message{.kind = static_cast<Kind>(14)}, sealer), sealer).has_value());
}

TEST(RemoteWindow, ComesBackFromItsBytes) {
  const RemoteWindow window{.rank = 4,
                            .id = 77,
                            .generation = 0x1234567890abcdef,
                            .bytes = 4 * 6 * 2,
                            .dtype = f32,
                            .shape = {6, 2},
                            .access = Access::kRead};
  const auto back = RemoteWindow::from_bytes(window.to_bytes());
  ASSERT_TRUE(back.has_value()) << back.error().message();
  EXPECT_EQ(*back, window);
  EXPECT_EQ(to_string(window), "window 77 of rank 4: f32[6, 2], 48 B, read-only");
}

TEST(RemoteWindow, RefusesOtherBytes) {
  const RemoteWindow window{.rank = 1, .id = 2, .generation = 3, .bytes = 24, .dtype = f32, .shape = {3, 2}};
  const std::vector<std::byte> good = window.to_bytes();
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(RemoteWindow::from_bytes(std::span(good).first(size)).has_value()) << size;
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(RemoteWindow::from_bytes(longer).has_value());
  RemoteWindow wrong = window;
  wrong.bytes = 25;
  EXPECT_FALSE(RemoteWindow::from_bytes(wrong.to_bytes()).has_value()) << "the shape has 24 bytes";
  std::vector<std::byte> bytes = good;
  const std::span<const std::byte> type = bytes_of("f32");
  const auto at = std::search(bytes.begin(), bytes.end(), type.begin(), type.end());
  ASSERT_NE(at, bytes.end());
  *at = static_cast<std::byte>('g');
  EXPECT_FALSE(RemoteWindow::from_bytes(bytes).has_value()) << "there is no g32";
  *at = static_cast<std::byte>('f');
  EXPECT_EQ(RemoteWindow::from_bytes(bytes).value(), window);
  *(at + 3) = static_cast<std::byte>(kMaxRank + 1);  // as many extents, which are all there
  bytes.resize(bytes.size() + 8 * (kMaxRank - 1), std::byte{0});
  EXPECT_FALSE(RemoteWindow::from_bytes(bytes).has_value()) << "more axes than a shape has";
  wrong = window;
  wrong.access = static_cast<Access>(3);
  EXPECT_FALSE(RemoteWindow::from_bytes(wrong.to_bytes()).has_value());
}

}  // namespace
}  // namespace berth::internal::remote
