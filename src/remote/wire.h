// The bytes that ranks send each other: the card that a rank publishes when it joins, and the messages between ranks.
// Both begin with a seal (seal.h), which is checked before anything else is read. Numbers are little-endian. Plain
// functions; any thread may call. Decoding accepts any bytes and copies what it keeps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "berth/base/result.h"
#include "remote/seal.h"

namespace berth::internal::remote {

using Bytes = std::vector<std::byte>;

// Counts changes of what follows. Ranks of different versions refuse each other.
inline constexpr std::uint32_t kProtocol = 3;

// Appends numbers and bytes.
class Writer {
 public:
  void u8(std::uint8_t value) { number(value, 1); }
  void u32(std::uint32_t value) { number(value, 4); }
  void u64(std::uint64_t value) { number(value, 8); }
  void bytes(std::span<const std::byte> value);  // with its size in front
  void text(std::string_view value) { bytes(std::as_bytes(std::span(value))); }
  Bytes take() { return std::move(out_); }

 private:
  void number(std::uint64_t value, std::size_t size);
  Bytes out_;
};

// Reads them back. After a read past the end, everything is zero or empty, and ok() is false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  std::uint8_t u8() { return static_cast<std::uint8_t>(number(1)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  Bytes bytes();
  std::string text();
  bool ok() const noexcept { return ok_; }
  bool at_end() const noexcept { return ok_ && in_.empty(); }

 private:
  std::uint64_t number(std::size_t size);
  std::span<const std::byte> take(std::size_t size);
  std::span<const std::byte> in_;
  bool ok_ = true;
};

// What a rank tells the others when it joins.
struct Card {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 0;
  std::uint32_t ucx_major = 0;
  std::uint32_t ucx_minor = 0;
  std::uint64_t lends = 0;    // bytes that the others may lease
  std::uint32_t process = 0;  // its number, as it calls itself
  std::uint8_t loopback = 0;  // 1: it listens on the loopback interface only
  std::string host{};         // identifies the machine and its boot
  std::string network{};      // identifies the network namespace
  Bytes address{};            // of its UCX worker
};

Bytes encode(const Card& card, const Sealer& sealer);
// kInvalidData, with the rank that published it: another token, another version of the protocol, or damage.
Result<Card> decode_card(std::span<const std::byte> bytes, std::uint32_t rank, const Sealer& sealer);

enum class Kind : std::uint8_t {
  kReply,    // numbers: code or kOkReply, then what the request says; payload: text of an error
  kLease,    // bytes -> id, generation, address, bytes, descriptor of a file with them plus 1 or 0; payload: key
  kImport,   // id, generation -> address, bytes, access, address and place of its note or 0; payload: key
  kRelease,  // id, generation: the sender will not use it again
  kRevoke,   // id, generation: the sender is about to close it -> nothing, when no access is in flight
  kPush,     // id, generation, offset, bytes, address; payload: key -> nothing, when the bytes are at the address
  kCopy,     // id, generation, offset, id, generation, offset, bytes -> nothing
  kFill,     // id, generation, offset, bytes, value -> nothing
  kArrived,  // id, generation, count: of submits that wrote to it and are complete; 0 if the note counts them
  kBarrier,  // epoch
  kGo,       // epoch: every rank has called barrier()
  kGoodbye,  // 0: the sender leaves the cluster; 1: it gave up on the receiver
  kData,     // address; the bytes follow outside of the message
  kFlush,    // -> nothing, when the data that was sent before is in its place
  kLast = kFlush,
};

inline constexpr std::uint64_t kOkReply = ~std::uint64_t{0};

struct Message {
  Kind kind = Kind::kReply;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint64_t request = 0;  // of a request and its reply; 0: no reply is wanted
  std::array<std::uint64_t, 7> numbers{};
  Bytes payload{};
};

Bytes encode(const Message& message, const Sealer& sealer);
// kInvalidData for bytes that no rank of this job sent.
Result<Message> decode_message(std::span<const std::byte> bytes, const Sealer& sealer);

}  // namespace berth::internal::remote
