#include "remote/wire.h"

#include <fmt/format.h>

#include <algorithm>

namespace berth::internal::remote {
namespace {

constexpr std::uint32_t kCardMark = 0x43425242;  // "BRBC"

Bytes sealed(Bytes body, const Sealer& sealer) {
  const Seal seal = sealer.seal(body);
  body.insert(body.begin(), seal.begin(), seal.end());
  return body;
}

Error bad_card(std::uint32_t rank, std::string_view what) {
  return Error::with_text(Code::kInvalidData, Layer::kDevice, fmt::format("rank {} {}", rank, what));
}

}  // namespace

void Writer::number(std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) out_.push_back(static_cast<std::byte>(value >> 8 * i));
}

void Writer::bytes(std::span<const std::byte> value) {
  u32(static_cast<std::uint32_t>(value.size()));
  out_.insert(out_.end(), value.begin(), value.end());
}

std::span<const std::byte> Reader::take(std::size_t size) {
  if (size > in_.size()) {
    ok_ = false;
    in_ = {};
    return {};
  }
  const auto taken = in_.first(size);
  in_ = in_.subspan(size);
  return taken;
}

std::uint64_t Reader::number(std::size_t size) {
  std::uint64_t value = 0;
  const auto taken = take(size);
  for (std::size_t i = 0; i < taken.size(); ++i) value |= static_cast<std::uint64_t>(taken[i]) << 8 * i;
  return value;
}

Bytes Reader::bytes() {
  const std::uint32_t size = u32();
  const auto taken = take(size);
  return {taken.begin(), taken.end()};
}

std::string Reader::text() {
  const Bytes taken = bytes();
  std::string result(taken.size(), '\0');
  std::transform(taken.begin(), taken.end(), result.begin(), [](std::byte each) { return static_cast<char>(each); });
  return result;
}

Bytes encode(const Card& card, const Sealer& sealer) {
  Writer out;
  out.u32(kCardMark);
  out.u32(kProtocol);
  out.u32(card.rank);
  out.u32(card.ranks);
  out.u32(card.ucx_major);
  out.u32(card.ucx_minor);
  out.u64(card.lends);
  out.u32(card.process);
  out.u8(card.loopback);
  out.text(card.host);
  out.text(card.network);
  out.bytes(card.address);
  return sealed(out.take(), sealer);
}

Result<Card> decode_card(std::span<const std::byte> bytes, std::uint32_t rank, const Sealer& sealer) {
  if (bytes.size() < kSealBytes || !sealer.holds(bytes.first(kSealBytes), bytes.subspan(kSealBytes)))
    return bad_card(rank, "published an entry without the token of this job; give all ranks the same token");
  Reader in(bytes.subspan(kSealBytes));
  const std::uint32_t mark = in.u32(), protocol = in.u32();
  if (mark == kCardMark && protocol != kProtocol)
    return bad_card(rank, fmt::format("speaks version {} of the protocol and this process version {}; use one version "
                                      "of Berth on all ranks",
                                      protocol, kProtocol));
  Card card;
  card.rank = in.u32();
  card.ranks = in.u32();
  card.ucx_major = in.u32();
  card.ucx_minor = in.u32();
  card.lends = in.u64();
  card.process = in.u32();
  card.loopback = in.u8();
  card.host = in.text();
  card.network = in.text();
  card.address = in.bytes();
  if (mark != kCardMark || !in.at_end() || card.rank != rank || card.address.empty())
    return bad_card(rank, "published an entry that is damaged or of another rank");
  return card;
}

Bytes encode(const Message& message, const Sealer& sealer) {
  Writer out;
  out.u8(static_cast<std::uint8_t>(message.kind));
  out.u32(message.from);
  out.u32(message.to);
  out.u64(message.request);
  for (const std::uint64_t number : message.numbers) out.u64(number);
  out.bytes(message.payload);
  return sealed(out.take(), sealer);
}

Result<Message> decode_message(std::span<const std::byte> bytes, const Sealer& sealer) {
  if (bytes.size() < kSealBytes || !sealer.holds(bytes.first(kSealBytes), bytes.subspan(kSealBytes)))
    return Error(Code::kInvalidData, Layer::kDevice, "a message of {} bytes does not carry the token of this job",
                 bytes.size());
  Reader in(bytes.subspan(kSealBytes));
  Message message;
  const std::uint8_t kind = in.u8();
  message.kind = static_cast<Kind>(kind);
  message.from = in.u32();
  message.to = in.u32();
  message.request = in.u64();
  for (std::uint64_t& number : message.numbers) number = in.u64();
  message.payload = in.bytes();
  if (!in.at_end() || kind > static_cast<std::uint8_t>(Kind::kLast))
    return Error(Code::kInvalidData, Layer::kDevice, "a message of {} bytes and kind {} is damaged", bytes.size(),
                 kind);
  return message;
}

}  // namespace berth::internal::remote
