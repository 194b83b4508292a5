// The algorithm of load_sharded() and reshard(), over any transport.
#pragma once

#include "berth/remote/load_sharded.h"
#include "remote/shard_transport.h"

namespace berth::internal {

Result<ShardedTensors> load_sharded(ShardTransport& transport, const WeightFile& file, std::span<const ShardRule> rules,
                                    const AllocatorPtr& allocator, const ShardedLoadOptions& options);

Result<ShardedTensors> reshard(ShardTransport& transport, const ShardedTensors& from, const ShardPlan& to,
                               const AllocatorPtr& allocator, const ShardedLoadOptions& options);

}  // namespace berth::internal
