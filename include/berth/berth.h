// Everything, in reading order: each group may use the groups before it and none after.
#pragma once

#include "berth/base/name.h"
#include "berth/base/result.h"

#include "berth/memory/allocator.h"
#include "berth/memory/block.h"
#include "berth/memory/device.h"
#include "berth/memory/kernel.h"
#include "berth/memory/out_of_memory.h"
#include "berth/memory/queue.h"
#include "berth/memory/residency.h"

#include "berth/alloc/caching_pool.h"
#include "berth/alloc/dry_run.h"
#include "berth/alloc/fault.h"
#include "berth/alloc/growable.h"
#include "berth/alloc/limit.h"
#include "berth/alloc/offset_allocator.h"
#include "berth/alloc/recording.h"
#include "berth/alloc/statistics.h"

#include "berth/tensor/buffer.h"
#include "berth/tensor/dtype.h"
#include "berth/tensor/evictable.h"
#include "berth/tensor/f16.h"
#include "berth/tensor/shape.h"
#include "berth/tensor/step_buffers.h"

#include "berth/plan/memory_map.h"
#include "berth/plan/order.h"
#include "berth/plan/plan.h"
#include "berth/plan/plan_files.h"

#include "berth/run/arena.h"
#include "berth/run/replay.h"
#include "berth/run/schedule.h"

#include "berth/weights/save.h"
#include "berth/weights/weights.h"

#include "berth/interop/cuda.h"
#include "berth/interop/dlpack.h"
#include "berth/interop/metal.h"
