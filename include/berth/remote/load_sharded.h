// Loads a checkpoint that is split among the ranks of a cluster, and changes the split of what was loaded. All ranks
// together read each byte of the files once; what a rank reads for others it puts into their memory (sharding.h).
//
// Both functions are collective: every rank calls them, in the same order and with the same file, rules and options.
// They give all tensors or none. A rank that fails tells the others, which then fail with its message; a rank that is
// lost is named. Nothing is kept after a failure.
//
//   auto cluster = berth::Cluster::join().value();
//   auto file = berth::open_weights("model.safetensors.index.json").value();
//   auto rules = berth::read_shard_rules("model.rules").value();
//   auto loaded = berth::load_sharded(*cluster, file, rules, berth::device("CPU").value()).value();
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "berth/base/result.h"
#include "berth/remote/cluster.h"
#include "berth/remote/sharding.h"
#include "berth/tensor/buffer.h"
#include "berth/weights/weights.h"

namespace berth {

struct ShardedLoadOptions {
  // As in ShardOptions: how many parts tensors are split into. 0: as many as ranks.
  std::uint32_t parts = 0;
  // The names of the tensors to load, the same on all ranks. Empty: all of the file.
  std::vector<std::string> tensors{};
  std::uint64_t piece_bytes = std::uint64_t{8} << 20;
  // Called after each piece that this rank read, with its own bytes; return false to cancel the load on all ranks.
  std::function<bool(const LoadProgress&)> progress{};
  // Cancels the load, from any thread.
  std::stop_token cancel{};
};

struct ShardedTensors {
  ShardPlan plan{};
  // What this rank has of each tensor of the plan, in its order. A handle without a buffer where it has nothing of a
  // tensor that goes whole to one rank; a buffer of no elements where its part of an axis is empty.
  std::vector<Buffer> buffers{};
};

// The shards of this rank, in new memory of `allocator`. On host memory they share one storage. Memory of other devices
// is filled from a copy on the host, which is freed at the end. Each rank needs 6 pieces of host memory for staging.
// kInvalidArgument and kInvalidData as make_shard_plan(), and if ranks call with different files, rules or options;
// kNotFound for a name that the file does not have; kOutOfMemory; kIo; kCancelled; kDeviceLost, with the rank;
// kDeviceUnavailable, with the rank, if one does not call or does not end in time (give_up_after of the cluster, or ten
// times what this rank needed).
Result<ShardedTensors> load_sharded(Cluster& cluster, const WeightFile& file, std::span<const ShardRule> rules,
                                    const AllocatorPtr& allocator, const ShardedLoadOptions& options = {});

// The same tensors split by another plan of the same cluster: only the bytes that a rank does not have are sent. `from`
// stays as it is. Fails as load_sharded(); kInvalidArgument if the plans are of different tensors, or if `to` is not
// for the ranks of the cluster.
Result<ShardedTensors> reshard(Cluster& cluster, const ShardedTensors& from, const ShardPlan& to,
                               const AllocatorPtr& allocator, const ShardedLoadOptions& options = {});

}  // namespace berth
