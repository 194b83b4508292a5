// How the tensors of a checkpoint are split among ranks, and who reads what. A plan is a value made by a pure function
// of the file's header, the rules and the number of ranks, so each rank makes the same plan and nothing about it needs
// to be sent. It can be printed, checked and costed before anything is read.
//
// The files are cut into pieces of 8 MiB. Each piece is read once, by one rank, which puts the bytes of each shard in
// it into the memory of the ranks that have this shard. The bytes of one shard inside one piece are one range of the
// target, so there is one put for each (piece, tensor, target).
//
//   auto rules = berth::parse_shard_rules("*.o_proj.weight column\n*_proj.weight row\n").value();
//   auto plan = berth::make_shard_plan(file.tensors(), rules, {.ranks = 4}).value();
//   std::cout << plan << plan.cost();                                     // before it runs
//   plan.check().value();                                                 // each byte of each target exactly once
//
// Plans are plain values without locks: any number of threads may read one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "berth/base/result.h"
#include "berth/tensor/dtype.h"
#include "berth/weights/tensor_info.h"
#include "berth/weights/weights.h"

namespace berth {

enum class ShardKind : std::uint8_t {
  kReplicated,  // each rank has the whole tensor
  kRow,         // the first axis is split
  kColumn,      // the last axis is split
  kExpert,      // experts are split: see ShardRule
};
std::string_view to_string(ShardKind kind) noexcept;  // "replicated", "row", "column", "expert"

// Which tensors are split how. In a pattern, '*' stands for any text, '?' for one character, and '#' for a number. The
// first rule whose pattern fits a name decides; a tensor that no rule fits is replicated.
//
// kExpert with '#' in the pattern is for checkpoints with one tensor for each expert: '#' is the number of the expert,
// and each expert goes whole to one rank. Without '#' it is for tensors whose first axis counts the experts.
struct ShardRule {
  std::string pattern{};
  ShardKind kind = ShardKind::kReplicated;
  // The axis is split in multiples of this many, such as the size of an attention head.
  std::size_t unit = 1;

  friend bool operator==(const ShardRule&, const ShardRule&) = default;
};

// Rules from text: one rule in each line, as "pattern kind" or "pattern kind unit NUMBER". Text after a '#' at the
// beginning of a line, or after blanks, is a comment if a blank follows. kInvalidData, with the line, for anything
// else. O(bytes).
Result<std::vector<ShardRule>> parse_shard_rules(std::string_view text);
// The same from a file. Also kNotFound and kIo.
Result<std::vector<ShardRule>> read_shard_rules(const std::string& path);
// The text that parse_shard_rules() reads.
std::string to_string(std::span<const ShardRule> rules);

struct ShardOptions {
  std::uint32_t ranks = 1;
  // Tensors are split into this many parts; rank r has part r % parts, so ranks / parts ranks have the same. 0: as many
  // parts as ranks. `ranks` must be a multiple of it.
  std::uint32_t parts = 0;
  std::uint64_t piece_bytes = std::uint64_t{8} << 20;  // a multiple of 4096
  std::size_t alignment = 256;                         // of each shard in the memory of a rank; a power of two
};

// The part of one tensor that one rank has.
struct Shard {
  AxisSlice slice{};                 // of the tensor; all of axis 0 if it has the whole tensor
  std::vector<std::size_t> shape{};  // of the shard
  std::uint64_t offset = 0;          // in the memory of the rank; 0 if it has nothing
  std::uint64_t bytes = 0;           // 0 if the rank has nothing of it
};

// A piece of a file, which one rank reads.
struct ShardPiece {
  std::uint32_t file = 0;
  std::uint32_t reader = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// The bytes of one shard inside one piece: one range of the target's memory. In the file they are one run of
// `first_bytes` bytes at `first`, and then runs of `run_bytes` bytes at `second`, `second` + `pitch`, ... until there
// are `bytes` in all; the last may be shorter.
struct ShardPut {
  std::uint32_t target = 0;  // the rank
  std::uint32_t tensor = 0;
  std::uint64_t offset = 0;  // in the memory of the target
  std::uint64_t bytes = 0;
  std::uint64_t first = 0;
  std::uint64_t first_bytes = 0;
  std::uint64_t second = 0;
  std::uint64_t run_bytes = 0;
  std::uint64_t pitch = 0;

  // Calls `run(file_offset, bytes)` for each run, in the order of the target.
  template <class Run>
  void for_each_run(Run&& run) const {
    run(first, first_bytes);
    std::uint64_t at = second;
    for (std::uint64_t left = bytes - first_bytes; left > 0; at += pitch) {
      const std::uint64_t now = left < run_bytes ? left : run_bytes;
      run(at, now);
      left -= now;
    }
  }
};

struct ShardCost {
  std::uint64_t file_bytes = 0;        // of all tensors
  std::uint64_t storage_bytes = 0;     // read by all ranks
  std::uint64_t network_bytes = 0;     // put by a rank into another
  std::uint64_t largest_read = 0;      // by one rank
  std::uint64_t largest_sent = 0;      // by one rank to others
  std::uint64_t largest_received = 0;  // by one rank from others
  std::uint64_t largest_memory = 0;    // of one rank, with alignment
};
std::string to_string(const ShardCost& cost);

class ShardPlan {
 public:
  // One tensor, and how it is split: `outer` rows of `units` units of `unit_bytes` bytes; each row is split between
  // units.
  struct Tensor {
    std::string name{};
    std::vector<std::size_t> shape{};
    std::uint64_t file_offset = 0;
    std::uint64_t bytes = 0;
    std::uint64_t outer = 1;
    std::uint64_t units = 1;
    std::uint64_t unit_bytes = 0;
    std::uint64_t target_offset = 0;  // in the memory of each rank that has a part of it
    std::size_t axis = 0;
    std::size_t unit = 1;  // elements of the axis in one unit
    std::uint32_t file = 0;
    std::uint32_t owner = kAll;  // the part that has the whole tensor; kAll: see `split`
    DType dtype = DType::kU8;
    ShardKind kind = ShardKind::kReplicated;
    bool split = false;  // each part has a range of units; otherwise each has the whole tensor
  };
  static constexpr std::uint32_t kAll = UINT32_MAX;

