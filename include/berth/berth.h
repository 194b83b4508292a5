// Everything, for programs that want one include.
#pragma once

#include "berth/allocator.h"
#include "berth/block.h"
#include "berth/buffer.h"
#include "berth/cuda.h"
#include "berth/device.h"
#include "berth/dtype.h"
#include "berth/kernel.h"
#include "berth/name.h"
#include "berth/out_of_memory.h"
#include "berth/queue.h"
#include "berth/residency.h"
#include "berth/result.h"
#include "berth/shape.h"
