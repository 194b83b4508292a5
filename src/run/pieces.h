// Bytes that are no one function of the dimensions: a workspace that an engine makes as large as its input up to some
// border, and of a fixed size beyond it, or in steps. The samples are put in the order of some known quantity, such as
// the bytes of another request, and divided into pieces on each of which the bytes are a multiple of a known quantity.
// Nobody knows where between two samples a border is, so there both pieces bound the bytes; and where several orders
// give as few pieces, all of them do. Plain values; any thread
// may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace berth::internal::replay {

class Pieces {
 public:
  // `known`: what is known at every sample, one row for each quantity; the first is 1 everywhere. `values`: the bytes.
  // All are positive and below 2^62. Requires: at least one sample.
  Pieces(std::span<const std::vector<std::uint64_t>> known, std::vector<std::uint64_t> values);

  struct Bounds {
    std::uint64_t least = 0, most = 0;
    bool certain = false;  // no other piece, and at least two samples, say what the bytes are
  };
  // Between what the bytes are where the known quantities have these values; 0: it has none. Nothing if a number
  // becomes too large, or what is needed has no value.
  std::optional<Bounds> operator()(std::span<const std::uint64_t> known) const;

  // A sample at the end of a piece says where a border is.
  bool shows_a_border(std::size_t sample) const noexcept;
  // The pieces are few enough for the samples to say more than themselves.
  bool explain() const noexcept { return explain_; }

 private:
  struct Piece {
    std::size_t first, last;               // samples
    std::uint64_t low, high;               // of the quantity that orders the samples
    std::vector<std::uint32_t> multiples;  // quantities whose multiple the bytes are
    bool single() const noexcept { return first == last; }
  };
  // The samples in one order.
  struct Division {
    std::uint32_t key;  // the quantity that orders them
    std::vector<Piece> pieces;
  };
  Division divide(std::span<const std::uint32_t> order, std::uint32_t key) const;
  Division one_by_one(std::span<const std::uint32_t> order, std::uint32_t key) const;
  bool bound(const Division& division, std::span<const std::uint64_t> known, Bounds& bounds) const;
  bool bound(const Piece& piece, std::span<const std::uint64_t> known, Bounds& bounds) const;

  std::vector<std::uint64_t> values_;
  std::size_t samples_;
  std::uint64_t unit_ = 0;  // divides all values
  std::vector<Division> divisions_;
  bool explain_ = false;
  std::vector<std::vector<std::uint64_t>> known_;  // rows of the quantities that are used
};

}  // namespace berth::internal::replay