  ShardPlan() = default;  // of no tensors and one rank

  std::uint32_t ranks() const noexcept { return options_.ranks; }
  std::uint32_t parts() const noexcept { return options_.parts; }
  const ShardOptions& options() const noexcept { return options_; }
  // In the order of the file's header.
  std::span<const Tensor> tensors() const noexcept { return tensors_; }

  // What a rank has of a tensor. O(dimensions). Requires: tensor < tensors().size(), rank < ranks().
  Shard shard(std::size_t tensor, std::uint32_t rank) const;
  // The bytes of memory that a rank needs for all its shards. O(1).
  std::uint64_t memory_bytes(std::uint32_t rank) const;

  // The number of pieces. A rank reads pieces [first, second) of reads(rank). O(1).
  std::uint64_t pieces() const noexcept { return first_piece_.empty() ? 0 : first_piece_.back(); }
  std::pair<std::uint64_t, std::uint64_t> reads(std::uint32_t rank) const noexcept;
  // O(log files). Requires: number < pieces().
  ShardPiece piece(std::uint64_t number) const;
  // Calls `put` for each put that follows from a piece, by tensor and then by target. O(log tensors + puts), and
  // O(parts) for each tensor that is split by column. Requires: number < pieces().
  void for_each_put(std::uint64_t number, const std::function<void(const ShardPut&)>& put) const;
  // The puts from all pieces that a rank receives, itself included. O(pieces + tensors).
  std::uint64_t puts_to(std::uint32_t rank) const;

  // O(tensors + pieces + ranks * distinct numbers of units): about a second for 100,000 tensors and 10,000 ranks.
  ShardCost cost() const;

  // Checks that each piece has one reader, that pieces cover each byte of each tensor once, and that the puts write
  // each byte of each shard exactly once, with the byte of the tensor that belongs there, found by its coordinates.
  // kInvalidData says what is wrong. Shares no arithmetic with the plan. O(n log n) for n runs of all puts, with memory
  // for all puts.
  Result<void> check() const;

 private:
  friend Result<ShardPlan> make_shard_plan(std::span<const TensorInfo> tensors, std::span<const ShardRule> rules,
                                           const ShardOptions& options);
  friend struct ShardPlanAccess;  // of tests: damages plans

  struct Extent {
    std::uint64_t begin = 0, end = 0;
  };
  std::uint64_t border(const Tensor& tensor, std::uint32_t part) const noexcept;
  std::uint64_t shard_bytes(const Tensor& tensor, std::uint32_t part) const noexcept;
  std::uint64_t before(const Tensor& tensor, std::uint32_t part, std::uint64_t at) const noexcept;
  template <class Visit>
  void for_each_overlap(const ShardPiece& piece, Visit&& visit) const;
  void put_part(const Tensor& tensor, std::uint32_t index, std::uint32_t part, std::uint64_t begin, std::uint64_t end,
                const std::function<void(const ShardPut&)>& put) const;

  ShardOptions options_{.ranks = 1, .parts = 1};
  std::vector<Tensor> tensors_;
  std::vector<std::uint32_t> by_offset_;    // tensors by file and offset; empty ones are left out
  std::vector<std::uint64_t> first_piece_;  // of each file; the last is the number of all
  std::vector<Extent> extents_;             // of each file: from its first to its last byte of a tensor
  std::uint64_t shared_bytes_ = 0;          // of the memory that is alike on all ranks
  std::vector<std::uint64_t> owned_bytes_;  // by part: of what it alone has
};

// The plan for tensors of a header, such as WeightFile::tensors(). kInvalidArgument: ranks, parts, piece_bytes or
// alignment out of range; a tensor with fewer dimensions than its rule needs, an axis that is no multiple of the rule's
// unit, or a border inside a quantised block; each names the tensor. kInvalidData for tensors that overlap in a file or
// whose size does not follow from their shape. O(tensors * (rules + log tensors)).
Result<ShardPlan> make_shard_plan(std::span<const TensorInfo> tensors, std::span<const ShardRule> rules,
                                  const ShardOptions& options);

// A table: each tensor with its split, and who reads how much. At most `lines` tensors are listed.
std::string to_string(const ShardPlan& plan, std::size_t lines = 40);

// One step from one sharding of tensors to another: `rows` runs of `bytes` bytes from the memory of rank `from` to that
// of rank `to`.
struct ReshardMove {
  std::uint32_t tensor = 0;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint64_t rows = 0;
  std::uint64_t bytes = 0;
  std::uint64_t from_offset = 0, from_pitch = 0;
  std::uint64_t to_offset = 0, to_pitch = 0;
};

// Calls `move` for each step that makes the shards of `to` from those of `from`, where rank r of one is rank r of the
// other. Of ranks that have the same part, the source is the target itself if it is one of them, otherwise each serves
// some. For a tensor that both split along one axis in the same units, M and N parts need at most M + N - gcd(M, N)
// pairs for each replica. kInvalidArgument unless both plans are of the same tensors. O(moves + tensors).
Result<void> reshard(const ShardPlan& from, const ShardPlan& to, const std::function<void(const ReshardMove&)>& move);

}  // namespace berth
